"""`--repair auto` of a network without running statistics: repaired or not, whichever loses less.

A repair mends what averaging broke, and where nothing broke it does harm: so both are measured, on training
samples that the repair itself was not measured on. The endpoints were trained on these, though, and may know
them by heart: then whatever makes logits larger loses less, here and nowhere else. So a repair must also win
when each model has its best temperature, by more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from ..datasets import _held_out
from ..errors import DataError, NetworkError, UsageError
from ..networks.evaluation import Scores
from .calibration import COLDEST, Scaled

SURE = 2.0  # standard errors by which a repair must win
EVERY = 3  # of a caller's batches the third, sixth, … are held out


@dataclass(frozen=True)
class Choice:
    """`chosen` is "none" or the repair; `losses` the held-out losses of both, in nats, as far as measured.

    `matched`: the same at the best temperature of each, {} where outputs are no logits (N, classes); `gain`:
    how much less the repaired model loses (at these temperatures, where there are some), `error` its standard
    error, NaN where single samples are not known. `samples` were held out, `apart` from those that the repair
    was measured on; `why` there was no choice.
    """

    chosen: str
    losses: dict[str, float]
    matched: dict[str, float] = field(default_factory=dict)
    gain: float = 0.0
    error: float = math.nan
    samples: int = 0
    apart: bool = True
    why: str = ""

    def account(self) -> dict[str, Any]:
        return asdict(self)


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
) -> Choice:
    """Measure `network`, which holds the merged weights, `apply` the repair, measure again; the better wins.

    In doubt nothing is changed. The network is left as `apply` leaves it. What cannot be measured or
    repaired stays as it is, and `why` says so: nobody asked for that very repair.
    """
    losses: dict[str, float] = {}
    try:
        before, cold = _measure(network, held, scores, output, device)
        losses["none"] = before[0].loss
        apply(network)
        after, cold_after = _measure(network, held, scores, output, device)
    except (DataError, NetworkError, UsageError) as error:
        return Choice("none", losses, apart=apart, why=error.message)
    losses[repair] = after[0].loss
    gain, error = _gain(before[-1], after[-1])
    told_apart = not (cold and cold_after)  # both right on everything: their losses say nothing
    better = (
        told_apart and losses[repair] < losses["none"] and gain > SURE * (0.0 if math.isnan(error) else error)
    )
    return Choice(
        repair if better else "none",
        losses,
        {"none": before[1].loss, repair: after[1].loss} if len(before) == len(after) == 2 else {},
        gain,
        error,
        before[0].samples,
        apart,
    )


def _measure(
    network: nn.Module,
    held: Iterable[Any],
    scores: Callable[..., Scores],
    output: str | int | None,
    device: str,
) -> tuple[list[Scores], bool]:
    """As it is and, where outputs are finite logits, at its best temperature; whether that has no bottom."""
    plain = scores(network, held, each=True)
    if math.isnan(plain.ece) or not math.isfinite(plain.loss):
        return [plain], False
    scaled = Scaled(network, held, output, device)
    return [plain, scores(scaled, held, output=None, each=True)], scaled.temperature < 1.01 * COLDEST


def _gain(before: Scores, after: Scores) -> tuple[float, float]:
    """How much less is lost, and the standard error of that over the samples, which are the same."""
    gain = before.loss - after.loss
    if before.each is None or after.each is None or len(before.each) < 2 or not math.isfinite(gain):
        return (math.inf if math.isnan(gain) else gain), math.nan
    apart = before.each[:, 0].double() - after.each[:, 0].double()
    return gain, (apart.std() / math.sqrt(len(apart))).item()


def in_words(choice: Choice) -> str:
    """What was chosen and why, in a sentence."""
    if choice.why:
        return f"--repair auto chose none, since nothing else could be measured: {choice.why}"
    (_, without), (name, repaired) = choice.losses.items()
    on = "that the repair was not measured on" if choice.apart else "that the repair was measured on, too"
    matched = ""
    if choice.matched:
        one, other = choice.matched.values()
        sure = "" if math.isnan(choice.error) else f" (standard error of the difference {choice.error:.4f})"
        matched = f"; at the best temperature of each {one:.4f} and {other:.4f}{sure}"
    return (
        f"--repair auto chose {choice.chosen}: the merged model's held-out loss is {without:.4f} nats "
        f"without, {repaired:.4f} with {name}, on {choice.samples} training samples {on}{matched}"
    )


def parted(batches: Iterable[Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    """Re-iterable batches to measure a repair on, and others to judge it by; twice the same if too few."""
    for number, _ in enumerate(batches, start=1):
        if number == EVERY:
            return _held_out.parted(batches, every=EVERY, at=EVERY - 1)
    return batches, batches
