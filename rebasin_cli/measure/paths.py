"""Loss and metrics along a path between two models: a straight line, an arc, or a trained curve."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from .. import networks
from ..averages.means import interpolate
from ..checkpoints.tensors import over
from ..datasets import Once
from ..errors import UsageError
from ..learning.curves import curve as curves
from ..networks import first_layer
from ..networks.evaluation import Scores, evaluate
from ..networks.first_layer import FirstLayer
from ..repair import Outcome, Repairs
from ..reports import Barrier, Curve, Middle, Reliability, Row, barrier_of
from ..types import Tensors
from .audit import flips, lost_most
from .controls import Control

WORTH = 5  # points, ends among them, up to which both ends take as long as those between
Measure = Callable[..., Scores]  # of a network and batches; `output` and `each` as `evaluate` takes them


@dataclass(frozen=True)
class Path:
    """One row to measure: a straight line from `a` to `b` in `points` equal steps, both ends included.

    `join` may turn it on its way; with a `curve`, it is that one, and figures along it are among the
    row's details.

    `repair` is applied to the network at every inner point before measuring, but at λ = ½ where what it did
    is known (`repaired`); the ends are the models as given, unless it is for the `ends`, too. `wrap` makes of
    the network, repaired, what is measured at inner points; it returns logits, and its `details` at λ = ½
    are the row's, with those that are given. What `record` makes of the network stands for it at λ = ½, to
    keep its outputs. `keep` names tensors that are `a`'s up to λ = 1, where everything is `b`'s.
    """

    name: str
    a: Tensors
    b: Tensors
    points: int
    repair: Repairs | None = None
    keep: Collection[str] = ()
    shipped: bool = False
    control: bool = False
    wrap: Callable[[nn.Module], Control] | None = None
    record: Callable[[nn.Module], nn.Module] | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    curve: curves.Curve | None = None
    join: Callable[..., Tensors] = interpolate
    ends: bool = False
    repaired: Outcome | None = None

    def at(self, t: float) -> Tensors:
        """The model at t."""
        if self.curve is not None:
            return self.curve.at(t)
        return self.join(self.a, self.b, t, keep=self.keep)

    def __post_init__(self) -> None:
        if self.points < 2:
            raise UsageError(f"a path needs its two ends at least, not {self.points} points")

    @property
    def lambdas(self) -> tuple[float, ...]:
        return tuple(k / (self.points - 1) for k in range(self.points))


def measure(
    path: Path,
    network: nn.Module,
    splits: Mapping[str, Iterable[Any]],
    *,
    known: Mapping[float, Mapping[str, Scores]] | None = None,
    scores: Measure = evaluate,
    progress: Callable[[], None] = lambda: None,
    ends: Sequence[Mapping[str, Scores]] = (),
    at_middle: Callable[[Mapping[str, Scores]], None] = lambda found: None,
) -> Row:
    """Curves and barriers of one path on every split; the network's tensors are overwritten.

    `known` holds scores by λ that need no second measurement. `at_middle` gets the scores at λ = ½,
    each sample's too; `ends` are the endpoints', which the accuracy of classes is compared with.
    Raises what `scores` raises.
    """
    found: dict[str, list[Scores]] = {split: [] for split in splits}
    middle: dict[str, Middle] = {}
    details = dict(path.details)
    layer = _first_layer(path, network, splits)
    for t in path.lambdas:
        here = (known or {}).get(t) or _at(path, t, network, splits, scores, details, layer)
        for split in splits:
            found[split].append(dataclasses.replace(here[split], each=None))
        if t == 0.5:
            middle = {
                split: Middle(
                    score.ece,
                    Reliability(*score.bins),
                    classes=lost_most(score, [end[split] for end in ends]),
                    flips=flips(score, [end[split] for end in ends]),
                )
                for split, score in here.items()
            }
            at_middle(here)
        progress()
    curves = {
        split: _curve(path, points, ends[0][split] if ends else points[0]) for split, points in found.items()
    }
    if path.curve is not None:
        details["along"] = _along(path, path.curve, found)
    barriers: dict[str, Barrier] = {
        split: barrier_of(curve, found[split][0].quantities[1:]) for split, curve in curves.items()
    }
    return Row(path.name, curves, barriers, path.shipped, path.control, middle, details)


def _curve(path: Path, points: Sequence[Scores], like: Scores) -> Curve:
    """Loss and metrics at a path's points. Raises NetworkError where one has other figures than `like`."""
    values = [point.by_name(like.figures) for point in points]
    return Curve(
        path.lambdas,
        tuple(point.loss for point in points),
        {key: tuple(each[key] for each in values) for key in points[0].metrics},
        points[0].samples,
    )


def _at(
    path: Path,
    t: float,
    network: nn.Module,
    splits: Mapping[str, Iterable[Any]],
    scores: Measure,
    details: dict[str, Any],
    layer: FirstLayer | None,
) -> dict[str, Scores]:
    networks.load(network, path.at(t))
    more: dict[str, Any] = {"each": True} if t == 0.5 else {}
    if path.repaired is not None and t == 0.5:
        networks.load(network, over(path.repaired.tensors, path.at(t)))
    elif path.repair is not None and (path.ends or 0 < t < 1):
        path.repair.apply(network, [1 - t, t])
    if path.wrap is not None and 0 < t < 1:
        network = control = path.wrap(network)
        details |= control.details if t == 0.5 else {}
        more["output"] = None
    elif path.record is not None and t == 0.5:
        network = path.record(network)
        more["output"] = None
    with layer.at(t) if layer is not None and 0 < t < 1 else contextlib.nullcontext():
        return {split: scores(network, batches, **more) for split, batches in splits.items()}


def _first_layer(path: Path, network: nn.Module, splits: Mapping[str, Iterable[Any]]) -> FirstLayer | None:
    """The network's first layer, where a straight line is long enough for it to be worth anything.

    Only for samples that are made once: a loader of the user's may fill the same memory with others.
    """
    if path.curve is not None or path.join is not interpolate or path.points <= WORTH:
        return None
    if path.repair is not None and path.repair.how != "reset":  # it changes weights
        return None
    if not splits or not all(isinstance(batches, Once) for batches in splits.values()):
        return None
    stays = {name: path.a[name] for name in path.keep if name in path.a}
    return first_layer.find(network, next(iter(splits.values())), (path.a, over(stays, path.b)))


def _along(path: Path, curve: curves.Curve, found: Mapping[str, list[Scores]]) -> dict[str, Any]:
    """Means and extremes along a curve, by split and quantity."""
    speeds = [curve.speed(t) for t in path.lambdas]
    return {
        split: {
            name: curves.along([point.figures[name] for point in points], speeds)
            for name in points[0].figures
        }
        for split, points in found.items()
    }
