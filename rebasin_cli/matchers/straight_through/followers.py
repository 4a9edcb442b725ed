"""All models but the reference, brought near to their dummies: whose turn it is, and side by side."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...runtime.seeds import generator
from ...runtime.threads import on_one_thread, pool
from ...types import Permutations
from .projection import Projection


class Followers:
    """The models as they stand, `queue` for whose turn it is, and threads to solve several at once."""

    def __init__(self, projections: list[Projection], seed: int):
        self.projections = projections
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
        """Solve the permutations whose turn it is, models side by side; units that moved, of how many."""
        turns: dict[int, list[str]] = {}
        for k, name in self.queue.take(quota):
            turns.setdefault(k, []).append(name)

        def solve(k: int) -> int:
            return self.projections[k].solve(turns[k])

        if len(turns) > 1 and self.pool is not None:
            with on_one_thread():
                moved = sum(self.pool.map(solve, turns))
        else:
            moved = 0
            for k in turns:
                with self.projections[k].pair.computing():
                    moved += solve(k)
        units = 0
        for k in turns:
            projection = self.projections[k]
            sizes = projection.fitted.words
            units += sum(sizes[word] for name in turns[k] for word in projection.members[name])
        return moved, units

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
