"""Similarities between the units of two models, and the objective they add up to.

For a word p, entry (i, j) is Σ ⟨slice i of A, slice j of B⟩ over every axis that carries p, with B's other
axes permuted as they stand. Products are taken in float32 (float64 where a model is stored so) over
slabs of bounded size and added in float64. Each row tile is one single-threaded product, the tiles run
on threads: the bits do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from ..permutation import Permutations, index_select
from ..spec.atoms import Atom, atoms
from ..spec.spec import FittedSpec
from ..tensors import plan_of

SLAB = 1 << 19  # numbers in one operand of a product: 2 MB in float32
TILE = 128  # rows of one product
SLIVER = 64  # a slab with fewer columns waits for others
OFFSET = 0.1  # share of a tensor's squared norm that its mean unit may have

Tensors = Mapping[str, torch.Tensor]


class Pair:
    """Two models seen as atoms, grouped by the words that permute them.

    Use it inside `with pair.computing():`, which owns the threads.
    """

    def __init__(self, reference: Tensors, model: Tensors, fitted: FittedSpec):
        self.reference, self.model, self.words = reference, model, fitted.words
        self.atoms = [atom for atom in atoms(fitted) if any(atom.words)]
        self.dtype = wide([reference, model], {atom.tensor for atom in self.atoms})
        self.single: dict[str, list[Atom]] = {word: [] for word in fitted.words}
        self.double: dict[str, list[Atom]] = {word: [] for word in fitted.words}
        self.neighbours: dict[str, set[str]] = {word: set() for word in fitted.words}
        for atom in self.atoms:
            present = [word for word in atom.words if word is not None]
            for word in set(present):
                (self.single if present.count(word) == 1 else self.double)[word].append(atom)
                self.neighbours[word] |= set(present) - {word}
        self._pool: ThreadPoolExecutor | None = None
        self._scales: dict[str, float] = {}
        self._offsets: dict[tuple[Atom, int], bool] = {}

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Threads for the products, torch's own held to one meanwhile."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with ThreadPoolExecutor(threads) as self._pool:
                yield
        finally:
            torch.set_num_threads(threads)

    def resting_on(self, word: str, known: Collection[str]) -> list[Atom]:
        """The atoms that carry the word once, and beside it only words that are known."""
        return [atom for atom in self.single[word] if {*atom.words} - {word, None} <= {*known}]

    def columns(self, chosen: Iterable[Atom], word: str) -> int:
        """How many numbers a unit of the word has in these atoms."""
        sizes = (math.prod(atom.view(self.reference[atom.tensor]).shape) for atom in chosen)
        return sum(sizes) // self.words[word]

    def matrix(
        self,
        word: str,
        permutations: Permutations,
        *,
        double: bool = False,
        chosen: Sequence[Atom] | None = None,
    ) -> torch.Tensor:
        """The similarity matrix (n, n) float64 of one word, from the atoms that carry it once.

        What all units have in common may be taken off: that changes the matrix by a constant a row and a
        constant a column, which no assignment can tell apart, and frees it of the round-off of an offset.
        With `double` from the atoms that carry the word on several axes: the gradient of their quadratic
        form. `chosen` takes the place of either.
        """
        size = self.words[word]
        out = torch.zeros(size, size, dtype=torch.float64)
        waiting: list[tuple[torch.Tensor, torch.Tensor]] = []  # slivers, for one product together
        for atom in (self.double if double else self.single)[word] if chosen is None else chosen:
            for dim in (d for d, here in enumerate(atom.words) if here == word):
                centre = self._has_offset(atom, dim)
                for slab in self._slabs(atom, dim, permutations):
                    if centre:
                        slab = tuple(side - side.mean(dim=0) for side in slab)
                    if slab[0].shape[1] >= SLIVER:
                        self._add_product(out, *slab)
                    else:
                        waiting.append(slab)
        if waiting:
            self._add_product(out, *(torch.cat(side, dim=1) for side in zip(*waiting, strict=True)))
        return out

    def _has_offset(self, atom: Atom, dim: int) -> bool:
        """Whether the units along `dim` have much in common: then it is taken off before the product."""
        if (atom, dim) not in self._offsets:
            tensor = atom.view(self.reference[atom.tensor].detach()).to(self.dtype)
            common = torch.linalg.vector_norm(tensor.mean(dim=dim)).square() * tensor.shape[dim]
            self._offsets[atom, dim] = bool(common > OFFSET * torch.linalg.vector_norm(tensor).square())
        return self._offsets[atom, dim]

    def gain(self, word: str, permutations: Permutations, perm: torch.Tensor) -> float:
        """What the objective gains where `word` gets `perm` and the others stay: summed in float64."""
        old = permutations[word]
        moved = torch.nonzero(perm != old).flatten()
        result = 0.0
        for atom in self.single[word]:
            for a, b in self._slabs(atom, atom.words.index(word), permutations):
                for units in moved.split(max(1, SLAB // 8 // a.shape[1])):  # float64 copies stay small
                    change = b[perm[units]].double().sub_(b[old[units]])
                    result += torch.dot(a[units].double().flatten(), change.flatten()).item()
        if self.double[word]:
            result += self._inner(self.double[word], {**permutations, word: perm})
            result -= self._inner(self.double[word], permutations)
        return result

    def scale(self, word: str) -> float:
        """‖A‖·‖B‖ over the atoms that carry the word: what no inner product of theirs can exceed."""
        if word not in self._scales:
            norms = [self._norms(atom) for atom in self.single[word] + self.double[word]]
            self._scales[word] = math.sqrt(sum(a for a, _ in norms) * sum(b for _, b in norms))
        return self._scales[word]

    def _norms(self, atom: Atom) -> tuple[float, float]:
        views = (atom.view(model[atom.tensor].detach()) for model in (self.reference, self.model))
        return tuple(torch.linalg.vector_norm(view.to(self.dtype)).item() ** 2 for view in views)

    def objective(self, permutations: Permutations) -> float:
        """Σ ⟨A, πB⟩ in float64 over every tensor that is evidence and that some word permutes."""
        return self._inner(self.atoms, permutations)

    def _inner(self, chosen: list[Atom], permutations: Permutations) -> float:
        result = 0.0
        for atom in chosen:
            for a, b in self._slabs(atom, 0, permutations, rows_too=True):
                result += torch.dot(a.flatten().double(), b.flatten().double()).item()
        return result

    def _slabs(
        self,
        atom: Atom,
        dim: int,
        permutations: Permutations,
        *,
        rows_too: bool = False,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The atom of both models as (n, k) matrices, axis `dim` first, cut so that memory stays bounded.

        B's other axes are permuted; axis `dim` as well with `rows_too`.
        """
        a = atom.view(self.reference[atom.tensor].detach())
        b = atom.view(self.model[atom.tensor].detach())
        rest = [d for d in range(a.ndim) if d != dim]
        if not rest:  # a vector is one column
            rows = slice(None) if not rows_too or atom.words[0] is None else permutations[atom.words[0]]
            yield self._matrix(a, 0), self._matrix(b, 0)[rows]
            return
        along = max(rest, key=lambda d: a.shape[d])
        step = max(1, SLAB * a.shape[along] // max(1, a.numel()))
        for start in range(0, a.shape[along], step):
            length = min(step, a.shape[along] - start)
            part = b
            # the cut axis first: afterwards only its share is gathered along the others
            for d in (along, *(d for d in range(b.ndim) if d != along)):
                perm = (
                    None
                    if atom.words[d] is None or (d == dim and not rows_too)
                    else permutations[atom.words[d]]
                )
                if d == along:
                    part = (
                        part.narrow(d, start, length)
                        if perm is None
                        else index_select(part, d, perm[start : start + length])
                    )
                elif perm is not None:
                    part = index_select(part, d, perm)
            yield self._matrix(a.narrow(along, start, length), dim), self._matrix(part, dim)

    def _matrix(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Axis `dim` first and contiguous, the others flattened behind it."""
        return tensor.to(self.dtype).movedim(dim, 0).reshape(tensor.shape[dim], -1)

    def _add_product(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        b = b.T

        def tile(start: int) -> None:
            out[start : start + TILE] += a[start : start + TILE] @ b

        list(self._pool.map(tile, range(0, len(out), TILE)))


def wide(models: Sequence[Tensors], names: Collection[str]) -> torch.dtype:
    """float64 where any of these tensors is stored so, else float32."""
    plans = [plan_of(model) for model in models]
    stored = {plan[name][0] for plan in plans for name in names}
    return torch.float64 if torch.float64 in stored else torch.float32
