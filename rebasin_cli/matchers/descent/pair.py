"""The sums of inner products that weight matching needs, as products of matrices.

For a word p, entry (i, j) of a similarity is Σ ⟨slice i of A, slice j of B⟩ over every axis that carries p,
with B's other axes permuted as they stand. Products are taken in float32 (float64 where a model is stored
so) over slabs of bounded size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ...checkpoints.tensors import in_memory
from ...spec.atoms import Atom
from ...symmetry.elements import Elements
from ...types import Permutations
from .blocks import SLAB, Slab, first, is_matrix
from .values import FEW, Values, dot, norms_of

SLIVER = 64  # a slab with fewer columns waits for others
ALONE = 1 << 27  # multiplications of a sample that one thread does
OFFSET = 0.1  # share of a tensor's squared norm that its mean unit may have


class Pair(Values):
    """Two models whose units can be compared.

    Use it inside `with pair.computing():`, which owns the threads. With several `ranks` each one reads its
    own share of the atoms, and every method that computes must be called by all of them alike.
    """

    turned: Collection[str] = frozenset()  # words that take more than an order

    def __init__(self, *args: Any, whole: Collection[str] = (), **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.whole = frozenset(whole)  # words compared as they are: no mean is taken off their units
        self._offsets: dict[tuple[Atom, int], bool] = {}

    def element(self, current: Permutations) -> Elements:
        """The element by which the model stands, words that take more than an order as they are baked."""
        return Elements(dict(current))

    def stand(self, element: Elements) -> dict[str, torch.Tensor]:
        """Let the model stand by an element; the permutations of what is only ordered."""
        return dict(element.permutations)

    def zeros(self, word: str) -> torch.Tensor:
        return torch.zeros(self.words[word], self.words[word], dtype=self.dtype, device=self.device)

    def matrix(
        self,
        word: str,
        permutations: Permutations,
        *,
        chosen: Sequence[Atom] | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The similarity matrix (n, n) of one word, from `chosen` or from the atoms that carry it once.

        It is added to `out` where that is given.

        What all units have in common may be taken off: that changes the matrix by a constant a row and a
        constant a column, which no assignment can tell apart, and frees it of the round-off of an offset.
        For atoms that carry the word on several axes it is the gradient of their quadratic form.
        """
        terms = [
            (atom, dim)
            for atom in (self.single[word] if chosen is None else chosen)
            for dim, here in enumerate(atom.words)
            if here == word
        ]
        slabs = (
            slab for atom, dim in terms if atom in self.mine for slab in self._slabs(atom, dim, permutations)
        )
        return self._summed(word, self.zeros(word) if out is None else out, slabs, terms)

    def sample(self, word: str, permutations: Permutations, chosen: Sequence[Atom], share: float) -> Slab:
        """This share of the columns of `chosen`, which carry the word once: (n, k) of both models.

        With several ranks each has those of its own atoms; `product` is the sum of all.
        """
        own = [atom for atom in chosen if atom in self.mine]
        if len(own) == 1:
            return self._spread(own[0], own[0].words.index(word), permutations, share)
        counts = [self._columns_of(atom, atom.words.index(word), share) for atom in own]
        a, b = (
            torch.empty(self.words[word], sum(counts), dtype=self.dtype, device=self.device) for _ in range(2)
        )
        start = 0
        for atom, count in zip(own, counts, strict=True):  # none beside the next one's
            for into, slab in zip(
                (a, b), self._spread(atom, atom.words.index(word), permutations, share), strict=True
            ):
                into.narrow(1, start, count).copy_(slab)
            start += count
        return a, b

    def product(self, word: str, slab: Slab) -> torch.Tensor:
        """The products (n, n) of all ranks' slabs.

        On one thread where that takes milliseconds: among so few products it is not learned whether more pay.
        """
        out = self.zeros(word)
        self._add_product(out, *slab, len(out) ** 2 * slab[0].shape[1] <= ALONE)
        return self.ranks.sum(out)

    def change(
        self,
        out: torch.Tensor,
        word: str,
        chosen: Iterable[Atom],
        moved: str,
        permutations: Permutations,
        to: torch.Tensor,
    ) -> torch.Tensor:
        """`out`, the matrix of `word` from `chosen`, changed in place as `moved` goes over to `to`.

        Only the units of `moved` that come to lie elsewhere are multiplied, where that is on one axis.
        """
        units = torch.nonzero(permutations[moved] != to).flatten()
        terms = [(atom, atom.words.index(word)) for atom in chosen if moved in atom.words]
        slabs = (
            slab
            for atom, dim in terms
            if atom in self.mine
            for slab in self._changes(atom, dim, moved, units, permutations, to)
        )
        return self._summed(word, out, slabs, terms)

    def soft_matrix(self, word: str, soft: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The matrix of `word` from all its atoms where the others' permutations are soft.

        `soft` has a doubly stochastic matrix (n, n) for every word, reference unit × model unit.
        """
        terms = [
            (atom, dim)
            for atom in self.single[word] + self.double[word]
            for dim, here in enumerate(atom.words)
            if here == word
        ]
        slabs = (
            slab for atom, dim in terms if atom in self.mine for slab in self._soft_slabs(atom, dim, soft)
        )
        return self._summed(word, self.zeros(word), slabs, terms)

    def _soft_slabs(self, atom: Atom, dim: int, soft: Mapping[str, torch.Tensor]) -> Iterator[Slab]:
        a, b = self._views(atom)
        for d, word in enumerate(atom.words):
            if word is not None and d != dim:
                whole = self._wide(b).movedim(d, 0).flatten(1)
                mixed = torch.zeros_like(whole)
                self._add_product(mixed, soft[word], whole.T)
                b = mixed.view(len(mixed), *(s for k, s in enumerate(b.shape) if k != d)).movedim(0, d)
        yield self._centred(atom, dim, *self._matrices(a, b, dim))

    def _summed(
        self, word: str, out: torch.Tensor, slabs: Iterable[Slab], terms: Sequence[Any]
    ) -> torch.Tensor:
        """`out` plus the products of all slabs, of every rank."""
        mine = out if self.ranks.size == 1 else self.zeros(word)
        waiting: list[Slab] = []  # slivers, for one product together
        for slab in slabs:
            if slab[0].shape[1] >= min(SLIVER, SLAB // len(slab[0])):
                self._add_product(mine, *slab)
            else:
                waiting.append(slab)
        if waiting:
            a, b = (
                torch.cat(side, dim=1) if len(side) > 1 else side[0] for side in zip(*waiting, strict=True)
            )
            self._add_product(mine, a, b)
        if self.ranks.size > 1 and terms:
            out += self.ranks.sum(mine)
        return out

    def _add_product(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alone: bool = False) -> None:
        """a·bᵀ, added to `out`; `alone` on one thread."""
        if alone or not self.on_cpu:
            out.addmm_(a, b.T)
        else:
            self._pace.add_product(out, a, b)

    def _slabs(self, atom: Atom, dim: int, permutations: Permutations) -> Iterator[Slab]:
        """The atom of both models as (n, k) matrices, axis `dim` first; B's other axes are permuted.

        They are cut so that copies take bounded memory; of what lies as it is needed none is made.
        """
        a, b = self._views(atom)
        if a.numel() <= FEW or a.ndim == 1:  # a vector is one column
            b = self._others(b, atom, (dim,), permutations)
            yield self._centred(atom, dim, *self._matrices(a, b, dim))
            return
        rest = [d for d in range(a.ndim) if d != dim]
        others = (word for d, word in enumerate(atom.words) if d != dim)
        if not any(word in permutations for word in others) and self._lie_ready(atom, a, b, dim):
            a, b = self._matrices(a, b, dim)
            yield from ((a.narrow(1, *some), b.narrow(1, *some)) for some in self._steps(a, 1))
            return
        along = max(rest, key=lambda d: a.shape[d])
        for start, length in self._steps(a, along):
            part = self._chosen(b, atom, along, permutations, start, length)
            part = self._others(part, atom, (dim, along), permutations)
            yield self._centred(atom, dim, *self._matrices(a.narrow(along, start, length), part, dim))

    def taken_off(self, word: str, chosen: Iterable[Atom], permutations: Permutations) -> float:
        """What a matrix from `chosen`, which carry the word once, says too little of every order.

        n · ⟨mean unit of A, mean unit of B⟩ of the atoms whose units have much in common.
        """
        result = 0.0
        for atom in (atom for atom in chosen if atom in self.mine):
            if self._has_offset(atom, dim := atom.words.index(word)):
                a, b = self._means(atom, dim)
                left = replace(atom, words=(*atom.words[:dim], *atom.words[dim + 1 :]))
                b = self._others(b, left, (), permutations)
                result += self.words[word] * dot(a, b)
        return self.ranks.sum_float(result)

    def _lie_ready(self, atom: Atom, a: torch.Tensor, b: torch.Tensor, dim: int) -> bool:
        """Whether both views are matrices as they lie in memory: nothing to convert, or to take off."""
        order = first(dim, in_memory(a))
        ready = all(view.dtype == self.dtype and is_matrix(view.permute(order)) for view in (a, b))
        return ready and not self._has_offset(atom, dim)

    def _spread(self, atom: Atom, dim: int, permutations: Permutations, share: float) -> Slab:
        """As `_slabs`, uncentred, of units that lie evenly along the longest other axis."""
        a, b = self._views(atom)
        along = _longest(self.shapes[atom], dim)
        if along is not None:
            size, word = a.shape[along], atom.words[along]
            count = math.ceil(share * size)
            units = torch.arange(count) * size // max(1, count)
            a = self._take(a, along, units)
            moves = word is not None and word in permutations
            b = self._take(b, along, permutations[atom.word(along)][units] if moves else units)
            b = self._others(b, atom, (dim, along), permutations)
        return self._matrices(a, b, dim)

    def _columns_of(self, atom: Atom, dim: int, share: float) -> int:
        """How many columns `_spread` gives."""
        shape = self.shapes[atom]
        columns, along = self.numels[atom] // shape[dim], _longest(shape, dim)
        return columns if along is None else columns // shape[along] * math.ceil(share * shape[along])

    def _changes(
        self,
        atom: Atom,
        dim: int,
        moved: str,
        units: torch.Tensor,
        permutations: Permutations,
        to: torch.Tensor,
    ) -> Iterator[Slab]:
        """As `_slabs`, for the units of `moved` alone and with what B's change by.

        Of an atom that carries it on several axes all is multiplied, as it was and as it is.
        """
        if atom.words.count(moved) > 1:
            yield from ((-a, b) for a, b in self._slabs(atom, dim, permutations))
            yield from self._slabs(atom, dim, {**permutations, moved: to})
            return
        along, old = atom.words.index(moved), permutations[moved]
        a, b = self._turned(atom, along)
        turned = replace(atom, words=(moved, *(word for d, word in enumerate(atom.words) if d != along)))
        dim += dim < along
        for some in units.split(max(1, SLAB * len(a) // max(1, a.numel()))):
            change = self._take(b, 0, to[some]).to(self.dtype)
            change -= self._take(b, 0, old[some]).to(self.dtype)
            change = self._others(change, turned, (dim, 0), permutations)
            here = self._take(a, 0, some)
            yield self._centred(atom, dim - (dim <= along), *self._matrices(here, change, dim))

    def _centred(self, atom: Atom, dim: int, a: torch.Tensor, b: torch.Tensor) -> Slab:
        """Both without what their units have in common, where that is much."""
        if not self._has_offset(atom, dim):
            return a, b
        if atom in self._bundles:  # whatever the order
            return a - self._means(atom, dim)[0], b - self._means(atom, dim)[1]
        return a - a.mean(dim=0), b - b.mean(dim=0)

    def _has_offset(self, atom: Atom, dim: int) -> bool:
        if (atom, dim) not in self._offsets:
            alike = self._few if atom in self._few else [atom]  # of small ones all in one call
            terms = [(each, d) for each in alike for d, word in enumerate(each.words) if word is not None]
            commons = norms_of([self._over_units(torch.sum, self._views(each)[0], d) for each, d in terms])
            for (each, d), common in zip(terms, commons, strict=True):
                much = OFFSET * self._norms(each)[0] ** 2 * self.shapes[each][d]
                self._offsets.setdefault((each, d), each.words[d] not in self.whole and common**2 > much)
        return self._offsets[atom, dim]

    def settle_offsets(self) -> None:
        """Decide by the values as they are which atoms have an offset: `refresh` leaves that as it is."""
        for atom in self.atoms:
            for dim, word in enumerate(atom.words):
                if word is not None:
                    self._has_offset(atom, dim)


def _longest(shape: Sequence[int], beside: int) -> int | None:
    """The longest axis but one; None where there is no other."""
    return max((dim for dim in range(len(shape)) if dim != beside), key=lambda dim: shape[dim], default=None)
