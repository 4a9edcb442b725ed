"""Many models at once: how each of them stands, their objective, rounds in which each joins the others.

The objective is Σ over pairs of models of ⟨g_i θ_i, g_j θ_j⟩, over the tensors that are evidence and that
some word permutes. Where words take matrices each tensor's is divided by the models' mean square norm, which
no element of the search changes: no round makes it fall.

Rounds as in Ainsworth et al. 2022, Algorithm 3; with rotations generalised Procrustes analysis, Gower 1975.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, reduce

import torch

from ...checkpoints.tensors import plan_of
from ...runtime.seeds import derive, generator
from ...spec.atoms import atoms
from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry.assignment import Solution
from ...symmetry.elements import Elements
from ...symmetry.form import constant
from ...types import Tensors
from .. import Problem
from .baked import counted_alike, paired, same
from .blocks import wide
from .descent import ENOUGH, Descent
from .line import limit_of

KEPT = 1 << 26  # bytes of models that are kept as they stand


class Many:
    """The models of a problem, and the element by which each of them stands; `solves` were made so far.

    A gain below `tolerance` × ‖A‖·‖B‖ counts as none. With groups the models are in canonical form.
    """

    def __init__(self, problem: Problem, method: str, tolerance: float, memory: int | None = None):
        self.problem, self.fitted, self.method = problem, problem.fitted, method
        self.tolerance, self.memory = tolerance, memory
        self.orders = method  # the name of the random orders that rounds go in
        self.models = problem.models
        if self.fitted.groups:  # each is read once: it may be made when it is asked for
            self.models = tuple({name: m[name] for name in self.fitted.tensors} for m in self.models)
        self.evidence = evidence_of(self.fitted)
        if self.fitted.groups:  # integers are no evidence of a map
            self.evidence = [n for n in self.evidence if self.models[0][n].is_floating_point()]
        self.dtype = wide(self.models, self.evidence)
        self.shares = {name: self._share(name) for name in self.evidence}
        self.current = [acts.identity(self.fitted) for _ in self.models]
        self.solves = 0
        self._resting: set[tuple[int, bytes]] = set()  # models that stay, where all stand as they then stood
        self._solutions: dict[int, dict[str, Solution]] = {}  # of each model's last assignments
        self._stood: dict[int, tuple[Elements, Tensors]] = {}

    def _share(self, name: str) -> float:
        if not counted_alike(self.fitted):
            return 1.0  # as of two models
        squares = [float(model[name].double().square().sum()) for model in self.models]
        return len(squares) / sum(squares) if sum(squares) > 0 else 0.0

    def standing(self, k: int) -> Tensors:
        """The `k`-th model with its element applied: shapes and dtypes as it has them.

        Small models are kept as they stand, since all others' means are made of them.
        """
        element, standing = self._stood.get(k, (None, None))
        if standing is None or element is not self.current[k]:
            standing = acts.acted(self.models[k], self.fitted, self.current[k])
            if self._is_small:
                standing = {name: standing[name] for name in self.fitted.tensors}
                self._stood[k] = self.current[k], standing
        return standing

    @cached_property
    def _is_small(self) -> bool:
        plans = (plan_of(model) for model in self.models)
        sizes = (math.prod(plan[n][1]) * plan[n][0].itemsize for plan in plans for n in self.fitted.tensors)
        return sum(sizes) <= KEPT

    def _rest(self, k: int) -> tuple[int, bytes]:
        """The `k`-th model, and a digest of how all of them stand."""
        digest = hashlib.blake2b(digest_size=16)
        for element in self.current:
            for _, tensor in sorted(acts.tensors_of(element).items()):
                digest.update(tensor.numpy().tobytes())
        return k, digest.digest()

    def mean(self, some: Sequence[int]) -> dict[str, torch.Tensor]:
        """Of these models as they stand, in memory, in float32 or wider, never rounded to a half.

        What is no evidence is left out or, with groups, the first one's in its own dtype.
        """
        standing = [self.standing(k) for k in some]
        found = {
            name: reduce(torch.add, (model[name].to(self.dtype) for model in standing)) / len(some)
            for name in self.evidence
        }
        rest = (n for n in self.fitted.tensors if n not in found) if self.fitted.groups else ()
        return found | {name: standing[0][name] for name in rest}

    def objective(self) -> float:
        """Σ over pairs of models as they stand, summed in float64; from −`limit()` to `limit()`."""
        total, running = 0.0, dict[str, torch.Tensor]()
        for k in range(len(self.models)):
            standing = self.standing(k)
            for name, share in self.shares.items():
                tensor = standing[name].double()
                if name in running:
                    total += share * float((running[name] * tensor).sum())
                running[name] = running[name] + tensor if name in running else tensor
        return total

    def limit(self) -> float:
        """Σ over pairs ‖θ_i‖·‖θ_j‖: no objective is larger."""
        squares = [
            math.fsum(s * float(model[n].double().square().sum()) for n, s in self.shares.items())
            for model in self.models
        ]
        return limit_of([math.sqrt(square) for square in squares])

    def join(self, order: Sequence[int]) -> bool:
        """Let each model in turn stand as near as it can to the mean of those before it; the first stays.

        `order` has their numbers. Whether a round may still move one: not of two.
        """
        self.current[order[0]] = acts.identity(self.fitted)
        for k in range(1, len(order)):
            self._match(order[k], order[:k], None, f"join {order[k]}")
        return len(order) > 2

    def round(self, number: int) -> bool:
        """Match each model, in random order, to the mean of the others; whether one moved."""
        rng = generator(self.problem.seed, f"{self.orders} sweep {number}")
        order = torch.randperm(len(self.models), generator=rng).tolist()
        return any(
            [
                self._match(k, [j for j in range(len(order)) if j != k], self.current[k], f"{number} {k}")
                for k in order
            ]
        )

    def _match(self, k: int, others: Sequence[int], start: Elements | None, name: str) -> bool:
        """Match a model to the mean of others, from where it stands, or from what cannot move.

        One that was left where it is, with all others as they are now, would stay again, in whatever order.
        """
        if start is not None and self._rest(k) in self._resting:
            return False
        seed = derive(self.problem.seed, f"{self.orders} {name}")
        shares = self.shares if counted_alike(self.fitted) else None
        pair = paired(self.mean(others), self.models[k], self.fitted, shares, device=self.problem.device)
        with pair.computing():
            descent = Descent(pair, self.tolerance, self.memory)
            descent.assignments.solutions |= self._solutions.get(k, {})
            current = descent.stand(start or acts.identity(self.fitted))
            if start is None:
                current = descent.outward(descent.words, current)
            gained = descent.settle(current, seed)
            found = pair.element(current)
            little = ENOUGH * descent.limit if descent.turning else 0.0
        self.solves += descent.solves
        self._solutions[k] = descent.assignments.solutions
        stays = start is not None and (same(found, start) or gained <= little)
        if not stays:
            self.current[k] = found
        if start is not None and not descent.turning:
            self._resting.add(self._rest(k))
        return not stays


def evidence_of(fitted: FittedSpec) -> list[str]:
    """The names of the tensors that tell units apart."""
    seen = replace(fitted, statistics=fitted.statistics | constant(fitted))
    return list(dict.fromkeys(atom.tensor for atom in atoms(seen) if any(atom.words)))
