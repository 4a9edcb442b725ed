"""Two models seen as blocks of tensors: what of them lies where, on which device, computed by which threads.

Everything but large products, gathers and assignments runs on one thread, and those split rows and columns,
never a sum: the bits do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from ...checkpoints.tensors import in_memory, is_held, plan_of, read_ahead
from ...runtime.ranks import ALONE, Ranks
from ...runtime.threads import on_one_thread, pool
from ...spec.atoms import Atom, atoms
from ...spec.spec import FittedSpec
from ...symmetry.permutation import index_select
from ...types import Permutations, Tensors
from .pace import Pace

SLAB = 1 << 20  # numbers in one operand of a product: 4 MB in float32
TURNED = 1 << 25  # bytes of copies with another axis first, or as permutations put them
COPIED = 1 << 20  # numbers to gather that are not worth a second thread

Slab = tuple[torch.Tensor, torch.Tensor]


class Blocks:
    """Two models as atoms, grouped by the words that permute them.

    The vectors of a word (biases, norms' weights) are one atom together: most of the calls, hardly any work.
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
        self.reference, self.model = reference, model
        self.words, self.within = fitted.words, fitted.within
        self.device, self.ranks = torch.device(device), ranks
        self.on_cpu = self.device.type == "cpu"
        found = [atom for atom in atoms(fitted) if any(atom.words)]
        self.dtype = wide([reference, model], {atom.tensor for atom in found})
        self._bundles = bundles(found)
        together = {atom for parts in self._bundles.values() for atom in parts}
        self.atoms = [*(atom for atom in found if atom not in together), *self._bundles]
        self.single: dict[str, list[Atom]] = {word: [] for word in fitted.words}
        self.double: dict[str, list[Atom]] = {word: [] for word in fitted.words}
        self.neighbours: dict[str, set[str]] = {word: set() for word in fitted.words}
        for atom in self.atoms:
            present = [word for word in atom.words if word is not None]
            for word in set(present):
                (self.single if present.count(word) == 1 else self.double)[word].append(atom)
                self.neighbours[word] |= set(present) - {word}
        self._beside = {
            word: [(atom, {*atom.words} - {None, word}) for atom in its] for word, its in self.single.items()
        }
        plan = plan_of(reference)
        self.shapes = {atom: _shape(atom, plan) for atom in self.atoms if atom not in self._bundles}
        for bundle, parts in self._bundles.items():
            self.shapes[bundle] = fitted.words[bundle.word(0)], len(parts)
        self.numels = {atom: math.prod(self.shapes[atom]) for atom in self.atoms}
        self.mine = ranks.share(self.atoms, [self.numels[atom] for atom in self.atoms])
        self._pool: ThreadPoolExecutor | None = None
        self.threads = 1
        self._pace = Pace(1)
        self._seen: dict[Atom, Slab] = {}
        self._turns: dict[tuple[Atom, int], Slab] = {}
        self._places: dict[Atom, tuple[list[torch.Tensor | None], torch.Tensor]] = {}
        self._left = TURNED
        self._there: dict[tuple[int, str], torch.Tensor] = {}
        self._resident = type(reference) is type(model) is dict

    @property
    def meanwhile(self) -> ThreadPoolExecutor | None:
        """Threads that assign while a GPU makes the next matrix; none on a CPU."""
        return None if self.on_cpu else self._pool

    def refresh(self) -> None:
        """Forget all copies: the models' values are others now."""
        self._seen, self._turns, self._places, self._left = {}, {}, {}, TURNED

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Threads for the products and the assignments, torch's own held to one meanwhile."""
        threads = torch.get_num_threads()
        try:
            with on_one_thread():
                if threads == 1:
                    yield
                    return
                with pool(threads - 1) as others:
                    self._pool, self.threads, self._pace = others, threads, Pace(threads)
                    yield
        finally:
            self._pool, self.threads, self._pace = None, 1, Pace(1)

    def read_ahead(self) -> None:
        """Have what is kept of files read, on all threads: that is mostly waiting for new memory."""
        parts = (part for atom in self.mine for part in self._bundles.get(atom, (atom,)))
        names = dict.fromkeys(part.tensor for part in parts)
        models = [model for model in (self.reference, self.model) if is_held(model)]
        self.run(lambda one: read_ahead(*one), [(model, name) for model in models for name in names])

    def run(self, task: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """`task` on every item, on this thread and the others; the results in the items' order."""
        items = list(items)
        helpers, others = min(self.threads, len(items)) - 1, self._pool
        if helpers < 1 or others is None:
            return [task(item) for item in items]
        results: list[Any] = [None] * len(items)
        waiting = iter(range(len(items)))  # next() on it is one step of the interpreter: no two get the same

        def drain() -> None:
            for k in waiting:
                results[k] = task(items[k])

        futures = [others.submit(drain) for _ in range(helpers)]
        try:
            drain()
        finally:
            for _ in waiting:  # after an error, or an interrupt, the others begin nothing new
                pass
        for future in futures:
            future.result()
        return results

    def solved(
        self, solve: Callable[[int, torch.Tensor], Any], matrices: Iterable[torch.Tensor], *, long: bool
    ) -> list[Any]:
        """`solve`, of a number and a matrix, for all of them, on the threads if it takes `long`.

        Beside a GPU, which makes the next matrix meanwhile, each is fetched and handed to a thread at once.
        """
        if (pool := self.meanwhile) is not None:
            waiting = [pool.submit(solve, k, matrix.cpu()) for k, matrix in enumerate(matrices)]
            return [future.result() for future in waiting]
        matrices = list(matrices)
        if long:
            return self.run(lambda k: solve(k, matrices[k]), range(len(matrices)))
        return [solve(k, matrix) for k, matrix in enumerate(matrices)]

    def resting_on(self, word: str, known: Set[str]) -> list[Atom]:
        """The atoms that carry the word once, and beside it only words that are known."""
        return [atom for atom, others in self._beside[word] if others <= known]

    def columns(self, chosen: Iterable[Atom], word: str) -> int:
        """How many numbers a unit of the word has in these atoms."""
        return sum(self.numels[atom] for atom in chosen) // self.words[word]

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
        if word is None or word not in permutations:
            return b.narrow(along, start, length)
        return self._take(b, along, permutations[word][start : start + length])

    def _placed(self, atom: Atom, permutations: Permutations, start: int, length: int) -> torch.Tensor:
        """One slab of B as the permutations put it; a small atom's last one is kept for who asks next."""
        b = self._views(atom)[1]
        perms = [None if word is None else permutations.get(word) for word in atom.words]
        if atom in self._places:
            kept, placed = self._places[atom]
            if all(one is other for one, other in zip(kept, perms, strict=True)):
                return placed
        part = self._others(self._chosen(b, atom, 0, permutations, start, length), atom, (0,), permutations)
        size = part.numel() * part.element_size()
        if length == len(b) and any(perm is not None for perm in perms) and self._keeps(atom, size):
            self._places[atom] = perms, part
        return part

    def _keeps(self, atom: Atom, size: int) -> bool:
        """Whether there is room for one more copy of an atom's."""
        if atom in self._places:  # its last copy's
            return True
        fits = size <= self._left and self.on_cpu
        self._left -= size * fits
        return fits

    def _turned(self, atom: Atom, along: int) -> Slab:
        """Both views with an axis first; copied once where they are small, so that rows lie together."""
        if (atom, along) not in self._turns:
            a, b = (view.movedim(along, 0) for view in self._views(atom))
            size = (a.numel() + b.numel()) * self.dtype.itemsize
            if along == 0 or size > self._left or not self.on_cpu:
                return a, b
            self._left -= size
            self._turns[atom, along] = self._wide(a).contiguous(), self._wide(b).contiguous()
        return self._turns[atom, along]

    def _views(self, atom: Atom) -> Slab:
        """Both models' atom; what is in memory anyway is looked up once."""
        if atom in self._seen:
            return self._seen[atom]
        if atom in self._bundles:
            parts = [self._views(part) for part in self._bundles[atom]]
            a, b = (torch.stack([self._wide(p) for p in side], dim=1) for side in zip(*parts, strict=True))
        else:
            a, b = (atom.view(self._tensor(k, atom.tensor)) for k in (0, 1))
        if atom in self._bundles or self._resident:
            self._seen[atom] = a, b
        return a, b

    def _tensor(self, k: int, name: str) -> torch.Tensor:
        """One model's tensor where it is computed with: on another device it is copied once, and stays."""
        if self.on_cpu:
            return (self.reference, self.model)[k][name].detach().cpu()
        if (k, name) not in self._there:
            self._there[k, name] = (self.reference, self.model)[k][name].detach().to(self.device)
        return self._there[k, name]

    def _take(self, tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        index = index if self.on_cpu else index.to(tensor.device)
        if self._pool is None or index.numel() * tensor.numel() <= COPIED * tensor.shape[dim]:
            return index_select(tensor, dim, index)
        with self._pace.threaded():  # nothing is added here
            return index_select(tensor, dim, index)

    def _others(
        self, part: torch.Tensor, atom: Atom, done: Collection[int], permutations: Permutations
    ) -> torch.Tensor:
        """The other axes permuted, but for words that have no permutation: they stay."""
        for d, word in enumerate(atom.words):
            if word is not None and word in permutations and d not in done:
                part = self._take(part, d, permutations[word])
        return part

    def _wide(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.on_cpu and tensor.dtype == self.dtype:
            return tensor  # most are, and to find that out takes torch longer
        return tensor.to(device=self.device, dtype=self.dtype)

    def _matrices(self, a: torch.Tensor, b: torch.Tensor, dim: int) -> Slab:
        """Axis `dim` first, the others flattened behind it in the order in which they lie in `a`.

        Where `dim` does not lie outermost, its units come to lie beside each other: that copies rows.
        """
        order = in_memory(a)
        if order[0] == dim:
            a, b = (self._wide(t).permute(order).reshape(t.shape[dim], -1) for t in (a, b))
        else:
            order = [*(d for d in order if d != dim), dim]
            a, b = (self._wide(t).permute(order).reshape(-1, t.shape[dim]).T for t in (a, b))
        return a, b


def first(dim: int, order: Sequence[int]) -> list[int]:
    """Axis `dim` before the others, which keep their order."""
    return [dim, *(d for d in order if d != dim)]


def is_matrix(tensor: torch.Tensor) -> bool:
    """Whether all axes but the first can be seen as one."""
    try:
        tensor.view(len(tensor), -1)
    except RuntimeError:
        return False
    return True


def bundles(found: Sequence[Atom]) -> dict[Atom, list[Atom]]:
    """For every word that is all there is to several atoms, the atom (n, k) that they are together.

    Those that a word's group only orders are apart.
    """
    vectors: dict[tuple[str, bool], list[Atom]] = {}
    for atom in found:
        if len(atom.words) == 1:
            vectors.setdefault((atom.word(0), atom.ordered(0)), []).append(atom)
    return {
        Atom("\n".join(atom.tensor for atom in parts), (word, None), sides=("|" * ordered, "")): parts
        for (word, ordered), parts in vectors.items()
        if len(parts) > 1
    }


def _shape(atom: Atom, plan: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple[int, ...]:
    _, shape = plan[atom.tensor]
    return tuple(atom.view(torch.empty(shape, device="meta")).shape) if atom.steps else shape


def wide(models: Sequence[Tensors], names: Collection[str]) -> torch.dtype:
    """float64 where any of these tensors is stored so, else float32."""
    plans = [plan_of(model) for model in models]
    stored = {plan[name][0] for plan in plans for name in names}
    return torch.float64 if torch.float64 in stored else torch.float32
