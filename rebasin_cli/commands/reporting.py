"""`rebasin barrier` and `rebasin eval` on files: what models are worth, and the path between two of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import networks
from ..analysis import signatures
from ..datasets import SPLITS
from ..errors import unknown
from ..measure import gates, intervals
from ..measure import report as measuring
from ..measure.rows import plan_rows
from ..reports import Report
from ..runtime import devices
from . import deciding, intake, planning, provenance, running, sampling, searching
from .outputs import report_files, write_reports
from .settings import Settings
from .shared import Listener


def barrier(
    a: Path,
    b: Path,
    settings: Settings,
    listener: Listener,
    *,
    perm: Path | None = None,
    folder: Path | None = None,
    files: Mapping[str, Path] | None = None,
    force: bool = False,
    command: str = "rebasin barrier",
    dry_run: bool = False,
    thresholds: dict[str, Any] | None = None,
    pairs: Sequence[tuple[Path, Path]] = (),
) -> Report | dict[str, Any]:
    """Measure the path between two models, and write the report in every format asked for.

    Further `pairs` of the same architecture are measured alike, for means over pairs; all else is of A and B.
    `folder` gets every format that has a file name, `files` maps formats to single files. Gates are judged
    in the report and never raised here: everything is written first. A dry run gives the plan instead.
    """
    thresholds = thresholds or {}
    destinations = report_files(folder, files or {}, force=force)
    deciding.check_method(settings, or_none=True)
    options = searching.matcher_options(settings, measuring=True)
    device = devices.choose(settings.device)
    scores = sampling.scorer(settings, device)
    models = intake.read_models([a, b], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    intake.check_pairs(pairs, fitted, settings, given=perm is not None or searching.init_file(settings))
    repair = deciding.choose_repair(fitted, settings, has_data=True)
    word = measuring.word_of_repair(repair, statistics=bool(fitted.statistics))
    given = intake.read_permutation(perm, fitted)[0] if perm else None
    moved = given is not None or settings.method != "none"
    network = running.need_network(fitted, settings, listener.say)
    wanted = ["train", "test", "held", *["reset"] * bool(word)]
    auto = repair == "auto"
    splits = sampling.open_splits(models, settings, listener.say, wanted=wanted, choosing=auto)
    rows = plan_rows(
        aligned=moved, word=word, ship=None if auto else repair, auto=auto, logits=settings.loss is None
    )
    asked = thresholds.get("gates", ())
    gates.check_gate_names(asked, [row.name for row in rows], ("train", "test"))
    if thresholds.get("baseline"):
        gates.check_baseline(thresholds["baseline"], data=splits["test"].name)
    plan = planning.plan_report(
        network, splits, rows, output=settings.output, device=device, pairs=1 + len(pairs)
    )
    method = "given" if given else settings.method
    plan |= planning.not_estimated([(method, options)])
    listener.say(planning.in_words(plan))
    if dry_run:
        return planning.plan_search(models, fitted, method, **searching.planned(settings)) | plan
    evidence = {} if given else searching.find_evidence(models, fitted, settings, lambda text: None, network)
    proof = searching.prove(network, fitted, models, settings, splits=splits, permuted=moved)
    done, total = itertools.count(1), sum(row.points for row in rows)
    report = measuring.barrier(
        models[0],
        models[1],
        fitted,
        network=network,
        train=splits["train"],
        test=splits["test"],
        reset_batches=splits.get("reset"),
        held=splits["held"],
        method=settings.method,
        permutations=given,
        repair_with=repair,
        signature=signatures.in_report(
            models[0],
            models[1],
            fitted,
            data=splits["train"],
            seed=settings.seed,
            network=network,
            output=settings.output,
            device=device,
        ),
        output=settings.output,
        scores=scores,
        device=device,
        seed=settings.seed,
        check=sampling.endpoint_check(models, splits["test"].name, splits["test"].classes, settings),
        planned=lambda found: gates.check_gate_names(asked, [row.name for row in found], ("train", "test")),
        measured=lambda: listener.step("measuring", next(done), total, ""),
        options=searching.bounded(options),
        data=evidence.get("data"),
        loss=evidence.get("loss"),
        start=searching.first_state(settings, 2, fitted),
        prove=False,
        progress=searching.shown(listener.step),
    )
    notes = provenance.notes(splits, proof, repair=word)
    report = provenance.signed(
        report, models, splits["test"], proof=proof, command=command, full=settings.full, notes=notes
    )
    others = []
    for number, (c, d) in enumerate(pairs, start=2):
        listener.say(f"pair {number} of {1 + len(pairs)}: {c} and {d}")
        others.append(barrier(c, d, settings, dataclasses.replace(listener, say=lambda text: None)))
    report = intervals.with_pairs(report, others) if others else report
    report = dataclasses.replace(report, gates=gates.evaluate_gates(report, **thresholds))
    write_reports(report, destinations, force=force)
    return report


def evaluate(path: Path, settings: Settings, listener: Listener, *, split: str = "test") -> dict[str, Any]:
    """Loss (nats), accuracy (0–1) and expected calibration error (0–1) of one model on one split.

    Raises UsageError for an unknown split and without a network, DataError for a trained model at chance.
    """
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    device = devices.choose(settings.device)
    scorer = sampling.scorer(settings, device)
    models = intake.read_models([path], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    network = running.need_network(fitted, settings, listener.say)
    full = dataclasses.replace(settings, full=True)
    data = sampling.open_splits(models, full, listener.say, wanted=[split])[split]
    scores = scorer(networks.load(network, models[0]).to(device), data)
    made = models[0].metadata.get("rebasin.command")
    if split == "test" and made not in ("merge", "repair"):  # these were not trained, may well be at chance
        sampling.endpoint_check(models, data.name, data.classes, settings)({"test": [scores]})
    figures = {name: getattr(scores, name) for name in ("loss", "accuracy", "samples", "ece")}
    return {"file": str(path), "data": data.name, "split": split} | figures
