"""Many models with groups: each matched to the mean of the others, in random order, until nothing changes.

The first round lets every model join the mean of those before it, since models in frames of their own have a
mean that says nothing. The objective is Σ over pairs of models and tensors of ⟨g_i θ_i, g_j θ_j⟩. Where words
take matrices each tensor's is divided by the models' mean square norm, which no element of the search
changes: it never falls.

Generalised Procrustes analysis: Gower 1975; the rounds are those of Ainsworth et al. 2022, Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch

from ...runtime.seeds import derive, generator
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from ...types import Tensors
from .. import MatchResult, Problem, State
from .baked import constant, counted_alike
from .blocks import wide
from .group_search import ENOUGH, search


def match(problem: Problem, max_sweeps: int) -> MatchResult:
    """Elements for every model but the first, so that all lie in one basin; a sweep is a round."""
    run = Many(problem)
    before = run.objective()
    rounds, moved = 0, True
    if problem.start is not None:
        run.resume(problem.start)
        rounds = problem.start.sweep
    while moved and rounds < max_sweeps:
        moved = run.join() if rounds == 0 else run.round(rounds)
        rounds += 1
        problem.report(run.state(rounds))
    return result_of(problem, run.current, before, run.objective(), rounds, run.solves, not moved)


def result_of(
    problem: Problem,
    elements: Sequence[Elements],
    before: float,
    after: float,
    sweeps: int,
    solves: int,
    converged: bool,
) -> MatchResult:
    """The elements of all models but the first, as seen from the first."""
    back = acts.invert(elements[0], problem.fitted)
    found = [acts.compose(element, back, problem.fitted) for element in elements[1:]]
    return MatchResult(
        tuple(found),
        before,
        after,
        sweeps,
        solves,
        converged,
    )


class Many:
    """The models in canonical form, and the element by which each of them stands."""

    def __init__(self, problem: Problem):
        self.problem, self.fitted = problem, problem.fitted
        still = constant(self.fitted) | self.fitted.statistics
        dtype = wide(problem.models, list(self.fitted.tensors))
        self.models = [
            {n: t.to(dtype) if (t := m[n]).is_floating_point() else t for n in self.fitted.tensors}
            for m in problem.models
        ]
        evidence = [
            n for n in self.fitted.tensors if n not in still and self.models[0][n].is_floating_point()
        ]
        self.shares = {name: self._share(name) for name in evidence}
        self.current = [acts.identity(self.fitted) for _ in self.models]
        self.solves = 0

    def _share(self, name: str) -> float:
        if not counted_alike(self.fitted):
            return 1.0  # as of two models
        squares = [float(model[name].double().square().sum()) for model in self.models]
        return len(squares) / sum(squares) if sum(squares) > 0 else 0.0

    def standing(self, k: int) -> Tensors:
        return acts.acted(self.models[k], self.fitted, self.current[k])

    def mean(self, some: Sequence[int]) -> dict[str, torch.Tensor]:
        """Of these models as they stand; what is no evidence is the first one's."""
        standing = [self.standing(k) for k in some]
        return {
            name: reduce(torch.add, (model[name] for model in standing)) / len(some)
            if name in self.shares
            else standing[0][name]
            for name in self.fitted.tensors
        }

    def objective(self) -> float:
        """‖Σ θ‖² is the sum over pairs, twice, and every model's own."""
        standing, total = [self.standing(k) for k in range(len(self.models))], 0.0
        for name, share in self.shares.items():
            together = reduce(torch.add, (model[name].double() for model in standing))
            own = sum(float(model[name].double().square().sum()) for model in standing)
            total += share * (float(together.square().sum()) - own) / 2
        return total

    def join(self, first: int = 0) -> bool:
        """Let each model, from the `first` on, stand as near as it can to the mean of those before it."""
        order = [*range(first, len(self.models)), *range(first)]
        self.current[first] = acts.identity(self.fitted)
        for k in range(1, len(order)):
            self._match(order[k], order[:k], None, "join")
        return len(self.models) > 2

    def round(self, number: int) -> bool:
        """Match each model to the mean of the others; whether one moved."""
        rng = generator(self.problem.seed, f"groups of many, round {number}")
        order = torch.randperm(len(self.models), generator=rng).tolist()
        return any(
            [
                self._match(k, [j for j in range(len(order)) if j != k], self.current[k], f"{number} {k}")
                for k in order
            ]
        )

    def _match(self, k: int, others: Sequence[int], start: Elements | None, name: str) -> bool:
        found = search(
            self.mean(others),
            self.models[k],
            self.fitted,
            seed=derive(self.problem.seed, f"groups of many {name}"),
            start=start,
            shares=self.shares,
        )
        self.current[k] = found.element
        self.solves += found.solves
        return found.after - found.history[0] > ENOUGH * abs(found.after)

    def state(self, rounds: int) -> State:
        return State(tuple(self.current), rounds, self.objective())

    def resume(self, start: State) -> None:
        self.current = list(start.elements)
