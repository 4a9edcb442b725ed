"""Two models seen as blocks of tensors, and the sums of inner products that weight matching needs.

For a word p, entry (i, j) of a similarity is Σ ⟨slice i of A, slice j of B⟩ over every axis that carries p,
with B's other axes permuted as they stand. Products are taken in float32 (float64 where a model is stored
so) over slabs of bounded size. Everything but large products and assignments runs on one thread, and those
split rows and columns, never a sum: the bits do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch

from ..permutation import Permutations, index_select
from ..ranks import ALONE, Ranks
from ..spec.atoms import Atom, atoms
from ..spec.spec import FittedSpec
from ..tensors import plan_of

SLAB = 1 << 20  # numbers in one operand of a product: 4 MB in float32
TURNED = 1 << 25  # bytes of copies with another axis first
SLIVER = 64  # a slab with fewer columns waits for others
SMALL = 1 << 22  # multiplications that are not worth a second thread
ROWS = 256  # of either side, below which products are summed differently by many threads
COPIED = 1 << 16  # numbers to gather that are not
OFFSET = 0.1  # share of a tensor's squared norm that its mean unit may have

Tensors = Mapping[str, torch.Tensor]
Slab = tuple[torch.Tensor, torch.Tensor]


class Pair:
    """Two models as atoms, grouped by the words that permute them.

    Use it inside `with pair.computing():`, which owns the threads. With several `ranks` each one reads its
    own share of the atoms, and every method that computes must be called by all of them alike.
    """

    def __init__(
        self,
        reference: Tensors,
        model: Tensors,
        fitted: FittedSpec,
        *,
        device: str = "cpu",
        ranks: Ranks = ALONE,
    ):
        self.reference, self.model, self.words = reference, model, fitted.words
        self.device, self.ranks = torch.device(device), ranks
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
        plan = plan_of(reference)
        shapes = {name: torch.empty(shape, device="meta") for name, (_, shape) in plan.items()}
        self.shapes = {atom: tuple(atom.view(shapes[atom.tensor]).shape) for atom in self.atoms}
        self.mine = ranks.share(self.atoms, [math.prod(self.shapes[atom]) for atom in self.atoms])
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 1
        self._unit_norms: dict[str, Slab] = {}
        self._scales: dict[str, float] = {}
        self._atom_norms: dict[Atom, tuple[float, float]] = {}
        self._offsets: dict[tuple[Atom, int], bool] = {}
        self._turns: dict[tuple[Atom, int], Slab] = {}
        self._left = TURNED
        self._there: dict[tuple[int, str], torch.Tensor] = {}

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Threads for the products and the assignments, torch's own held to one meanwhile."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            if threads == 1:
                yield
            else:  # OpenMP counts the threads of every thread apart: without the initializer each has many
                with ThreadPoolExecutor(
                    threads - 1, initializer=torch.set_num_threads, initargs=(1,)
                ) as pool:
                    self._pool, self._threads = pool, threads
                    yield
        finally:
            self._pool, self._threads = None, 1
            torch.set_num_threads(threads)

    def run(self, task: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """`task` on every item, on this thread and the others; the results in the items' order."""
        items = list(items)
        helpers = min(self._threads, len(items)) - 1
        if helpers < 1:
            return [task(item) for item in items]
        results: list[Any] = [None] * len(items)
        waiting = iter(range(len(items)))  # next() on it is one step of the interpreter: no two get the same

        def drain() -> None:
            for k in waiting:
                results[k] = task(items[k])

        futures = [self._pool.submit(drain) for _ in range(helpers)]
        drain()
        for future in futures:
            future.result()
        return results

    def resting_on(self, word: str, known: Collection[str]) -> list[Atom]:
        """The atoms that carry the word once, and beside it only words that are known."""
        return [atom for atom in self.single[word] if {*atom.words} - {word, None} <= {*known}]

    def columns(self, chosen: Iterable[Atom], word: str) -> int:
        """How many numbers a unit of the word has in these atoms."""
        return sum(math.prod(self.shapes[atom]) for atom in chosen) // self.words[word]

    # -------------------------------------------------------------------------------------- similarities

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

        Only the units of `moved` that come to lie elsewhere are multiplied.
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
                whole = self._matrix(b, d)
                mixed = torch.zeros_like(whole)
                self._add_product(mixed, soft[word], whole.T)
                b = mixed.view(len(mixed), *(s for k, s in enumerate(b.shape) if k != d)).movedim(0, d)
        yield self._centred(atom, dim, self._matrix(a, dim), self._matrix(b, dim))

    def _summed(self, word: str, out: torch.Tensor, slabs: Iterable[Slab], terms: Sequence) -> torch.Tensor:
        """`out` plus the products of all slabs, of every rank."""
        mine = out if self.ranks.size == 1 else self.zeros(word)
        waiting: list[Slab] = []  # slivers, for one product together
        for slab in slabs:
            if slab[0].shape[1] >= SLIVER:
                self._add_product(mine, *slab)
            else:
                waiting.append(slab)
        if waiting:
            self._add_product(mine, *(torch.cat(side, dim=1) for side in zip(*waiting, strict=True)))
        if self.ranks.size > 1 and terms:
            out += self.ranks.sum(mine)
        return out

    def _add_product(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        if min(len(a), len(b)) < ROWS or len(a) * a.shape[1] * len(b) <= SMALL:
            out.addmm_(a, b.T)
            return
        with self._threaded():
            out.addmm_(a, b.T)

    @contextlib.contextmanager
    def _threaded(self) -> Iterator[None]:
        """All threads, for one operation that is worth them and whose bits do not depend on their number."""
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(1)

    def _slabs(self, atom: Atom, dim: int, permutations: Permutations) -> Iterator[Slab]:
        """The atom of both models as (n, k) matrices, axis `dim` first, cut so that memory stays bounded.

        B's other axes are permuted.
        """
        a, b = self._views(atom)
        rest = [d for d in range(a.ndim) if d != dim]
        if not rest:  # a vector is one column
            yield self._centred(atom, dim, self._matrix(a, 0), self._matrix(b, 0))
            return
        along = max(rest, key=lambda d: a.shape[d])
        for start, length in self._steps(a, along):
            part = self._chosen(b, atom, along, permutations, start, length)
            part = self._others(part, atom, (dim, along), permutations)
            here = self._matrix(a.narrow(along, start, length), dim)
            yield self._centred(atom, dim, here, self._matrix(part, dim))

    def _steps(self, tensor: torch.Tensor, along: int) -> Iterator[tuple[int, int]]:
        """Start and length of the slabs that an axis is cut into."""
        size = tensor.shape[along]
        step = max(1, SLAB * size // max(1, tensor.numel()))
        return ((start, min(step, size - start)) for start in range(0, size, step))

    def _chosen(
        self, b: torch.Tensor, atom: Atom, along: int, permutations: Permutations, start: int, length: int
    ) -> torch.Tensor:
        """What of B comes to lie in one slab; only its share of the axis is gathered."""
        word = atom.words[along]
        if word is None:
            return b.narrow(along, start, length)
        return self._take(b, along, permutations[word][start : start + length])

    def _changes(
        self,
        atom: Atom,
        dim: int,
        moved: str,
        units: torch.Tensor,
        permutations: Permutations,
        to: torch.Tensor,
    ) -> Iterator[Slab]:
        """As `_slabs`, for the units of `moved` alone and with what B's change by."""
        along, old = atom.words.index(moved), permutations[moved]
        a, b = self._turned(atom, along)
        turned = replace(atom, words=(moved, *(word for d, word in enumerate(atom.words) if d != along)))
        dim += dim < along
        for some in units.split(max(1, SLAB * len(a) // max(1, a.numel()))):
            change = self._take(b, 0, to[some]).to(self.dtype)
            change -= self._take(b, 0, old[some]).to(self.dtype)
            change = self._others(change, turned, (dim, 0), permutations)
            here = self._matrix(self._take(a, 0, some), dim)
            yield self._centred(atom, dim - (dim <= along), here, self._matrix(change, dim))

    def _turned(self, atom: Atom, along: int) -> Slab:
        """Both views with an axis first; copied once where they are small, so that rows lie together."""
        if (atom, along) not in self._turns:
            both = tuple(view.movedim(along, 0) for view in self._views(atom))
            size = sum(view.numel() * self.dtype.itemsize for view in both)
            if along == 0 or size > self._left or self.device.type != "cpu":
                return both
            self._left -= size
            self._turns[atom, along] = tuple(self._wide(view).contiguous() for view in both)
        return self._turns[atom, along]

    def _views(self, atom: Atom) -> Slab:
        return tuple(atom.view(self._tensor(k, atom.tensor)) for k in (0, 1))

    def _tensor(self, k: int, name: str) -> torch.Tensor:
        """One model's tensor where it is computed with: on another device it is copied once, and stays."""
        if self.device.type == "cpu":
            return (self.reference, self.model)[k][name].detach().cpu()
        if (k, name) not in self._there:
            self._there[k, name] = (self.reference, self.model)[k][name].detach().to(self.device)
        return self._there[k, name]

    def _take(self, tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        index = index.to(tensor.device)
        if len(index) * tensor.numel() <= COPIED * tensor.shape[dim]:
            return index_select(tensor, dim, index)
        with self._threaded():  # nothing is added here
            return index_select(tensor, dim, index)

    def _others(
        self, part: torch.Tensor, atom: Atom, done: Collection[int], permutations: Permutations
    ) -> torch.Tensor:
        for d, word in enumerate(atom.words):
            if word is not None and d not in done:
                part = self._take(part, d, permutations[word])
        return part

    def _wide(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device=self.device, dtype=self.dtype)

    def _matrix(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        """Axis `dim` first, the others flattened behind it."""
        tensor = self._wide(tensor)
        return tensor.movedim(dim, 0).reshape(tensor.shape[dim], -1)

    def _centred(self, atom: Atom, dim: int, a: torch.Tensor, b: torch.Tensor) -> Slab:
        """Both without what their units have in common, where that is much."""
        if (atom, dim) not in self._offsets:
            tensor = self._wide(self._views(atom)[0])
            common = torch.linalg.vector_norm(tensor.mean(dim=dim)).item() ** 2 * tensor.shape[dim]
            self._offsets[atom, dim] = common > OFFSET * self._norms(atom)[0] ** 2
        return (a - a.mean(dim=0), b - b.mean(dim=0)) if self._offsets[atom, dim] else (a, b)

    # -------------------------------------------------------------------------------------------- values

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
            result += self._inner(self.double[word], {**permutations, word: perm})
            result -= self._inner(self.double[word], permutations)
        return result

    def unit_norms(self, word: str) -> Slab:
        """‖unit i of A‖ and ‖unit j of B‖ (n,) float64 over the atoms that carry the word."""
        if word not in self._unit_norms:
            squares = torch.zeros(2, self.words[word], dtype=torch.float64)
            for atom in (atom for atom in self.single[word] + self.double[word] if atom in self.mine):
                for side, view in zip(squares, self._views(atom), strict=True):
                    for dim in (d for d, here in enumerate(atom.words) if here == word):
                        rest = [d for d in range(view.ndim) if d != dim]
                        norms = self._wide(view)
                        norms = torch.linalg.vector_norm(norms, dim=rest) if rest else norms
                        side += norms.cpu().double().square()
            self._unit_norms[word] = tuple(self.ranks.sum(squares).sqrt())
        return self._unit_norms[word]

    def scale(self, word: str) -> float:
        """‖A‖·‖B‖ over the atoms that carry the word: what no inner product of theirs can exceed."""
        if word not in self._scales:
            norms = [self._norms(atom) for atom in self.single[word] + self.double[word] if atom in self.mine]
            sides = (self.ranks.sum_float(sum(norm[k] ** 2 for norm in norms)) for k in (0, 1))
            self._scales[word] = math.sqrt(math.prod(sides))
        return self._scales[word]

    def limit(self) -> float:
        """‖A‖·‖B‖ over all atoms: no objective is larger."""
        norms = [self._norms(atom) for atom in self.atoms if atom in self.mine]
        sides = (self.ranks.sum_float(sum(norm[k] ** 2 for norm in norms)) for k in (0, 1))
        return math.sqrt(math.prod(sides))

    def _norms(self, atom: Atom) -> tuple[float, float]:
        if atom not in self._atom_norms:
            views = (self._wide(view) for view in self._views(atom))
            self._atom_norms[atom] = tuple(torch.linalg.vector_norm(view).item() for view in views)
        return self._atom_norms[atom]

    def objective(self, permutations: Permutations) -> float:
        """Σ ⟨A, πB⟩ over every tensor that is evidence and that some word permutes; added in float64."""
        return self._inner(self.atoms, permutations)

    def _inner(self, chosen: Iterable[Atom], permutations: Permutations) -> float:
        parts = [self._inner_atom(atom, permutations) for atom in chosen if atom in self.mine]
        return self.ranks.sum_float(math.fsum(parts))

    def _inner_atom(self, atom: Atom, permutations: Permutations) -> float:
        a, b = self._views(atom)
        result = 0.0
        for start, length in self._steps(a, 0):
            part = self._others(
                self._chosen(b, atom, 0, permutations, start, length), atom, (0,), permutations
            )
            here, part = self._wide(a.narrow(0, start, length)), self._wide(part)
            if here.numel() > COPIED:  # a sum a row first: twice as fast
                result += (
                    torch.linalg.vecdot(here.flatten(1), part.flatten(1)).sum(dtype=torch.float64).item()
                )
            else:
                result += (here * part).sum(dtype=torch.float64).item()
        return result


def wide(models: Sequence[Tensors], names: Collection[str]) -> torch.dtype:
    """float64 where any of these tensors is stored so, else float32."""
    plans = [plan_of(model) for model in models]
    stored = {plan[name][0] for plan in plans for name in names}
    return torch.float64 if torch.float64 in stored else torch.float32
