"""Vision transformer: patches of an image, pre-norm blocks, the mean over patches, a linear layer.

`depth` (3) blocks of `width` (64) with `heads` (4); LayerNorm or RMSNorm, GELU or SwiGLU, learned positions
or rotary ones by row and column. Tensors are `patch_embed`, `pos_embed` where positions are learned,
`blocks.{i}.…`, `norm` and `head`; there is no class token.

Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, arXiv:2010.11929.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..errors import NetworkError, UsageError
from . import _transformer as t

VARIANTS = ("vit",)
READS = "images"

BASE = 100.0  # of rotary positions: grids have few rows


class ViT(nn.Module):
    """Images (N, C, H, W) to logits (N, classes).

    `patch` is (C, height, width) of one; `positions` are how many patches an image has, None for rotary ones.
    """

    def __init__(self, plan: t.Plan, patch: Sequence[int], positions: int | None, classes: int):
        super().__init__()
        channels, height, width = patch
        self.patch_embed = nn.Conv2d(channels, plan.width, (height, width), stride=(height, width))
        self.pos_embed = nn.Parameter(torch.zeros(positions, plan.width)) if positions else None
        self.rotary = None if positions else t.Rotary(plan.dim, axes=2, base=BASE)
        self.blocks = nn.ModuleList(t.Block(plan, causal=False) for _ in range(plan.depth))
        self.norm = t.NORMS[plan.norm](plan.width)
        self.head = nn.Linear(plan.width, classes)
        rows, columns = _grid(positions or 6)
        self.example_shape: tuple[int, ...] = (channels, rows * height, columns * width)

    def forward(self, x: Tensor) -> Tensor:
        grid = self.patch_embed(x)
        x = grid.flatten(2).transpose(1, 2)
        if self.pos_embed is not None:
            x = x + self.pos_embed
        turn = None if self.rotary is None else self.rotary(_places(grid))
        for block in self.blocks:
            x = block(x, turn)
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def _places(grid: Tensor) -> Tensor:
    """Row and column of every patch, (patches, 2), as they are flattened."""
    sides = (torch.arange(n, device=grid.device, dtype=grid.dtype) for n in grid.shape[-2:])
    return torch.cartesian_prod(*sides)


def _grid(positions: int) -> tuple[int, int]:
    """The rows and columns that are most nearly a square: a table of positions tells no more."""
    rows = next(n for n in range(math.isqrt(positions), 0, -1) if positions % n == 0)
    return rows, positions // rows


def build(
    name: str,
    *,
    input_shape: Sequence[int],
    classes: int,
    width: float | None = None,
    norm: str | None = None,
    depth: int | None = None,
    heads: int | None = None,
    patch: int | None = None,
    activation: str | None = None,
    positions: str | None = None,
) -> ViT:
    """A network to train. Patches are squares; without `patch` as large as give 49 of them or fewer.

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
        axes=2,
    )
    if len(input_shape) != 3:
        raise UsageError(f"{name} reads images (C, H, W), not {tuple(input_shape)}")
    channels, *sides = input_shape
    both = math.gcd(*sides)
    fitting = [n for n in range(1, both + 1) if both % n == 0]
    if patch is None:
        patch = next((n for n in fitting if math.prod(sides) // n**2 <= 49), both)
    if patch not in fitting:
        raise UsageError(
            f"patches of {patch}×{patch} do not divide images of {sides[0]}×{sides[1]}",
            hint=f"Choose --patch {', '.join(map(str, fitting))}.",
        )
    count = None if plan.rotary else math.prod(sides) // patch**2
    network = ViT(plan, (channels, patch, patch), count, classes)
    t.initialize(network)
    network.example_shape = tuple(input_shape)
    return network


def from_shapes(shapes: Mapping[str, tuple[int, ...]]) -> ViT:
    """The network of exactly these tensors. Raises NetworkError where they are no ViT of rebasin's."""
    plan = t.planned(shapes, first="patch_embed.weight")
    kernel, positions = shapes["patch_embed.weight"], shapes.get("pos_embed", (None,))[0]
    if len(kernel) != 4:
        raise NetworkError(
            f"patch_embed.weight is {tuple(kernel)}; expected (width, channels, height, width)"
        )
    return ViT(plan, kernel[1:], positions, shapes["head.weight"][0])
