"""Which of several merges of the same models is taken, by held-out samples.

One rule, wherever something is chosen: the least of what a merge loses plus `PULL` times how far its
probabilities are from the mean of its endpoints'. On training samples, which endpoints may know by heart, the
loss tells what a merge has kept of them, and little of what it will do on others. What the endpoints say in
the mean is what a merge is to be made of, and how far it is from that there tells more. On samples that no
endpoint was trained on the loss tells most, and that distance a little. Both weights have the least regret on
the cases of benchmarks/regret.py. Of other losses than cross-entropy, and where a metric is to decide, that
figure is all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from ..datasets import held_out
from ..errors import DataError, NetworkError, UsageError, no_number
from ..networks.evaluation import Scores
from ..runtime.ranks import ALONE
from ..types import CROSS_ENTROPY, Batches, Tensors, aside
from .ensemble import Agreement

PULL = 2.0  # how much the distance to the endpoints' mean counts beside the loss
LESS = 0.5  # the same on samples that no endpoint was trained on
SAME = 1e-6  # of the cost: what differs by less is rounding, and no gain
EVERY = 3  # of a caller's batches the third, sixth, … are held out


@dataclass(frozen=True)
class Choice:
    """`chosen` is "none" or the repair; `losses` the held-out losses of both, in `unit`, as far as measured.

    `distances`: how far both are from the mean of their endpoints' probabilities, in nats, {} where outputs
    are no logits of classes or a metric decides. `gain`: how much better the repaired model is, `error` its
    standard error, NaN where single samples are not known, both of what decided: the figure `by`, with the
    distance. `metrics` are those of both, where any were asked for; `name` is the loss's. `samples` were held
    out, `apart` from those that the repair was measured on, `unseen` by the endpoints, too; `why` there was
    no choice.
    """

    chosen: str
    losses: dict[str, float]
    distances: dict[str, float] = field(default_factory=dict)
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
    """A merge on held-out samples: its `plain` scores, and of every sample how far it is from its endpoints.

    `apart` is in nats, (samples,), of the first ones where there are very many, and counts `pull` times; None
    where outputs are no logits of classes or a metric decides. `by` is the key of the figure that it is
    compared by.
    """

    plain: Scores
    apart: Tensor | None = field(default=None, repr=False)
    by: str = "loss"
    pull: float = PULL

    @property
    def distance(self) -> float:
        """The mean distance to the endpoints' probabilities, in nats; NaN where it is not known."""
        return math.nan if self.apart is None or not len(self.apart) else self.apart.nanmean().item()

    @property
    def cost(self) -> float:
        """What is least of the merge that is taken."""
        return self.lost if math.isnan(self.distance) else self.lost + self.pull * self.distance

    @property
    def each(self) -> Tensor | None:
        """The same of every sample, (samples,); None where single samples are not known."""
        found = self.plain.sampled(self.by)
        if found is None or math.isnan(self.distance):
            return None if found is None else self.sign * found.double()
        if self.apart is None or len(self.apart) < len(found):
            return None
        return found.double() + self.pull * self.apart

    @property
    def lost(self) -> float:
        """The figure, with the sign that makes more of it worse; infinite where it is no finite number.

        Raises UsageError if not measured.
        """
        if self.by not in self.plain.figures:
            there = f"Measured are: {', '.join(self.plain.figures)}"
            raise UsageError(f"--choose {self.by}: it was not measured on this network's outputs", hint=there)
        value = self.sign * self.plain.figures[self.by]
        return value if math.isfinite(value) else math.inf

    @property
    def told(self) -> str:
        """The figure, for messages."""
        return self.by if self.by != "loss" else f"loss{aside(self.plain.quantities[0].name)}"

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
    endpoints: Sequence[Tensors] = (),
    weights: Sequence[float] = (),
    output: str | int | None = None,
    device: str = "cpu",
    repair: str = "repair",
    apart: bool = True,
    unseen: bool = False,
    by: str = "loss",
    metrics: bool = False,
    named: bool = False,
) -> Choice:
    """Measure `network`, which holds the merged weights, `apply` the repair, measure again; the better wins.

    `endpoints` are those of the merge, with their `weights` in it, and `unseen` says that none was trained on
    `held`. `by` is the key of the figure that decides; the choice tells all `metrics` if asked to. In doubt
    nothing is changed. The network is left as `apply` leaves it. What cannot be measured or repaired stays as
    it is, and `why` says so: nobody asked for that very repair. Where the user `named` what is measured,
    `network` as it is has to be measurable. Raises NetworkError where the figure is no finite number of both,
    and what the user's own code raises.
    """
    losses: dict[str, float] = {}
    compared = Comparison(network, endpoints, weights, held, scores, output, device, by=by, unseen=unseen)
    try:
        before = compared.measure(network, output)
        losses["none"] = before.plain.loss
        apply(network)
        after = compared.measure(network, output)
    except (DataError, NetworkError, UsageError) as error:
        if error.own_code or (named and not losses):
            raise
        return Choice("none", losses, apart=apart, unseen=unseen, why=error.message, by=by)
    if min(before.lost, after.lost) == math.inf:
        raise no_number(f"the merged model's held-out {before.told}", "--repair none")
    losses[repair] = after.plain.loss
    gain, deviation = gained(before, after)
    known = before.apart is not None and after.apart is not None
    return Choice(
        repair if better(before, after) else "none",
        losses,
        {"none": before.distance, repair: after.distance} if known else {},
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


class Comparison:
    """Measures merges of the same endpoints on the same held-out samples, with what a choice goes by.

    `network` says what runs; `weights` are the endpoints' in the merge; with `unseen` none of them was
    trained on `held`.
    """

    def __init__(
        self,
        network: nn.Module,
        endpoints: Sequence[Tensors],
        weights: Sequence[float],
        held: Iterable[Any],
        scores: Callable[..., Scores],
        output: str | int | None,
        device: str,
        *,
        by: str = "loss",
        unseen: bool = False,
    ):
        self.held, self.scores, self.by, self.unseen = held, scores, by, unseen
        self._agreed = partial(Agreement, network, endpoints, weights, held, output, device)
        self._able = bool(endpoints) and by == "loss"

    @cached_property
    def agreement(self) -> Agreement | None:
        """What the endpoints say in the mean; None where outputs are no logits of classes."""
        return self._agreed() if self._able else None

    def measure(self, network: nn.Module, output: str | int | None) -> Measured:
        """The network, of which `output` is measured. Raises as `evaluate`."""
        plain = self.scores(network, self.held, each=True)
        self._able &= plain.quantities[0] == CROSS_ENTROPY
        agreed = self.agreement if math.isfinite(plain.loss) else None
        apart = None if agreed is None else agreed.apart(network, output)
        if apart is not None:  # a choice is one for all ranks, whose processors may round otherwise
            apart = getattr(self.scores, "ranks", ALONE).broadcast(apart, source=0)
        return Measured(plain, apart, self.by, LESS if self.unseen else PULL)

    def left(self, found: Measured, *, loss: bool = False) -> float:
        """About what a merge may gain at most: what the endpoints' mean loses less. Infinite if not known.

        With `loss` of that alone, without the distance. Of recorded merges those with less than 0.005 nats
        left were 0.005 worse than the best candidate on test data at most. On samples that no endpoint was
        trained on others may be better than that mean.
        """
        whole = found.apart is not None and len(found.apart) == found.plain.samples
        known = self.agreement if whole and not self.unseen else None
        lost = found.lost if loss else found.cost
        return math.inf if known is None or not math.isfinite(known.loss) else lost - known.loss


def better(before: Measured, after: Measured) -> bool:
    """Whether one merge is taken for better than another: the one that costs less."""
    return _gain(before, after) > SAME * abs(after.cost)


def gained(before: Measured, after: Measured) -> tuple[float, float]:
    """How much less is lost, and the standard error of that over the samples, which are the same."""
    gain, losses = _gain(before, after), [each for it in (before, after) if (each := it.each) is not None]
    if len(losses) < 2 or len(losses[0]) < 2 or not math.isfinite(gain):
        return gain, math.nan
    apart = losses[0].cpu() - losses[1].cpu()
    return gain, (apart.std() / math.sqrt(len(apart))).item()


def _gain(before: Measured, after: Measured) -> float:
    """How much less the one costs that comes after; nothing where both cost infinitely much."""
    return 0.0 if before.cost == after.cost else before.cost - after.cost


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
    more = ""
    if choice.distances:
        one, other = choice.distances.values()
        more = f"; {one:.4f} and {other:.4f} nats from the mean of the endpoints' answers, which counts, too"
    if choice.metrics:
        bare, mended = choice.metrics.values()
        both = sorted(bare.keys() & mended.keys())
        more += "".join(f"; {key} {bare[key]:.4f} and {mended[key]:.4f}" for key in both)
    unit = f" {choice.unit}" if choice.unit else ""
    named = aside(choice.name)
    by = "" if choice.by == "loss" else f" by {choice.by}"
    return (
        f"--repair auto chose {choice.chosen}{by}: the merged model's held-out loss{named} is "
        f"{without:.4f}{unit} without, {repaired:.4f} with {name}, on {choice.samples} {on}{sure}{more}"
    )


def parted(batches: Batches) -> tuple[Iterable[Any], Iterable[Any]]:
    """Re-iterable batches to measure a repair on, and others to judge it by; twice the same if too few."""
    for number, _ in enumerate(batches, start=1):
        if number == EVERY:
            return held_out.parted(batches, every=EVERY, at=EVERY - 1)
    return batches, batches
