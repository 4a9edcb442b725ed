"""The permutation step of PAM: descent over doubly stochastic matrices, then a choice among permutations.

The curve between A and PB whose control point is θ̃ off the middle is (1−t) A + t PB + 2t(1−t) θ̃. While θ̃
is still 0 that is the straight line; later rounds hold the θ̃ that they have. What is minimised is the mean
loss over t, where every word's P may be any doubly stochastic matrix, with ‖P − P⁰‖²/(2ν) added. Each step
draws one t; P's gradient is t times that of the loss. After it, P is projected back.

Tatro et al. 2020, appendix E, equations 34, 35 and 51 (NeurIPS 2020).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...checkpoints.tensors import replaced
from ...datasets import Data
from ...datasets.batches import size_of, to_device
from ...errors import CheckpointError, UsageError
from ...learning.loop import Passes, a_pass, learn
from ...learning.recipe import has_convolutions
from ...networks.forward import needs_two
from ...registry import option
from ...runtime.seeds import generator
from ...spec.notation import words_of
from ...symmetry.elements import Elements
from ...symmetry.lists import without_lists
from ...symmetry.permutation import permuted
from ...types import Permutations, Tensors
from .. import INITS, Declared, MatchResult, Problem, State, check_evidence, check_two, kept
from ..accounts import Relaxed, Rounded
from ..straight_through.mixture import AtMixture, Mixture
from ..straight_through.start import STARTS, started
from .matrices import PROJECTIONS, Rounding, cleaned, moved, of_permutations, projected

RATES = {True: 5e-2, False: 0.25}  # with convolutions, without: ten times half a curve's, which moves little
BATCH = 50  # samples for each point of the line that permutations are scored at
CHOICES = ("loss", "penalised")


@dataclass(frozen=True)
class Descent(Declared):
    """`epochs` of descent from `init` at `learning_rate`, `projections` rounds of `projection` a step.

    `nu`: the pull to where the search began is ‖P − P⁰‖²/(2ν). Of each matrix `terms` permutations are taken
    by Birkhoff's theorem, `samples` draws of all words scored on `scored` training samples, and the best by
    its `loss` is taken, or by the loss with that pull (penalised): both readings of equation 51.
    """

    epochs: int = option(20, "Passes over the training samples.", min=1)
    learning_rate: float | None = option(
        None, "Its learning rate (0.05 with convolutions, else 0.25).", flag="--lr", metavar="RATE"
    )
    init: str | None = option(
        None,
        "Where permutations start (with BatchNorm am, else wm); FILE as `rebasin align` wrote it.",
        metavar="wm|am|identity|FILE",
        choices=INITS,
        kind="start",
    )
    nu: float = option(1e3, "The pull to where the search began is ‖P − P⁰‖²/(2ν).")
    projection: str = option(
        "alternating", "How matrices are projected after each step.", choices=PROJECTIONS
    )
    projections: int = option(20, "Rounds of a projection.", min=1, max=10_000)
    terms: int = option(10, "Permutations that each matrix is taken apart into.", min=1)
    samples: int = option(32, "Draws of permutations that are scored.", min=0, max=100_000)
    scored: int = option(2_000, "Training samples that they are scored on.", min=1)
    choose: str = option(
        "loss", "The best permutation by its loss, or by that with the pull.", choices=CHOICES
    )
    limit: int | None = option(None, "Train on this many samples an epoch.", min=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise UsageError(f"a learning rate of {self.learning_rate:g} makes no sense", hint="Try 0.25.")
        if not 0 < self.nu < math.inf:
            raise UsageError(
                f"nu is {self.nu:g}; expected a positive number", hint="The published one is 1000."
            )


def memory(models: int, parameters: int, options: Descent) -> dict[str, int]:
    """Bytes that a search holds beside the files; its matrices are as large as the similarities."""
    row = 4 * parameters
    return {
        "models": 2 * row,
        "moved": 3 * row,  # the second model as it is given, as it stands, and its gradient
        "network": 4 * row,
        "matrices": 0,
    }


def search(problem: Problem, options: Descent, bend: Tensors | None = None) -> MatchResult:
    """The permutations that PAM's permutation step ends with, for the second of two models.

    With a `bend`, θ̃ by the names of the parameters, it is the curve through it whose loss is made small.
    The objective is the mean loss along the straight line on training samples, in nats and negative: before,
    where the search started. A sweep is one step. Raises UsageError without a network or data and for more
    than two models, SpecError for lists, CheckpointError for weights that are no numbers, DataError and
    NetworkError.
    """
    check_evidence(problem, "pam")
    check_two(problem, "pam")
    without_lists(problem.fitted, "pam")
    with torch.inference_mode(False), torch.enable_grad():  # whatever holds for the caller
        run = Run(problem, options, bend)
        run.begin(problem.start)
        learn(run, run.passes, problem.ranks)
        return run.rounded()


class Run(AtMixture):
    """One search: both models as rows of numbers, a matrix a word, and where all began."""

    def __init__(self, problem: Problem, options: Descent, bend: Tensors | None = None):
        self.problem, self.options, self.bent = problem, options, bend is not None
        fitted, (a, b) = problem.fitted, problem.models
        _check_finite(problem)
        self.b = replaced(b, {name: a[name] for name in fitted.ignored})
        models = (a, self.b) if bend is None else (a, self.b, bend)
        self.mixture = Mixture(dataclasses.replace(problem, models=models), "fp32", turned=False)
        self.device, self.flat = self.mixture.device, self.mixture.flat
        own = [name for name in self.flat.shapes if _moves(fitted.tensors.get(name, ()))]
        self.given = {name: b[name].detach().float().to(self.device) for name in own}
        self.rate = options.learning_rate or RATES[has_convolutions(self.mixture.network)]
        data, least = problem.given_data, self.mixture.normed + 1
        self.passes = Passes(data, problem.seed, options.epochs, options.limit, least)
        self.init, self.before = STARTS[-1], 0.0
        self.start: dict[str, Tensor] = {}
        self.matrices: dict[str, Tensor] = {}

    # --------------------------------------------------------------------------------------------- start

    def begin(self, start: State | None) -> None:
        """From where a search stood, from given permutations, or from those of `init`."""
        words = self.problem.fitted.words
        if start is not None and start.tensors:
            with kept():
                self.start = {word: start.tensors[f"start.{word}"] for word in words}
                self.matrices = {w: start.tensors[f"matrix.{w}"].to(self.device, copy=True) for w in words}
                self.done, self.before = start.sweep, start.notes["before"]
                self.init = STARTS[int(start.notes["init"])]
        else:
            if start is None:
                self.init, (found,) = started(self.problem, self.options.init, self.problem.given_data)
            else:
                (found,) = start.permutations
            self.start = dict(found)
        anchor = of_permutations(self.start, self.problem.fitted)
        self.anchor = {word: matrix.to(self.device) for word, matrix in anchor.items()}
        if not self.matrices:
            self.matrices, self.before = dict(self.anchor), self._loss(self.start)

    # --------------------------------------------------------------------------------------------- steps

    def begin_step(self, inputs: Any, targets: Any) -> None:
        """At one point of the line."""
        self.t = torch.rand((), generator=generator(self.problem.seed, f"point {self.done}")).item()
        for matrix in self.matrices.values():
            matrix.requires_grad_()
        fitted = self.problem.fitted
        self.placed = {n: moved(n, tensor, self.matrices, fitted) for n, tensor in self.given.items()}
        self._place(self.placed)
        self._mix(self.t)

    def loss(self, inputs: Any, targets: Any) -> Tensor:
        return self.mixture.loss(to_device(inputs, self.device), to_device(targets, self.device), self.done)

    def move(self) -> None:
        """The matrices by their gradient, and projected."""
        views = self.flat.views(self.mixture.gradient())
        words = list(self.matrices)
        slopes = torch.autograd.grad(
            list(self.placed.values()),
            [self.matrices[word] for word in words],
            [self.t * views[name] for name in self.placed],
            allow_unused=True,
        )
        with torch.no_grad():
            for word, slope in zip(words, slopes, strict=True):
                if slope is not None:
                    self.matrices[word] = self._moved(self.matrices[word].detach(), slope, self.anchor[word])

    def tell(self, loss: float) -> None:
        self._tell((self.start,), -self.before, {"loss": loss})

    def _moved(self, matrix: Tensor, slope: Tensor, anchor: Tensor) -> Tensor:
        """A step down, one towards where it began, and the projection."""
        pull = self.rate / self.options.nu
        matrix = (matrix - self.rate * slope + pull * anchor) / (1 + pull)
        return projected(matrix, self.options.projection, self.options.projections)

    def _place(self, tensors: Mapping[str, Tensor]) -> None:
        """Let these be the second model."""
        views = self.flat.views(self.mixture.rows[1])
        with torch.no_grad():
            for name, tensor in tensors.items():
                views[name].copy_(tensor)

    def _mix(self, t: float) -> None:
        """Let the network be at t."""
        self.mixture.mix([1 - t, t, *[2 * t * (1 - t)] * self.bent])

    def _tell(self, found: Sequence[Permutations], objective: float, notes: Mapping[str, float]) -> None:
        if self.problem.progress is None:
            return
        kept = {"before": self.before, "init": float(STARTS.index(self.init)), **self.passes.notes}
        tensors = {f"start.{word}": perm for word, perm in self.start.items()}
        tensors |= {f"matrix.{word}": matrix.detach() for word, matrix in self.matrices.items()}
        self.problem.report(
            State(tuple(map(Elements, found)), self.done, objective, {**kept, **notes}, tensors)
        )

    # ------------------------------------------------------------------------------------------ rounding

    def rounded(self) -> MatchResult:
        """The best of where it began, the nearest permutations, and draws from Birkhoff's mixtures."""
        options, rng = self.options, generator(self.problem.seed, "draws")
        clean = {word: cleaned(matrix.detach()) for word, matrix in self.matrices.items()}
        rounding = Rounding(clean, self.problem.fitted, options.terms)
        draws = range(1, options.samples + 1)
        found = self.problem.ranks.first(  # for all: matrices may round elsewhere on other processors
            lambda: {
                "start": self.start,
                "nearest": rounding.nearest(),
                **{f"draw {k}": rounding.draw(rng) for k in draws},
            }
        )
        losses: dict[str, float] = {}
        penalised: dict[str, float] = {}
        for name, perms in found.items():
            same = next((other for other in losses if _same(found[other], perms)), None)
            losses[name] = losses[same] if same else self.before if name == "start" else self._loss(perms)
            penalised[name] = losses[name] + self._moved_units(perms) / options.nu
        by = {
            name: min(its, key=its.__getitem__) for name, its in (("loss", losses), ("penalised", penalised))
        }
        best = by[options.choose]
        account = Rounded(
            chosen=best,
            by_loss=by["loss"],
            by_penalised=by["penalised"],
            loss_start=losses["start"],
            loss_nearest=losses["nearest"],
            loss=losses[best],
            draws=options.samples,
            draws_below_nearest=sum(losses[n] < losses["nearest"] for n in losses if n.startswith("draw")),
            units_moved=self._moved_units(found[best]),
            units_moved_nearest=self._moved_units(found["nearest"]),
            units=sum(self.problem.fitted.words.values()),
        )
        self._tell((found[best],), -losses[best], {})
        return MatchResult(
            (Elements(found[best]),),
            -self.before,
            -losses[best],
            self.done,
            rounding.solves,
            True,
            account=Relaxed(self.init, account),
        )

    def _moved_units(self, perms: Permutations) -> int:
        """Units that are elsewhere than where all began: ‖P − P⁰‖² is two for each."""
        return sum(int((perm != self.start[word]).sum()) for word, perm in perms.items())

    def _loss(self, perms: Permutations) -> float:
        """The mean loss along the line, in nats: every batch at another t, which lie evenly in 0–1."""
        model = permuted(self.b, self.problem.fitted, perms)
        self._place({name: model[name].to(self.device) for name in self.given})
        total = samples = 0.0
        for _, size, loss in sorted(itertools.chain(*self.problem.ranks.shared(self._losses))):
            total += size * loss
            samples += size
        if not samples:
            raise needs_two("of all batches")
        return math.inf if math.isnan(total) else total / samples

    def _losses(self) -> list[tuple[int, int, float]]:
        """The number, samples and loss of every batch that is this rank's."""
        ranks, found, batches = self.problem.ranks, list[tuple[int, int, float]](), list(self._scored())
        with torch.no_grad():
            for k, (inputs, targets) in enumerate(batches):
                if k % ranks.size == ranks.rank:
                    self._mix((k + 0.5) / len(batches))
                    found.append((k, size_of(targets, inputs), self.loss(inputs, targets).item()))
        return found

    def _scored(self) -> Iterator[tuple[Any, Any]]:
        """The first samples in small batches, so that many points of the line are looked at."""
        data, most, seed = self.problem.given_data, self.options.scored, self.problem.seed
        if isinstance(data, Data):
            data = data.subset(most, seed).with_batch_size(BATCH)
        return a_pass(data, generator(seed, "order of samples"), limit=most, least=self.mixture.normed + 1)


def _same(one: Permutations, other: Permutations) -> bool:
    return all(torch.equal(perm, other[word]) for word, perm in one.items())


def _moves(axes: Sequence[Any]) -> bool:
    return any(True for axis in axes for _ in words_of(axis))


def _check_finite(problem: Problem) -> None:
    for number, model in enumerate(problem.models, start=1):
        for name in problem.fitted.tensors:
            tensor = model[name]
            if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
                raise CheckpointError(f"model {number}: {name} holds NaN or infinite values")


def line_loss(
    problem: Problem, options: Descent, permutations: Permutations, bend: Tensors | None = None
) -> float:
    """The mean loss along the line between two models, the second permuted so: what a search makes small.

    With a `bend` along that curve.
    """
    return Run(problem, options, bend)._loss(permutations)
