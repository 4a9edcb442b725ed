"""How good an alignment by groups can be at all: a number that no elements' objective exceeds.

What one word alone moves is worth its projection exactly: a nuclear norm, an assignment, an assignment of
heads over the nuclear norms within. A tensor that several words move is turned on both its sides at most, so
it is worth no more than Σ σᵢ(A)·σᵢ(B), its singular values in order; or it is counted for the word that
orders its units, two of which agree no better than their lengths allow, and for heads no better than their
own singular values do. Both ways to count are bounds, and the smaller one is taken.

That is of models in canonical form, over orders, signs and rotations: what a balance settles is settled.

von Neumann 1937, "Some matrix-inequalities and metrization of matric-space", for the singular values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from ...spec.atoms import Atom
from ...spec.groups import MATRICES, SIGNED
from ...spec.spec import FittedSpec
from ...symmetry import assignment, permutation
from ...symmetry.projection import blocks_of, rotation
from ...types import Tensors
from . import starred
from .baked import Baked
from .pair import Pair
from .units import Unit

ROUND = 2.0**-52
LOOSE = 8  # roundings of the type that the models are compared in: of their numbers, and of sums of products


def upper_bound(reference: Tensors, model: Tensors, fitted: FittedSpec) -> float:
    """A number ≥ the objective of `search` for all elements of the words' groups; in float64.

    Costs a matrix of inner products a word and the singular values of every tensor.
    """
    pair = Baked(reference, model, fitted, whole={*fitted.words}).pair
    with pair.computing():
        return _Bound(pair, fitted).least()


class _Bound:
    def __init__(self, pair: Pair, fitted: FittedSpec):
        self.pair, self.fitted = pair, fitted
        self.still = permutation.identity(pair.words)
        coupled = starred.groups(fitted.within).values()
        self.units = [Unit(group.words, group.outer, group.starred) for group in coupled]
        inside = {word for unit in self.units for word in unit.words}
        self.units += [Unit((word,)) for word in pair.words if word not in inside]
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
        ordered = [word for word in words if self.fitted.groups.get(word) not in MATRICES]
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

    def _unit(self, unit: Unit, by: Mapping[str, Sequence[Atom]]) -> float:
        if unit.starred:
            return self._heads(unit, by)
        (word,) = unit.words
        kind = self.fitted.groups.get(word)
        ordered = [atom for atom in self.alone[word] if any(map(atom.ordered, range(len(atom.words))))]
        moved = self._matrix(word, [atom for atom in self.alone[word] if atom not in ordered])
        if kind in MATRICES:  # what it only orders is the same whatever it does
            return float(rotation(moved[None], kind)[1]) + float(self._matrix(word, ordered).trace())
        worth = (moved.abs() if kind in SIGNED else moved) + self._matrix(word, ordered)
        for atom in by.get(word, ()):
            x, y = (_lengths(view, atom.words.index(word)) for view in self.pair._views(atom))
            worth += x[:, None] * y
        return _assigned(worth)

    def _heads(self, unit: Unit, by: Mapping[str, Sequence[Atom]]) -> float:
        """The best order of heads, each pair worth what its singular values allow."""
        within = self.fitted.within
        count = within[unit.starred[0]].count
        worth = torch.zeros(count, count, dtype=torch.float64)
        for word in unit.starred:
            block = within[word]
            pairs = blocks_of(self._matrix(word, self.alone[word]), block)
            kind = self.fitted.groups.get(word)
            if kind in MATRICES:
                best = rotation(pairs.reshape(-1, block.size, block.size), kind)[1]
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
