"""Small networks whose words have groups beyond permutations, for tests of several rooms."""

import functools

import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.inference.inferring import infer


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.o(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A pre-norm encoder over 5 tokens of 6 numbers."""

    example_shape = (5, 6)

    def __init__(self, width=8, heads=2, blocks=2):
        super().__init__()
        self.embed, self.place = nn.Linear(6, width), nn.Parameter(torch.randn(5, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, x):
        x = self.embed(x) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class NoBias(Transformer):
    """Layers that read norms have no biases to take theirs up."""

    def __init__(self, width=8, heads=2, blocks=1):
        super().__init__(width, heads, blocks)
        for block in self.blocks:
            block.q, block.k, block.v, block.up = (
                nn.Linear(layer.in_features, layer.out_features, bias=False)
                for layer in (block.q, block.k, block.v, block.up)
            )


class PackedBlock(Block):
    def __init__(self, width, heads):
        super().__init__(width, heads)
        del self.q, self.k, self.v, self.o
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Packed(Transformer):
    """The same with query, key and value in one projection."""

    def __init__(self, width=8, heads=2, blocks=2):
        super().__init__(width, heads, blocks)
        self.blocks = nn.ModuleList(PackedBlock(width, heads) for _ in range(blocks))


class RotaryBlock(nn.Module):
    """Two queries for each head of keys, turned by their positions; pairs are halves or neighbours."""

    def __init__(self, width, heads, halves):
        super().__init__()
        self.heads, self.halves, dim = heads, halves, 4
        self.norm = nn.RMSNorm(width)
        self.q = nn.Linear(width, 2 * heads * dim)
        self.k, self.v = (nn.Linear(width, heads * dim) for _ in range(2))
        self.o = nn.Linear(2 * heads * dim, width, bias=False)
        self.register_buffer("speeds", torch.tensor([1.0, 0.3]), persistent=False)

    def turned(self, x):
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * self.speeds
        cos, sin = angles.cos(), angles.sin()
        a, b = x.chunk(2, -1) if self.halves else (x[..., 0::2], x[..., 1::2])
        a, b = a * cos - b * sin, b * cos + a * sin
        return torch.cat([a, b], -1) if self.halves else torch.stack([a, b], -1).flatten(-2)

    def forward(self, x):
        y = self.norm(x)
        q = self.turned(self.q(y).unflatten(-1, (2 * self.heads, -1)).transpose(1, 2))
        k, v = (f(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.k, self.v))
        k, v = (part.repeat_interleave(2, 1) for part in (self.turned(k), v))
        if self.halves:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:  # written out
            mixed = (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return x + self.o(mixed.transpose(1, 2).flatten(2))


class Rotary(nn.Module):
    """RMSNorm, rotary positions, grouped queries."""

    example_shape = (5, 6)

    def __init__(self, halves=True, heads=2, width=8):
        super().__init__()
        self.embed = nn.Linear(6, width, bias=False)
        self.block, self.last = RotaryBlock(width, heads, halves), nn.RMSNorm(width)
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.last(self.block(self.embed(x))))


class Neighbours(Rotary):
    """The same, each pair side by side, a single head of keys, and attention written out."""

    def __init__(self):
        super().__init__(halves=False, heads=1)


class OneLayerBlock(RotaryBlock):
    """One layer makes queries, keys and values; `part` cuts its rows. Of a head's units 4 are turned."""

    def __init__(self, width, heads, queries, dim, part):
        super().__init__(width, heads, halves=True)
        del self.q, self.k, self.v
        self.queries, self.dim, self.part = queries, dim, part
        self.qkv = nn.Linear(width, heads * (queries + 2) * dim)
        self.o = nn.Linear(heads * queries * dim, width, bias=False)

    def turned(self, x):
        return torch.cat([super().turned(x[..., :4]), x[..., 4:]], -1)

    def forward(self, x):
        parts = self.part(self.qkv(self.norm(x)), self.heads, self.dim)
        q, k, v = (part.transpose(1, 2) for part in parts)
        q, k = self.turned(q), self.turned(k)
        k, v = (part.repeat_interleave(self.queries, 1) for part in (k, v))
        return x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OneLayer(Rotary):
    """Queries, keys and values from one layer, all rows of each side by side, as in Phi-3."""

    queries, dim = 2, 4

    def __init__(self):
        super().__init__()
        self.block = OneLayerBlock(8, 2, self.queries, self.dim, self.part)

    @staticmethod
    def part(x, heads, dim):
        return x.unflatten(-1, (-1, dim)).tensor_split((-2 * heads, -heads), dim=-2)


class ByHead(OneLayer):
    """Each head's query, key and value side by side, and two units that are not turned: GPT-NeoX."""

    queries, dim = 1, 6

    @staticmethod
    def part(x, heads, dim):
        return x.unflatten(-1, (heads, 3 * dim)).chunk(3, -1)


class ByGroup(OneLayer):
    """Each head's queries, then its key and value, as in Falcon."""

    @staticmethod
    def part(x, heads, dim):
        parts = x.unflatten(-1, (heads, -1, dim)).tensor_split((-2, -1), dim=-2)
        return tuple(part.flatten(2, 3) for part in parts)


class NormedBlock(RotaryBlock):
    """Queries and keys pass a norm each before positions turn them."""

    def __init__(self, width, heads, gains):
        super().__init__(width, heads, halves=True)
        self.q_norm, self.k_norm = (nn.RMSNorm(4, elementwise_affine=gains) for _ in range(2))

    def forward(self, x):
        y = self.norm(x)
        q = self.turned(self.q_norm(self.q(y).unflatten(-1, (2 * self.heads, -1))).transpose(1, 2))
        k, v = (f(y).unflatten(-1, (self.heads, -1)) for f in (self.k, self.v))
        k, v = (part.transpose(1, 2).repeat_interleave(2, 1) for part in (self.k_norm(k), v))
        mixed = F.scaled_dot_product_attention(q, self.turned(k), v)
        return x + self.o(mixed.transpose(1, 2).flatten(2))


class NormedFirst(Rotary):
    """The same, with norms of queries and keys, as in Qwen3."""

    def __init__(self, gains=True):
        super().__init__()
        self.block = NormedBlock(8, 2, gains)


class After(nn.Module):
    """Post-norm: what comes out of each norm is the stream."""

    example_shape = (8,)

    def __init__(self):
        super().__init__()
        self.embed, self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 6), nn.Linear(6, 8)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.embed(x)
        x = self.norm(x + self.down(F.gelu(self.up(x))))
        return self.head(x) + self.head(self.norm(x + self.down(F.gelu(self.up(x)))))


