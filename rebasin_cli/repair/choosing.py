"""`--repair auto` of a network without running statistics: repaired or not, whichever loses less.

A repair mends what averaging broke, and where nothing broke it does harm: so both are measured. On samples
that no endpoint was trained on (`unseen`) the smaller loss is chosen. Training samples that the repair itself
was not measured on are second best: the endpoints may know them by heart, then whatever makes logits larger
loses less, here and nowhere else. There a repair must gain `MARGIN` nats, by more than chance, and something
when each model has its best temperature, too. The rule is the one of least regret that did no harm of 0.002
nats on the cases of benchmarks/choices.csv; samples with noise, or mixed, told less than those as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from ..datasets import held_out
from ..errors import DataError, NetworkError, UsageError
from ..networks.evaluation import Scores
from ..types import CROSS_ENTROPY, Batches, aside
from .calibration import COLDEST, Scaled

SURE = 2.0  # standard errors by which a repair must win on samples that endpoints were trained on
MARGIN = 0.03  # … and nats: below it merges gained 0.034 on these, and lost 0.014 on others
EVERY = 3  # of a caller's batches the third, sixth, … are held out


@dataclass(frozen=True)
class Choice:
    """`chosen` is "none" or the repair; `losses` the held-out losses of both, in `unit`, as far as measured.

    `matched`: the same at the best temperature of each, {} where outputs are no logits (N, classes), or where
    it does not matter; `gain`: how much better the repaired model is, `error` its standard error, NaN where
    single samples are not known, both of the figure `by` which was chosen. `metrics` are those of both, where
    any were asked for; `name` is the loss's. `samples` were held out, `apart` from those that the repair was
    measured on, `unseen` by the endpoints, too; `why` there was no choice.
    """

    chosen: str
    losses: dict[str, float]
    matched: dict[str, float] = field(default_factory=dict)
    gain: float = 0.0
    error: float = math.nan
    samples: int = 0
    apart: bool = True
    unseen: bool = False
    why: str = ""
    unit: str = CROSS_ENTROPY.unit
    name: str = CROSS_ENTROPY.name
    by: str = "loss"
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    def account(self) -> dict[str, Any]:
        """For JSON: what is as it always is, is left out."""
        usual = {"name": CROSS_ENTROPY.name, "by": "loss", "metrics": {}}
        return {key: value for key, value in asdict(self).items() if usual.get(key, ...) != value}


@dataclass(frozen=True)
class Measured:
    """A merge on held-out samples: its `plain` scores and, where looked at, at its best temperature.

    `cold`: that temperature has no bottom, since all samples are right: its losses say nothing. `by` is the
    key of the figure that it is compared by.
    """

    plain: Scores
    matched: Scores | None = None
    cold: bool = False
    by: str = "loss"

    @property
    def classes(self) -> bool:
        """Whether it is compared by a cross-entropy of class numbers, of which a margin in nats is known."""
        return self.by == "loss" and self.plain.quantities[0] == CROSS_ENTROPY

    @property
    def lost(self) -> float:
        """The figure, with the sign that makes more of it worse. Raises UsageError if not measured."""
        if self.by == "loss":
            return self.plain.loss
        if self.by not in self.plain.metrics:
            there = f"Measured are: {', '.join(self.plain.figures)}"
            raise UsageError(f"--choose {self.by}: it was not measured on this network's outputs", hint=there)
        value = self.sign * self.plain.metrics[self.by]
        return math.inf if math.isnan(value) else value

    @property
    def sign(self) -> float:
        """1 where smaller is better, −1 where larger is."""
        return next((q.sign for q in self.plain.quantities[1:] if q.key == self.by), 1.0)


def choose(
    network: nn.Module,
    apply: Callable[[nn.Module], object],
    held: Iterable[Any],
    *,
    scores: Callable[..., Scores],
    output: str | int | None = None,
    device: str = "cpu",
    repair: str = "repair",
    apart: bool = True,
    unseen: bool = False,
    by: str = "loss",
    metrics: bool = False,
) -> Choice:
    """Measure `network`, which holds the merged weights, `apply` the repair, measure again; the better wins.

    `unseen`: no endpoint was trained on `held`. `by` is the key of the figure that decides; the choice tells
    all `metrics` if asked to. In doubt nothing is changed. The network is left as `apply`
    leaves it. What cannot be measured or repaired stays as it is, and `why` says so: nobody asked for that
    very repair.
    """
    losses: dict[str, float] = {}
    try:
        before = measure(network, held, scores, output, device, scaled=not unseen, by=by)
        losses["none"] = before.plain.loss
        apply(network)
        after = measure(network, held, scores, output, device, scaled=not unseen, by=by)
    except (DataError, NetworkError, UsageError) as error:
        return Choice("none", losses, apart=apart, unseen=unseen, why=error.message, by=by)
    losses[repair] = after.plain.loss
    gain, deviation = gained(before, after)
    matched = {}
    if before.matched is not None and after.matched is not None:
        matched = {"none": before.matched.loss, repair: after.matched.loss}
    return Choice(
        repair if better(before, after, unseen=unseen, sure=0.0 if unseen else SURE) else "none",
        losses,
        matched,
        gain,
        deviation,
        before.plain.samples,
        apart,
        unseen,
        unit=before.plain.quantities[0].unit,
        name=before.plain.quantities[0].name,
        by=by,
        metrics={"none": before.plain.finite, repair: after.plain.finite} if metrics or by != "loss" else {},
    )


def measure(
    network: nn.Module,
    held: Iterable[Any],
    scores: Callable[..., Scores],
    output: str | int | None,
    device: str,
    *,
    scaled: bool,
    by: str = "loss",
) -> Measured:
    """As it is and, if `scaled` and outputs are finite logits, at its best temperature.

    No temperature changes what is compared `by` a metric.
    """
    plain = scores(network, held, each=True)
    if by != "loss":
        return Measured(plain, by=by)
    if not scaled or math.isnan(plain.ece) or not math.isfinite(plain.loss):
        return Measured(plain)
    cooled = Scaled(network, held, output, device)
    return Measured(plain, scores(cooled, held, output=None, each=True), cooled.temperature < 1.01 * COLDEST)


def better(
    before: Measured, after: Measured, *, unseen: bool, margin: float = MARGIN, sure: float = SURE
) -> bool:
    """Whether one merge is taken for better than another: by samples that are `unseen`, or known by heart.

    By `sure` standard errors at least. On samples known by heart also by `margin` nats, which is for what
    makes logits larger, and at the best temperature of each.
    """
    gain, error = gained(before, after)
    error = 0.0 if math.isnan(error) else error
    if unseen:
        return gain > sure * error
    if before.cold and after.cold:  # both right on everything: their losses say nothing
        return False
    if not before.classes:  # nats mean nothing of another loss: more than chance is enough
        return gain > sure * error
    falls = before.matched is None or after.matched is None or after.matched.loss < before.matched.loss
    return gain > max(margin, sure * error) and falls


def gained(before: Measured, after: Measured) -> tuple[float, float]:
    """How much less is lost, and the standard error of that over the samples, which are the same."""
    gain, found = before.lost - after.lost, (before.plain.sampled(before.by), after.plain.sampled(after.by))
    losses = [before.sign * each for each in found if each is not None and len(each) > 1]
    if len(losses) < 2 or not math.isfinite(gain):
        return (math.inf if math.isnan(gain) else gain), math.nan
    apart = losses[0].double() - losses[1].double()
    return gain, (apart.std() / math.sqrt(len(apart))).item()


def in_words(choice: Choice) -> str:
    """What was chosen and why, in a sentence."""
    if choice.why:
        return f"--repair auto chose none, since nothing else could be measured: {choice.why}"
    (_, without), (name, repaired) = choice.losses.items()
    measured = (
        "that the repair was not measured on" if choice.apart else "that the repair was measured on, too"
    )
    on = "samples that no endpoint was trained on" if choice.unseen else f"training samples {measured}"
    sure = "" if math.isnan(choice.error) else f" (standard error of the difference {choice.error:.4f})"
    matched = ""
    if choice.matched:
        one, other = choice.matched.values()
        matched = f"; at the best temperature of each {one:.4f} and {other:.4f}"
    if choice.metrics:
        bare, mended = choice.metrics.values()
        both = sorted(bare.keys() & mended.keys())
        matched += "".join(f"; {key} {bare[key]:.4f} and {mended[key]:.4f}" for key in both)
    doubt = ""
    unit = f" {choice.unit}" if choice.unit else ""
    named = aside(choice.name)
    by = "" if choice.by == "loss" else f" by {choice.by}"
    if choice.chosen == "none" and not by and repaired < without and not choice.unseen:
        least = (
            f"less than {MARGIN:g} nats, or than chance," if choice.name == CROSS_ENTROPY.name else "chance"
        )
        doubt = f". On samples known by heart {least} is no gain"
    return (
        f"--repair auto chose {choice.chosen}{by}: the merged model's held-out loss{named} is "
        f"{without:.4f}{unit} without, {repaired:.4f} with {name}, on {choice.samples} {on}{sure}{matched}"
        f"{doubt}"
    )


def parted(batches: Batches) -> tuple[Iterable[Any], Iterable[Any]]:
    """Re-iterable batches to measure a repair on, and others to judge it by; twice the same if too few."""
    for number, _ in enumerate(batches, start=1):
        if number == EVERY:
            return held_out.parted(batches, every=EVERY, at=EVERY - 1)
    return batches, batches
