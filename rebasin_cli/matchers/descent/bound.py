"""How good an alignment can be at all: a number that no elements' objective exceeds.

Of words that are only ordered:

A tensor that one word permutes is worth, to that word, the exact inner products of its slices. Where other
words permute it too, two slices agree at most as well as they do when both are sorted along what the others
move: so a matrix (n, n) a word bounds its share whatever the others do, and an assignment bounds the sum.

The bound is near for models that nearly match. For models trained apart it is not much below ‖A‖·‖B‖, and
no cheap bound is known that is.

Where words take more, in models in canonical form, over orders, signs and rotations: what one word alone
moves is worth its projection exactly, a nuclear norm, an assignment, an assignment of heads over the nuclear
norms within. A tensor that several words move is turned on both its sides at most, so it is worth no more
than Σ σᵢ(A)·σᵢ(B), its singular values in order; or it is counted for the word that orders its units, two of
which agree no better than their lengths allow, and for heads no better than their own singular values do.
Both ways to count are bounds, and the smaller one is taken.

Gilmore 1962, "Optimal and suboptimal algorithms for the quadratic assignment problem", and Lawler 1963,
"The quadratic assignment problem"; Hardy, Littlewood & Pólya 1934, theorem 368, for the sorting; von
Neumann 1937, "Some matrix-inequalities and metrization of matric-space", for the singular values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from ...spec.atoms import Atom
from ...spec.spec import FittedSpec
from ...symmetry import assignment, permutation
from ...symmetry.assignment import Solution
from ...symmetry.projection import blocks_of
from . import starred
from .baked import Baked
from .pair import Pair
from .starred import Group

SLAB = 1 << 22  # numbers of one model that are sorted at once: 32 MB in float64
PIECE = 1 << 16  # numbers that one thread sorts at a time
ROUND = 2.0**-52
LOOSE = 8  # roundings of the type that the models are compared in: of their numbers, and of sums of products

Term = tuple[Atom, int]  # an axis of an atom, whose word the atom's inner product is counted for
Split = Mapping[Term, float]


def upper_bound(pair: Pair, enough: float = -math.inf) -> float:
    """A number ≥ Σ ⟨A, g·B⟩ (`pair.objective`) for all elements g; inside `with pair.computing():`.

    Each tensor's inner product may be shared out among the words that permute it in any way. First all
    get equal parts; then each tensor is counted for the word to whose best assignment it is worth least.
    The smaller of both bounds is returned. Everything is in float64, and a margin covers the rounding.
    Costs some two sweeps of weight matching and, beside the models, one (n, n) matrix and two slabs; half
    of that where the first bound is already no more than `enough`. Where words take more than an order, a
    matrix a word and the singular values of every tensor.
    """
    if isinstance(pair, Baked) and pair.turning:
        as_it_is = Baked(pair.reference, pair.tensors, pair.fitted, {}, whole=pair.words)
        return _Turned(as_it_is).least()
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
        bounds.append(roundings * ROUND * pair.scale(word))
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


# ------------------------------------------------------------------------ words that take more than an order


class _Turned:
    """The bound where words take more than an order, none of them without its mean."""

    def __init__(self, pair: Baked):
        fitted: FittedSpec = pair.fitted
        self.pair, self.fitted = pair, fitted
        self.still = permutation.identity(pair.words)
        coupled = starred.groups(fitted.within).values()
        inside = {word for group in coupled for word in group.words}
        self.units = [*coupled, *(Group(word, ()) for word in pair.words if word not in inside)]
        self.alone: dict[str, list[Atom]] = {word: [] for word in pair.words}
        self.shared: list[Atom] = []
        for atom in pair.atoms:
            places = [word for word in atom.words if word is not None]
            if len(places) == 1:
                self.alone[places[0]].append(atom)
            else:
                self.shared.append(atom)

    def least(self) -> float:
        counted = {atom: word for atom in self.shared if (word := self._counts(atom)) is not None}
        spectra = {atom: self._spectral(atom) for atom in self.shared}
        apart = self._all({}, spectra)
        together = self._all(counted, {a: s for a, s in spectra.items() if a not in counted})
        # a sum of products and what a solver rounds, of inner products of no more than the limit together
        longest = max((math.prod(self.pair._views(atom)[0].shape) for atom in self.pair.atoms), default=0)
        share = (longest + 8) * ROUND + LOOSE * torch.finfo(self.pair.dtype).eps
        return min(apart, together) + share * max(1.0, self.pair.limit())

    def _counts(self, atom: Atom) -> str | None:
        """The word that orders the atom's units, or heads' own; None where all of its words turn alone."""
        words = [word for word in atom.words if word is not None]
        heads = [word for word in words if word in self.fitted.within]
        ordered = [word for word in words if not self.fitted.group(word).matrix]
        some = [word for word in heads or ordered if words.count(word) == 1]
        return max(some, key=lambda word: self.pair.words[word], default=None)

    def _spectral(self, atom: Atom) -> float:
        """Σ σᵢ(A)·σᵢ(B), of the matrix that says least."""
        a, b = (view.double() for view in self.pair._views(atom))
        found = []
        for dim, word in enumerate(atom.words):
            if word is not None:
                x, y = (_spectrum(view.movedim(dim, 0).flatten(1)) for view in (a, b))
                found.append(float((x * y).sum()))
        return min(found)

    def _all(self, counted: Mapping[Atom, str], apart: Mapping[Atom, float]) -> float:
        by: dict[str, list[Atom]] = {}
        for atom, word in counted.items():
            by.setdefault(word, []).append(atom)
        return math.fsum((*apart.values(), *(self._unit(unit, by) for unit in self.units)))

    def _matrix(self, word: str, chosen: Sequence[Atom]) -> torch.Tensor:
        return self.pair.matrix(word, self.still, chosen=chosen).double().cpu()

    def _unit(self, unit: Group, by: Mapping[str, Sequence[Atom]]) -> float:
        if unit.starred:
            return self._heads(unit, by)
        (word,) = unit.words
        group = self.fitted.group(word)
        ordered = [atom for atom in self.alone[word] if any(map(atom.ordered, range(len(atom.words))))]
        moved = self._matrix(word, [atom for atom in self.alone[word] if atom not in ordered])
        if group.matrix:  # what it only orders is the same whatever it does
            return float(group.nearest(moved[None])[1]) + float(self._matrix(word, ordered).trace())
        worth = group.nearest(moved)[1] + self._matrix(word, ordered)
        for atom in by.get(word, ()):
            x, y = (_lengths(view, atom.words.index(word)) for view in self.pair._views(atom))
            worth += x[:, None] * y
        return _assigned(worth) if group.permutes else float(worth.diagonal().sum())

    def _heads(self, unit: Group, by: Mapping[str, Sequence[Atom]]) -> float:
        """The best order of heads, each pair worth what its singular values allow."""
        within = self.fitted.within
        count = within[unit.starred[0]].count
        worth = torch.zeros(count, count, dtype=torch.float64)
        for word in unit.starred:
            block = within[word]
            pairs = blocks_of(self._matrix(word, self.alone[word]), block)
            if (group := self.fitted.group(word)).matrix:
                best = group.nearest(pairs.reshape(-1, block.size, block.size))[1]
            else:
                best = torch.tensor([_assigned(each) for each in pairs.flatten(0, 1)], dtype=torch.float64)
            worth = worth + best.view(block.count, block.count)
            for atom in by.get(word, ()):
                dim = atom.words.index(word)
                views = (view.movedim(dim, 0).double() for view in self.pair._views(atom))
                x, y = (_spectrum(view.reshape(block.count, block.size, -1)) for view in views)
                worth = worth + x @ y.T
        if unit.outer is None:
            return float(worth.diagonal().sum())
        worth = worth + self._matrix(unit.outer, self.alone[unit.outer])
        for atom in by.get(unit.outer, ()):
            x, y = (_lengths(view, atom.words.index(unit.outer)) for view in self.pair._views(atom))
            worth = worth + x[:, None] * y
        return _assigned(worth)


def _spectrum(matrix: torch.Tensor) -> torch.Tensor:
    """Singular values (…, n) of (…, n, k) in descending order, rounded up, from the smaller Gram matrix."""
    short = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    squares = torch.linalg.eigvalsh(short @ short.mT).clamp_min(0)
    squares = squares + 8 * (sum(short.shape[-2:]) * ROUND) * squares.amax(-1, keepdim=True)
    values = squares.sqrt().flip(-1)
    return torch.nn.functional.pad(values, (0, matrix.shape[-2] - values.shape[-1]))


def _lengths(view: torch.Tensor, dim: int) -> torch.Tensor:
    norms: torch.Tensor = view.movedim(dim, 0).flatten(1).double().norm(dim=1) * (1 + 64 * ROUND)
    return norms


def _assigned(worth: torch.Tensor) -> float:
    """What no assignment exceeds: the duals prove it, whatever the solver rounded."""
    solution = assignment.solve(worth)
    return assignment.total(worth, solution.perm) + max(0.0, assignment.certificate(worth, solution))
