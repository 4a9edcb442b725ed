"""The permutations that bring one model nearest to weights which move a little at every step.

The model stands permuted as it was last found, so what is solved is by how much its units have to move from
there: mostly not at all. Each assignment starts from the last one's duals (Ito et al. 2025, section 4.2).
Signs move with orders; what maps are learned, beside this, stays still.

Several models take turns, and are solved side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import torch

from ...errors import Lost
from ...runtime.ranks import ALONE, Ranks
from ...runtime.seeds import generator
from ...runtime.threads import on_one_thread, pool
from ...spec.notation import words_of
from ...spec.spec import FittedSpec
from ...symmetry import action, assignment, permutation
from ...symmetry import elements as acts
from ...symmetry.assignment import Solution
from ...symmetry.elements import Elements
from ...symmetry.permutation import permute_
from ...symmetry.projection import project
from ...types import Permutations, Tensors
from ..descent import starred
from ..descent.pair import Pair

K = TypeVar("K")
L = TypeVar("L")
V = TypeVar("V")
AHEAD = 1 << 30  # bytes of matrices that are assigned while the next are made, beside a GPU
DOUBT = 1e-6  # of what similarities with signs could be worth: a step that gains less is rounding
TOGETHER = 1 << 22  # bytes of matrices that are assigned one after the other: the solver stays in the caches


class Projection:
    """One model, standing in memory of its own (`standing`, changed in place), and the weights it follows.

    `moving` are those weights, changed by others. `names` are the words that can be solved, of coupled ones
    the first; solving all of them once is one sweep of weight matching. `permutations` and, of words that
    have them, `signs` say how the model stands. Heads with matrices in them stay in the order that they start
    in, and so do words with signs that stand on two axes of one tensor.
    """

    def __init__(self, moving: Tensors, standing: Tensors, fitted: FittedSpec, *, device: str = "cpu"):
        self.fitted, self.standing = fitted, standing
        signed = {w for w in fitted.groups if fitted.group(w).more and not fitted.group(w).matrix}
        self.pair = Pair(moving, standing, fitted, whole=signed, device=device)
        self.pair.settle_offsets()  # the same ones for a search that was interrupted
        self.permutations = permutation.identity(fitted.words)
        self.solves = 0
        self._still = permutation.identity(fitted.words)
        self._groups = starred.groups(fitted.within)
        coupled = {word for group in self._groups.values() for word in group.words}
        self.members: dict[str, tuple[str, ...]] = {
            **{word: (word,) for word in fitted.words if word not in coupled},
            **{name: group.words for name, group in self._groups.items()},
        }
        twice = {word for word in signed if self.pair.double[word]}
        staying = twice | {word for word in fitted.groups if fitted.group(word).matrix}
        self.names = sorted(
            name
            for name, words in self.members.items()
            if any(fitted.words[word] > 1 for word in words) and staying.isdisjoint(words)
        )
        self._owners = {name: k for k, name in enumerate(self.names)}
        self.signs = {word: torch.ones(fitted.words[word], dtype=torch.float64) for word in signed - twice}
        self._starts: dict[str, Solution] = {}
        self._carrying = {
            word: [name for name in _once(standing) if word in _words(fitted, name)] for word in fitted.words
        }

    @property
    def element(self) -> Elements:
        """Orders and signs together."""
        return Elements(dict(self.permutations), dict(self.signs))

    def work(self, name: str) -> int:
        """Multiplications that the similarity of a word takes."""
        pair = self.pair
        parts = (
            (pair.words[w], pair.columns(pair.single[w] + pair.double[w], w)) for w in self.members[name]
        )
        return sum(units**2 * columns for units, columns in parts)

    def place(self, permutations: Permutations) -> None:
        """Stand so: from however it stands now."""
        back = permutation.invert(self.permutations)
        self._move(permutation.compose(back, permutations))

    def place_signs(self, signs: Mapping[str, torch.Tensor]) -> None:
        """Stand with these signs; the orders stay."""
        for word, now in signs.items():
            self._flip(word, now * self.signs[word])

    def solve(self, names: Sequence[str], ranks: Ranks = ALONE) -> int:
        """Best permutations of these words and groups in turn, all others held; how many units moved.

        Words that do not touch are solved together, ahead of those between them, and those with signs last.
        Of several `ranks` each solves some of those that are solved together; signs have to be one's alone.
        """
        total = 0
        for some in self._side_by_side([name for name in names if name not in self.signs]):
            self.pair.refresh()
            self.solves += len(some)
            mine = [name for name in some if self._owners[name] % ranks.size == ranks.rank]
            changes = shared(ranks, self._changes, mine, some)
            for word in changes.keys() - {*mine}:
                self._starts.pop(word, None)
            moved = {word: int((change != self._still[word]).sum()) for word, change in changes.items()}
            if any(moved.values()):
                self._move({word: changes[word] for word in changes if moved[word]})
            total += sum(moved.values())
        return total + sum(self._with_signs(word) for word in names if word in self.signs)

    def _changes(self, some: Sequence[str]) -> dict[str, torch.Tensor]:
        if not some:
            return {}
        return self._together(some[0]) if some[0] in self._groups else self._alone(some)

    def take(self, names: Sequence[str], permutations: Permutations) -> None:
        """Stand so, as another rank has solved these words."""
        self.solves += len(names)
        self._starts.clear()  # how far words came that another rank moved is no start
        self.place(permutations)

    def _side_by_side(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Sets of words that do not touch, as many together as may be, cut where their matrices are many."""
        waiting, room = list(names), TOGETHER if self.pair.on_cpu else AHEAD
        while waiting:
            together: list[str] = []
            later: list[str] = []
            for name in waiting:
                (together if self._apart(name, together) else later).append(name)
            some: list[str] = []
            left = room
            for name in together:
                left -= self.pair.dtype.itemsize * self.pair.words[name] ** 2
                if some and left < 0:
                    yield some
                    some, left = [], room
                some.append(name)
            yield some
            waiting = later

    def _apart(self, name: str, others: Sequence[str]) -> bool:
        """Whether a word touches none of these; a group is by itself."""
        if not others:
            return True
        return not self._groups.keys() & {name, *others} and not self.pair.neighbours[name] & {*others}

    def _alone(self, words: Sequence[str]) -> dict[str, torch.Tensor]:
        starts = [self._starts.get(word) for word in words]
        solutions = assignment.solve_all(map(self._similarity, words), starts, pool=self.pair.meanwhile)
        return {word: self._taken(word, found) for word, found in zip(words, solutions, strict=True)}

    def _similarity(self, word: str) -> torch.Tensor:
        pair = self.pair
        similarity = pair.matrix(word, {}, chosen=pair.single[word])
        if pair.double[word]:  # the gradient of a quadratic form: taken only if the objective rises
            pair.matrix(word, {}, chosen=pair.double[word], out=similarity)
        return similarity

    def _taken(self, word: str, solution: Solution) -> torch.Tensor:
        """The word's permutation from here, and the start of its next assignment."""
        pair, still = self.pair, self._still[word]
        if pair.double[word] and not starred.gain(pair, {word: still}, {word: solution.perm}) > 0:
            return still
        self._starts[word] = solution.settled()
        return solution.perm

    def _together(self, name: str) -> dict[str, torch.Tensor]:
        pair, group = self.pair, self._groups[name]
        here = {word: self._still[word] for word in group.words}
        changes, gain = starred.step(pair, pair, group, here)
        if starred.quadratic(pair, group):
            gain = starred.gain(pair, here, changes)
        return changes if gain > 0 else here

    def _with_signs(self, word: str) -> int:
        """The best order and signs of one word, all others held; how many units moved."""
        self.pair.refresh()
        self.solves += 1
        similarity = self._similarity(word).double().cpu()
        found = project(similarity, self.fitted.groups[word])
        if found.value - float(similarity.trace()) <= DOUBT * abs(found.value):
            return 0
        self._move({word: found.perm})
        self.signs[word] = self.signs[word][found.perm]
        signs = torch.ones(len(found.perm)) if found.map is None else found.map
        self._flip(word, signs)
        return int(((found.perm != self._still[word]) | (signs < 0)).sum())

    def _flip(self, word: str, by: torch.Tensor) -> None:
        """Multiply the word's units by 1 and −1, in the tensors that carry them, and in the account."""
        self.signs[word] = self.signs[word] * by
        maps = acts.maps_of(Elements({}, {word: by}))
        for name in self._carrying[word]:
            tensor = self.standing[name]
            tensor.copy_(action.act(tensor, self.fitted.tensors[name], self.fitted, maps))

    def _move(self, changes: Permutations) -> None:
        """Let units change places: in the tensors that carry them, and in the account."""
        whole = {**self._still, **changes}
        touched = dict.fromkeys(name for word in changes for name in self._carrying[word])
        for name in touched:
            permute_(self.standing[name], self.fitted.tensors[name], whole, self.fitted.within)
        self.permutations = permutation.compose(self.permutations, whole)


