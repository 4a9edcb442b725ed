"""Language model: characters, pre-norm blocks in which each sees itself and those before, the next character.

`depth` (3) blocks of `width` (64) with `heads` (4); LayerNorm or RMSNorm, GELU or SwiGLU, learned or rotary
positions. Tensors are `tok_embed`, `pos_embed` where positions are learned, `blocks.{i}.…`, `norm` and
`head`, which is not tied to the embedding.

Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError
from . import _transformer as t

VARIANTS = ("gpt",)
READS = "text"

BASE = 10_000.0


class GPT(nn.Module):
    """Numbers of characters (N, T) to logits (N, characters, T), the classes second as for every loss.

    `positions` is the longest T where positions are learned, None for rotary ones.
    """

    def __init__(self, plan: t.Plan, characters: int, positions: int | None, classes: int):
        super().__init__()
        self.tok_embed = nn.Embedding(characters, plan.width)
        self.pos_embed = nn.Parameter(torch.zeros(positions, plan.width)) if positions else None
        self.rotary = None if positions else t.Rotary(plan.dim, axes=1, base=BASE)
        self.blocks = nn.ModuleList(t.Block(plan, causal=True) for _ in range(plan.depth))
        self.norm = t.NORMS[plan.norm](plan.width)
        self.head = nn.Linear(plan.width, classes)
        self.example_shape: tuple[int, ...] = (positions or 16,)
        self.example_below = characters

    def forward(self, tokens: Tensor) -> Tensor:
        x, length = self.tok_embed(tokens), tokens.shape[1]
        if self.pos_embed is not None:
            if length > len(self.pos_embed):
                raise NetworkError(
                    f"{length} characters, and the network has learned {len(self.pos_embed)} positions"
                )
            x = x + self.pos_embed[:length]
        turn = None
        if self.rotary is not None:
            turn = self.rotary(torch.arange(length, device=x.device, dtype=x.dtype)[:, None])
        for block in self.blocks:
            x = block(x, turn)
        logits: Tensor = self.head(self.norm(x)).transpose(1, 2)
        return logits


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
    heads: int | None = None,
    activation: str | None = None,
    positions: str | None = None,
) -> GPT:
    """A network to train on windows of `input_shape` (T,) of as many characters as `classes`.

    Raises UsageError.
    """
    plan = t.plan(
        name,
        width=width,
        norm=norm,
        depth=depth,
        heads=heads,
        activation=activation,
        positions=positions,
        axes=1,
    )
    if len(input_shape) != 1:
        raise UsageError(f"{name} reads windows of text (T,), not {tuple(input_shape)}")
    network = GPT(plan, classes, None if plan.rotary else input_shape[0], classes)
    t.initialize(network)
    network.example_shape = tuple(input_shape)
    return network


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> GPT:
    """The network of exactly these tensors. Raises NetworkError where they are no GPT of rebasin's."""
    plan = t.planned(shapes, first="tok_embed.weight")
    positions = shapes.get("pos_embed", (None,))[0]
    return GPT(plan, shapes["tok_embed.weight"][0], positions, shapes["head.weight"][0])
