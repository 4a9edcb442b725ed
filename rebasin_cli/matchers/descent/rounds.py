"""Rounds of many models from several starts, one after the other; the best of where they end is kept.

Where rounds end depends on where they begin. Models that are near to each other begin as they stand; of
others the mean says nothing at first, so each joins the mean of those before it. Then the best is kicked: a
few units of one model, or of all, change places, and rounds go on from there.

Of more than a few models not all are joined first by the others, or kicked in a turn, and what falls behind
the best is given up: else time grows faster than the square of their number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...runtime.seeds import generator
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from .. import MatchResult, Problem, State, kept
from .many import Many
from .starts import NEAR, jolted

SAME = 1e-9  # of the limit: objectives that are no farther apart are one, and the first is taken
FEW = 5  # models, which are all tried one by one; of n models √(n · FEW) are
AHEAD = 4  # rounds as good as its last that a start of many models may need to reach the best
A_TURN = 0.5  # rounds that a turn of kicks may take, for each round of the starts
ENDED = "ended "  # how names of a kept state's tensors begin that are of the best start so far


@dataclass(frozen=True)
class Start:
    """Where rounds of some models begin.

    As they stand (`stay`: as a search before left them), or each joins those before it in the order of
    `joining`, or where the best so far is, after a `kick`: its turn, and the model that it is of. `order` has
    the models' numbers in the problem.
    """

    many: Many
    order: tuple[int, ...]
    joining: tuple[int, ...] = ()
    stay: bool = False
    kick: tuple[int, int] | None = None

    def round(self, number: int, best: Sequence[Elements]) -> bool:
        """One round, the `number`-th of this start; whether a model moved; a kick begins at `best`."""
        if self.kick is not None:
            turn, who = self.kick
            self.many.orders = f"{self.many.method} kick {turn * len(self.order) + who}"
            if number == 0:
                self.many.current = self._kicked([best[k] for k in self.order])
            return self.many.round(number)
        if self.joining:
            self.many.orders = f"{self.many.method} joined {self.joining}"  # each start has luck of its own
            return self.many.round(number) if number else self.many.join(self.joining)
        self.many.orders = self.many.method
        if number == 0 and not self.stay:
            self.many.current = [acts.identity(self.many.fitted) for _ in self.many.models]
        return self.many.round(number)

    def _kicked(self, standing: Sequence[Elements]) -> list[Elements]:
        """One model after the other; in every third turn, from the second on, all of them."""
        turn, who = self.kick or (0, 0)
        rng = generator(self.many.problem.seed, self.many.orders)
        return [
            jolted(element, self.many.fitted, rng) if turn % 3 == 1 or j == who else element
            for j, element in enumerate(standing)
        ]

    def elements(self) -> list[Elements]:
        """One for each model, in the problem's order."""
        return [self.many.current[self.order.index(k)] for k in range(len(self.order))]


