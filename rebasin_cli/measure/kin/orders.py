"""Do units of two models that stand at one place belong together? A permutation test, exact.

Training does not know the order of hidden units. So the units of a network that has nothing to do with A lie
in any order of its spec's group as likely as in the one that it has, and a statistic of A and B is one of
many that are alike. Fine-tuned, pruned, rounded, partly merged copies keep their order. What an architecture
gives all its networks alike (the mean over units, a diagonal, a table that is the same in both, an order
that an exporter sorts units by) is no evidence, and is taken out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...spec.atoms import Atom, atoms
from ...spec.spec import Block
from .draws import by_draws
from .parts import FLAT, Part, inner, merged, parts_of
from .sampled import Sample
from .variance import closed_variance

SORTED = 0.9  # rank correlation of a unit's size and its place, in both models
MANY = 700.0  # the exponent of what is as good as infinite
FEW = 8  # units, of which no order tells that it was sorted


@dataclass(frozen=True)
class InPlace:
    """What the test found. `statistic` is Σ of the tensors' cosines, of a unit's own deviations.

    There are `orders` of the units, in which B could be. `z` is the distance from what orders by chance give,
    in standard deviations: in `closed` form, or by the draws. `p` is (1 + draws that reach it) / (1 + draws);
    NaN, as z, where `tensors` is empty. `same` are equal in both bit for bit. `held` says of each word that
    was held in place why. `left_out` says of tensors why.
    """

    statistic: float
    z: float
    p: float
    draws: int
    closed: bool
    tensors: tuple[str, ...]
    cosines: tuple[float, ...]
    same: tuple[str, ...]
    held: Mapping[str, str]
    left_out: Mapping[str, str]
    orders: float = 1.0


def in_place(found: Sample, *, draws: int = 999, seed: int = 0) -> InPlace:
    """Draw orders of the spec's own group, and count how many bring B as near to A as it is.

    What both have alike, bit for bit, is evidence where it is most of them; else it is left out, and its
    words stay, since a table or an initialisation that is always the same gives units their places.
    """
    own = [atom for atom in atoms(found.fitted) if atom.tensor in found.matrices]
    alike = [name for name in found.matrices if torch.equal(found.a[name], found.b[name])]
    same = tuple(name for name in alike if _telling(found, name))
    held = _sorted(found)
    left: dict[str, str] = {}
    if 2 * len(same) <= len(found.matrices) - len(alike) + len(same):
        left |= {name: "equal in both, bit for bit: as a table would be" for name in same}
        for atom in own:
            if atom.tensor in same:
                tables = {word: f"{atom.tensor} is equal in both" for word in atom.words if word is not None}
                held = tables | held
    held = _with_inner(held, found.fitted.within)
    within = {
        word: Block(None, block.count, block.size) if block.word in held else block
        for word, block in found.fitted.within.items()
        if word not in held
    }
    parts, more = parts_of(found, [a for a in own if a.tensor not in left], held, within)
    left |= more
    words = {word: size for word, size in found.fitted.words.items() if word not in held}
    names = tuple(dict.fromkeys(part.tensor for part in parts))
    if not parts:
        nothing = (math.nan,) * 3
        return InPlace(*nothing, 0, False, (), (), same, held, left)
    cosines = tuple(sum(inner(p.x, p.y) for p in parts if p.tensor == name) for name in names)
    joined = merged(parts)
    drawn = by_draws(joined, words, within, draws, seed)
    statistic = sum(inner(part.x, part.y) for part in joined)
    variance = closed_variance(joined, within)
    mean, deviation = (0.0, math.sqrt(variance)) if variance is not None else _moments(drawn)
    # Orders that exchange equal units reach the same number but for the last bits
    reached = len(drawn) - int((drawn < statistic - 1e-6 * len(names)).sum())  # also what is no number
    z = (statistic - mean) / deviation if deviation else math.nan
    p = (1 + reached) / (1 + len(drawn))
    count = _orders(joined, words, within)
    return InPlace(statistic, z, p, len(drawn), variance is not None, names, cosines, same, held, left, count)


def _orders(parts: Sequence[Part], words: Mapping[str, int], within: Mapping[str, Block]) -> float:
    """How many orders of units there are; infinite where that is no number."""
    log = 0.0
    for word in dict.fromkeys(word for part in parts for word in part.words):
        block = within.get(word)
        log += math.lgamma(words[word] + 1) if block is None else block.count * math.lgamma(block.size + 1)
    return math.exp(log) if log < MANY else math.inf


def _telling(found: Sample, name: str) -> bool:
    """Whether a tensor of A has more than what is alike for all units."""
    return any(
        (x - _mean_over(x, atom)).norm() > FLAT * x.norm()
        for atom in atoms(found.fitted)
        if atom.tensor == name
        for x in [atom.view(found.a[name])]
    )


def _mean_over(x: Tensor, atom: Atom) -> Tensor:
    dims = [dim for dim, word in enumerate(atom.words) if word is not None]
    return x.mean(dims, keepdim=True) if dims else x


def _with_inner(held: Mapping[str, str], within: Mapping[str, Block]) -> dict[str, str]:
    """With what a starred word that is held lies within: units that stay in their heads hold the heads."""
    more = {
        block.word: held[word] for word, block in within.items() if word in held and block.word is not None
    }
    return {**more, **held}


def _sorted(found: Sample) -> dict[str, str]:
    """The words whose units lie sorted by some size in both models: an exporter gave them their places."""
    held: dict[str, str] = {}
    for atom in atoms(found.fitted):
        for dim, word in enumerate(atom.words):
            if word is None or word in held:
                continue
            block = found.fitted.within.get(word)
            keys = [_keys(atom.view(model[atom.tensor]), dim) for model in (found.a, found.b)]
            for (what, x), (_, y) in zip(*keys, strict=True):
                ranks = [_sortedness(key, block) for key in (x, y)]
                if min(ranks) >= SORTED or max(ranks) <= -SORTED:
                    held[word] = f"units lie sorted in both, by {what} of {atom.tensor}"
                    break
    return held


def _keys(x: Tensor, dim: int) -> list[tuple[str, Tensor]]:
    rows = x.movedim(dim, 0).flatten(1) if x.ndim > 1 else x[:, None]
    keys = [("the sum", rows.sum(1)), ("the norm", rows.norm(dim=1)), ("the size", rows.abs().sum(1))]
    return keys if x.ndim > 1 else keys[:2]


def _sortedness(key: Tensor, block: Block | None) -> float:
    """Rank correlation of a size and the place; of units within blocks the mean over blocks."""
    rows = key.reshape(1, -1) if block is None else key.reshape(block.count, block.size)
    n = rows.shape[1]
    if n < FEW or (rows.amax(1) == rows.amin(1)).any():
        return 0.0
    ranks = rows.argsort(dim=1, stable=True).argsort(dim=1).double()
    place = torch.arange(n).double()
    return float((1 - 6 * (ranks - place).square().sum(1) / (n * (n * n - 1))).mean())


def _moments(drawn: Tensor) -> tuple[float, float]:
    return float(drawn.mean()), float(drawn.std()) if len(drawn) > 1 else 0.0
