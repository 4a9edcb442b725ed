"""Coordinate descent over the elements of one pair: a step finds the best of one word, all others held.

A permutation whose neighbours did not change since its last solve is not solved again, nor one that is
proven to stay the best. Its similarity is changed only where neighbours moved, its assignment starts from the
last one's duals, and words that do not touch are solved at the same time. A word on two axes of a tensor has
a quadratic objective: its assignment is solved on the gradient, and taken only if the true objective rises.
Starred words are solved together with what they lie within (`starred`). Elements beyond orders (`turned`) are
multiplied into the model, which makes the matrices of all words beside them anew.

Coordinate descent as in Ainsworth et al. 2022, Algorithm 1; the rotation of one word is an orthogonal
Procrustes problem, Schönemann 1966.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ...runtime.seeds import generator
from ...spec.atoms import Atom
from ...symmetry.assignment import Solution
from ...symmetry.elements import Elements
from ...types import Permutations
from . import sampling, starred, turned
from .assignments import Assignments
from .baked import Baked
from .pair import Pair
from .proof import margins_left, proven
from .similarity import Basis, Similarities

DAMPING = (0.5, 0.25)  # steps towards the assignment that are tried where the whole one would lose
DOUBT = 1e-6  # a gain below this share of the norms of the units that move may be round-off
ENOUGH = 1e-7  # of ‖A‖·‖B‖: where some words turn, a sweep that gains less is the last
TURN = 1e-2  # of that: a step that turns units and gains less is rounding


class Descent:
    """What is remembered from solve to solve, and the sweeps that use it.

    `words` are those that can move; of coupled ones (`groups`) the first. A gain below `tolerance` × ‖A‖·‖B‖,
    over the tensors that carry the word, means and vectors left out, counts as none.
    """

    def __init__(self, pair: Pair, tolerance: float, memory: int | None = None):
        self.pair, self.tolerance = pair, tolerance
        self.little = ENOUGH  # where float64 tells more apart, a search may set less
        self.small: set[str] = set()  # words whose last solve gained something, but too little
        self.baked = pair if isinstance(pair, Baked) and pair.turning else None
        self.turning = {} if self.baked is None else self.baked.turning
        self.groups = starred.groups(pair.within) | self.turning
        members = {name: group.words for name, group in self.groups.items()}
        coupled = {word for words in members.values() for word in words}
        self.members = {word: (word,) for word in pair.words if word not in coupled} | members
        self.words = sorted(
            name
            for name, words in self.members.items()
            if name in self.turning or any(pair.words[word] > 1 for word in words)
        )
        self.single = [word for word in self.words if word not in self.groups]
        leader = {word: name for name, words in self.members.items() for word in words}
        self.neighbours = {
            name: {leader[other] for word in words for other in pair.neighbours[word]} - {name}
            for name, words in self.members.items()
        }
        self.similarities = Similarities(pair, memory)
        self.assignments = Assignments(pair, self.similarities)
        self._reaches: dict[tuple[str, ...], float] = {}
        self._limit: float | None = None
        self.proving = False  # whether proofs are tried before solves: they succeed where models nearly match
        self._told, self._untold = 0.0, set(pair.atoms)
        self.sampling = True  # whether the first sweep looks at a part of the columns: no longer if in vain

    @property
    def solves(self) -> int:
        """How many assignments were solved, those of coupled words together as one."""
        return self.assignments.solves

    @property
    def limit(self) -> float:
        """‖A‖·‖B‖, which no step changes."""
        if self._limit is None:
            self._limit = self.pair.limit()
        return self._limit

    def stand(self, element: Elements) -> dict[str, torch.Tensor]:
        """Go to an element; the permutations of words that are only ordered."""
        if self.baked is not None:
            self.assignments.forget(self.pair.words)
        return self.pair.stand(element)

    def order(self, seed: int, name: str) -> list[str]:
        """The words in a random order of their own for every seed and name."""
        rng = generator(seed, name)
        return [self.words[k] for k in torch.randperm(len(self.words), generator=rng).tolist()]

    def outward(self, order: Sequence[str], current: Permutations) -> dict[str, torch.Tensor]:
        """The first sweep: from what cannot move, inputs and outputs, to the inside.

        At the beginning the permutations around a word are as good as random, and what they say is noise
        that a search may never get rid of. So the next word is the one that most is known about, and only
        tensors whose other words have had their turn say anything. `order` decides among equals.
        """
        pair, found = self.pair, dict(current)
        self._told, self._untold = 0.0, set(pair.atoms)
        known = {word for name in self.members.keys() - {*order} for word in self.members[name]}
        place = {name: k for k, name in enumerate(order)}
        total = {name: self._columns({w: pair.single[w] for w in self.members[name]}) for name in order}
        waiting: list[tuple[float, int, str]] = []  # a heap; a name stands there again where more is known

        def look(name: str) -> None:
            chosen = {w: pair.resting_on(w, known) for w in self.members[name]}
            heapq.heappush(waiting, (-self._columns(chosen) / max(1, total[name]), place[name], name))

        for name in order:
            look(name)
        while waiting:
            _, _, name = heapq.heappop(waiting)
            if place.pop(name, None) is None:
                continue
            known |= {*self.members[name]}
            self._first(name, known, found)
            for other in self.neighbours[name] & place.keys():
                look(other)
        return found

    def reached(self, found: Permutations) -> float:
        """The objective of what `outward` found: what its matrices said, and the sum of all other tensors."""
        return self.pair.ranks.agree(self._told + self.pair.inner(self._untold, found))

    @property
    def summed(self) -> bool:
        """Whether `reached` summed over all tensors, none of which a matrix told of."""
        return self._untold == set(self.pair.atoms)

    def _first(self, name: str, known: set[str], found: dict[str, torch.Tensor]) -> None:
        """Match a word, or coupled ones, on what is known alone; `found` changes in place."""
        pair = self.pair
        if name in self.turning:
            self._turned(name, found, known)
            return
        if (group := self.groups.get(name)) is not None:
            changes, gained = starred.step(pair, self.similarities, group, found, known)
            if gained > self._least(*group.words):
                found |= self._same(changes)
            return
        evidence = pair.resting_on(name, known)
        if (perm := self._sampled(name, evidence, found)) is not None:
            found[name] = perm
            return
        similarity = self.similarities.matrix(name, found, chosen=evidence)
        (solution,) = self.assignments.solved([name], [similarity])
        after, before = self._worth(similarity, solution.perm, found[name])
        better = pair.ranks.agree(after - before) > self._least(name)
        if better:
            found[name] = solution.perm
        self._told += (after if better else before) + pair.taken_off(name, evidence, found)
        self._untold -= {*evidence}

    def sweep(self, order: Sequence[str], current: dict[str, torch.Tensor], stale: set[str]) -> float:
        """Every stale word once, words that do not touch together; `current` and `stale` change in place.

        What the objective gains.
        """
        gained, waiting, moving = 0.0, [word for word in order if word in stale], {*order}
        while waiting:
            together = self._apart(waiting)
            waiting = [word for word in waiting if word not in together.keys()]
            coupled = [word for word in together if word in self.groups and word not in self.turning]
            single = [word for word in together if word not in self.groups]
            steps = [(word, gain, {word: perm}) for word, gain, perm in self._improved(single, current)]
            for word, gain, changes in [*steps, *self._coupled(coupled, current)]:
                stale.discard(word)
                if gain > 0:
                    gained += gain
                    current |= changes
                    stale |= self.neighbours[word] & moving
                    if any(self.pair.double[w] for w in changes):
                        stale.add(word)  # its own gradient has moved
            for word in (word for word in together if word in self.turning):
                stale.discard(word)
                if gain := self._turned(word, current, None):
                    gained += gain
                    stale |= (self.neighbours[word] | {word}) & moving
        return gained

    def _turned(self, name: str, current: Permutations, known: set[str] | None) -> float:
        """Multiply the best element of words that take more than an order into the model; what that gains."""
        pair, group = self.baked, self.turning[name]
        if pair is None:
            raise LookupError(f"{name} is only ordered")
        self.assignments.solves += len(group.words)
        change = turned.step(pair, pair.fitted, group, current, known)
        gain, least = change.gain, max(self._least(*group.words), TURN * self.little * self.limit)
        if gain <= least:
            return 0.0
        kept, before = None, 0.0
        if known is None and starred.quadratic(pair, group):  # what it is worth depends on itself
            kept, before = pair.kept(group.words), pair.objective(current)
        pair.bake(change.perms, change.maps)
        if kept is not None and (gain := pair.objective(current) - before) <= 0:
            pair.restore(kept)
            return 0.0
        beside = [name, *self.neighbours[name]]
        self.assignments.forget(word for leader in beside for word in self.members[leader])
        return gain

    def first(self, order: Sequence[str]) -> set[str]:
        """The words that a sweep in this order begins with and finds the best of, wherever they stand."""
        return {word for word in self._apart(order) if word in self.single and not self.pair.double[word]}

    def settle(self, current: dict[str, torch.Tensor], seed: int, *, max_sweeps: int = 100) -> float:
        """Sweep in random orders until nothing improves; `current` changes in place. What is gained."""
        stale, sweep, total = set(self.words), 0, 0.0
        while stale and sweep < max_sweeps:
            gained = self.sweep(self.order(seed, f"sweep {sweep}"), current, stale)
            sweep, total = sweep + 1, total + gained
            if self.enough(gained):
                stale.clear()
        return total

    def enough(self, gained: float) -> bool:
        """Whether what turns has settled: rotations come nearer and nearer, and never end."""
        return bool(self.turning) and gained <= self.little * self.limit

    def _apart(self, waiting: Sequence[str]) -> dict[str, None]:
        """The first word, and those after it that touch none before them, in their order."""
        together: dict[str, None] = {}
        for word in waiting:
            if together.keys().isdisjoint(self.neighbours[word]):
                together[word] = None
        return together

    def _improved(
        self, words: Sequence[str], current: Permutations
    ) -> Iterator[tuple[str, float, torch.Tensor]]:
        """For each word, what its best assignment gains with the others held, and the assignment."""
        proven = {word: None for word in words if self._proven(word, current)}
        yield from ((word, 0.0, current[word]) for word in proven)
        words = [word for word in words if word not in proven]
        for group in self.similarities.together([word for word in words if not self.pair.double[word]]):
            matrices: list[torch.Tensor] = []
            solutions = self.assignments.solved(group, self._made(group, current, matrices))
            for word, similarity, solution in zip(group, matrices, solutions, strict=True):
                yield word, *self._judged(word, similarity, solution.perm, current)
            del matrices, similarity  # before the next group's are made
        for word in words:
            if self.pair.double[word]:
                yield word, *self._quadratic(word, current)

    def _made(self, words: Sequence[str], current: Permutations, kept: list[Any]) -> Iterator[torch.Tensor]:
        """The words' matrices, one after the other, and all of them in `kept`."""
        for word in words:
            kept.append(self.similarities.matrix(word, current))
            yield kept[-1]

    def _coupled(
        self, names: Sequence[str], current: Permutations
    ) -> Iterator[tuple[str, float, dict[str, torch.Tensor]]]:
        """As `_improved`, for groups of words: first all together, then within the blocks alone."""
        for name in names:
            group, pair = self.groups[name], self.pair
            self.assignments.solves += 1
            self.small.discard(name)
            changes, _ = starred.step(pair, self.similarities, group, current)
            gain = starred.gain(pair, current, changes := self._same(changes))
            if gain <= self._least(*group.words) and starred.quadratic(pair, group):
                changes = self._same(starred.reordered(pair, group, current))
                gain = starred.gain(pair, current, changes)
            if gain > self._least(*group.words):
                yield name, gain, changes
            else:
                if gain > 0:
                    self.small.add(name)
                yield name, 0.0, {}

    def _same(self, changes: Permutations) -> dict[str, torch.Tensor]:
        """On all ranks those of the first, whatever their processors round."""
        ranks = self.pair.ranks
        return {
            word: ranks.broadcast(perm.clone(), source=0) if ranks.size > 1 else perm
            for word, perm in changes.items()
        }

    def _sampled(self, word: str, chosen: Sequence[Atom], current: Permutations) -> torch.Tensor | None:
        """The best permutation on `chosen`, found on a part of their columns and proven on all, if it can be.

        As `outward` takes it: the present one where nothing is gained.
        """
        pair, old = self.pair, current[word]
        if not self.sampling or not sampling.worth_it(pair, word, chosen):
            return None
        sample = sampling.draw(pair, word, chosen, current)
        self.sampling = sample is not None
        if sample is None:
            return None
        nothing = torch.zeros_like(sample.prices)
        self.assignments.solutions[word] = Solution(sample.nearest(), [nothing] * 3)
        (solution,) = self.assignments.solved([word], [sample.matrix])
        perm = solution.perm
        left = margins_left(pair, word, solution.margins, chosen, {**current, word: perm})
        self.sampling = proven(pair, word, left)
        least = pair.ranks.agree(left[perm != old].sum().item())  # what is gained
        if not self.sampling or (least <= self._least(word) and not torch.equal(perm, old)):
            del self.assignments.solutions[word]  # its prices are no start for all columns
            return None
        prices = (solution.columns + sample.prices) / sample.share  # of all columns, about
        self.assignments.solutions[word] = Solution(perm, (solution.rows, prices, solution.margins))
        self.assignments.margins[word] = left
        self.assignments.bases[word] = Basis.standing(pair, word, chosen, current)
        return perm

    def _columns(self, chosen: Mapping[str, Sequence[Atom]]) -> int:
        return sum(self.pair.columns(atoms, word) for word, atoms in chosen.items())

    def _proven(self, word: str, current: Permutations) -> bool:
        """Whether the last solution is known to be still the best, where proofs are tried."""
        best = self.proving and self.assignments.proven(word, current)
        if best:
            self.small.discard(word)
        return best

    def _least(self, *words: str) -> float:
        """What counts as a gain."""
        pair = self.pair
        if words not in self._reaches:
            self._reaches[words] = pair.reach([a for w in words for a in pair.single[w] + pair.double[w]])
        return self.tolerance * self._reaches[words]

    def _gain(self, similarity: torch.Tensor, perm: torch.Tensor, old: torch.Tensor) -> float:
        """The same on all ranks, whatever their processors round."""
        after, before = self._worth(similarity, perm, old)
        return self.pair.ranks.agree(after - before)

    @staticmethod
    def _worth(similarity: torch.Tensor, *perms: torch.Tensor) -> list[float]:
        """Σ_i similarity[i, perm[i]] for each, in float64."""
        chosen = similarity.gather(1, torch.stack(perms, dim=1).to(similarity.device))
        worth: list[float] = chosen.sum(dim=0, dtype=torch.float64).tolist()
        return worth

    def _judged(
        self, word: str, similarity: torch.Tensor, perm: torch.Tensor, current: Permutations
    ) -> tuple[float, torch.Tensor]:
        """The gain and the permutation; 0 and the old one where nothing is gained.

        A gain near the round-off of the products is measured again in float64 before it is believed: so
        the objective rises with every step, and no round-off keeps the search alive.
        """
        old, pair = current[word], self.pair
        if torch.equal(perm, old):
            self.small.discard(word)
            return 0.0, old
        gain = self._gain(similarity, perm, old)
        if gain < DOUBT * pair.scale(word):
            a, b = pair.unit_norms(word)
            moved = perm != old
            norms = (a[moved] * (b[perm[moved]] + b[old[moved]])).sum().item()
            if gain < DOUBT * pair.ranks.agree(norms):
                gain = pair.gain(word, current, perm)
        if gain > self._least(word):
            self.small.discard(word)
            return gain, perm
        if gain > 0:
            self.small.add(word)
        return 0.0, old

    def _quadratic(self, word: str, current: Permutations) -> tuple[float, torch.Tensor]:
        """As `_judged`, for a word that sits on two axes of a tensor."""
        pair, old = self.pair, current[word]
        least = self._least(word)
        similarity = self.similarities.matrix(word, current)
        gradient = pair.matrix(word, current, chosen=pair.double[word])
        (solution,) = self.assignments.solved([word], [similarity + gradient])
        self.small.discard(word)
        if torch.equal(solution.perm, old):
            return 0.0, old
        if (gain := pair.gain(word, current, solution.perm)) > least:
            return gain, solution.perm
        best = gain
        # The gradient is linear in the permutation, so a point between the two has the gradients' mean.
        far = pair.matrix(word, {**current, word: solution.perm}, chosen=pair.double[word])
        for step in DAMPING:
            (solution,) = self.assignments.solved([word], [similarity + torch.lerp(gradient, far, step)])
            if (gain := pair.gain(word, current, solution.perm)) > least:
                return gain, solution.perm
            best = max(best, gain)
        if best > 0:
            self.small.add(word)
        return 0.0, old
