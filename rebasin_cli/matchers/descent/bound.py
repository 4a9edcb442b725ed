"""How good an alignment can be at all: a number that no permutations' objective exceeds.

A tensor that one word permutes is worth, to that word, the exact inner products of its slices. Where other
words permute it too, two slices agree at most as well as they do when both are sorted along what the others
move: so a matrix (n, n) a word bounds its share whatever the others do, and an assignment bounds the sum.

The bound is near for models that nearly match. For models trained apart it is not much below ‖A‖·‖B‖, and
no cheap bound is known that is.

Gilmore 1962, "Optimal and suboptimal algorithms for the quadratic assignment problem", and Lawler 1963,
"The quadratic assignment problem"; Hardy, Littlewood & Pólya 1934, theorem 368, for the sorting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch

from ...spec.atoms import Atom
from ...symmetry import assignment
from ...symmetry.assignment import Solution
from .pair import Pair

SLAB = 1 << 22  # numbers of one model that are sorted at once: 32 MB in float64
PIECE = 1 << 16  # numbers that one thread sorts at a time

Term = tuple[Atom, int]  # an axis of an atom, whose word the atom's inner product is counted for
Split = Mapping[Term, float]


def upper_bound(pair: Pair, enough: float = -math.inf) -> float:
    """A number ≥ Σ ⟨A, πB⟩ (`pair.objective`) for all permutations π; inside `with pair.computing():`.

    Each tensor's inner product may be shared out among the words that permute it in any way. First all
    get equal parts; then each tensor is counted for the word to whose best assignment it is worth least.
    The smaller of both bounds is returned. Everything is in float64, and a margin covers the rounding.
    Costs some two sweeps of weight matching and, beside the models, one (n, n) matrix and two slabs; half
    of that where the first bound is already no more than `enough`.
    """
    terms = {atom: _moving(pair, atom) for atom in pair.atoms}
    equal = {(atom, dim): 1 / len(dims) for atom, dims in terms.items() for dim in dims}
    bound, solutions = _relaxed(pair, equal)
    if bound <= enough or all(len(dims) == 1 for dims in terms.values()):
        return bound
    least = {}
    for atom, dims in terms.items():
        if atom in pair.mine and len(dims) > 1:  # who owns an atom decides; no one else reads it
            least[atom] = min(dims, key=lambda dim: _worth(pair, (atom, dim), solutions))  # noqa: B023
    whole = {(atom, dim): float(dim == least.get(atom, dim)) for atom, dim in equal}
    return min(bound, _relaxed(pair, whole)[0])


def _moving(pair: Pair, atom: Atom) -> list[int]:
    """The axes that something moves; one that nothing can move, if there is no other."""
    named = {dim: word for dim, word in enumerate(atom.words) if word is not None}
    return [dim for dim, word in named.items() if pair.words[word] > 1] or list(named)[:1]


def _relaxed(pair: Pair, split: Split) -> tuple[float, dict[str, Solution]]:
    """The bound for one way to share out the atoms, and every word's assignment.

    The duals prove each assignment's bound, whatever the solver's rounding made of them.
    """
    bounds, solutions = [], {}
    for word in sorted(pair.words):
        terms = [term for term in split if term[0].words[term[1]] == word]
        if not terms:
            continue
        most = torch.zeros(pair.words[word], pair.words[word], dtype=torch.float64, device=pair.device)
        for term in (term for term in terms if term[0] in pair.mine and split[term] > 0):
            _add(pair, most, term, split[term])
        most = pair.ranks.sum(most)
        solutions[word] = solution = assignment.solve(most)
        bounds += [assignment.total(most, solution.perm), max(0.0, assignment.certificate(most, solution))]
        # A product of k numbers and a sum over n are off by k + n roundings of ‖A‖·‖B‖ at most (Higham 2002,
        # "Accuracy and stability of numerical algorithms", section 3.1); twice that leaves room for the rest
        roundings = pair.columns(pair.single[word] + pair.double[word], word) + len(most) + 8
        bounds.append(roundings * 2.0**-52 * pair.scale(word))
    return math.fsum(bounds), solutions


def _add(pair: Pair, out: torch.Tensor, term: Term, share: float) -> None:
    for rows, a in _slabs(pair, term, 0):
        a *= share
        for columns, b in _slabs(pair, term, 1):
            pair._add_product(out[rows, columns], a, b)


def _worth(pair: Pair, term: Term, solutions: Mapping[str, Solution]) -> float:
    """What the whole atom adds to the bound, along the assignment of the term's word."""
    atom, dim = term
    perm = solutions[atom.word(dim)].perm
    pairs = zip(_slabs(pair, term, 0), _slabs(pair, term, 1, perm), strict=True)
    return math.fsum((a * b).sum().item() for (_, a), (_, b) in pairs)


def _slabs(
    pair: Pair, term: Term, model: int, perm: torch.Tensor | None = None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Slices of the atom as rows of numbers in float64, what other words move sorted; some rows at a time."""
    atom, dim = term
    view = pair._views(atom)[model]
    others = [d for d in _moving(pair, atom) if d != dim]
    still = [d for d in range(view.ndim) if d != dim and d not in others]
    n = view.shape[dim]
    length = math.prod(view.shape[d] for d in others)
    step = max(1, SLAB * n // max(1, view.numel()))
    for start in range(0, n, step):
        stop = min(n, start + step)
        if perm is None:
            part = view.narrow(dim, start, stop - start)
        else:
            part = pair._take(view, dim, perm[start:stop])
        part = part.permute(dim, *still, *others)
        rows = torch.empty(part.shape, dtype=torch.float64, device=pair.device).copy_(part)
        if others:
            _sort(pair, rows.view(-1, length))
        yield slice(start, stop), rows.view(stop - start, -1)


def _sort(pair: Pair, rows: torch.Tensor) -> None:
    """Every row in ascending order, in place."""
    if not pair.on_cpu:
        rows.copy_(rows.sort(dim=1).values)
        return
    array, step = rows.numpy(), max(1, PIECE // rows.shape[1])  # numpy sorts ten times as fast as torch

    def sort(start: int) -> None:
        array[start : start + step].sort(axis=1)

    pair.run(sort, range(0, len(array), step))
