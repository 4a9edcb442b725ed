"""The barrier report in memory: both models, naive and aligned, repaired or not, beside controls."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import UsageError
from ..graph.tracing import keeping_graphs
from ..matchers.portfolio.align import Alignment, align, check_names
from ..networks.attacks import Attacker
from ..networks.evaluation import Scores
from ..networks.losses import OWN
from ..repair import choices
from ..repair.choices import Choice
from ..reports import Difference, Report, Row, accounts
from ..spec.spec import FittedSpec, Spec
from ..symmetry import elements as acts
from ..symmetry import form
from ..symmetry.elements import Elements, element_of
from ..symmetry.folds import NONE
from ..types import Permutations, Tensors
from ..version import version
from . import intervals, settings
from .paths import Measure
from .ready import Ready, ready
from .rows import Measuring
from .samples import kept
from .settings import (
    DISTILLED_POINTS,
    ENSEMBLE,
    OF_POINTS,
    STRAIGHT,
    TOGETHER,
    Planned,
    Rows,
    Samples,
    Watching,
    taken,
)


@keeping_graphs()
def barrier(
    a: Tensors,
    b: Tensors,
    spec: str | Path | Spec | FittedSpec | None = None,
    *,
    network: nn.Module,
    test: Iterable[Any],
    method: str = "wm",
    permutations: Permutations | Elements | None = None,
    signature: Sequence[Mapping[str, Any]] | Callable[..., Sequence[Mapping[str, Any]]] = (),
    output: str | int | None = None,
    scores: Measure | None = None,
    device: str = "cpu",
    seed: int = 0,
    **options: Any,
) -> Report:
    """Measure the path from `a` to `b`, naive and aligned, repaired and not, beside controls; see `Report`.

    `options` are, by their names, what `settings.Samples` has beside `test` (`train`, `reset_batches`,
    `held`, `unseen`), what `settings.Rows` has (`points`, `repair_with`, `curves`, …) and
    `settings.Watching`; all others are those of `align`. `permutations` take the place of a search;
    they may be elements, and `folds` what is folded before these act.
    `output` picks one of several outputs by key or index. `signature` goes into the report (see `Report`), or
    is called with the permutations to make it. `scores` takes `output` and `each` as `evaluate` does.
    `network` is overwritten.

    Raises SpecError, UsageError, CheckpointError, DataError, NetworkError.
    """
    began = time.perf_counter()
    options["test"] = test
    samples, rows, watching = taken(Samples, options), taken(Rows, options), taken(Watching, options)
    check_names(options, "barrier")
    if scores is None and (named := [name for name in ("loss", "metric") if options.get(name) is not None]):
        raise UsageError(
            f"{' and '.join(named)}: what a search goes by, and not what is measured",
            hint="Say what is measured, too: scores=functools.partial("
            f"rebasin_cli.networks.evaluation.evaluate, {', '.join(f'{name}=…' for name in named)})",
        )
    for attack, split in itertools.product(rows.attacks, (samples.train, samples.test)):
        if split is not None:
            Attacker(attack, split)  # it may have to be refused
    two = ready(a, b, spec, network, samples, rows, scores=scores, output=output, device=device, seed=seed)
    watching.check({split: [end[split] for end in two.ends] for split in two.splits})
    alignment = None
    standing: Sequence[Tensors] | None = None
    order, beside, folds = None, None, options.get("folds", NONE)
    if permutations is not None:
        given = element_of(permutations)
        acts.check(given, two.fitted)
        standing = form.standing(two.models, two.fitted, (given,), folds)
        order = None if given.maps else given.permutations  # no unit is one of the other model's
    elif method != "none":
        own = {"data": samples.train, "ridge": rows.ridge, "choose": rows.choose}
        alignment = _aligned(two, method, own | options)
        standing, order = alignment.models, alignment.permutations[0]
        if (chosen := alignment.result.chosen) is not None:
            two = two.decided(chosen.repair, chosen.repaired)
        if two.fitted.groups:  # beside it, the best order alone
            plain = {"data": samples.train} | options | {"folds": NONE, "start": None, "prove": False}
            order = beside = _aligned(two.ordered, method, plain).permutations[0]
    measuring = Measuring.of(two, rows, standing, beside)
    choice = measuring.choose() if two.repair == "auto" else None
    plan = settings.plan(
        rows,
        aligned=standing is not None,
        word="" if choice and choice.why else two.word,  # what could not be measured
        ship=choice.chosen if choice else two.repair,
        auto=two.auto,
        logits=not math.isnan(two.ends[0]["test"].ece),
        held=two.held is not None,
        statistics=two.statistics,
        groups=bool(two.fitted.groups),
        beside=beside is not None,
        trained=two.done is not None,
    )
    watching.planned(plan)
    found = measuring.measure(plan, watching.measured)
    certain = intervals.compare(found, [end["test"] for end in two.ends], measuring.middles, seed=seed)
    shipped = next(row.name for row in found if row.shipped)
    signed = signature(order) if callable(signature) else signature
    turning = {} if rows.interpolation == "linear" else {"interpolation": rows.interpolation}
    return Report(
        rebasin=version(),
        command="barrier",
        seed=seed,
        inputs=({"file": "A"}, {"file": "B"}),
        spec=accounts.describe_spec(two.fitted),
        data={
            "samples": {split: row.samples for split, row in found[0].curves.items()},
            "points": {row.name: len(row.curves["test"].lambdas) for row in found},
        }
        | turning,
        match=accounts.describe_match(alignment, given=permutations is not None),
        proof=accounts.describe_proof(
            alignment.proof if alignment else None, "no alignment was searched" if not alignment else ""
        ),
        endpoints=tuple(
            {"name": name} | {split: _endpoint(end[split], certain.ends[k], split) for split in two.splits}
            for k, (name, end) in enumerate(zip(("A", "B"), two.ends, strict=True))
        ),
        rows=tuple(certain.rows),
        loss=two.ends[0]["test"].quantities[0],
        metrics=two.ends[0]["test"].quantities[1:],
        notes=(
            *_notes(choice, plan, rows, certain, two.ends[0]["test"]),
            *_no_numbers(two.ends, certain.rows),
            *_forgotten(found),
            *(
                _along(row, two.ends[0]["test"])
                for row in found
                if "along" in row.details and not row.control
            ),
        ),
        times=accounts.times(alignment, total=time.perf_counter() - began),
        differences=certain.differences,
        choice=choice.account() if choice else {},
        signature=tuple(dict(word) for word in signed),
        each=kept(measuring.middles.get(shipped), [end["test"] for end in two.ends], test),
    )


def _aligned(two: Ready, method: str, options: Mapping[str, Any]) -> Alignment:
    return align(
        two.models,
        two.fitted,
        method=method,
        seed=two.seed,
        network=two.network,
        output=two.output,
        device=two.device,
        **{**options, "held": two.held if two.unseen else None, "repairs": two.to_try},
    )


def _endpoint(score: Scores, intervals: Mapping[str, tuple[float, ...]], split: str) -> dict[str, Any]:
    """What the report says of a model on one split; intervals are of the test split."""
    found: dict[str, Any] = score.figures
    if score.bins:
        names = ("samples", "confidence", "accuracy")
        found |= {"ece": score.ece, "reliability": dict(zip(names, map(list, score.bins), strict=True))}
    return found | (
        {"intervals": {name: list(both) for name, both in intervals.items()}}
        if split == "test" and intervals
        else {}
    )


def _notes(
    choice: Choice | None, plan: Sequence[Planned], rows: Rows, certain: intervals.Compared, end: Scores
) -> list[str]:
    found = [choices.in_words(choice)] if choice else []
    shipped = next(row for row in plan if row.shipped)
    if shipped.repaired and shipped.points < (rows.repaired_points or DISTILLED_POINTS):
        how = shipped.name.rpartition(" + ")[2]
        found.append(
            f"{shipped.name} was chosen by the search, and is measured at λ = ½ alone, as it was trained "
            f"there: what merge would write. --repair {how} measures {DISTILLED_POINTS} points, and an end "
            "that is trained for as long"
        )
    found += [_turned(rows.interpolation, one) for one in certain.differences if one.row == STRAIGHT][-1:]
    found += [
        f"rows with {label} are attacked (l∞, {attack}) by the network that is measured, on pixels in 0–1"
        for label, attack in {row.attack.label: row.attack for row in plan if row.attack}.items()
    ]
    if any(row.ensemble for row in plan):
        points = ", ".join(f"{t:g}" for t in TOGETHER)
        found.append(
            f"{OF_POINTS}: the mean of the logits at t = {points} of a curve, at {len(TOGETHER)} times the "
            f"cost; the {ENSEMBLE} is that of its ends"
        )
    if rows.controls and not any(row.base == ENSEMBLE for row in plan):
        found.append(
            "no ensemble and no temperatures: outputs are not logits (N, classes) under cross-entropy"
        )
    return found + (_certainty(end) if rows.controls else [])


def _no_numbers(ends: Sequence[Mapping[str, Scores]], rows: Sequence[Row]) -> list[str]:
    """A sentence on each figure that is NaN or infinite: no gate asked, and yet nobody is to overlook it."""
    measured = [(name, score.figures) for name, end in zip("AB", ends, strict=True) for score in end.values()]
    measured += [(row.name, curve.at(0.5) or {}) for row in rows for curve in row.curves.values()]
    whose: dict[str, dict[str, None]] = {}
    for name, figures in measured:
        for key in (key for key, value in figures.items() if not math.isfinite(value)):
            whose.setdefault(key, {})[name] = None
    told = "is no finite number, and no gate on it can be met: of"
    return [f"{key} {told} {', '.join(names)}" for key, names in whose.items()]


def _forgotten(rows: Sequence[Row]) -> list[str]:
    """A sentence on the test samples that both models have right, and what would be shipped has not."""
    row = next(row for row in rows if row.shipped)
    its = row.middle["test"].flips if "test" in row.middle else None
    if its is None:
        return []
    low, high = its.interval
    told = f"{its.lost} of {its.samples} test samples, which both models have right, are wrong in {row.name}"
    beside = next((r.middle["test"].flips for r in rows if r.name == ENSEMBLE and "test" in r.middle), None)
    return [
        f"negative flips: {told} ({100 * its.share:.2g} %, 95 % {100 * low:.2g}–{100 * high:.2g} %)"
        + (f"; in the {ENSEMBLE} {beside.lost}" if beside else "")
    ]


def _certainty(end: Scores) -> list[str]:
    """What intervals are drawn over, where that is not single samples for all figures."""
    if end.samples == 1:
        return ["no intervals: they need two samples at least, and one was measured (--limit)"]
    names = {"loss": "the loss"} | {quantity.key: quantity.name for quantity in end.quantities[1:]}
    means = [name for key, name in names.items() if key in end.batched]
    whole = [name for key, name in names.items() if key not in (end.each or {})]
    found = []
    how = "return a tensor (N,), or ask with --each"
    if end.quantities[0] == OWN:
        how = "name a --loss that gives one number a sample"
    if means and len(end.sizes) >= intervals.FEWEST_BATCHES:
        found.append(
            f"intervals of {' and '.join(means)} are drawn over {len(end.sizes)} batches: a mean "
            f"says nothing of single samples ({how})"
        )
    elif means:
        found.append(
            f"no intervals of {' and '.join(means)}: a mean of a batch says nothing of single samples ({how})"
        )
    if whole:
        found.append(f"no intervals of {' and '.join(whole)}: computed over the whole set at once")
    return found


def _turned(interpolation: str, straight: Difference) -> str:
    """A sentence on an arc at λ = ½ against the straight line, from the difference the other way round."""
    interval = straight.intervals.get("loss")
    sure = f" (95 % {-interval[1]:+.4f} … {-interval[0]:+.4f})" if interval else ""
    others = [f" and its {key} {-value:+.4f}" for key, value in straight.figures.items() if key != "loss"]
    return (
        f"paths turn ({interpolation}): at λ = ½ {straight.other}'s test loss is "
        f"{-straight.figures['loss']:+.4f}{sure}{''.join(others)} against the straight line"
    )


def _along(row: Row, end: Scores) -> str:
    """A sentence on the figures along a curve."""
    shown = next((quantity for quantity in end.quantities[1:]), None)
    key, name = ("loss", "loss") if shown is None else (shown.key, shown.name)
    test, worst = row.details["along"]["test"][key], "lowest"
    if shown is None or not shown.larger_is_better:
        worst = "highest"
    said = (
        f"along {row.name} test {name} is {test['mean']:.4f} on average and {test[worst]:.4f} at "
        f"{'least' if worst == 'lowest' else 'most'} ({test['interior'][worst]:.4f} between the ends)"
    )
    train = row.details["along"].get("train")
    return said + (f"; train loss {train['loss']['mean']:.4f} on average" if train else "")
