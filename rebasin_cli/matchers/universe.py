"""Universe: match many models at once through a space of their own, by Frank-Wolfe.

Model i has for every word a permutation P_i into the universe, and Σ over pairs ⟨P_i θ_i, P_j θ_j⟩ is
maximised over all of them together, so that going round from model to model is the identity by construction.
The permutations are relaxed to doubly stochastic matrices: the gradient says by how much each pair of units
is worth joining, one assignment a model and word (heads and their units together) finds the best corner, and
all models move towards theirs by the share that is best. At the end the matrices are rounded to elements,
from which rounds of MergeMany go on until nothing improves: Frank-Wolfe alone is left where it gains little,
since its last steps take longer than they are worth (`ascent=False` has the method as published).

The objective has many optima close to each other, and where this search ends is not always the best of them.
So each model in turn is the first that the others join, too, with rounds from there. All of this takes the
models in the order of their norms, which elements do not change, and knows nothing of who is named first.
Last comes all that MergeMany does, in the order of names. What ends highest is taken, and of equals the
first: never lower than MergeMany, for some n + 3 times its time, and another result for other orders of names
only where that last search alone found more. With groups it may depend on the frames that models come in,
where Frank-Wolfe begins.

The merge in the universe is the mean of all P_i θ_i; carried back by P_1ᵀ it computes the same, and that is
what the mean of the results is, which are turned so that the first model keeps the identity.

Crisostomi, Fumero, Baieri, Bernard, Rodolà 2024, "C²M³: Cycle-Consistent Multi-Model Merging",
arXiv:2405.17897, section 3. Not theirs: hulls of other groups, the rounds, the other starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import torch
from numpy.polynomial import Polynomial

from ..errors import UsageError
from ..registry import PLAIN, option
from ..spec.spec import FittedSpec
from ..symmetry import assignment, permutation
from ..symmetry.assignment import Solution
from ..symmetry.elements import Elements
from ..types import Permutations
from . import MatchResult, Problem, State, merge_many
from .descent import starred, turned
from .descent.assignments import THREADED
from .descent.line import best_share, limit_of, on_the_way, settled
from .descent.many import Many
from .descent.mixed import Mixed
from .descent.mixtures import Mixtures
from .descent.options import Effort, Tolerance
from .descent.rounds import Rounds, Start, turns
from .merge_many import starts

NEEDS: frozenset[str] = frozenset()
MANY = True
GROUPS = True
DECLARES = frozenset({"identity", "planted"})

Sets = Sequence[Permutations]


@dataclass(frozen=True)
class Options(Tolerance, Effort):
    """Frank-Wolfe ends when two steps gain less than `gain`, a share of Σ over pairs ‖θ_i‖·‖θ_j‖.

    `ascent`: rounds of MergeMany follow; `tolerance` and `memory` are those of the weight matching inside.
    `max_sweeps` counts the steps and the rounds. `effort`: fast leaves out all starts but the mixtures.
    """

    gain: float = option(1e-3, "Stop mixing when two steps gain less than this share of the norms.", min=0)
    ascent: bool = option(True, "Go on with rounds of merge-many after mixing.", role=PLAIN)


def memory(models: int, parameters: int, options: Options) -> dict[str, int]:
    """Bytes beside the files, all in float64."""
    return {
        "mixed models": 32 * models * parameters,  # each with every subset of two axes mixed
        "sums": 24 * parameters,  # of all models, what is taken from it, and one product's operand
    }


def match(problem: Problem, options: Options = Options()) -> MatchResult:  # noqa: B008 (frozen)
    """The element of every model but the first, so that all lie in one basin.

    The objective of Frank-Wolfe never falls from step to step; rounding may lower it, and the rounds after
    it never do. A sweep is a step of Frank-Wolfe or a round. Raises UsageError for fewer than two models.
    """
    problem = problem.stacked
    if len(problem.models) < 2:
        raise UsageError("universe needs at least two models")
    order = by_norm(problem)
    there = replace(problem, models=tuple(problem.models[k] for k in order))
    many = Many(there, "universe", options.tolerance, options.memory)
    begun, start = [Start(many, order, stay=True)], problem.start
    if options.effort != "fast":
        begun += [Start(many, order, joining) for joining in turns(len(order))[: len(order)]]
        same = {field.name: getattr(options, field.name) for field in fields(merge_many.Options)}
        begun += starts(problem, merge_many.Options(**same))
    search, mixed = Rounds(problem, begun), True
    if start is not None and "start" in start.notes:
        search.resume(start)
    else:
        many.current, steps, mixed = (mix_elements if turned.groups(problem.fitted) else mix)(
            many, options, start
        )
        search.sweep = search.begun = steps
    ended = mixed and (search.run(options.max_sweeps) if options.ascent else True)
    return search.result(ended)


def by_norm(problem: Problem) -> tuple[int, ...]:
    """The models' numbers, those with small weights first."""
    still = problem.fitted.statistics
    names = [n for n in sorted(problem.fitted.tensors) if n not in still]
    norms = [sum(float(model[n].double().square().sum()) for n in names) for model in problem.models]
    return tuple(sorted(range(len(norms)), key=norms.__getitem__))


