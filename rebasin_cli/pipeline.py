"""The whole story, one verb a line: files in, permutations found, files and reports out.

Start here. Each function is one command; `intake` reads, `api` and `measuring` think, `writing` writes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import (
    accounts,
    api,
    baking,
    certainty,
    choosing,
    gates,
    intake,
    keeping,
    measuring,
    networks,
    permutation,
    planning,
    provenance,
    sampling,
    searching,
    signatures,
    training,
    writing,
)
from .checkpoint import Checkpoint
from .datasets import SPLITS
from .errors import OutputExists, ResourceError, UsageError, unknown
from .intake import Settings
from .outputs import (
    Output,
    appearing,
    check_outputs,
    permutation_path,
    report_files,
    write,
    write_reports,
)
from .ranks import ALONE, Ranks, own_device
from .reports import Report
from .rows import plan_rows
from .spec.spec import FittedSpec
from .tensors import replaced


@dataclass(frozen=True)
class Listener:
    """Where a command tells what it does: sentences, and steps done of a total (None: unknown)."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, int, int | None, str], None] = lambda task, done, total, detail: None


def align(
    reference: Path,
    model: Path,
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Permute `model` into the basin of `reference`; write it, and the permutation beside it.

    Several `ranks` call this alike: the first one checks, proves and writes, all read and search.
    """
    perm_path = permutation_path(output.path)
    ranks.first(check_outputs, output, perm_path)
    ranks.each(intake.check_method, settings)
    ranks.each(searching.matcher_options, settings)
    ranks.first(searching.check_log, settings, output, [reference, model])
    device = intake.choose_device(settings.device)
    models = ranks.each(intake.read_models, [reference, model], settings, listener.say, ranks)
    fitted = ranks.each(intake.fit_spec, models, settings, listener.say)
    ranks.check_same(searching.facts(models, fitted, settings) if ranks.size > 1 else {})
    if output.dry_run:
        return planning.plan_search(models, fitted, settings.method, **searching.planned(settings))
    evidence = ranks.each(searching.find_evidence, models, fitted, settings, listener.say)
    proof = ranks.first(find_and_prove, fitted, models, settings, listener)
    with keep_search("align", models, fitted, output, settings, listener, ranks) as kept:
        place = own_device(device)
        found = searching.search(
            models, fitted, settings, kept, listener.step, evidence=evidence, device=place, ranks=ranks
        )

        def finish() -> list[str]:
            meta = describe("align", models, fitted, settings, proof=proof, like=models[1:], results=True)
            with appearing(perm_path) as beside:
                permutation.save(beside, found.permutations[0], metadata=meta)
                return write(output, found.tensors, models[0], meta)

        written = ranks.last(finish)
    return summary(fitted, accounts.describe_match(found), proof, written=[*written, str(perm_path)])


def merge(
    paths: Sequence[Path],
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    reference: Path | None = None,
    weights: Sequence[float] | None = None,
    interpolation: str = "linear",
    perm: Path | None = None,
) -> dict[str, Any]:
    """Align all models to the reference (the first), average them, mend statistics; write one model."""
    check_outputs(output)
    paths, weights = intake.reference_first(paths, reference, weights)
    intake.check_merge(len(paths), weights, interpolation, given=perm is not None)
    intake.check_method(settings, or_none=True)
    searching.matcher_options(settings)
    searching.check_log(settings, output, paths)
    device = intake.choose_device(settings.device)
    models = intake.read_models(paths, settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    has_data = sampling.data_reference(models, settings) is not None
    repair = intake.choose_repair(fitted, settings, has_data=has_data)
    given, of_given = intake.read_permutation(perm, fitted) if perm else (None, {})
    method = "given" if given else settings.method
    if output.dry_run:
        plan = planning.plan_search(models, fitted, method, **searching.planned(settings))
        return plan | planning.plan_repair(models, fitted, repair, settings)
    network, splits = None, {}
    if repair == "auto":
        network, splits = sampling.find_choice(models, fitted, settings, listener.say)
        repair = "none" if network is None else repair
    elif repair != "none":
        network = intake.need_network(fitted, settings, listener.say)
    if network is None and settings.prove and method != "none":
        network = intake.find_network(fitted, settings, listener.say)
    measured = repair not in ("none", "bias")  # on training samples
    wanted = [*["reset"] * measured, *["held"] * settings.bake_temperature]
    if wanted and not splits:
        epoch = repair == "reset" and searching.trains(method)
        splits = sampling.open_splits(models, settings, listener.say, wanted=wanted, epoch=epoch)
    layer = None
    if settings.bake_temperature:
        network = network or intake.need_network(fitted, settings, listener.say)
        layer = baking.logits_layer(network, splits["held"].example(), settings.output)
    say = (lambda text: None) if splits else listener.say  # told already
    evidence = {} if given else searching.find_evidence(models, fitted, settings, say, network)
    proof = searching.prove(network, fitted, models, settings, splits=splits, permuted=method != "none")
    with keep_search("merge", models, fitted, output, settings, listener) as kept:
        found = None
        if method not in ("none", "given"):
            found = searching.search(
                models, fitted, settings, kept, listener.step, evidence=evidence, device=device
            )
        merged = api.merge(
            found.models if found else models,
            fitted,
            method="none",
            weights=weights,
            interpolation=interpolation,
            permutations=[given] if given else None,
            repair_with=repair,
            new_bias=settings.new_bias,
            network=network,
            train=splits.get("reset"),
            held=splits.get("held"),
            inputs=intake.need_inputs(network, settings) if repair == "bias" else None,
            output=settings.output,
            device=device,
        )
        if merged.choice:
            listener.say(f"repair: {choosing.in_words(merged.choice)}")
            repair = merged.choice.chosen
        if merged.repair:
            accounts.tell_repair(listener.say, merged.repair, splits, asked=settings.repair)
        options = {"weights": list(weights or []), "interpolation": interpolation, "repair": repair}
        if merged.repair and merged.repair.added:
            options["added"] = list(merged.repair.added)
        if merged.choice:
            options["repair_choice"] = merged.choice.account()
        if measured:
            options["repair_data"] = provenance.describe_data(splits["reset"], full=settings.full)
            options["repair_data"] |= {"samples": splits["reset"].samples, "device": device}
        tensors, baked = merged.tensors, {}
        if layer is not None:
            done = baking.bake(network, tensors, layer, splits["held"], output=settings.output, device=device)
            listener.say(f"temperature: {done.in_words()}")
            tensors, baked = replaced(tensors, done.tensors), {"temperature": done.account()}
        options |= baked | of_given
        meta = describe(
            "merge", models, fitted, settings, method=method, options=options, proof=proof, like=models
        )
        added = merged.repair.added if merged.repair else ()
        written = write(output, tensors, models[0], meta, added=added)
    match = accounts.describe_match(found, given=given is not None)
    return summary(fitted, match, proof, written=written) | {
        "models": len(models),
        **accounts.describe_repair(merged.repair, merged.choice),
        **baked,
    }


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
    intake.check_method(settings, or_none=True)
    searching.matcher_options(settings, measuring=True)
    device = intake.choose_device(settings.device)
    scores = sampling.scorer(settings, device)
    models = intake.read_models([a, b], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    intake.check_pairs(pairs, fitted, settings, given=perm is not None or searching.init_file(settings))
    repair = intake.choose_repair(fitted, settings, has_data=True)
    word = measuring.word_of_repair(repair, statistics=bool(fitted.statistics))
    given = intake.read_permutation(perm, fitted)[0] if perm else None
    moved = given is not None or settings.method != "none"
    network = intake.need_network(fitted, settings, listener.say)
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
    plan |= planning.not_estimated([(method, searching.matcher_options(settings, measuring=True))])
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
        options=searching.bounded(searching.matcher_options(settings, measuring=True)),
        data=evidence.get("data"),
        loss=evidence.get("loss"),
        start=searching.first_state(settings, 2, fitted),
        prove=False,
        progress=searching.shown(listener.step),
    )
    report = dataclasses.replace(
        report,
        proof=proof,
        command=command,
        inputs=tuple(provenance.describe_input(model) for model in models),
        data=report.data | provenance.describe_data(splits["test"], full=settings.full),
        notes=(*report.notes, *provenance.notes(splits, proof, repair=word)),
    )
    others = []
    for number, (c, d) in enumerate(pairs, start=2):
        listener.say(f"pair {number} of {1 + len(pairs)}: {c} and {d}")
        others.append(barrier(c, d, settings, dataclasses.replace(listener, say=lambda text: None)))
    report = certainty.with_pairs(report, others) if others else report
    report = dataclasses.replace(report, gates=gates.evaluate_gates(report, **thresholds))
    write_reports(report, destinations, force=force)
    return report


def evaluate(path: Path, settings: Settings, listener: Listener, *, split: str = "test") -> dict[str, Any]:
    """Loss, accuracy and calibration of one model on one split."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    device = intake.choose_device(settings.device)
    scorer = sampling.scorer(settings, device)
    models = intake.read_models([path], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    network = intake.need_network(fitted, settings, listener.say)
    full = dataclasses.replace(settings, full=True)
    data = sampling.open_splits(models, full, listener.say, wanted=[split])[split]
    scores = scorer(networks.load(network, models[0]).to(device), data)
    merged = models[0].metadata.get("rebasin.command") in (
        "merge",
        "repair",
    )  # trained for nothing, may well be at chance
    if split == "test" and not merged:
        sampling.endpoint_check(models, data.name, data.classes, settings)({"test": [scores]})
    figures = {name: getattr(scores, name) for name in ("loss", "accuracy", "samples", "ece")}
    return {"file": str(path), "data": data.name, "split": split} | figures


def train(
    net: str, data: str, output: Output, listener: Listener, *, device: str, **recipe: Any
) -> dict[str, Any]:
    """Train an endpoint and write it with its provenance; an interrupted training is kept beside it."""
    check_outputs(output)
    state = output.path.with_name(f"{output.path.stem}.training.pt")
    if state.exists() and not (output.resume or output.force):
        raise OutputExists(
            f"{state} exists: a training was interrupted",
            hint="Go on with --resume, or start anew with --force",
        )
    if output.resume and not state.exists():
        raise UsageError(
            f"--resume: there is no {state}", hint="Only an interrupted training leaves one; start anew"
        )

    def progress(at: training.Progress) -> None:
        tested = "" if at.test_accuracy is None else f"  test accuracy {at.test_accuracy:.4f}"
        done = (at.epoch - 1) * at.steps + at.step
        detail = f"epoch {at.epoch}/{at.epochs}  loss {at.loss:.4f}{tested}"
        listener.step("training", done, at.epochs * at.steps, detail)

    try:
        trained = training.train(
            net,
            data,
            device=intake.choose_device(device),
            state_path=state,
            resume=output.resume,
            progress=progress,
            **recipe,
        )
        writing.write_safetensors(output.path, trained.tensors, metadata=trained.metadata, force=output.force)
    except (KeyboardInterrupt, ResourceError):
        if state.exists():
            listener.say(f"stopped; the last finished epoch is kept in {state}: go on with --resume")
        raise
    state.unlink(missing_ok=True)
    meta = trained.metadata
    accuracies = {f"{s}_accuracy": float(meta[f"rebasin.{s}_accuracy"]) for s in ("train", "test")}
    return {
        "written": [str(output.path)],
        "net": net,
        "data": data,
        "epochs": int(meta["rebasin.epochs"]),
    } | accuracies


# ------------------------------------------------------------------------------------- shared by commands


def find_and_prove(
    fitted: FittedSpec, models: Sequence[Checkpoint], settings: Settings, listener: Listener
) -> dict[str, Any]:
    """The account of the proof. The network is gone afterwards: the search needs its memory."""
    network = intake.find_network(fitted, settings, listener.say) if settings.prove else None
    return searching.prove(network, fitted, models, settings)


def keep_search(
    command: str,
    models: Sequence[Checkpoint],
    fitted: FittedSpec,
    output: Output,
    settings: Settings,
    listener: Listener,
    ranks: Ranks = ALONE,
) -> AbstractContextManager[keeping.Kept]:
    """The state of this very search is kept beside the output when it is interrupted."""
    identity = ranks.first(
        provenance.describe,
        command,
        models,
        fitted,
        method=settings.method,
        seed=settings.seed,
        options=searching.identity(settings),
    )
    return keeping.keeping(
        output.path,
        identity,
        fitted.words,
        within=fitted.within,
        resume=output.resume,
        say=listener.say,
        ranks=ranks,
        every=settings.checkpoint_every,
        log=settings.log,
        force=output.force,
    )


def describe(
    command: str, models: Sequence[Checkpoint], fitted: FittedSpec, settings: Settings, **kwargs: Any
) -> dict[str, str]:
    """Provenance of an output."""
    options = {"max_sweeps": settings.max_sweeps, "effort": settings.effort, **searching.told(settings)}
    options |= kwargs.pop("options", {})
    method = kwargs.pop("method", settings.method)
    return provenance.describe(
        command, models, fitted, method=method, seed=settings.seed, options=options, **kwargs
    )


def summary(
    fitted: FittedSpec, match: dict[str, Any], proof: dict[str, Any], *, written: Sequence[str]
) -> dict[str, Any]:
    """What a command did, as values for --json and for a person."""
    return {"written": list(written), "spec": accounts.describe_spec(fitted), "match": match, "proof": proof}