def _once(tensors: Tensors) -> list[str]:
    """Names without those that share another one's memory."""
    seen: dict[tuple[int, int], str] = {}
    for name, tensor in tensors.items():
        seen.setdefault((tensor.data_ptr(), tensor.numel()), name)
    return list(seen.values())


def _words(fitted: FittedSpec, name: str) -> set[str]:
    return {word for axis in fitted.tensors.get(name, ()) for word in words_of(axis)}


def shared(ranks: Ranks, step: Callable[[list[K]], dict[L, V]], mine: list[K], every: list[K]) -> dict[L, V]:
    """What all ranks have found, each of its own.

    Where another is lost this one does the rest: a step ends whole, and can be kept; the next sum ends all.
    """
    own: dict[L, V] = {}

    def run() -> dict[L, V]:
        own.update(step(mine))
        return own

    try:
        return {key: value for part in ranks.shared(run) for key, value in part.items()}
    except Lost:
        return own | step([each for each in every if each not in mine])


class Followers:
    """The models as they stand, `queue` for whose turn it is, and threads to solve several at once."""

    def __init__(self, projections: list[Projection], seed: int, ranks: Ranks = ALONE):
        self.projections, self.ranks = projections, ranks
        self.queue = Queue(projections, seed)
        self.threads = torch.get_num_threads()
        many = len(projections) > 1 and self.threads > 1
        self.pool = pool(min(self.threads, len(projections))) if many else None

    @property
    def permutations(self) -> tuple[Permutations, ...]:
        """How each model stands."""
        return tuple(dict(projection.permutations) for projection in self.projections)

    @property
    def solves(self) -> int:
        return sum(projection.solves for projection in self.projections)

    def place(self, permutations: Iterable[Permutations]) -> None:
        for projection, perms in zip(self.projections, permutations, strict=True):
            projection.place(perms)

    def solve(self, quota: float) -> tuple[int, int]:
        """Solve the permutations whose turn it is, models side by side; units that moved, of how many.

        Ranks share models, where there are several, else the words of one.
        """
        turns: dict[int, list[str]] = {}
        for k, name in self.queue.take(quota):
            turns.setdefault(k, []).append(name)

        if len(turns) == 1:
            ((k, names),) = turns.items()
            with self.projections[k].pair.computing():
                moved = self.projections[k].solve(names, self.ranks)
        else:
            mine = [k for k in turns if k % self.ranks.size == self.ranks.rank]
            found = shared(self.ranks, lambda some: self._solved(turns, some), mine, [*turns])
            for k in turns.keys() - {*mine}:
                self.projections[k].take(turns[k], found[k][1])
            moved = sum(units for units, _ in found.values())
        units = 0
        for k in turns:
            projection = self.projections[k]
            sizes = projection.fitted.words
            units += sum(sizes[word] for name in turns[k] for word in projection.members[name])
        return moved, units

    def _solved(
        self, turns: Mapping[int, Sequence[str]], some: Sequence[int]
    ) -> dict[int, tuple[int, Permutations]]:
        """Of some models: how many units moved, and how each stands then."""

        def solve(k: int) -> int:
            return self.projections[k].solve(turns[k])

        if len(some) > 1 and self.pool is not None:
            with on_one_thread():
                moved = [*self.pool.map(solve, some)]
        else:
            moved = []
            for k in some:
                with self.projections[k].pair.computing():
                    moved.append(solve(k))
        stands = (self.projections[k].permutations for k in some)
        return dict(zip(some, zip(moved, stands, strict=True), strict=True))

    def close(self) -> None:
        if self.pool is not None:
            self.pool.shutdown()


class Queue:
    """Whose turn it is: every permutation of every model once a round, in an order of the round's own."""

    def __init__(self, projections: list[Projection], seed: int):
        self.turns = [(k, name) for k, p in enumerate(projections) for name in p.names]
        self.costs = {(k, name): max(1, p.work(name)) for k, p in enumerate(projections) for name in p.names}
        self.work = sum(self.costs.values())  # multiplications of a round
        self.seed, self.position, self.credit = seed, 0, 0.0

    def take(self, quota: float) -> list[tuple[int, str]]:
        """The next turns, for so many multiplications on average, but none twice."""
        self.credit = min(self.credit + quota, float(self.work))
        taken: list[tuple[int, str]] = []
        while self.turns and len(taken) < len(self.turns):
            number, place = divmod(self.position, len(self.turns))
            turn = self.turns[self._order(number)[place]]
            if self.costs[turn] > self.credit or turn in taken:
                break
            self.credit -= self.costs[turn]
            self.position += 1
            taken.append(turn)
        return taken

    def _order(self, number: int) -> list[int]:
        if getattr(self, "_round", None) != number:
            rng = generator(self.seed, f"matching round {number}")
            self._round, self._kept = number, torch.randperm(len(self.turns), generator=rng).tolist()
        return self._kept
