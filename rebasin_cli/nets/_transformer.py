"""What `vit` and `gpt` share: pre-norm blocks of attention and an MLP, their options, how they are read back.

Tensors of block i are `blocks.{i}.norm1`, `blocks.{i}.attn.q`, `.k`, `.v`, `.out` and `.scale`,
`blocks.{i}.norm2`, `blocks.{i}.mlp.up`, `.down` and, where it is gated, `.gate`; then come `norm` and `head`.
Vaswani et al. 2017, arXiv:1706.03762; pre-norm: Xiong et al. 2020, arXiv:2002.04745.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import NetworkError, UsageError

NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm}
ACTIVATIONS, POSITIONS = ("gelu", "swiglu"), ("learned", "rope")
Turn = tuple[Tensor, Tensor]  # cosines and sines, (positions, dim / 2) each


@dataclass(frozen=True)
class Plan:
    """What makes two stacks of these blocks differ; `hidden` are the units of an MLP."""

    width: int
    depth: int
    heads: int
    hidden: int
    norm: str = "layer"
    gated: bool = False
    rotary: bool = False

    @property
    def dim(self) -> int:
        """Of one head's queries, keys and values."""
        return self.width // self.heads


def plan(
    name: str,
    *,
    width: float | None,
    norm: str | None,
    depth: int | None,
    heads: int | None,
    activation: str | None,
    positions: str | None,
    axes: int,
) -> Plan:
    """Options with their defaults: 3 blocks of width 64, 4 heads, LayerNorm, GELU, learned positions.

    `axes` of positions are turned by apart under RoPE. Raises UsageError with all that makes no network.
    """
    width, depth, heads = 64 if width is None else width, 3 if depth is None else depth, heads or 4
    problems = []
    if width != int(width) or width < 1:
        problems.append(f"a width of {width:g}; expected a number of units")
    elif width % heads:
        problems.append(f"{heads} heads do not divide a width of {width:g}")
    elif positions == "rope" and width // heads % (2 * axes):
        problems.append(f"heads of {width // heads:g} units; for RoPE expected a multiple of {2 * axes}")
    if depth < 1:
        problems.append(f"a depth of {depth}; expected one block at least")
    for what, value, known in (
        ("norm", norm, NORMS),
        ("activation", activation, ACTIVATIONS),
        ("positions", positions, POSITIONS),
    ):
        if value is not None and value not in known:
            problems.append(f"{what} {value!r}; choose {' or '.join(known)}")
    if problems:
        raise UsageError(f"these options make no {name}", problems=problems, hint="See docs/transformers.md.")
    gated, units = activation == "swiglu", int(width)
    hidden = 8 * units // 3 if gated else 4 * units  # as many numbers with a gate as without
    return Plan(units, depth, heads, hidden, norm or "layer", gated, positions == "rope")


def planned(shapes: Mapping[str, tuple[int, ...]], *, first: str) -> Plan:
    """The plan of exactly these tensors; `first` is what embeds. Raises NetworkError for others."""
    found = (re.fullmatch(r"blocks\.([0-9]{1,9})\.attn\.scale", name) for name in shapes)
    blocks = sorted(int(match[1]) for match in found if match)
    needed = [first, "blocks.0.attn.scale", "blocks.0.mlp.up.weight", "norm.weight", "head.weight"]
    ranks = (None, 1, 2, 1, 2)
    missing = [
        f"{name} is missing, or has other axes"
        for name, rank in zip(needed, ranks, strict=True)
        if not (shape := shapes.get(name)) or 0 in shape or (rank is not None and len(shape) != rank)
    ]
    if missing or blocks != list(range(len(blocks))):
        raise NetworkError(
            "these tensors are no transformer of rebasin's",
            problems=missing,
            hint=f"Expected {first}, blocks.0.…, blocks.1.…, …, norm.weight, head.weight.",
        )
    (heads,), (hidden, width) = shapes["blocks.0.attn.scale"], shapes["blocks.0.mlp.up.weight"]
    if width % heads:
        raise NetworkError(
            f"{heads} heads do not divide a width of {width}: these tensors are no transformer"
        )
    return Plan(
        width,
        len(blocks),
        heads,
        hidden,
        "layer" if "norm.bias" in shapes else "rms",
        "blocks.0.mlp.gate.weight" in shapes,
        "pos_embed" not in shapes,
    )


class Rotary(nn.Module):
    """Rotary positions: queries and keys are turned, pair by pair, by angles that grow with the position.

    With several axes each has a part of the pairs. Su et al. 2021, §3.2, arXiv:2104.09864; pairs are units
    j and j + dim / 2.
    """

    frequencies: Tensor

    def __init__(self, dim: int, *, axes: int, base: float):
        super().__init__()
        pairs = dim // (2 * axes)
        self.register_buffer("frequencies", base ** (-torch.arange(pairs) / pairs), persistent=False)

    def forward(self, places: Tensor) -> Turn:
        """Of places (positions, axes)."""
        angles = (places[:, :, None] * self.frequencies).flatten(1)
        return angles.cos(), angles.sin()


def turned(x: Tensor, turn: Turn) -> Tensor:
    (cos, sin), (one, two) = turn, x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Attention(nn.Module):
    """`heads` heads, each position attending to all, or with `causal` to itself and those before.

    The buffer `scale` is what each head's scores are multiplied by, 1 / √dim. Its length also says how many
    heads there are, which no other tensor's shape tells.
    """

    scale: Tensor

    def __init__(self, width: int, heads: int, *, causal: bool):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.register_buffer("scale", torch.full((heads,), (width // heads) ** -0.5))
        self.causal = causal

    def forward(self, x: Tensor, turn: Turn | None = None) -> Tensor:
        heads = len(self.scale)
        q, k, v = (layer(x).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        if turn is not None:
            q, k = turned(q, turn), turned(k, turn)
        q = q * self.scale[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=1.0)
        made: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return made


class FeedForward(nn.Module):
    """GELU between two linear maps, or gated: SiLU of one map times another (SwiGLU, arXiv:2002.05202)."""

    def __init__(self, width: int, hidden: int, *, gated: bool):
        super().__init__()
        self.gate = nn.Linear(width, hidden) if gated else None
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.gelu(self.up(x)) if self.gate is None else F.silu(self.gate(x)) * self.up(x)
        made: Tensor = self.down(inner)
        return made


class Block(nn.Module):
    def __init__(self, plan: Plan, *, causal: bool):
        super().__init__()
        self.norm1 = NORMS[plan.norm](plan.width)
        self.attn = Attention(plan.width, plan.heads, causal=causal)
        self.norm2 = NORMS[plan.norm](plan.width)
        self.mlp = FeedForward(plan.width, plan.hidden, gated=plan.gated)

    def forward(self, x: Tensor, turn: Turn | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), turn)
        made: Tensor = x + self.mlp(self.norm2(x))
        return made


def initialize(network: nn.Module) -> None:
    """Linear maps as Glorot and Bengio (uniform) without biases; embeddings small, deviation 0.02."""
    for name, parameter in network.named_parameters():
        if "embed" in name:
            nn.init.zeros_(parameter) if name.endswith("bias") else nn.init.normal_(parameter, std=0.02)
        elif parameter.ndim == 2:
            nn.init.xavier_uniform_(parameter)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