def mix_elements(many: Many, options: Options, start: State | None) -> tuple[list[Elements], int, bool]:
    """Frank-Wolfe; how the mixtures are rounded, the steps, and whether it came to its end."""
    mixtures = Mixtures(many.models, many.fitted, many.shares)
    objectives, steps, limit = [mixtures.objective()], [], many.limit()
    if start is not None and "steps" in start.tensors:
        objectives, steps = start.tensors["objectives"].tolist(), start.tensors["steps"].tolist()
        mixtures.current = [
            {place: start.tensors[_name(k, *place)] for place in by} for k, by in enumerate(mixtures.current)
        ]
    while not (done := settled(objectives, steps, options.gain * limit)) and len(steps) < options.max_sweeps:
        elements = [mixtures.nearest(gradient) for gradient in mixtures.gradients()]
        corners = [mixtures.dense(element) for element in elements]
        line = mixtures.line(corners)
        share = best_share(line)
        mixtures.step(corners, share)
        objectives.append(float(line(share)))
        steps.append(share)
        many.problem.report(_mixing(mixtures, elements, objectives, steps))
    many.solves += mixtures.solves
    return [mixtures.nearest(matrices) for matrices in mixtures.current], len(steps), done


def _mixing(
    mixtures: Mixtures, corners: Sequence[Elements], objectives: list[float], steps: list[float]
) -> State:
    """The last corners, and in `tensors` the mixtures themselves."""
    tensors = {_name(k, *place): m for k, by in enumerate(mixtures.current) for place, m in by.items()}
    tensors["steps"] = torch.tensor(steps, dtype=torch.float64)
    tensors["objectives"] = torch.tensor(objectives, dtype=torch.float64)
    return State(tuple(corners), len(steps), objectives[-1], tensors=tensors)


def _name(k: int, word: str, only: bool) -> str:
    return f"{'ordered' if only else 'mixed'} {k} {word}"


# --------------------------------------------------------------------------------------------- Frank-Wolfe


@dataclass(frozen=True)
class History:
    """All corners that were walked towards, one set a model, and how far: the whole search so far.

    `objectives` has the one before the first step, too; `limit` is what none can exceed.
    """

    models: int
    limit: float
    objectives: tuple[float, ...]
    corners: tuple[Sets, ...] = ()
    steps: tuple[float, ...] = ()

    def settled(self, options: Options) -> bool:
        return settled(self.objectives, self.steps, options.gain * self.limit)

    def after(self, corners: Sets, step: float, objective: float) -> History:
        return replace(
            self,
            objectives=(*self.objectives, objective),
            corners=(*self.corners, corners),
            steps=(*self.steps, step),
        )

    def state(self) -> State:
        """The last corners, and in `tensors` all that is needed to walk the same way again."""
        words = self.corners[-1][0]
        tensors = {
            f"corners/{word}": torch.stack([torch.stack([c[word] for c in sets]) for sets in self.corners])
            for word in words
        }
        tensors["steps"] = torch.tensor(self.steps, dtype=torch.float64)
        tensors["objectives"] = torch.tensor(self.objectives, dtype=torch.float64)
        return State(
            tuple(map(Elements, self.corners[-1])), len(self.steps), self.objectives[-1], tensors=tensors
        )

    def resumed(self, tensors: Mapping[str, torch.Tensor], words: Mapping[str, int]) -> History:
        """The history in a state's tensors."""
        steps = tensors["steps"].tolist()
        corners = tuple(
            [{word: tensors[f"corners/{word}"][k, i] for word in words} for i in range(self.models)]
            for k in range(len(steps))
        )
        return replace(
            self, objectives=tuple(tensors["objectives"].tolist()), corners=corners, steps=tuple(steps)
        )


