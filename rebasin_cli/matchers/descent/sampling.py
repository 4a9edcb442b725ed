"""A part of the columns of a similarity, in place of all of them: near copies are told apart by a few.

What is found so is proven on all columns, or not believed (`proof`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...spec.atoms import Atom
from ...types import Permutations
from .pair import SLIVER, Pair
from .values import summed_squares

UNITS = 256  # below which products take no longer than a proof
COLUMNS = 128  # of a sample: among fewer many units look alike
SHARE = 1 / 16  # of all columns, if that is more, and not more than …
ROOM = 1 << 25  # … bytes of each model
SMALLER = 3  # times as many columns are worth a sample
TRIED = 16  # rows that tell whether two models are near copies


@dataclass(frozen=True)
class Sample:
    """A word's products on a sample, less the prices of B's units: row by row, the nearest unit is best."""

    matrix: torch.Tensor  # (n, n)
    prices: torch.Tensor  # (n,) float64
    share: float  # of all columns

    def nearest(self) -> torch.Tensor:
        """(n,) int64; torch's own search takes ten times as long as numpy's."""
        return torch.from_numpy(self.matrix.cpu().numpy().argmax(axis=1))


def worth_it(pair: Pair, word: str, chosen: Sequence[Atom]) -> bool:
    """Whether a sample of these atoms is much less work than all of them."""
    return pair.words[word] >= UNITS and pair.columns(_wide(pair, word, chosen), word) >= SMALLER * COLUMNS


def draw(pair: Pair, word: str, chosen: Sequence[Atom], permutations: Permutations) -> Sample | None:
    """A sample of `chosen`; None where no proof may be hoped for, because the models are no near copies.

    A price is half of a unit's squared norm. It leaves as a row's margin by how much other units are farther
    than the nearest, whatever their norms; a few rows tell beforehand whether that is enough.
    """
    wide = _wide(pair, word, chosen)
    columns = pair.columns(wide, word)
    share = max(COLUMNS, min(SHARE * columns, ROOM / (pair.dtype.itemsize * pair.words[word]))) / columns
    slab = pair.sample(word, permutations, wide, share)
    rows = torch.arange(TRIED) * pair.words[word] // TRIED
    products = pair.ranks.sum(slab[0][rows.to(pair.device)] @ slab[1].T).cpu().double()
    a, b = pair.ranks.sum(torch.stack([summed_squares(side, 0) for side in slab]))
    if not min(a.sum(), b.sum()) > 0:
        return None
    ratio = (b.sum() / a.sum()).sqrt()  # B's norm over A's, as in distances
    prices = b / ratio / 2
    best = (products - prices).topk(2, dim=1).values
    apart = ratio * a[rows] / 2 - best[:, 0]  # half a squared distance
    left = best[:, 0] - best[:, 1] - apart / share
    if not pair.ranks.agree(left.min().item()) > 0:
        return None
    matrix = pair.product(word, slab).sub_(prices.to(device=pair.device, dtype=pair.dtype))
    return Sample(matrix, prices, share)


def _wide(pair: Pair, word: str, chosen: Sequence[Atom]) -> list[Atom]:
    """The atoms that a sample is taken from: columns of others would be products of their own."""
    return [atom for atom in chosen if pair.columns([atom], word) >= SLIVER]
