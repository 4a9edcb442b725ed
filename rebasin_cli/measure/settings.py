"""What a barrier report is made of beside its two models: the samples, the rows, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from ..averages.mixing import check_interpolation
from ..errors import UsageError
from ..learning.curves.curve import Curve
from ..networks.attacks import Attack
from ..networks.evaluation import Scores
from ..repair import MATCHES
from ..repair.options import SAMPLES
from ..types import Batches
from .rows import ATTACKED, POINTS, Planned


@dataclass(frozen=True)
class Samples:
    """Re-iterable batches. `train` and `test` are the splits to measure on.

    `reset_batches` (default: `train`) are what repairs measure, `fitted_batches` (default: these) what a
    refit or a distillation is fitted on that a search chose; `held` are other training samples, to choose a
    repair and fit temperatures on (default: every third batch, kept from the repair), or, better, `unseen`
    ones: in no training, and not in `test`.
    """

    test: Iterable[Any]
    train: Iterable[Any] | None = None
    reset_batches: Batches | None = None
    fitted_batches: Batches | None = None
    held: Iterable[Any] | None = None
    unseen: bool = False


@dataclass(frozen=True)
class Rows:
    """Which rows, at how many points.

    `points` are those of naive and aligned rows and of curves, `repaired_points` of rows that are repaired
    at every one (default: 11, and 5 where each is trained). `repair_with`: "auto" resets running statistics
    where the network has some, and elsewhere chooses "repair" or "none" by held-out loss, and the method
    "auto" may choose another with its own choice; "none" only says that the row without is the one to ship;
    "repair", "rescale" or "reshift" gives networks without statistics such rows, "refit" and "distill" (with
    `ridge`) any network. `controls` adds rows at λ = ½ and intervals over test samples. `interpolation` is
    that of all rows but a control ("linear", or an arc: "slerp", "slerp-whole"). `curves` are trained ones
    between the two models, by the names of their rows. Rows along a whole path are measured once more under
    each of `attacks`, on `attacked` samples of a split (None: all).
    """

    points: int = POINTS
    repaired_points: int | None = None
    repair_with: str = "auto"
    ridge: float | None = None
    controls: bool = True
    interpolation: str = "linear"
    curves: Mapping[str, Curve] = field(default_factory=dict)
    attacks: Sequence[Attack] = ()
    attacked: int | None = ATTACKED

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)


@dataclass(frozen=True)
class Watching:
    """What is called on the way; the first two may raise.

    `check` sees the endpoints' scores before anything else is measured, `planned` the rows, `measured` is
    called after every point.
    """

    check: Callable[[Mapping[str, Sequence[Scores]]], Any] = lambda ends: None
    planned: Callable[[Sequence[Planned]], Any] = lambda plan: None
    measured: Callable[[], None] = lambda: None


Kind = TypeVar("Kind", Samples, Rows, Watching)


def taken(kind: type[Kind], options: dict[str, Any]) -> Kind:
    """The settings of this kind among `options`, which they are taken out of."""
    names = [one.name for one in fields(kind) if one.name in options]
    return kind(**{name: options.pop(name) for name in names})


def repaired_label(repair_with: str, *, statistics: bool) -> str:
    """What repaired rows are called, "" where there are none. Raises UsageError for what is not measured."""
    if repair_with == "bias":
        raise UsageError(
            "calibrated biases are not measured along a path",
            hint="Merge with --repair bias, and measure the result with rebasin eval",
        )
    if repair_with in SAMPLES:
        return repair_with
    if statistics:
        return "reset"
    if repair_with == "auto":
        return "repair"
    return repair_with if repair_with in MATCHES else ""