def mix(many: Many, options: Options, start: State | None) -> tuple[list[Elements], int, bool]:
    """As `mix_elements`, where all words are only ordered."""
    problem = replace(many.problem, models=tuple(many.models))
    search = Search(problem)
    with search.models[0].computing():
        history = History(len(search.models), search.limit(), (many.objective(),))
        if start is not None and "steps" in start.tensors:
            history = history.resumed(start.tensors, search.words)
            for corners, alpha in zip(history.corners, history.steps, strict=True):
                search.step(corners, alpha)
        while not history.settled(options) and len(history.steps) < options.max_sweeps:
            corners = search.corners()
            line = search.line(corners)
            alpha = best_share(line)
            search.step(corners, alpha)
            history = history.after(corners, alpha, float(line(alpha)))
            problem.report(history.state())
    many.solves += search.solves
    found = [Elements(perms) for perms in rounded(history, problem.fitted)]
    return found, len(history.steps), history.settled(options)


@dataclass
class Search:
    """All models as they are mixed, and what is remembered from assignment to assignment."""

    problem: Problem
    solutions: dict[tuple[int, str], Solution] = field(default_factory=dict)
    solves: int = 0

    def __post_init__(self) -> None:
        problem = self.problem
        self.models = [Mixed(model, problem.fitted, device=problem.device) for model in problem.models]
        self.words, self.atoms = problem.fitted.words, self.models[0].atoms
        self.groups = starred.groups(problem.fitted.within)
        coupled = {word for group in self.groups.values() for word in group.words}
        self.single = [word for word in self.words if word not in coupled]

    def limit(self) -> float:
        """Σ over pairs ‖θ_i‖·‖θ_j‖: no objective is larger."""
        norms = [
            math.sqrt(math.fsum(model.mixed(atom).square().sum().item() for atom in self.atoms))
            for model in self.models
        ]
        return limit_of(norms)

    def corners(self) -> Sets:
        """For every model the permutations that the gradient at the mixtures is largest for."""
        sums = {atom: sum(model.mixed(atom) for model in self.models) for atom in self.atoms}
        pace, found = self.models[0]._pace, []
        for k, model in enumerate(self.models):
            gradient = {
                word: torch.zeros(size, size, dtype=model.dtype, device=model.device)
                for word, size in self.words.items()
            }
            for atom, whole in sums.items():
                model.add_gradient(gradient, atom, whole - model.mixed(atom), pace)
            found.append(self._solved(k, gradient))
        return found

    def line(self, corners: Sequence[Permutations]) -> Polynomial:
        """The objective over the share α; a tensor with k permuted axes is of degree k in it."""
        return on_the_way(
            [model.segment(atom, to) for model, to in zip(self.models, corners, strict=True)]
            for atom in self.atoms
        )

    def step(self, corners: Sequence[Permutations], alpha: float) -> None:
        for model, towards in zip(self.models, corners, strict=True):
            model.step(towards, alpha)

    def _solved(self, k: int, gradient: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """One model's best corner; each assignment starts from where its last one ended."""

        def solve(word: str) -> Solution:
            return assignment.solve(gradient[word], start=self.solutions.get((k, word)))

        large = [word for word in self.single if self.words[word] >= THREADED]
        solved = dict(zip(large, self.models[0].run(solve, large), strict=True))
        solved |= {word: solve(word) for word in self.single if word not in solved}
        self.solutions |= {(k, word): solution for word, solution in solved.items()}
        self.solves += len(self.single) + len(self.groups)
        found = {word: solution.perm for word, solution in solved.items()}
        return self._whole(found, gradient)

    def _whole(self, found: Permutations, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """With the groups of coupled words, whose best corner is found together."""
        return with_groups(found, values, self.problem.fitted)


def with_groups(
    found: Permutations, values: Mapping[str, torch.Tensor], fitted: FittedSpec
) -> dict[str, torch.Tensor]:
    """`found` and the best permutations of coupled words, in the order of the spec's words."""
    every = dict(found)
    for group in starred.groups(fitted.within).values():
        every |= starred.together(group.outer, {word: values[word] for word in group.words}, fitted.within)
    return {word: every[word] for word in fitted.words}


def rounded(history: History, fitted: FittedSpec) -> Sets:
    """For every model the permutations nearest to its mixtures."""
    begun = (permutation.identity(fitted.words),) * history.models
    found, left, shares = [], 1.0, []
    for step in reversed(history.steps):
        shares.append(left * step)
        left *= 1 - step
    for k in range(history.models):
        mixtures = {word: torch.zeros(size, size, dtype=torch.float64) for word, size in fitted.words.items()}
        for share, sets in zip([left, *reversed(shares)], (begun, *history.corners), strict=True):
            for word, mixture in mixtures.items():
                if share > 0:
                    mixture[torch.arange(len(mixture)), sets[k][word]] += share
        coupled = {word for group in starred.groups(fitted.within).values() for word in group.words}
        nearest = {w: assignment.solve(m).perm for w, m in mixtures.items() if w not in coupled}
        found.append(with_groups(nearest, mixtures, fitted))
    return found
