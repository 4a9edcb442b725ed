"""Universe: match many models at once through a space of their own, by Frank-Wolfe.

Model i has for every word a permutation P_i into the universe, and Σ over pairs ⟨P_i θ_i, P_j θ_j⟩ is
maximised over all of them together, so that going round from model to model is the identity by
construction. The permutations are relaxed to doubly stochastic matrices: the gradient says by how much each
pair of units is worth joining, one assignment a model and word (heads and their units together) finds the
best corner, and all models move towards theirs by the share that is best. At the end the matrices are rounded
to permutations, from which rounds of MergeMany go on until nothing improves: Frank-Wolfe alone is left where
it gains little, since its last steps take longer than they are worth (`ascent=False` has the method as
published).

The merge in the universe is the mean of all P_i θ_i; carried back by P_1ᵀ it computes the same, and that is
what the mean of the results is, which are turned so that the first model keeps the identity.

With groups the mixtures are of their elements, and further searches follow: `descent/group_universe.py`.

Crisostomi, Fumero, Baieri, Bernard, Rodolà 2024, "C²M³: Cycle-Consistent Multi-Model Merging",
arXiv:2405.17897, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from numpy.polynomial import Polynomial

from ..errors import UsageError
from ..registry import PLAIN, option
from ..spec.spec import FittedSpec
from ..symmetry import assignment, permutation
from ..symmetry.assignment import Solution
from ..symmetry.elements import Elements
from ..types import Permutations
from . import MatchResult, Problem, State
from .descent import group_universe as grouped
from .descent import starred
from .descent.assignments import THREADED
from .descent.line import best_share, limit_of, on_the_way, settled
from .descent.many import objective_of, relative, round_of
from .descent.mixed import Mixed
from .descent.options import Sweeps, Tolerance

NEEDS: frozenset[str] = frozenset()
MANY = True
GROUPS = True
ORDERS_ONLY = frozenset({"tolerance"})  # a search with groups has no use for it
DECLARES = frozenset({"identity", "planted"})

Sets = Sequence[Permutations]


@dataclass(frozen=True)
class Options(Tolerance, Sweeps):
    """Frank-Wolfe ends when two steps gain less than `gain`, a share of Σ over pairs ‖θ_i‖·‖θ_j‖.

    `ascent`: rounds of MergeMany follow; `tolerance` is that of the weight matching inside. `max_sweeps`
    counts the steps and the rounds.
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
    """Permutations for every model but the first, so that all lie in one basin; with groups, elements.

    The objective of Frank-Wolfe never falls from step to step; rounding may lower it, and the rounds after
    it never do. Raises UsageError for fewer than two models.
    """
    problem = problem.stacked
    models, words = problem.models, problem.fitted.words
    if len(models) < 2:
        raise UsageError("universe needs at least two models")
    if problem.groups:
        return grouped.match(problem, options.gain, options.ascent, options.max_sweeps)
    before = objective_of(problem, [permutation.identity(words)] * len(models))
    start = problem.start
    if start is None or "sweeps mixed" not in start.notes:
        history, solves = mix(problem, options, before)
        current = [*rounded(history, problem.fitted)]
        mixed, settled = len(history.steps), history.settled(options)
    else:
        current, solves = list(start.permutations), 0
        mixed, settled = int(start.notes["sweeps mixed"]), True
    sweep = mixed if start is None else max(mixed, start.sweep)
    moved = settled and options.ascent
    while moved and sweep < options.max_sweeps:
        solved, moved = round_of(problem, current, sweep - mixed, options.tolerance, "universe")
        sweep, solves = sweep + 1, solves + solved
        notes = {"sweeps mixed": float(mixed)}
        problem.report(State(tuple(map(Elements, current)), sweep, objective_of(problem, current), notes))
    after = objective_of(problem, current)
    return MatchResult(
        tuple(map(Elements, relative(current))), before, after, sweep, solves, settled and not moved
    )


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
        return State(tuple(self.corners[-1]), len(self.steps), self.objectives[-1], tensors=tensors)

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


def mix(problem: Problem, options: Options, objective: float) -> tuple[History, int]:
    """Frank-Wolfe from where every unit stays where it is; the way it went, and the assignments solved."""
    search = Search(problem)
    with search.models[0].computing():
        history = History(len(search.models), search.limit(), (objective,))
        if problem.start is not None and "steps" in problem.start.tensors:
            history = history.resumed(problem.start.tensors, search.words)
            for corners, alpha in zip(history.corners, history.steps, strict=True):
                search.step(corners, alpha)
        while not history.settled(options) and len(history.steps) < options.max_sweeps:
            corners = search.corners()
            line = search.line(corners)
            alpha = best_share(line)
            search.step(corners, alpha)
            history = history.after(corners, alpha, float(line(alpha)))
            problem.report(history.state())
    return history, search.solves


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
        nearest = {}
        mixtures = {word: torch.zeros(size, size, dtype=torch.float64) for word, size in fitted.words.items()}
        for share, sets in zip([left, *reversed(shares)], (begun, *history.corners), strict=True):
            for word, mixture in mixtures.items():
                if share > 0:
                    mixture[torch.arange(len(mixture)), sets[k][word]] += share
        coupled = {word for group in starred.groups(fitted.within).values() for word in group.words}
        nearest = {w: assignment.solve(m).perm for w, m in mixtures.items() if w not in coupled}
        found.append(with_groups(nearest, mixtures, fitted))
    return found
