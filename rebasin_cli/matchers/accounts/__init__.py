"""What a method says of its own of how it found a result: one value, of a kind for each kind of method.

Figures that all methods have stand in `MatchResult`. `plain` of a value is what a report's JSON has of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...types import ACCURACY, CROSS_ENTROPY, Quantity

if TYPE_CHECKING:
    from ...repair import Outcome

DEFAULT = (CROSS_ENTROPY, ACCURACY)  # what is measured where nobody says anything else


class Plain:
    """Whose fields are what a report has of it."""

    def plain(self: Any) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Begun:
    """Of a search that another method's result is the beginning of; None: it does not say."""

    init: str | None = None  # one of `INITS`, or "given"


@dataclass(frozen=True)
class Setting(Plain):
    """What a search was fixed to, and the place in its paper that says so."""

    name: str
    value: Any
    place: str


@dataclass(frozen=True)
class Learned(Begun):
    """Of a search that learns: a row of figures for every time that it looked at held-out samples.

    "step", "loss", "held_out_loss", "held_out_accuracy", "held_out_calibrated" (the loss at the best
    temperature), without what is no number; "model" where models were matched one after the other. One that
    ran as `published`, with these settings, learns from those samples, too, and chooses nothing by them.
    """

    history: tuple[Mapping[str, float], ...] = ()
    published: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class Rounded(Plain):
    """How a relaxed search came to permutations: mean losses of the line in nats, counts of units that moved.

    `chosen` is "start", "nearest" or "draw 3"; the best by the loss alone, and with the pull to the start.
    """

    chosen: str
    by_loss: str
    by_penalised: str
    loss_start: float
    loss_nearest: float
    loss: float
    draws: int
    draws_below_nearest: int
    units_moved: int
    units_moved_nearest: int
    units: int


@dataclass(frozen=True)
class Relaxed(Begun):
    """Of a search over doubly stochastic matrices."""

    rounding: Rounded | None = None


@dataclass(frozen=True)
class Certificate(Plain):
    """Of words that a constraint couples: what is reached within it, and the `bound` that nothing exceeds.

    `free`: what is best without the constraint keeps it. `before` is the sum before the activation, `allowed`
    the least that it may be.
    """

    words: tuple[str, ...]
    free: bool
    reached: float
    bound: float
    gap: float
    before: float
    allowed: float


@dataclass(frozen=True)
class Constrained:
    """Of a method that keeps to a constraint."""

    certificates: tuple[Certificate, ...]


@dataclass(frozen=True)
class Mixed(Plain):
    """Of a search that tried several shares of activations: the `mix` that was taken, what each mean `lacks`.

    That is the mean square of what it lacks of both models' outputs, by the mix as text. `words` are of
    another mix, and `joined` is what the mean with these lacks.
    """

    mix: float
    lacks: Mapping[str, float]
    joined: float
    words: Mapping[str, float]


Account = Begun | Learned | Relaxed | Constrained | Mixed


@dataclass(frozen=True)
class Polish(Plain):
    """What swaps on the true loss came to: how many, in how many steps, and held-out losses in nats."""

    steps: int
    swaps: int
    before: float
    after: float


@dataclass(frozen=True)
class Tried:
    """A method, with one repair where several are open: its held-out loss, or `why` there is none.

    `distance` is how far the mean is from its endpoints' probabilities there, in nats (`repair.choices`).
    """

    method: str
    repair: str | None = None
    seconds: float | None = None
    held_out_loss: float | None = None
    distance: float | None = None
    why: str | None = None
    metrics: Mapping[str, float] | None = None  # held-out, by name, where any was asked for

    def plain(self) -> dict[str, Any]:
        """What is known of it."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Chosen:
    """What was taken of several methods, with one of the repairs that are open.

    `repair` is None where it is what a merge chooses by itself; `repaired` is what it did to the models' mean
    with equal weights, where that is not done again. `by` is the key of the held-out figure that it was
    chosen by, `quantities` what was measured, the loss first.
    """

    method: str
    tried: tuple[Tried, ...]
    repair: str | None = None
    repaired: Outcome | None = field(default=None, repr=False, compare=False)
    by: str = "loss"
    quantities: tuple[Quantity, ...] = DEFAULT

    def rows(self) -> list[dict[str, Any]]:
        """What was tried, without the seconds, which no two runs share."""
        return [{name: it for name, it in row.plain().items() if name != "seconds"} for row in self.tried]

    def plain(self) -> dict[str, Any]:
        told: dict[str, Any] = {"chosen": self.method}
        told |= {"repair": self.repair} if self.repair else {}
        told |= {"by": self.by} if self.by != "loss" else {}
        told["tried"] = self.rows()
        done = None if self.repaired is None else self.repaired.repaired
        return told | ({"repair_samples": done.samples} if done is not None and done.samples else {})
