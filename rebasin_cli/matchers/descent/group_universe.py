"""Many models with groups, through a space of their own: all of them relaxed at once, and none the reference.

Frank-Wolfe moves a mixture of elements for every word and model, from where all units stay where they are,
until two steps gain little; the elements nearest to the mixtures are where rounds of `many` go on. With
rotations the objective has many optima close to each other, and where this search ends is not always the best
of them. So each model in turn is the first that the others join, too, with rounds from there. All of this
takes the models in the order of their norms, which elements do not change, and knows nothing of who is named
first. Last comes `many` as it is, in the order of names. What ends highest is taken, and of equals the first:
never lower than `many`, for n + 2 times its time, and another result for other orders of names only where
that last search alone found more. It may depend on the frames that models come in, where Frank-Wolfe begins.

Frank-Wolfe and its line search are those of Crisostomi et al. 2024, arXiv:2405.17897, section 3, for
permutations. Not theirs: hulls of other groups, the rounds, the other starts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...symmetry.elements import Elements
from .. import MatchResult, Problem, State
from .group_many import Many, result_of
from .line import best_share, limit_of, settled
from .mixtures import Mixtures
from .restarts import MAP

SAME = 1e-9  # of the limit: objectives that are no farther apart are one, and the first is taken
MIXED, ORDERED, ENDED = "mixed ", "ordered ", "ended "  # how names of a kept state's tensors begin


def match(problem: Problem, gain: float, ascent: bool, max_sweeps: int) -> MatchResult:
    """Elements for every model but the first, so that all lie in one basin.

    A sweep is a step of Frank-Wolfe or a round. Without `ascent` the mixtures are rounded, and no more.
    """
    order = by_norm(problem)
    many = Many(replace(problem, models=tuple(problem.models[k] for k in order)))
    named = replace(problem, models=tuple(many.models[order.index(k)] for k in range(len(order))))
    search = _Search(many, Many(named), order)
    before = search.many.objective()
    start = problem.start
    if start is None or "start" not in start.notes:
        done = search.mix(gain, max_sweeps, start)
    else:
        search.resume(start)
        done = True
    finished = done and not ascent
    while done and ascent and not (finished := search.number > search.last) and search.sweep < max_sweeps:
        search.round()
        problem.report(search.state())
    after, best = search.best
    found: list[Elements] = [best[order.index(k)] for k in range(len(order))]
    return result_of(
        problem, found, before, after, search.sweep, search.many.solves + search.named.solves, finished
    )


def by_norm(problem: Problem) -> list[int]:
    """The models' numbers, those with small weights first."""
    still = problem.fitted.statistics
    names = [n for n in sorted(problem.fitted.tensors) if n not in still]
    norms = [sum(float(model[n].double().square().sum()) for n in names) for model in problem.models]
    return sorted(range(len(norms)), key=norms.__getitem__)


@dataclass
class _Search:
    """`number` is the start at work: 0 the mixtures', k that with the k-th model as the first, then `named`.

    `many` has the models in the order of norms, and so have all lists of elements; `begun` sweeps were made
    before the start at work; `ended` is the best of those that came to their end.
    """

    many: Many
    named: Many
    order: list[int]
    number: int = 0
    sweep: int = 0
    begun: int = 0
    ended: tuple[float, list[Elements]] | None = None

    def __post_init__(self) -> None:
        many = self.many
        self.limit = limit_of(
            [
                math.sqrt(
                    math.fsum(s * float(model[n].double().square().sum()) for n, s in many.shares.items())
                )
                for model in many.models
            ]
        )

    @property
    def last(self) -> int:
        """In which order the names come is no start of its own where it is that of norms."""
        return len(self.order) + (self.order != sorted(self.order))

    @property
    def at_work(self) -> Many:
        return self.named if self.number > len(self.order) else self.many

    @property
    def best(self) -> tuple[float, list[Elements]]:
        """The objective and the elements."""
        many = self.at_work
        now = many.objective()
        if self.ended is None or now > self.ended[0] + SAME * self.limit:
            return now, [many.current[k] for k in self.order] if many is self.named else list(many.current)
        return self.ended

    def mix(self, gain: float, max_sweeps: int, start: State | None) -> bool:
        """Frank-Wolfe; whether it came to its end. All models then stand as the mixtures are rounded."""
        many = self.many
        mixtures = Mixtures(many.models, many.fitted, many.shares)
        objectives, steps = [mixtures.objective()], []
        if start is not None and "steps" in start.tensors:
            objectives, steps = start.tensors["objectives"].tolist(), start.tensors["steps"].tolist()
            mixtures.current = [
                {place: start.tensors[_name(k, *place)] for place in by}
                for k, by in enumerate(mixtures.current)
            ]
        while not (done := settled(objectives, steps, gain * self.limit)) and len(steps) < max_sweeps:
            elements = [mixtures.nearest(gradient) for gradient in mixtures.gradients()]
            corners = [mixtures.dense(element) for element in elements]
            line = mixtures.line(corners)
            share = best_share(line)
            mixtures.step(corners, share)
            objectives.append(float(line(share)))
            steps.append(share)
            many.problem.report(_mixing(mixtures, elements, objectives, steps))
        many.current = [mixtures.nearest(matrices) for matrices in mixtures.current]
        many.solves += mixtures.solves
        self.sweep = self.begun = len(steps)
        return done

    def round(self) -> None:
        """One round of the start at work; where none moved, the next start is at work."""
        many, done = self.at_work, self.sweep - self.begun
        first = 0 if many is self.named else self.number - 1
        moved = many.join(first) if self.number and not done else many.round(done)
        self.sweep += 1
        if not moved:
            self.ended = self.best
            self.number, self.begun = self.number + 1, self.sweep

    def state(self) -> State:
        """Where the models stand in the start at work, and in `tensors` the best start that ended, too."""
        state = self.at_work.state(self.sweep)
        tensors, notes = dict(state.tensors), {"start": float(self.number), "begun": float(self.begun)}
        if self.ended is not None:
            notes["ended"] = self.ended[0]
            for k, element in enumerate(self.ended[1]):
                tensors |= {f"{ENDED}{k} {word}": perm for word, perm in element.permutations.items()}
                tensors |= {f"{ENDED}{MAP}{k} {word}": map_ for word, map_ in element.maps.items()}
        return replace(state, objective=self.best[0], notes=notes, tensors=tensors)

    def resume(self, state: State) -> None:
        self.sweep = state.sweep
        self.number, self.begun = int(state.notes["start"]), int(state.notes["begun"])
        self.at_work.resume(state)
        if "ended" in state.notes:
            parts = [
                [_named(state, f"{ENDED}{kind}{k} ") for kind in ("", MAP)]
                for k in range(len(self.many.models))
            ]
            self.ended = state.notes["ended"], [Elements(*part) for part in parts]


def _mixing(
    mixtures: Mixtures, corners: Sequence[Elements], objectives: list[float], steps: list[float]
) -> State:
    """The last corners, and in `tensors` the mixtures themselves."""
    tensors = {_name(k, *place): m for k, by in enumerate(mixtures.current) for place, m in by.items()}
    tensors["steps"] = torch.tensor(steps, dtype=torch.float64)
    tensors["objectives"] = torch.tensor(objectives, dtype=torch.float64)
    return State(tuple(corners), len(steps), objectives[-1], tensors=tensors)


def _name(k: int, word: str, only: bool) -> str:
    return f"{ORDERED if only else MIXED}{k} {word}"


def _named(state: State, prefix: str) -> dict[str, torch.Tensor]:
    return {n.removeprefix(prefix): t for n, t in state.tensors.items() if n.startswith(prefix)}
