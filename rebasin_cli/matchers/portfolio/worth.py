"""What the mean of aligned models is worth on held-out samples, with the repairs that are open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ... import networks
from ...averages.means import average
from ...datasets import Data
from ...datasets.batches import First, checked, head, size_of
from ...networks.answers import Recording
from ...networks.evaluation import evaluate
from ...networks.forward import fed
from ...networks.losses import Loss
from ...networks.state import duplicate
from ...repair import Outcome, Repairs
from ...repair.choices import Comparison, Measured
from ...repair.costs import TRACING, distillation_passes, refit_products, repair_passes
from ...repair.options import (
    DISTILL_SAMPLES,
    MOST_DISTILLED,
    REFIT_BATCH,
    REFIT_SAMPLES,
    STEP,
    epochs_of,
)
from ...repair.producers import Graphs
from ...runtime.seeds import derive
from ...symmetry.elements import Elements, acted, element_of
from ...symmetry.form import Forms
from ...types import Permutations
from .. import Problem
from .clock import SPEED, Clock

FEWEST = 100  # samples that a repair is tried on
MEASURING = 0.1  # share of the time that a repair may take which reads its samples layer by layer
MEASURED = 2_500  # samples, in batches as large as those of a refit: a graph is of one size
FORWARDS = 2  # passes of a model through the network, with what is added up, that a refit takes
BASES = ("none", "reset")  # they change no weights
A_STEP = 2e-3  # seconds that a step of training takes however small the network
LAST = "distill"  # it takes so long that it is tried once, with the best of all
SHORTENED = 0.5  # of its training, which still gains most of what it can; a third of it does not
DEFAULTS = (*BASES, "repair")  # what a merge by weights has by itself


class Mending:
    """Merges of one problem, each repaired in one way and measured on the same `held` batches.

    `a_sample` is the time of a forward pass, `most` samples a reset may read.
    """

    def __init__(
        self,
        problem: Problem,
        train: Iterable[Any],
        held: list[Any],
        clock: Clock,
        a_sample: float,
        *,
        most: int,
    ):
        self.problem, self.train, self.held, self.clock = problem, train, held, clock
        self.a_sample, self.most = a_sample, most
        self.network = duplicate(problem.given_network).float().to(problem.device).eval()
        base = "reset" if networks.has_running_statistics(self.network) else "none"
        self.open = problem.repairs or (base,)
        self.fitted = REFIT_SAMPLES  # on which a refit is tried
        self.graphs: dict[Any, Any] = {}
        self.took: dict[str, float] = {}  # seconds of a repair, the last time
        self.kept: Outcome | None = None  # by the last repair, if there is no time to do it again
        self.longer = True  # whether more samples than usual are worth their time, for a distillation
        scores = partial(evaluate, loss=problem.loss, metric=problem.metric, device=problem.device)
        count = len(problem.models)
        self.comparison = Comparison(
            self.network,
            problem.models,
            [1 / count] * count,
            held,
            scores,
            problem.output,
            problem.device,
            by=problem.choose,
            unseen=problem.held is not None,
        )

    def models(self, found: Sequence[Elements | Permutations], forms: Forms | None = None) -> Sequence[Any]:
        """The models as these make them, of the problem's or in other `forms`."""
        elements = [element_of(each) for each in found]
        if forms is not None:
            return forms.standing(forms.whole(elements))
        reference, *others = self.problem.models
        moved = (acted(m, self.problem.fitted, e) for m, e in zip(others, elements, strict=True))
        return [reference, *moved]

    def judge(self, models: Sequence[Any], how: str, seconds: float = math.inf) -> Measured:
        """The mean of these models, repaired so, a distillation within `seconds`. Raises as repairs do."""
        networks.load(self.network, average(models, keep=self.problem.fitted.ignored))
        self.kept = None
        if how != "none":
            share = self._share(seconds) if how == LAST else 1.0
            batches = self._batches(how, longer=max(1.0, share))
            repairs = Repairs(
                how,
                models,
                batches,
                ridge=self.problem.ridge,
                output=self.problem.output,
                device=self.problem.device,
                logits=Loss.of(self.problem.loss).of_logits,
                seconds=self._training(seconds, share) if how == LAST and not self.clock.counts else math.inf,
                share=min(1.0, share) if how == LAST and self.clock.counts else 1.0,
                known={"graphs": self.graphs},  # the endpoints' values are others for every candidate
            )
            done = repairs.apply(self.network, [1 / len(models)] * len(models))
            done = replace(done, samples=getattr(batches, "samples", None))
            again = self.clock.counts and how != LAST
            self.kept = None if again else Outcome.of(self.network, done)
        answers = Recording(self.network, self.problem.output)  # the network is run once for all figures
        return self.comparison.measure(answers, None)

    def _training(self, seconds: float, share: float) -> float:
        """Of a distillation's seconds those that it may train; what it came to is read and measured then."""
        held = sum(size_of(targets, inputs) for inputs, targets in self.held)
        after = self.a_sample * (held + max(1.0, share) * DISTILL_SAMPLES)
        return max(0.5 * seconds, seconds - after)

    def seconds(self, how: str, room: float, share: float = 1.0) -> float:
        """About how long a repair takes: as long as the last time, else by what it computes.

        A refit that is yet to be tried gets as many samples as there is `room` for: a hundred tell what it is
        worth. A distillation begins with one, and trains for a `share` of its time.
        """
        if how in BASES:
            return self.a_sample * self._samples(how) * (how == "reset")
        if how in self.took:
            return self.took[how]
        if how == LAST:
            return self._distilling(share)
        tracing = 0.0 if self.graphs else TRACING
        if how != "refit":
            return tracing + self._samples(how) * self._layer_by_layer()
        each, left = FORWARDS * self.a_sample * (len(self.problem.models) + 1), room - tracing
        if FEWEST * each <= left:  # else it is not worth being traced
            device, inputs = self.problem.device, head(self.held[0][0], 2)
            speed = SPEED if self.clock.counts else None
            each += refit_products(self.network, fed(self.network, inputs, device), device, speed)
        some = max(FEWEST, int(min(REFIT_SAMPLES, left / each)))
        self.fitted = min(REFIT_SAMPLES, some if some < REFIT_BATCH else some // REFIT_BATCH * REFIT_BATCH)
        return tracing + self.fitted * each

    def reckoned(self, how: str, room: float) -> float:
        """Seconds of a repair that has so much `room`, and of measuring it; as before, if there was one."""
        repaired = self._distilling(self._share(room)) if how == LAST else self.seconds(how, room)
        if how in self.took and how not in (*BASES, LAST):
            return repaired
        runs = 1 if self.took else 1 + len(self.problem.models)  # what the models say themselves, once
        held = sum(size_of(targets, inputs) for inputs, targets in self.held)
        return repaired + runs * self.a_sample * held

    def _distilling(self, share: float) -> float:
        """Seconds of a distillation that trains for a `share` of its steps."""
        each = distillation_passes(len(self.problem.models), DISTILL_SAMPLES) * self.a_sample
        each += epochs_of(DISTILL_SAMPLES) * A_STEP / STEP
        return self.took.get("refit", math.inf) + share * each * DISTILL_SAMPLES

    def _share(self, room: float) -> float:
        """Of a distillation's training there is room for so much; above 1 of one on more samples."""
        first, whole = self._distilling(0.0), self._distilling(1.0)
        there = self.train.samples if isinstance(self.train, Data) and self.longer else 0
        most = min(MOST_DISTILLED, there) / DISTILL_SAMPLES
        return min(max(1.0, most), (room - first) / (whole - first))

    def trace(self) -> None:
        """Follow the network for what changes its weights, once for all candidates."""
        inputs, _ = next(checked(self._batches("refit")))
        Graphs(self.network, self.graphs).of(fed(self.network, inputs, self.problem.device))

    def _samples(self, how: str) -> int:
        if how == LAST:
            return DISTILL_SAMPLES
        if how == "refit":
            return self.fitted
        if how in BASES:
            return min(MEASURED, self.most)
        return max(FEWEST, min(MEASURED, int(MEASURING * self.clock.seconds / self._layer_by_layer())))

    def _layer_by_layer(self) -> float:
        """Seconds that a sample takes of a repair that reads it for every layer."""
        return max(self.a_sample, 1e-9) * repair_passes(self.network) * len(self.problem.models)

    def _batches(self, how: str, *, longer: float = 1.0) -> Any:
        """Training samples for a repair, none of which is held out; `longer` times as many as usual."""
        most = round(longer * self._samples(how))
        if hasattr(self.train, "subset"):
            drawn = derive(self.problem.seed, "samples of a repair")
            return self.train.subset(most, drawn).with_batch_size(REFIT_BATCH).mixed(drawn)
        return First(self.train, most)
