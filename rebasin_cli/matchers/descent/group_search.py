"""Coordinate descent over words of any group: one projection a step, the objective never falls.

All words but one are held, their inner products summed into C, and the word's element is the one nearest to
C. Elements beyond permutations are multiplied into the model, so that the next matrix is made as ever; words
that are only ordered are left to the engine of weight matching. The first sweep goes from what cannot move
to the inside: a stream by what only it touches (embeddings, positions, the head), then all that reads and
writes it.

The objective is Σ over tensors of ⟨A, g·B⟩ / (‖A‖·‖B‖), every tensor counting alike, where some word takes
matrices; else Σ ⟨A, g·B⟩, as of permutations.

Coordinate descent as in Ainsworth et al. 2022, Algorithm 1; the rotation of one word is an orthogonal
Procrustes problem, Schönemann 1966.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...runtime.seeds import generator
from ...spec.spec import FittedSpec
from ...symmetry import permutation
from ...symmetry.elements import Elements
from ...types import Tensors
from .baked import Baked
from .descent import Descent
from .units import Unit, units_of

ENOUGH = 1e-6  # of ‖A‖·‖B‖: a sweep that gains less is the last
DOUBT = 1e-9  # of ‖A‖·‖B‖: a step that gains less is rounding


@dataclass(frozen=True)
class Found:
    """The element of the model beside the reference, and how the search went."""

    element: Elements
    before: float
    after: float
    sweeps: int
    solves: int
    converged: bool
    history: tuple[float, ...] = field(default=())


def search(
    reference: Tensors,
    model: Tensors,
    fitted: FittedSpec,
    *,
    seed: int = 0,
    max_sweeps: int = 100,
    start: Elements | None = None,
    begun: int = 0,
    report: Callable[[int, float, Elements], None] = lambda sweeps, objective, element: None,
    **how: Any,
) -> Found:
    """Match a model to a reference, both in canonical form, from `start` or from what cannot move.

    `begun` sweeps were made already. `report` is called after every sweep with their number, the objective
    and the element so far.
    """
    units = units_of(fitted)
    whole = {word for unit in units for word in unit.words}
    baked = Baked(reference, model, fitted, whole, **how)
    run = _Run(baked, units, whole, seed)
    with baked.pair.computing():
        before = baked.pair.objective(run.current)
        if start is not None:
            run.begin(start)
        history = [baked.pair.objective(run.current)]
        sweeps = begun
        limit = baked.pair.limit()
        converged = False
        while not converged and sweeps < max_sweeps:
            if sweeps == 0 and start is None:
                run.outward()
            else:
                run.sweep(sweeps)
            sweeps += 1
            history.append(baked.pair.objective(run.current))
            converged = sweeps > 1 and history[-1] - history[-2] <= ENOUGH * limit
            report(sweeps, history[-1], run.element())
    return Found(run.element(), before, history[-1], sweeps, run.solves, converged, tuple(history))


class _Run:
    """`current` has the permutations of words that are only ordered; all else is in the baked model."""

    def __init__(self, baked: Baked, units: list[Unit], whole: set[str], seed: int):
        self.baked, self.pair, self.fitted, self.units, self.seed = (
            baked,
            baked.pair,
            baked.fitted,
            units,
            seed,
        )
        self.current: dict[str, torch.Tensor] = permutation.identity(self.pair.words)
        self.whole, self.solves = whole, 0
        self.limit = self.pair.limit()
        self.descent = self._descent()

    def _descent(self) -> Descent:
        descent = Descent(self.pair, 0.0)
        descent.words = [name for name in descent.words if not self.whole & {*descent.members[name]}]
        return descent

    def element(self) -> Elements:
        """Of all words together."""
        perms = {
            w: self.baked.element.permutations[w] if w in self.whole else p for w, p in self.current.items()
        }
        return Elements(perms, dict(self.baked.element.maps))

    def begin(self, start: Elements) -> None:
        perms = {w: p for w, p in start.permutations.items() if w in self.whole}
        self.baked.bake(perms, start.maps)
        self.current |= {w: p for w, p in start.permutations.items() if w not in self.whole}
        self.descent = self._descent()

    def outward(self) -> None:
        """Every word once, the next one being that of which most is known."""
        single = [name for name in self.descent.words if name not in self.descent.groups]
        coupled = [name for name in self.descent.words if name in self.descent.groups]
        waiting: list[Unit] = [*self.units, *(Unit((name,)) for name in single)]
        moving = {word for unit in waiting for word in unit.words}
        moving |= {word for name in coupled for word in self.descent.members[name]}
        known = {*self.pair.words} - moving
        while waiting:
            unit = max(waiting, key=lambda u: self._share(u, known))
            waiting.remove(unit)
            known |= {*unit.words}
            if unit in self.units:
                self._take(unit, known)
            else:
                (word,) = unit.words
                matrix = self.descent.similarities.matrix(
                    word, self.current, chosen=self.pair.resting_on(word, known)
                )
                (solution,) = self.descent.assignments.solved([word], [matrix])
                self.current[word] = solution.perm
        self._ordered("outward")

    def _share(self, unit: Unit, known: set[str]) -> float:
        pair = self.pair
        inside = known | {*unit.words}
        resting = sum(pair.columns(pair.resting_on(word, inside), word) for word in unit.words)
        return resting / max(1, sum(pair.columns(pair.single[word], word) for word in unit.words))

    def sweep(self, number: int) -> None:
        """Every word once, in a random order; those that are only ordered last."""
        rng = generator(self.seed, f"groups sweep {number}")
        for k in torch.randperm(len(self.units), generator=rng).tolist():
            self._take(self.units[k], None)
        self._ordered(f"sweep {number}")

    def _take(self, unit: Unit, known: set[str] | None) -> None:
        """The unit's best element, where the objective gains by it."""
        step = unit.step(self.pair, self.fitted, self.current, known)
        self.solves += len(unit.words)
        if step.gain <= DOUBT * self.limit:
            return
        careful = unit.quadratic(self.pair)
        before = self.pair.objective(self.current) if careful else 0.0
        kept = self.baked.kept(unit.words) if careful else None
        self.baked.bake(step.perms, step.maps)
        if kept is not None and known is None and self.pair.objective(self.current) <= before:
            self.baked.restore(kept)

    def _ordered(self, name: str) -> None:
        """A sweep of weight matching over the other words."""
        solutions = self.descent.assignments.solutions
        self.descent = self._descent()
        if not self.descent.words:
            return
        self.descent.assignments.solutions = solutions
        self.descent.sweep(
            self.descent.order(self.seed, f"groups {name}"), self.current, set(self.descent.words)
        )
        self.solves += self.descent.solves
