"""Inner products, norms and gains of two models as their permutations stand: added in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...spec.atoms import Atom
from ...types import Permutations
from .blocks import SLAB, Blocks, Slab

FEW = 1 << 16  # numbers of which calls take longer than what they do
ROW = 1 << 10  # numbers whose float32 sum is as good as its terms


def total(values: Iterable[float]) -> float:
    """The exact sum; infinite where that is beyond float64."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


class Values(Blocks):
    """Blocks whose objective can be measured; with several `ranks` all of them must ask for it alike."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        # of these one call does for all
        self._few = {atom for atom in self.mine if self.on_cpu and self.numels[atom] <= FEW}
        self._unit_norms: dict[str, Slab] = {}
        self._scales: dict[str, float] = {}
        self._atom_norms: dict[Atom, tuple[float, float]] = {}
        self._atom_spreads: dict[Atom, tuple[float, float]] = {}
        self._mean_units: dict[tuple[Atom, int], Slab] = {}
        self._atom_distances: dict[Atom, tuple[list[torch.Tensor | None], dict[int, torch.Tensor]]] = {}

    def refresh(self) -> None:
        """Forget what was measured or copied: the models' values are others now."""
        self._unit_norms, self._scales, self._atom_norms, self._atom_spreads = {}, {}, {}, {}
        self._mean_units, self._atom_distances = {}, {}
        super().refresh()

    def gain(self, word: str, permutations: Permutations, perm: torch.Tensor) -> float:
        """What the objective gains where `word` gets `perm` and the others stay: summed in float64."""
        old = permutations[word]
        moved = torch.nonzero(perm != old).flatten()
        result = 0.0
        for atom in (atom for atom in self.single[word] if atom in self.mine):
            dim = atom.words.index(word)
            a, b = self._views(atom)
            for units in moved.split(max(1, SLAB // 8 * a.shape[dim] // max(1, a.numel()))):
                change = self._take(b, dim, perm[units]).double() - self._take(b, dim, old[units]).double()
                change = self._others(change, atom, (dim,), permutations)
                result += (self._take(a, dim, units).double() * change).sum().item()
        result = self.ranks.sum_float(result)
        if self.double[word]:
            result += self.inner(self.double[word], {**permutations, word: perm})
            result -= self.inner(self.double[word], permutations)
        return result

    def unit_norms(self, word: str) -> Slab:
        """‖unit i of A‖ and ‖unit j of B‖ (n,) float64 over the atoms that carry the word."""
        if word not in self._unit_norms:
            squares = torch.zeros(2, self.words[word], dtype=torch.float64)
            for atom in (atom for atom in self.single[word] + self.double[word] if atom in self.mine):
                for side, view in zip(squares, self._views(atom), strict=True):
                    for dim in (d for d, here in enumerate(atom.words) if here == word):
                        for start, length in self._steps(view, dim):
                            part = self._wide(view.narrow(dim, start, length))
                            side[start : start + length] += summed_squares(part, dim)
            self._unit_norms[word] = tuple(self.ranks.sum(squares).sqrt())
        return self._unit_norms[word]

    def scale(self, word: str) -> float:
        """‖A‖·‖B‖ over the atoms that carry the word: what no inner product of theirs can exceed."""
        if word not in self._scales:
            norms = [self._norms(atom) for atom in self.single[word] + self.double[word] if atom in self.mine]
            sides = (self.ranks.sum_float(sum(norm[k] ** 2 for norm in norms)) for k in (0, 1))
            self._scales[word] = math.sqrt(math.prod(sides))
        return self._scales[word]

    def reach(self, chosen: Iterable[Atom]) -> float:
        """As `scale`, without what vectors have on average, which no permutation changes."""
        norms = [self._spreads(atom) for atom in chosen if atom in self.mine]
        sides = (self.ranks.sum_float(sum(norm[k] ** 2 for norm in norms)) for k in (0, 1))
        return math.sqrt(math.prod(sides))

    def _spreads(self, atom: Atom) -> tuple[float, float]:
        if len(atom.words) > 1 and atom not in self._bundles:
            return self._norms(atom)
        if atom not in self._atom_spreads:
            sides = zip(self._views(atom), self._means(atom, 0), strict=True)
            a, b = norms_of([self._wide(view) - mean for view, mean in sides])
            self._atom_spreads[atom] = a, b
        return self._atom_spreads[atom]

    def _means(self, atom: Atom, dim: int) -> Slab:
        """The mean unit along an axis, of both models as they are."""
        if (atom, dim) not in self._mean_units:
            a, b = (self._over_units(torch.mean, view, dim) for view in self._views(atom))
            self._mean_units[atom, dim] = a, b
        return self._mean_units[atom, dim]

    def _over_units(self, what: Callable[..., torch.Tensor], view: torch.Tensor, dim: int) -> torch.Tensor:
        """A sum or mean along an axis; what is stored in another type is made wide a slab at a time."""
        if view.dtype == self.dtype or view.ndim == 1 or view.numel() <= SLAB:
            return what(self._wide(view), dim=dim)
        along = max((d for d in range(view.ndim) if d != dim), key=lambda d: view.shape[d])
        slabs = (self._wide(view.narrow(along, *some)) for some in self._steps(view, along))
        return torch.cat([what(slab, dim=dim) for slab in slabs], dim=along - (along > dim))

    def limit(self) -> float:
        """‖A‖·‖B‖ over all atoms: no objective is larger."""
        norms = [self._norms(atom) for atom in self.atoms if atom in self.mine]
        sides = (self.ranks.sum_float(sum(norm[k] ** 2 for norm in norms)) for k in (0, 1))
        return math.sqrt(math.prod(sides))

    def _norms(self, atom: Atom) -> tuple[float, float]:
        if atom not in self._atom_norms:
            if atom in (small := self._few):  # all of them in one call
                norms = norms_of([self._wide(view) for other in small for view in self._views(other)])
                self._atom_norms |= zip(small, zip(norms[::2], norms[1::2], strict=True), strict=True)
            else:
                a, b = self._views(atom)
                self._atom_norms[atom] = self._norm(a), self._norm(b)
        return self._atom_norms[atom]

    def _norm(self, view: torch.Tensor) -> float:
        """A slab at a time: a product as large as the tensor is not made."""
        if view.numel() <= FEW:
            return norms_of([self._wide(view)])[0]
        slabs = (self._wide(view.narrow(0, *some)) for some in self._steps(view, 0))
        squares = (
            torch.linalg.vecdot(rows, rows) for rows in (slab.reshape(len(slab), -1) for slab in slabs)
        )
        return math.sqrt(total(square.sum(dtype=torch.float64).item() for square in squares))

    def distances(self, atom: Atom, permutations: Permutations) -> dict[int, torch.Tensor]:
        """‖√r · a − b / √r‖² (n,) for the units of every axis that has a word, with B as it is permuted.

        r is B's norm over A's: it makes the distances of models of different scales small. All axes' come
        from one pass, and are kept for who asks about the next word.
        """
        perms = [None if word is None else permutations.get(word) for word in atom.words]
        kept, squares = self._atom_distances.get(atom, ((), {}))
        if len(kept) == len(perms) and all(one is other for one, other in zip(kept, perms, strict=True)):
            return squares
        a, _ = self._views(atom)
        squares = {
            dim: torch.zeros(a.shape[dim], dtype=torch.float64)
            for dim, word in enumerate(atom.words)
            if word is not None
        }
        norms = self._norms(atom)
        if 0.0 not in norms:  # else there is nothing to be near to
            ratio = max(norms) / min(norms)
            for start, length in self._steps(a, 0):
                here = self._wide(a.narrow(0, start, length))
                part = self._wide(self._placed(atom, permutations, start, length))
                small, large = (here, part) if norms[0] < norms[1] else (part, here)
                apart = torch.sub(large, small, alpha=ratio).square_()  # of the larger: none underflows
                for dim, sums in squares.items():
                    units = slice(start, start + length) if dim == 0 else slice(None)
                    sums[units] += summed(apart, dim) / ratio
        self._atom_distances[atom] = perms, squares
        return squares

    def objective(self, permutations: Permutations) -> float:
        """Σ ⟨A, πB⟩ over every tensor that is evidence and that some word permutes; added in float64."""
        return self.inner(self.atoms, _moving(permutations))

    def inner(self, chosen: Iterable[Atom], permutations: Permutations) -> float:
        """Σ ⟨A, πB⟩ over these atoms; words that have no permutation stay."""
        own = (self._inner_atom(atom, permutations) for atom in chosen if atom in self.mine)
        return self.ranks.sum_float(total(own))

    def _inner_atom(self, atom: Atom, permutations: Permutations) -> float:
        a, b = self._views(atom)
        if a.numel() <= FEW:
            return dot(self._wide(a), self._wide(self._others(b, atom, (), permutations)))
        result = 0.0
        for start, length in self._steps(a, 0):
            part = self._placed(atom, permutations, start, length)
            result += dot(self._wide(a.narrow(0, start, length)), self._wide(part))
        return result


def norms_of(tensors: Sequence[torch.Tensor]) -> list[float]:
    """‖tensor‖ of each, summed in float64: bounds rest on them."""
    norms = torch._foreach_norm(list(tensors), dtype=torch.float64)
    return torch.stack(norms).tolist() if norms else []


def dot(a: torch.Tensor, b: torch.Tensor) -> float:
    """Σ a·b of at most a slab, added in float64: torch.dot's own sums of float32 are off by up to 5e-4."""
    a, b = a.reshape(-1), b.reshape(-1)
    if (rows := a.numel() // ROW) <= FEW // ROW:
        found: float = (a * b).sum(dtype=torch.float64).item()
        return found
    whole = rows * ROW  # a sum a row first: less memory goes by
    sums = torch.linalg.vecdot(a[:whole].view(rows, ROW), b[:whole].view(rows, ROW))
    found = sums.sum(dtype=torch.float64).item()
    return found + dot(a[whole:], b[whole:])


def summed_squares(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """‖unit‖² (n,) float64 for the units along an axis; torch's own norm of columns is 30 times as slow."""
    return summed(tensor.square(), dim)


def summed(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Sums (n,) float64 over all axes but one."""
    rest = [d for d in range(tensor.ndim) if d != dim]
    return (tensor.sum(dim=rest) if rest else tensor).cpu().double()


def _moving(permutations: Permutations) -> Permutations:
    return {
        word: perm for word, perm in permutations.items() if not torch.equal(perm, torch.arange(len(perm)))
    }
