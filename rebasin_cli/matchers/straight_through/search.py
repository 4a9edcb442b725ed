"""Straight-through estimation: permutations of n models that make the loss at their mean small.

Every model but the reference has a dummy: weights that start at the reference and follow the gradient. A
model stands permuted as near to its dummy as it can; the loss is taken at a mixture Σ λ_k π_k(θ_k) of the
models as they stand, and its gradient with respect to each of them, λ_k ∂L/∂m, moves the dummy as if there
were no projection in between. One forward and one backward pass a step serve all models.

Ainsworth et al. 2022, section 3.3 and Algorithm 2, arXiv:2209.04836; Ito, Yamada and Kumagai 2025, section
4.1, Algorithm 1 (ICML, PMLR 267).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch

from ...datasets import Data
from ...datasets.batches import size_of, to_device
from ...datasets.held_out import held_out
from ...errors import no_number
from ...learning.loop import Passes, learn
from ...runtime.seeds import derive, generator
from ...symmetry import permutation
from ...symmetry.elements import Elements
from ...symmetry.lists import without_lists
from ...symmetry.permutation import permuted
from ...types import Permutations
from .. import MatchResult, Problem, State, check_evidence, kept
from ..accounts import Learned, Setting
from .history import LOOKED, packed, unpacked
from .mixture import AtMixture, Mixture
from .projection import Followers, Projection
from .settings import HELD_OUT, RATES, Optimizer, Training
from .start import STARTS, started
from .turns import Turning

# Multiplications of matching for one of a forward and backward pass, where nothing else is said
MATCHING = 0.15
CONVERGED = 100  # sweeps at most of a matching that is to converge
LOOKS = 2  # an epoch, at the held-out samples
UNDONE = 0.1  # of the units that would move at once: such a start has another centre than the reference

Weights = Callable[[torch.Generator, int], torch.Tensor]  # of the models (n,), which add up to 1


def search(
    problem: Problem,
    options: Training,
    weights: Weights,
    *,
    scale: float = 1.0,
    literal: Sequence[Setting] = (),
) -> MatchResult:
    """The best permutations by the held-out loss at the models' mean, at its best temperature.

    That is looked at twice an epoch, once where a loader does not say how long an epoch is. The objective is
    the loss as it is, in nats, negative; before, where the search started. `weights` draws each step's
    mixture, reference first; `scale` multiplies what the optimizer does. With `literal`, the settings of a
    published program, models are matched to their dummies from the identity to convergence in each step, no
    training samples are held out, and the last permutations are the result, whatever their loss. Raises
    UsageError without a network or data and for a state that lacks something, SpecError for lists, DataError
    and NetworkError for what is wrong with network and data.
    """
    check_evidence(problem, "straight-through estimation")
    without_lists(problem.fitted, "straight-through estimation")
    with torch.inference_mode(False), torch.enable_grad():  # whatever holds for the caller
        run = Run(problem, options, weights, scale, literal=literal)
        try:
            run.begin(problem.start)
            learn(run, run.passes, problem.ranks)
            return run.result()
        finally:
            run.close()


class Run(AtMixture):
    """One search: what it holds is n models in one row of numbers each, n − 1 dummies and their optimizers.

    All that `state` shows is enough to go on from, bit for bit.
    """

    def __init__(
        self,
        problem: Problem,
        options: Training,
        weights: Weights,
        scale: float,
        *,
        literal: Sequence[Setting] = (),
    ):
        self.literal = tuple(literal)
        self.problem, self.options, self.weights, self.seed = problem, options, weights, problem.seed
        self.mixture = Mixture(problem, options.precision)
        reference, *rows = self.mixture.rows
        self.dummies = [reference.clone() for _ in rows]
        self.optimizers = [Optimizer(dummy, options, scale) for dummy in self.dummies]
        views, rest = self.mixture.flat.views, problem.models[0]
        made = [
            Projection(views(dummy, rest), views(row, model), problem.fitted, device=problem.device)
            for dummy, row, model in zip(self.dummies, rows, problem.models[1:], strict=True)
        ]
        self.followers = Followers(made, self.seed, problem.ranks)
        flat = self.mixture.flat
        self.turning = Turning(problem, options, flat, rows, made) if problem.groups else None
        self.train, self.held = _parts(problem, options, whole=bool(literal))
        least = self.mixture.normed + 1
        self.passes = Passes(self.train, self.seed, options.epochs, options.limit, least)
        self.rate = options.learning_rate or RATES[options.optimizer]
        self.looked = 0  # steps
        self.notes: dict[str, float] = {}
        self.best: tuple[Permutations, ...] = ()
        self.objective = -math.inf
        self.history: list[dict[str, float]] = []
        self.init, self.solves = STARTS[-1], 0  # the solves that were done before it was interrupted
        work = self.followers.queue.work
        self.quota: float | None = None if options.share is None else options.share * work

    # --------------------------------------------------------------------------------------------- start

    def begin(self, start: State | None) -> None:
        """From where a search stood, from given permutations, or from those of `init`."""
        if start is not None and start.tensors:
            with kept():
                self._resume(start)
            return
        if self.turning is not None:
            if start is not None:
                self.turning.stand(start.elements)
            else:
                self.init = self.turning.start(self.options.init, self.train)
            self.look()
            return
        found: Sequence[Permutations]
        if start is not None:
            found = start.permutations
        else:
            self.init, found = started(self.problem, self.options.init, self.train)
        self.followers.place(found)
        if start is not None and len(self.dummies) > 1:
            self._draw_in(found)
        if self.literal:
            self._matched()
        self.look()

    def _resume(self, start: State) -> None:
        """Go on, having just begun, from where `start` was taken; raises KeyError for what that lacks."""
        kept, self.done, self.objective = start.tensors, start.sweep, start.objective
        self.best = tuple(dict(perms) for perms in start.permutations)
        if self.turning is not None:
            self.turning.resume(start)
        self.followers.place(
            [
                {word: kept[f"at.{k}.{word}"] for word in perms}
                for k, perms in enumerate(self.followers.permutations)
            ]
        )
        if self.turning is not None:
            self.turning.resume_signs(start)
        for k, (dummy, optimizer) in enumerate(zip(self.dummies, self.optimizers, strict=True)):
            dummy.copy_(kept[f"dummy.{k}"])
            optimizer.resume(start.named(f"optimizer.{k}."))
        self.history = [*unpacked(kept["history"])]
        self.init = STARTS[int(start.notes["init"])]
        self.solves = int(start.notes["solves"])
        queue = self.followers.queue
        queue.position, queue.credit = int(start.notes["position"]), start.notes["credit"]
        self.quota = start.notes["quota"]
        self.looked = int(start.notes["looked"])
        self.notes = {name: start.notes[name] for name in ("loss", "changed")}

    def _draw_in(self, found: Sequence[Permutations]) -> None:
        """Let dummies begin halfway to the mean of all models where the reference alone would undo the start.

        Models that were matched to each other, and not to the reference, would fall apart at once.
        """
        moved, units = self.followers.solve(math.inf)
        self.followers.place(found)
        if moved > UNDONE * units:
            mean = reduce(torch.add, self.mixture.rows) / len(self.mixture.rows)
            for dummy in self.dummies:
                dummy.add_(mean).mul_(0.5)

    # --------------------------------------------------------------------------------------------- steps

    def begin_step(self, inputs: Any, targets: Any) -> None:
        """At one mixture."""
        self.share = self.weights(generator(self.seed, f"mixture {self.done}"), len(self.dummies) + 1)
        self.mixture.mix(self.share.tolist())
        if self.quota is None:  # one permutation a step at least: what is counted may be next to nothing
            queue = self.followers.queue
            least = queue.work / max(1, len(queue.turns))
            given = to_device(inputs, self.mixture.device)
            self.quota = max(MATCHING * self.mixture.passes(given, size_of(targets, inputs)), least)

    def loss(self, inputs: Any, targets: Any) -> torch.Tensor:
        device = self.mixture.device
        return self.mixture.loss(to_device(inputs, device), to_device(targets, device), self.done)

    def move(self) -> None:
        """The dummies by the gradient, and the models near to them again."""
        assert self.quota is not None  # since the first loss
        gradient = self.mixture.gradient()
        for optimizer, weight in zip(self.optimizers, self.share[1:], strict=True):
            optimizer.step(gradient * weight.item())
        if self.turning is not None:
            total = self.passes.notes.get("steps")
            self.turning.step(gradient, self.share, 1 - self.done / total if total else 1.0)
        moved, units = self._matched() if self.literal else self.followers.solve(self.quota)
        self.changed = moved / max(1, units)

    def _matched(self) -> tuple[int, int]:
        """Every model near to its dummy, from the identity to convergence; as `solve`, of the first sweep."""
        words = self.problem.fitted.words
        self.followers.place([permutation.identity(words)] * len(self.dummies))
        moved, units = self.followers.solve(math.inf)
        for _ in range(CONVERGED if moved else 0):
            if not self.followers.solve(math.inf)[0]:
                break
        return moved, units

    def tell(self, loss: float) -> None:
        self.notes = {"loss": loss, "changed": self.changed}
        self._report()

    def after(self, step: int, mean: float) -> None:
        if step == (self.passes.length or 0) // LOOKS and self.done > self.looked:
            self.look()

    def ended(self, epoch: int, mean: float) -> None:
        if self.done > self.looked:
            self.look()

    # ---------------------------------------------------------------------------------------- what is kept

    def look(self) -> None:
        """The held-out losses at the mean; the permutations are kept where none were better.

        At the best temperature: endpoints may know these samples by heart, and then whatever makes logits
        larger loses less on them, and on no others.
        """
        loss, right, calibrated = self.mixture.held_out(self.held, self.done)
        least = min((row["held_out_calibrated"] for row in self.history), default=math.inf)
        self.looked = self.done
        row = {"step": float(self.done), "loss": self.notes.get("loss", math.nan)}
        row |= {"held_out_loss": loss, "held_out_accuracy": right, "held_out_calibrated": calibrated}
        self.history.append({name: value for name, value in row.items() if not math.isnan(value)})
        if not self.best or calibrated < least or self.literal:
            self.objective, self.best = -loss, self._standing()
        if self.done:
            self._report()

    def _standing(self) -> tuple[Permutations, ...]:
        if self.turning is not None:
            return self.turning.take()
        return self.followers.permutations

    def _report(self) -> None:
        if self.problem.progress is not None:
            self.problem.report(self.state())

    def state(self) -> State:
        """Where the search stands, and the figures that are shown of it."""
        found = {name: value for name, value in self.history[-1].items() if name in LOOKED}
        place = {
            "position": float(self.followers.queue.position),
            "credit": self.followers.queue.credit,
            **({} if self.quota is None else {"quota": self.quota}),
            "looked": float(self.looked),
            "init": float(STARTS.index(self.init)),
            "solves": float(self.solves + self.followers.solves),
        }
        tensors = {
            f"at.{k}.{word}": perm
            for k, perms in enumerate(self.followers.permutations)
            for word, perm in perms.items()
        }
        for k, (dummy, optimizer) in enumerate(zip(self.dummies, self.optimizers, strict=True)):
            tensors[f"dummy.{k}"] = dummy
            tensors |= {f"optimizer.{k}.{name}": value for name, value in optimizer.state.items()}
        tensors["history"] = packed(self.history)
        if self.turning is not None:
            tensors |= self.turning.kept()
        notes = {**self.notes, **found, **self.passes.notes, **place}
        return State(tuple(map(Elements, self.best)), self.done, self.objective, notes, tensors)

    def result(self) -> MatchResult:
        if self.objective == -math.inf and not self.literal:
            raise no_number("the held-out loss of the models' mean")
        solves, looks = self.solves + self.followers.solves, tuple(self.history)
        before = -self.history[0]["held_out_loss"]  # of where it started
        best = tuple(map(Elements, self.best)) if self.turning is None else self.turning.best
        return MatchResult(
            best,
            before,
            self.objective,
            self.done,
            solves,
            True,
            account=Learned(self.init, looks, self.literal),
        )

    def close(self) -> None:
        self.followers.close()


def _parts(problem: Problem, options: Training, *, whole: bool = False) -> tuple[Any, Any]:
    """The samples to train on, and those that are held out; `whole`: only looked at, as others are, too."""
    data = problem.given_data
    if options.limit is not None and isinstance(data, Data):
        data = data.subset(options.limit, problem.seed)
    train, held = held_out(data, derive(problem.seed, "held out"), HELD_OUT)
    return (data if whole else train), held


def initial(problem: Problem, options: Training) -> Sequence[Permutations]:
    """Where a search begins to whom nobody gives a start, for every model after the first."""
    return started(problem, options.init, _parts(problem, options)[0])[1]


def objective(problem: Problem, options: Training, permutations: Sequence[Permutations]) -> float:
    """Of the mean of all models, permuted so: the loss on the held-out samples of a search, negative."""
    others = zip(problem.models[1:], permutations, strict=True)
    models = (problem.models[0], *(permuted(model, problem.fitted, perms) for model, perms in others))
    mixture = Mixture(replace(problem, models=models), options.precision)
    return -mixture.held_out(_parts(problem, options)[1]).loss
