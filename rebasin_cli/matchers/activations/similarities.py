"""Similarities of units by their activations, and the assignments that are best by them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from ...spec.spec import FittedSpec
from ...symmetry import assignment, permutation
from .. import Problem
from ..descent.starred import groups, together
from .constrained import Within, within
from .observation import Sums, observed
from .options import Looking

GRID = 24  # bits of a similarity that count; activations have no more in float32
TIGHT = 1e-9  # of the largest similarity: a pair that costs an optimal assignment less costs it nothing

Similar = Mapping[str, torch.Tensor]  # of every word, (n, n)


def similarities(problem: Problem, options: Looking) -> dict[str, dict[str, torch.Tensor]]:
    """The similarity (n, n), float64, of every word, "post" and "pre" as far as they are asked for."""
    sides = sides_of(options)
    *_, (_, sums) = observed(problem, options, sides=sides)
    return compared(sums, options)


def sides_of(options: Looking) -> tuple[str, ...]:
    return (options.at,) if options.at in ("post", "pre") else ("post", "pre")


def compared(sums: Sums, options: Looking) -> dict[str, dict[str, torch.Tensor]]:
    """The similarities that sums over samples give, the mean over a word's sites."""
    found: dict[str, dict[str, torch.Tensor]] = {side: {} for side in sides_of(options)}
    for side, word in dict.fromkeys(key[:2] for key in sums if key[0] in found):
        its = [getattr(moments, options.cost)() for key, moments in sums.items() if key[:2] == (side, word)]
        found[side][word] = _rounded(sum(its) / len(its)).cpu()
    return found


def above_chance(matrix: torch.Tensor) -> torch.Tensor:
    """A similarity (n, n) without what no permutation changes: the means of its rows and columns."""
    return matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()


def _rounded(matrix: torch.Tensor) -> torch.Tensor:
    """Multiples of 2^-24 of its size: how products in float64 end depends on where they lie in memory."""
    _, power = torch.frexp(matrix.abs().max())
    step = torch.ldexp(torch.ones((), dtype=torch.float64, device=matrix.device), power - GRID)
    return (matrix / step).round() * step


@dataclass(frozen=True)
class Assigned:
    """Permutations, and the similarity of the side that decides; words a group each where it is `within`."""

    permutations: dict[str, torch.Tensor]
    first: Similar
    within: Mapping[tuple[str, ...], Within] = field(default_factory=dict)


def best(similar: Mapping[str, Similar], options: Looking, fitted: FittedSpec) -> Assigned:
    """What `similarities` says, settled as `options.at` asks for."""
    first = similar["pre" if options.at == "pre" else "post"]
    if options.at == "constrained":
        return _constrained(first, similar["pre"], fitted)
    second = similar["pre"] if options.at == "post-then-pre" else {}
    return Assigned(assigned(first, second, fitted), first)


def _constrained(first: Similar, second: Similar, fitted: FittedSpec) -> Assigned:
    """Every word by itself, those that are coupled together."""
    still, coupled = permutation.identity(fitted.words), groups(fitted.within)
    found, told = dict(still), {}
    parts = [group.words for group in coupled.values()]
    parts += [(word,) for word in first if not any(word in part for part in parts)]
    for part in parts:
        if not any(word in first for word in part):
            continue
        own = replace(fitted, within={word: b for word, b in fitted.within.items() if word in part})

        def solve(similar: Similar, own: FittedSpec = own) -> dict[str, torch.Tensor]:
            return assigned(similar, {}, own)

        post, pre = ({word: its[word] for word in part if word in its} for its in (first, second))
        chosen = within(post, pre, solve, still)
        found |= {word: chosen.perms[word] for word in part}
        told[tuple(post)] = chosen
    return Assigned(found, first, told)


def assigned(first: Similar, second: Similar, fitted: FittedSpec) -> dict[str, torch.Tensor]:
    """The best permutation of every word; the identity for a word without a similarity."""
    found = permutation.identity(fitted.words)
    coupled = groups(fitted.within)
    for group in coupled.values():
        chosen = {word: _leaning(first[word], second.get(word)) for word in group.words if word in first}
        if chosen:
            found |= together(group.outer, chosen, fitted.within)
    alone = [word for word in first if not any(word in group.words for group in coupled.values())]
    return found | {word: _solved(first[word], second.get(word)) for word in alone}


def _solved(similarity: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
    """The best permutation; of all that are best, the best one by `second`.

    Those use tight pairs only, whose similarity is the sum of their duals (complementary slackness), so all
    others are forbidden.
    """
    solution = assignment.solve(similarity)
    if second is None:
        return solution.perm
    slack = solution.rows[:, None] + solution.columns - similarity
    tight = slack <= TIGHT * similarity.abs().max()
    tight[torch.arange(len(similarity)), solution.perm] = True
    forbidden = -(2 * len(second) + 1) * (1 + second.abs().max())
    return assignment.solve(torch.where(tight, second, forbidden)).perm


def _leaning(similarity: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
    """The similarity, with so little of `second` that it settles only what is as good as equal.

    For heads and their units, which are solved together and have no duals as one.
    """
    if second is None:
        return similarity
    tiny = torch.finfo(torch.float64).tiny
    return similarity + second * (TIGHT * similarity.abs().max() / second.abs().max().clamp(min=tiny))
