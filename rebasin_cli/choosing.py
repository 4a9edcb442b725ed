"""`--repair auto` of a network without running statistics: repaired or not, whichever loses less.

A repair mends what averaging broke, and where nothing broke it does harm: so both are measured, on training
samples that the repair itself was not measured on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from .errors import DataError, NetworkError, UsageError
from .evaluation import Scores

EVERY = 3  # of a caller's batches the third, sixth, … are held out


@dataclass(frozen=True)
class Choice:
    """`chosen` is "none" or the repair; `losses` the held-out losses of both, in nats, as far as measured.

    `samples` were held out, `apart` from those that the repair was measured on; `why` there was no choice.
    """

    chosen: str
    losses: dict[str, float]
    samples: int = 0
    apart: bool = True
    why: str = ""

    def account(self) -> dict[str, Any]:
        return asdict(self)


def choose(
    network: nn.Module,
    mend: Callable[[nn.Module], object],
    held: Iterable[Any],
    *,
    scores: Callable[..., Scores],
    repair: str = "repair",
    apart: bool = True,
) -> Choice:
    """Measure `network`, which holds the merged weights, then `mend` it and measure again; the better wins.

    On a tie nothing is changed. The network is left as `mend` leaves it. What cannot be measured or mended
    is not repaired, and `why` says so: nobody asked for that very repair.
    """
    losses: dict[str, float] = {}
    samples = 0
    try:
        before = scores(network, held)
        losses["none"], samples = before.loss, before.samples
        mend(network)
        losses[repair] = scores(network, held).loss
    except (DataError, NetworkError, UsageError) as error:
        return Choice("none", losses, samples, apart, why=error.message)
    chosen = repair if losses[repair] < losses["none"] else "none"
    return Choice(chosen, losses, samples, apart)


def in_words(choice: Choice) -> str:
    """What was chosen and why, in a sentence."""
    if choice.why:
        return f"--repair auto chose none, since nothing else could be measured: {choice.why}"
    (_, without), (name, repaired) = choice.losses.items()
    on = (
        "that the repair was not measured on"
        if choice.apart
        else "(the same that the repair was measured on)"
    )
    return (
        f"--repair auto chose {choice.chosen}: held-out loss at λ=½ is {without:.4f} nats without, "
        f"{repaired:.4f} with {name}, on {choice.samples} training samples {on}"
    )


class _Some:
    """Every third batch, or the others."""

    def __init__(self, batches: Iterable[Any], held: bool):
        self.batches, self.held = batches, held

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches, start=1):
            if (number % EVERY == 0) == self.held:
                yield batch


def parted(batches: Iterable[Any]) -> tuple[Iterable[Any], Iterable[Any]]:
    """Re-iterable batches to measure a repair on, and others to judge it by; twice the same if too few."""
    for number, _ in enumerate(batches, start=1):
        if number == EVERY:
            return _Some(batches, False), _Some(batches, True)
    return batches, batches
