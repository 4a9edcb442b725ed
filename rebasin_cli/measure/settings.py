"""What a barrier report is made of beside its two models: the samples, the rows, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from ..averages.means import check_interpolation
from ..errors import UsageError
from ..learning.curves.curve import Curve
from ..networks.attacks import Attack
from ..networks.evaluation import Scores
from ..repair import MATCHES
from ..repair.options import SAMPLES
from ..types import Batches

POINTS, REPAIRED_POINTS = 25, 11  # of naive and aligned rows and curves; of rows repaired at every point
DISTILLED_POINTS = 5  # of these where every point is trained
FULL_POINTS, FULL_REPAIRED_POINTS = 65, 25  # of the same, where nothing shall be spared
MIDDLE = 3  # points of a row that is measured at λ = ½ alone: there, and at both ends as given
RANDOM, ENSEMBLE, TEMPERATURE = "random permutation", "logit ensemble", "temperature"
OF_POINTS, TOGETHER = "ensemble of points", (0.0, 0.25, 0.5, 0.75, 1.0)  # of a curve
FINE_TUNED = "endpoint fine-tuned"
PERMUTED, DRAWN = "aligned (permutations)", "random group element"  # beside an alignment by groups
ATTACKED = 1_000  # samples of a split that are attacked
STRAIGHT = "straight line"  # beside paths that turn


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
    each of `attacks`, on `attacked` samples of a split (None: all). Methods and repairs are chosen by the
    held-out figure `choose`.
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
    choose: str = "loss"

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


@dataclass(frozen=True)
class Planned:
    """One row to measure. `base` says what lies at λ = 1: "naive", "aligned", a control or a curve."""

    name: str
    base: str
    points: int
    repaired: bool = False
    resets: bool = False  # repaired by a reset, in a report of another repair
    temperature: bool = False
    shipped: bool = False
    control: bool = False
    straight: bool = False  # whatever the interpolation of the report
    attack: Attack | None = None
    ends: bool = False  # repaired, too
    ensemble: bool = False  # of the points `TOGETHER` of a curve

    @property
    def inner(self) -> int:
        """Points where all is measured that the row says: those between the ends, or all."""
        return self.points if self.ends else self.points - 2


def points_of(asked: int | None, *, full: bool) -> tuple[int, int | None]:
    """Of naive and aligned rows and curves, and of rows that are repaired; None: as many as is usual."""
    if asked is not None:
        return asked, asked
    return (FULL_POINTS, FULL_REPAIRED_POINTS) if full else (POINTS, None)


def check_points(count: int) -> None:
    """Raise UsageError for a number of points that λ = ½ is not among."""
    if count < 3 or count % 2 == 0:
        raise UsageError(
            f"{count} points from λ = 0 to 1 have none at λ = ½, where rows are compared",
            hint=f"Give an odd number from 3, such as {max(3, count + 1)}",
        )


def plan(
    rows: Rows,
    *,
    aligned: bool,
    word: str,
    ship: str | None,
    auto: bool,
    logits: bool,
    statistics: bool,
    held: bool = True,
    groups: bool = False,
    beside: bool = True,
    trained: bool = False,
) -> list[Planned]:
    """All rows of a report: those of `plan_rows`, of groups, of curves, and under attacks.

    `trained`: a search chose the repair and trained it at λ = ½, which is what a merge would write. Unless
    its points are asked for, it is attacked along them, or paths are arcs, its row is `alone`.
    """
    turning = rows.interpolation != "linear"
    shared: dict[str, Any] = {"controls": rows.controls, "logits": logits, "held": held, "turning": turning}
    shared |= {"points": rows.points, "repaired_points": rows.repaired_points, "statistics": statistics}
    asked = rows.repair_with != "auto" or rows.repaired_points is not None
    alone = trained and not (asked or rows.attacks or turning)
    found = plan_rows(aligned=aligned, word=word, ship=ship, auto=auto, alone=alone, **shared)
    if aligned and groups:
        found += plan_groups(word, beside=beside)
    together = rows.controls and logits
    found += plan_curves(rows.curves, resets=statistics, points=rows.points, together=together)
    return found + plan_attacks(found, rows.attacks, statistics=statistics)


def plan_rows(
    *,
    aligned: bool,
    word: str = "",
    ship: str | None = "none",
    auto: bool = False,
    controls: bool = True,
    logits: bool = True,
    held: bool = True,
    statistics: bool = False,
    points: int = POINTS,
    repaired_points: int | None = None,
    turning: bool = False,
    alone: bool = False,
) -> list[Planned]:
    """The rows of a report.

    `aligned`: there are permutations; `word`: what repaired rows are called, "" where there are none; `ship`:
    the repair that `merge` would write, "none" for none. `auto`: it is chosen between none and `word`, and
    only the chosen one is measured along the whole path; `ship` None: it is yet to be chosen (planned as the
    dearer, repaired one). Networks with running `statistics` get rows with a reset beside those of a refit:
    without either they are broken whatever their order. `controls` adds the rows that are measured at λ = ½
    alone; of these an ensemble and temperatures need `logits`, temperatures also samples that are `held`.
    Where paths are `turning`, one of them is the straight line, repaired as the shipped row is. A repaired
    row that is `alone` is measured at λ = ½, beside its control and no end that is trained for as long.
    """
    best = "aligned" if aligned else "naive"
    repair_ships = bool(word) and ship != "none"
    if repaired_points is None:
        repaired_points = MIDDLE if alone else DISTILLED_POINTS if word == "distill" else REPAIRED_POINTS
    candidate = repaired_points if repair_ships or not auto else MIDDLE
    rows = [Planned("naive", "naive", points)]
    if aligned:
        rows.append(Planned("aligned", "aligned", points))
    if word:
        rows.append(Planned(f"{best} + {word}", best, candidate, repaired=True))
    if word and aligned:
        control = MIDDLE if auto or word in SAMPLES else repaired_points
        rows.append(Planned(f"naive + {word}", "naive", control, repaired=True, control=True))
    statistics = statistics and word in SAMPLES
    if statistics:
        bases = dict.fromkeys((best, "naive"))
        rows += [Planned(f"{base} + reset", base, MIDDLE, resets=True, control=True) for base in bases]
    shipped = best + (f" + {word}" if repair_ships else "")
    rows = [replace(row, shipped=row.name == shipped) for row in rows]
    if not controls:
        return rows
    if turning:
        rows.append(Planned(STRAIGHT, best, MIDDLE, repaired=repair_ships, control=True, straight=True))
    if logits and held:
        candidates = [False, True] if auto and word else [bool(word)]
        wanted = [(best, repaired) for repaired in candidates]
        wanted += [("naive", bool(word))] * aligned
        for base, repaired in wanted:
            name = f"{base}{f' + {word}' * repaired} + {TEMPERATURE}"
            control = aligned and base == "naive"
            rows.append(Planned(name, base, MIDDLE, repaired, temperature=True, control=control))
    if aligned:
        reset = word == "reset"  # without it, a network with running statistics is broken whatever its order
        name = f"{RANDOM}{' + reset' * (reset or statistics)}"
        rows.append(Planned(name, RANDOM, MIDDLE, repaired=reset, resets=statistics, control=True))
    if logits and word in SAMPLES and not alone:
        rows.append(Planned(FINE_TUNED, FINE_TUNED, MIDDLE, control=True))
    if logits:
        rows.append(Planned(ENSEMBLE, ENSEMBLE, MIDDLE, control=True))
    return rows


def plan_groups(word: str = "", *, beside: bool = True) -> list[Planned]:
    """Controls of an alignment by groups: an element drawn at random, and `beside` it the best order."""
    rows = [Planned(PERMUTED, PERMUTED, MIDDLE, control=True)] if beside else []
    if word and beside:
        rows.append(Planned(f"{PERMUTED} + {word}", PERMUTED, MIDDLE, repaired=True, control=True))
    return [*rows, Planned(DRAWN, DRAWN, MIDDLE, control=True)]


def plan_curves(
    names: Iterable[str], *, resets: bool, points: int = POINTS, together: bool = False
) -> list[Planned]:
    """A row for every curve; at its points running statistics are estimated anew.

    The ends are the models with their own. What that is worth says a control with the ends estimated anew.
    `together`: also the ensemble of some of its points, beside which that of its ends stands.
    """
    rows = []
    for name in names:
        rows.append(Planned(f"{name}{' + reset' * resets}", name, points, repaired=resets))
        if resets:
            rows.append(
                Planned(f"{name} + reset, ends too", name, MIDDLE, repaired=True, control=True, ends=True)
            )
        if together:
            rows.append(Planned(f"{name} {OF_POINTS}", name, MIDDLE, control=True, ensemble=True))
    return rows


def plan_attacks(rows: Iterable[Planned], attacks: Sequence[Attack], *, statistics: bool) -> list[Planned]:
    """Rows along whole paths under each attack; of networks with `statistics` those that are repaired."""
    whole = [row for row in rows if not (row.control or row.temperature) and row.points > MIDDLE]
    bases = [row for row in whole if row.repaired == statistics]
    return [
        replace(row, name=f"{row.name} + {attack.label}", shipped=False, attack=attack)
        for attack in attacks
        for row in bases
    ]
