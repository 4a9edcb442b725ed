"""Elements by what units do on data: of every word the one nearest to second moments of both models.

A stream is looked at in all its sums, heads in their queries, keys and what they give. At each place the
products of both models' activations are divided by their norms, so that every place counts alike; their sum
is C, and the word's element is the nearest one to it. Words that are only ordered are matched as `am` does,
and what nothing shows by weights (`unseen`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch

from ...symmetry import assignment, permutation, projection
from ...symmetry.elements import Elements
from .. import Problem
from ..descent import turned
from ..descent.starred import Group
from . import unseen
from .moments import Moments
from .observation import Sums, observed
from .options import Looking
from .similarities import best, compared, sides_of


@dataclass(frozen=True)
class Seen:
    """What data show of words that are matched together: `matrices` (n, n), and what their best element is
    worth, whose `perms` and `maps` are given. `ordered`: it is a word that only changes its order."""

    matrices: dict[str, torch.Tensor]
    perms: dict[str, torch.Tensor]
    maps: dict[str, torch.Tensor]
    worth: float
    ordered: bool = False


def judged(problem: Problem, parts: Sequence[Seen]) -> tuple[Elements, float, float]:
    """The element of the model beside the reference, and the similarity before and after."""
    before = sum(float(matrix.trace()) for part in parts for matrix in part.matrices.values())
    return nearest(problem, parts), before, sum(part.worth for part in parts)


def nearest(problem: Problem, parts: Sequence[Seen]) -> Elements:
    """The element of all parts, and of what nothing shows by weights."""
    fitted = problem.fitted
    perms = permutation.identity(fitted.words)
    maps: dict[str, torch.Tensor] = {}
    for part in parts:
        perms |= part.perms
        maps |= part.maps
    found = Elements(permutation.carried(perms, fitted.within), maps)
    hidden = unseen.words(turned.groups(fitted).values(), fitted)
    return unseen.by_weights(problem, found, hidden) if hidden else found


def seen(problem: Problem, options: Looking) -> list[Seen]:
    """All that data show of both models, which are in canonical form, words that move together at a time.

    Raises as `am.match`.
    """
    fitted = problem.fitted
    *_, (_, sums) = observed(problem, options, sides=sides_of(options))
    units = turned.groups(fitted).values()
    whole, hidden = {word for unit in units for word in unit.words}, unseen.words(units, fitted)
    similar = compared(sums, options)
    ordered = {side: {w: m for w, m in its.items() if w not in whole} for side, its in similar.items()}
    settled = best(ordered, options, fitted)
    found = [Seen({}, dict(settled.permutations), {}, 0.0)]  # also of words that nothing shows
    for word, matrix in settled.first.items():
        worth = assignment.total(matrix, settled.permutations[word])
        found.append(Seen({word: matrix}, {}, {}, worth, ordered=True))
    side = sides_of(options)[0]
    for unit in units:
        shown = {word: _products(sums, side, word) for word in unit.words if word not in hidden}
        its = {word: products for word, products in shown.items() if products is not None}
        found.append(Seen(its, *_nearest(unit, its, problem)))
    return found


def _products(sums: Sums, side: str, word: str) -> torch.Tensor | None:
    """Σ over places of Σ x yᵀ / (‖x‖ ‖y‖), sums over samples; None where the word is seen nowhere."""
    found = [normed(moments) for key, moments in sums.items() if key[:2] == (side, word)]
    return reduce(torch.add, found).cpu() if found else None


def normed(moments: Moments) -> torch.Tensor:
    """Products of all pairs of units over both models' norms; 0 where a model shows nothing."""
    scale = (moments.squares[0].sum() * moments.squares[1].sum()).sqrt()
    return torch.where(scale > 0, moments.products / scale, 0.0)


def _nearest(
    unit: Group, seen: dict[str, torch.Tensor], problem: Problem
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], float]:
    """Orders, maps and what they are worth."""
    fitted = problem.fitted
    if not seen:
        return {}, {}, 0.0
    if not unit.starred:
        (word,) = unit.words
        one = projection.project(seen[word], fitted.groups[word])
        perms = {word: one.perm} if fitted.group(word).ordered else {}
        return perms, {} if one.map is None else {word: one.map}, one.value
    inner = {word: seen[word] for word in unit.starred if word in seen}
    best = turned.nearest(unit, inner, fitted)
    return best.perms, best.maps, best.gain