class Gated(nn.Module):
    """RMSNorm and a gated layer without biases."""

    example_shape = (5, 6)

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Linear(6, width, bias=False)
        self.norm, self.last = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up = nn.Linear(width, 12, bias=False), nn.Linear(width, 12, bias=False)
        self.down, self.head = nn.Linear(12, width, bias=False), nn.Linear(width, 3, bias=False)

    def forward(self, x):
        x = self.embed(x)
        y = self.norm(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return self.head(self.last(x))


class Layers(nn.Module):
    """Three layers with an activation between."""

    example_shape = (4,)

    def __init__(self, act):
        super().__init__()
        self.a, self.b, self.c, self.act = nn.Linear(4, 8), nn.Linear(8, 7), nn.Linear(7, 3), act

    def forward(self, x):
        return self.c(self.act(self.b(self.act(self.a(x)))))


class Factored(nn.Module):
    """A layer of low rank: nothing between its two factors."""

    example_shape = (9,)

    def __init__(self):
        super().__init__()
        self.inner, self.outer, self.head = nn.Linear(9, 4), nn.Linear(4, 12), nn.Linear(12, 3)

    def forward(self, x):
        return self.head(F.gelu(self.outer(self.inner(x))))


def relu():
    return Layers(torch.relu)


def tanh():
    return Layers(torch.tanh)


@functools.cache
def inferred(make):
    """A network and its symmetries, not proven; looked at once for all tests of a process."""
    net = make()
    return net, infer(net, torch.randn(2, *net.example_shape), groups=True, prove=False)


def transformer():
    """A factory for the command line."""
    return Transformer(blocks=1)


def wide():
    """So wide that small turns are no longer told in float32."""
    return Transformer(64, 4, blocks=1)


def drawn(network, seed):
    """Its tensors with values of their own, in float64, so that no gain is 1 and no bias 0."""
    rng = torch.Generator().manual_seed(seed)
    state = network.state_dict()
    return {
        name: (torch.randn(t.shape, generator=rng) * (0.4 if t.ndim > 1 else 0.3)).double()
        + (1 if t.ndim == 1 and name.endswith("weight") else 0)
        for name, t in state.items()
    }


def outputs(network, tensors, seed=0):
    """What the network computes with these tensors, in float64."""
    network = network.double()
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(3, *network.example_shape, generator=rng).double()
    return torch.func.functional_call(network, dict(tensors), (x,)).detach()
