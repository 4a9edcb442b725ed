"""A language model whose experts are tensors of their own, as Mixtral's and Qwen-MoE's are, in small."""

import torch
from torch import nn

EXPERTS, HIDDEN, WIDTH, LAYERS, TOKENS, ACTIVE = 5, 6, 8, 2, 13, 2

SPEC = """
tensors:
  embed.weight: ". stream"
  layers.{i}.norm.weight: "stream"
  layers.{i}.gate.weight: "layers.{i}.experts stream"
  layers.{i}.experts.{}.w1.weight: "layers.{i}.experts layers.{i}.hidden* stream"
  layers.{i}.experts.{}.w3.weight: "layers.{i}.experts layers.{i}.hidden* stream"
  layers.{i}.experts.{}.w2.weight: "layers.{i}.experts stream layers.{i}.hidden*"
  head.weight: ". stream"
within:
  layers.{i}.hidden: "layers.{i}.experts"
"""


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w3 = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    """The router takes the best experts of each token; with `sparse` each computes its own tokens only."""

    def __init__(self, sparse):
        super().__init__()
        self.sparse = sparse
        self.norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x):
        tokens = self.norm(x).flatten(0, 1)
        best, which = self.gate(tokens).softmax(-1).topk(ACTIVE)
        best = best / best.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        if self.sparse:
            for k, expert in enumerate(self.experts):
                at, place = torch.where(which == k)
                out.index_add_(0, at, expert(tokens[at]) * best[at, place, None])
        else:
            shares = torch.zeros(len(tokens), EXPERTS, dtype=x.dtype).scatter(1, which, best)
            out = sum(shares[:, k : k + 1] * expert(tokens) for k, expert in enumerate(self.experts))
        return x + out.view(x.shape)


class Mixture(nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.ModuleList(Layer(sparse) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def dense():
    """The same function, computed so that a graph shows it: every expert sees every token."""
    return Mixture(sparse=False)
