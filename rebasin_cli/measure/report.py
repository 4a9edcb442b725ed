"""The barrier report in memory: both models, naive and aligned, repaired or not, beside controls."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import networks
from ..averages.mixing import interpolate
from ..checkpoints.tensors import plain
from ..curves.curve import Curve
from ..datasets import once
from ..errors import DataError, UsageError
from ..groups import elements as acts
from ..inference.tracing import keeping_graphs
from ..matchers.search.align import align
from ..networks.evaluation import Scores, evaluate
from ..networks.recording import Recording
from ..permutations import permutation
from ..permutations.permutation import permuted
from ..repair import MATCHES, Repairs, choosing
from ..repair.calibration import Scaled
from ..repair.choosing import Choice
from ..repair.repairing import set_apart, settle
from ..reports import Report, Row
from ..reports import _accounts as accounts
from ..runtime.seeds import generator
from ..spec.resolving import resolve_spec
from ..spec.spec import FittedSpec, Spec
from ..version import version
from . import intervals, pairing, paths
from .controls import Ensemble, fine_tuned
from .paths import Measure
from .rows import (
    DRAWN,
    ENSEMBLE,
    FINE_TUNED,
    PERMUTED,
    POINTS,
    RANDOM,
    REPAIRED_POINTS,
    Planned,
    plan_curves,
    plan_groups,
    plan_rows,
)

Tensors = Mapping[str, torch.Tensor]


@keeping_graphs()
def barrier(
    a: Tensors,
    b: Tensors,
    spec: str | Path | Spec | FittedSpec | None = None,
    *,
    network: nn.Module,
    test: Iterable[Any],
    train: Iterable[Any] | None = None,
    reset_batches: Iterable[Any] | None = None,
    held: Iterable[Any] | None = None,
    unseen: bool = False,
    method: str = "wm",
    permutations: permutation.Permutations | None = None,
    points: int = POINTS,
    repaired_points: int = REPAIRED_POINTS,
    repair_with: str = "auto",
    ridge: float | None = None,
    controls: bool = True,
    signature: Sequence[Mapping[str, Any]] | Callable[..., Sequence[Mapping[str, Any]]] = (),
    curves: Mapping[str, Curve] | None = None,
    full: bool = False,
    output: str | int | None = None,
    scores: Measure | None = None,
    device: str = "cpu",
    seed: int = 0,
    check: Callable[[Mapping[str, Sequence[Scores]]], Any] | None = None,
    planned: Callable[[Sequence[Planned]], Any] = lambda plan: None,
    measured: Callable[[], None] = lambda: None,
    **align_options: Any,
) -> Report:
    """Measure the path from `a` to `b`, naive and aligned, repaired and not, beside controls; see `Report`.

    `train` and `test` are the splits to measure on. `reset_batches` (default: `train`) are what repairs
    measure; `held` are other training samples, to choose a repair and fit temperatures on (default: every
    third batch, kept from the repair), or, better, `unseen` ones: in no training, and not in `test`.
    `repair_with`: "auto" resets running statistics where the network has some, and elsewhere chooses "repair"
    or "none" by held-out loss; "none" only says that the row without is the one to ship; "repair", "rescale"
    or "reshift" gives networks without statistics such rows, "refit" (with `ridge`) any network. `controls`
    adds rows at λ = ½ and intervals over test samples. `output` picks one of several outputs by key or index.
    `curves` are trained ones between the two, by the names of their rows, at more points if `full`.
    `signature` goes into the report (see `Report`), or is called with the permutations to make it. `check`
    sees the endpoints' scores before anything else is measured, `planned` the rows; both may raise. `scores`
    takes `output` and `each` as `evaluate` does. `network` is overwritten.

    Raises SpecError, UsageError, CheckpointError, DataError, NetworkError.
    """
    began = time.perf_counter()
    a, b = plain([a, b])
    settle(repair_with, statistics=False, measurable=False)  # its check, before the models are looked at
    fitted = resolve_spec(spec, [a, b])
    networks.check(network, fitted.shapes)
    batches = reset_batches if reset_batches is not None else train
    statistics = networks.has_running_statistics(network)
    repair_with = settle(repair_with, statistics=statistics, measurable=batches is not None)
    word, auto = repaired_label(repair_with, statistics=statistics), repair_with == "auto"
    if word and batches is None:
        raise UsageError(
            "the network has running statistics: give training batches to re-estimate them on"
            if word == "reset"
            else f"{word} measures channels: give training batches"
        )
    apart = False
    if batches is not None:
        measured_on, held, apart = set_apart(batches, held)
        batches = measured_on if auto else batches  # only a choice needs samples that nothing was measured on
    scores = scores or functools.partial(evaluate, output=output, device=device)
    splits = {"train": train, "test": test} if train is not None else {"test": test}
    splits = {split: once(its) for split, its in splits.items()}
    held, batches = (None if its is None else once(its) for its in (held, batches))
    network = network.to(device)
    answers = [Recording(network, output) for _ in (a, b)]
    ends = [_scores(it, tensors, splits, scores) for it, tensors in zip(answers, (a, b), strict=True)]
    if check is not None:
        check({split: [end[split] for end in ends] for split in splits})

    alignment = None
    if permutations is not None:
        permutation.check(permutations, fitted.words, within=fitted.within)
    elif method != "none":
        align_options = {"data": train} | align_options
        align_options["held"] = held if unseen else None
        alignment = align(
            [a, b],
            fitted,
            method=method,
            seed=seed,
            network=network,
            output=output,
            device=device,
            **align_options,
        )
        permutations = alignment.permutations[0]
    others = {"naive": b, ENSEMBLE: b, FINE_TUNED: b}
    starts: dict[str, Tensors] = {}  # of rows that begin with a canonical form of A
    grouped = alignment is not None and bool(alignment.elements)
    if grouped:
        how = align_options | {"folds": None, "start": None, "prove": False}
        run = {"method": method, "seed": seed, "network": network, "output": output, "device": device}
        permutations = align([a, b], fitted, **run, **how).permutations[0]
        drawn = acts.random(fitted, generator(seed, "random group element"))
        form, others["aligned"] = alignment.models
        others[PERMUTED], others[DRAWN] = (
            permuted(b, fitted, permutations),
            acts.acted(others["aligned"], fitted, drawn),
        )
        starts |= {"aligned": form, DRAWN: form}
    elif permutations is not None:
        others["aligned"] = permuted(b, fitted, permutations)
    if permutations is not None:
        random = permutation.random(fitted.words, generator(seed, "random permutation"), within=fitted.within)
        others[RANDOM] = permuted(b, fitted, random)
    graphs: dict[Any, Any] = {}  # the network is traced once for all rows
    repairs = {
        base: Repairs(
            word, [starts.get(base, a), other], batches, ridge=ridge, device=device, known={"graphs": graphs}
        )
        for base, other in others.items()
        if word
    }
    resets = Repairs("reset", [], batches, device=device)
    choice = None
    if auto:
        best = "naive" if permutations is None else "aligned"
        networks.load(network, interpolate(starts.get(best, a), others[best], 0.5, keep=fitted.ignored))
        how = {"scores": scores, "output": output, "apart": apart, "unseen": unseen}
        choice, _ = repairs[best].choose(network, [0.5, 0.5], held, **how)
        repair_with = choice.chosen
        word = "" if choice.why else word
    better = min(range(2), key=lambda k: ends[k]["train" if "train" in splits else "test"].loss)

    def tuned(row: Planned) -> Callable[[nn.Module], nn.Module] | None:
        run = {"output": output, "device": device, "seed": seed}
        return (
            (lambda network: fine_tuned(network, (a, b)[better], "AB"[better], batches, **run))
            if row.base == FINE_TUNED
            else None
        )

    plan = plan_rows(
        aligned=permutations is not None,
        word=word,
        ship=repair_with,
        auto=auto,
        controls=controls,
        logits=not math.isnan(ends[0]["test"].ece),
        held=held is not None,
        statistics=statistics,
        points=points,
        repaired_points=repaired_points,
    )
    plan += plan_groups(word) if grouped else []
    curves = dict(curves or {})
    others |= {name: curve.b for name, curve in curves.items()}
    if statistics:
        for name in curves:
            repairs[name] = Repairs("reset", [a, others[name]], batches, device=device)
    plan += plan_curves(curves, resets=statistics, full=full)
    planned(plan)
    middles: dict[str, Scores] = {}
    scaled: dict[str, tuple[dict[str, Scores], Mapping[str, Any]]] = {}  # rows that others gave on their way
    found: list[Row] = []
    for row in plan:
        hot = next((o.name for o in plan if o.temperature and _same(o, row)), "")

        def recorded(network: nn.Module, name: str = hot) -> nn.Module:
            """The network at λ = ½, whose outputs the row of this name is measured by, too."""
            known = Recording(network, output)
            heated = Scaled(known, held, None, device)
            tests = {split: scores(heated, its, each=True, output=None) for split, its in splits.items()}
            scaled[name] = tests, heated.details
            return known

        path = paths.Path(
            row.name,
            starts.get(row.base, a),
            others[row.base],
            row.points,
            repairs[row.base] if row.repaired else resets if row.resets else None,
            fitted.ignored,
            shipped=row.shipped,
            control=row.control,
            wrap=_wrapping(row, a, b, held, output, device, answers) or tuned(row),
            record=recorded if hot and not row.temperature else None,
            details=scaled[row.name][1] if row.name in scaled else {},
            curve=curves.get(row.base),
        )
        known = {0.0: ends[0], 1.0: ends[1]}
        if row.name in scaled:
            known[0.5] = scaled[row.name][0]
        if row.base == "aligned" and not row.repaired and not row.temperature:
            del known[1.0]
        found.append(
            paths.measure(
                path,
                network,
                splits,
                known=known,
                scores=scores,
                progress=measured,
                at_middle=lambda here, name=row.name: middles.update({name: here["test"]}),
            )
        )
    certain = intervals.compare(found, [end["test"] for end in ends], middles, seed=seed)
    shipped = next(row.name for row in found if row.shipped)
    signed = signature(permutations) if callable(signature) else signature
    return Report(
        rebasin=version(),
        command="barrier",
        seed=seed,
        inputs=({"file": "A"}, {"file": "B"}),
        spec=accounts.describe_spec(fitted),
        data={
            "samples": {split: row.samples for split, row in found[0].curves.items()},
            "points": {row.name: len(row.curves["test"].lambdas) for row in found},
        },
        match=accounts.describe_match(alignment, given=permutations is not None),
        proof=accounts.describe_proof(
            alignment.proof if alignment else None, "no alignment was searched" if not alignment else ""
        ),
        endpoints=tuple(
            {"name": name} | {split: _endpoint(end[split], certain.ends[k], split) for split in splits}
            for k, (name, end) in enumerate(zip(("A", "B"), ends, strict=True))
        ),
        rows=tuple(certain.rows),
        notes=(
            *_notes(choice, plan, controls, certain.sure),
            *(_along(row) for row in found if "along" in row.details),
        ),
        times=accounts.times(alignment, total=time.perf_counter() - began),
        differences=certain.differences,
        choice=choice.account() if choice else {},
        signature=tuple(dict(word) for word in signed),
        each=pairing.kept(middles.get(shipped), [end["test"] for end in ends], test),
    )


def repaired_label(repair_with: str, *, statistics: bool) -> str:
    """What repaired rows are called, "" where there are none. Raises UsageError for what is not measured."""
    if repair_with == "bias":
        raise UsageError(
            "calibrated biases are not measured along a path",
            hint="Merge with --repair bias, and measure the result with rebasin eval",
        )
    if repair_with == "refit":
        return "refit"
    if statistics:
        return "reset"
    if repair_with == "auto":
        return "repair"
    return repair_with if repair_with in MATCHES else ""


def _same(one: Planned, other: Planned) -> bool:
    """Whether two rows are of the same networks."""
    return (one.base, one.repaired) == (other.base, other.repaired)


def _wrapping(
    row: Planned,
    a: Tensors,
    b: Tensors,
    held: Any,
    output: str | int | None,
    device: str,
    answers: Sequence[Recording],
) -> Callable[[nn.Module], nn.Module] | None:
    """What is measured in the network's place."""
    if row.base == ENSEMBLE:
        return lambda network: Ensemble(network, a, b, output, answers)
    if row.temperature:
        return lambda network: Scaled(network, held, output, device)
    return None