def turns(count: int, few: bool = False) -> list[tuple[int, ...]]:
    """The orders in which models 0 … `count` − 1 join: upwards from each of them, and then downwards.

    `few`: of the first kind alone, and not from each.
    """
    up = [(*range(k, count), *range(k)) for k in range(count)]
    if few:
        each = tried(count)
        return [up[k * count // each] for k in range(each)]
    return up + [order[:1] + order[:0:-1] for order in up if count > 2]


def tried(count: int) -> int:
    """How many of so many models are tried one by one."""
    return min(count, round(math.sqrt(count * FEW)))


def kicks(many: Many, order: tuple[int, ...], turns: int, few: bool = False) -> list[Start]:
    """So many turns of as many kicks as there are models, or of a `few`, others in each turn."""
    count = len(order)
    each = tried(count) if few else count
    return [Start(many, order, kick=(k // each, k % count)) for k in range(turns * each)]


class Rounds:
    """The search from one start after the other, which may be interrupted between any two rounds.

    `number` is the start at work, which began after `begun` sweeps of the search, and `last` its objective
    after a round. Kicks began after `kicking` sweeps; a turn of them may take half as many more, so that
    many models end, too.

    `after`: a search that ended before, whose best has to be surpassed.
    """

    def __init__(self, problem: Problem, starts: Sequence[Start], after: Rounds | None = None):
        self.problem, self.starts, self.after = problem, starts, after
        self.sweep: int = after.sweep if after else 0
        self.first = self.begun = self.sweep
        self.number = self.kicking = 0
        self.before = self.last = starts[0].many.objective()
        self.limit = starts[0].many.limit()
        still = [acts.identity(problem.fitted) for _ in problem.models]
        self.ended: tuple[float, list[Elements]] = after.ended if after else (self.before, still)

    @property
    def best(self) -> tuple[float, list[Elements]]:
        """The objective and the elements of the best so far, in the problem's order of models.

        A start at work counts where it is better by more than SAME of the limit.
        """
        if self.number < len(self.starts):
            at = self.starts[self.number]
            if (now := at.many.objective()) > self.ended[0] + SAME * self.limit:
                return now, at.elements()
        return self.ended

    @property
    def solves(self) -> int:
        """Assignments and projections in all."""
        own = sum(many.solves for many in {id(start.many): start.many for start in self.starts}.values())
        return own + (self.after.solves if self.after else 0)

    def run(self, max_sweeps: int) -> bool:
        """Rounds of all starts, each of `max_sweeps` at most; False where one of them used these up."""
        while self.number < len(self.starts) and self.sweep - self.begun < max_sweeps:
            start = self.starts[self.number]
            if start.kick and self.sweep == self.begun and self._is_enough(first=start.kick == (0, 0)):
                self.number = len(self.starts)
                break
            moved = start.round(self.sweep - self.begun, self.ended[1])
            self.sweep += 1
            self.ended = self.ended if moved else self.best
            if not moved or self._behind(start.many.objective()):
                self.number, self.begun = self.number + 1, self.sweep
            self.problem.report(self.state(start))
        return self.number == len(self.starts)

    def _behind(self, now: float) -> bool:
        """Whether the start at work is given up for the best that ended, once it has made two rounds."""
        gained, self.last = now - self.last, now
        begun = len(self.problem.models) > FEW and self.number > 0 and self.sweep - self.begun > 1
        return begun and now + AHEAD * gained < self.ended[0] - SAME * self.limit

    def _is_enough(self, *, first: bool) -> bool:
        """Whether this kick, the `first` or another, and all after it are left out."""
        self.kicking = self.sweep if first else self.kicking
        turns = len({start.kick[0] for start in self.starts if start.kick is not None})
        spent = self.sweep - self.kicking >= A_TURN * turns * (self.kicking - self.first)
        return (not first and spent) or self.ended[0] > NEAR * self.limit

    def state(self, start: Start) -> State:
        """Where the models stand, and in `tensors` the best start that ended, too."""
        notes = {"start": float(self.number), "begun": float(self.begun), "ended": self.ended[0]}
        notes |= {"kicking": float(self.kicking), "last": self.last, **self.surpassed}
        return State(tuple(start.many.current), self.sweep, self.best[0], notes, self.kept_best())

    @property
    def surpassed(self) -> dict[str, float]:
        """What a kept state notes of the search before."""
        return {"surpassed": self.after.ended[0], "first": float(self.first)} if self.after else {}

    def kept_best(self) -> dict[str, torch.Tensor]:
        """The best that ended, as a kept state holds it."""
        return {
            f"{ENDED}{k} {name}": tensor
            for k, element in enumerate(self.ended[1])
            for name, tensor in acts.tensors_of(element).items()
        }

    def resume(self, state: State) -> None:
        """Go on from a kept state, whose `notes` have a start, or from models that stand somewhere."""
        self.sweep = state.sweep
        if "start" not in state.notes:
            first = self.starts[0]
            first.many.current = [state.elements[k] for k in first.order]
            self.starts = [replace(first, joining=(), stay=True)]
            return
        with kept():
            self.number, self.begun = int(state.notes["start"]), int(state.notes["begun"])
            self.kicking, ended = int(state.notes["kicking"]), state.notes["ended"]
            self.last = state.notes["last"]
            if self.after is not None:
                self.take_over(state)
        if self.number < len(self.starts):
            self.starts[self.number].many.current = list(state.elements)
        self.ended = ended, _best_kept(state)

    def take_over(self, state: State) -> None:
        """From a kept state, what the search before it found. Raises KeyError for one that holds none."""
        assert self.after is not None
        self.after.ended = self.ended = state.notes["surpassed"], _best_kept(state)
        self.first = self.after.sweep = int(state.notes["first"])

    def result(self, converged: bool) -> MatchResult:
        """The elements of all models but the first, as seen from the first."""
        after, best = self.best
        fitted = self.problem.fitted
        back = acts.invert(best[0], fitted)
        found = [acts.compose(element, back, fitted) for element in best[1:]]
        return MatchResult(tuple(found), self.before, after, self.sweep, self.solves, converged)


def _best_kept(state: State) -> list[Elements]:
    return [acts.of_tensors(state.named(f"{ENDED}{k} ")) for k in range(len(state.elements))]