def _endpoint(score: Scores, intervals: Mapping[str, tuple[float, ...]], split: str) -> dict[str, Any]:
    """What the report says of a model on one split; intervals are of the test split."""
    found: dict[str, Any] = {"loss": score.loss, "accuracy": score.accuracy}
    if score.bins:
        names = ("samples", "confidence", "accuracy")
        found |= {"ece": score.ece, "reliability": dict(zip(names, map(list, score.bins), strict=True))}
    return found | (
        {"intervals": {name: list(both) for name, both in intervals.items()}}
        if split == "test" and intervals
        else {}
    )


def _notes(choice: Choice | None, plan: Sequence[Planned], controls: bool, sure: bool) -> list[str]:
    found = [choosing.in_words(choice)] if choice else []
    if controls and not any(row.base == ENSEMBLE for row in plan):
        found.append(
            "no ensemble and no temperatures: outputs are not logits (N, classes) under cross-entropy"
        )
    if controls and not sure:
        found.append("no intervals: a loss or metric of one's own says nothing of single samples")
    return found


def _along(row: Row) -> str:
    """A sentence on the figures along a curve."""
    test = row.details["along"]["test"]["accuracy"]
    said = (
        f"along {row.name} test accuracy is {test['mean']:.4f} on average and {test['lowest']:.4f} at least "
        f"({test['interior']['lowest']:.4f} between the ends)"
    )
    train = row.details["along"].get("train")
    return said + (f"; train loss {train['loss']['mean']:.4f} on average" if train else "")


def _scores(
    answers: Recording, tensors: Tensors, splits: Mapping[str, Any], scores: Measure
) -> dict[str, Scores]:
    networks.load(answers.network, tensors)
    found = {split: scores(answers, its, each=split == "test", output=None) for split, its in splits.items()}
    if any(not score.samples for score in found.values()):
        raise DataError("the data holds no samples")
    return found
