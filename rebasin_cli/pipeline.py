"""The whole story, one verb a line: files in, permutations found, files and reports out.

Start here. Each function is one command; `intake` reads, `api` thinks, `writing` writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import (
    api,
    gates,
    intake,
    matchers,
    networks,
    permutation,
    planning,
    provenance,
    reports,
    searching,
    training,
    writing,
)
from .checkpoint import Checkpoint
from .datasets import SPLITS
from .errors import UsageError, unknown
from .intake import Settings
from .reports import Report
from .spec.spec import FittedSpec
from .tensors import LazyTensors


@dataclass(frozen=True)
class Listener:
    """Where a command tells what it does: sentences, and steps done of a total (None: unknown)."""

    say: Callable[[str], None] = lambda text: None
    step: Callable[[str, int, int | None, str], None] = lambda task, done, total, detail: None


@dataclass(frozen=True)
class Output:
    """Where and how weights are written."""

    path: Path
    force: bool = False
    shard_size: int | None = None
    dtype: Any = None
    resume: bool = False
    dry_run: bool = False


def align(
    reference: Path, model: Path, output: Output, settings: Settings, listener: Listener
) -> dict[str, Any]:
    """Permute `model` into the basin of `reference`; write it, and the permutation beside it."""
    perm_path = permutation_path(output.path)
    check_outputs(output, perm_path)
    models = intake.read_models([reference, model], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    if output.dry_run:
        return planning.plan_search(models, fitted, settings.method, proof=settings.prove)
    network = intake.find_network(fitted, settings, listener.say) if settings.prove else None
    found = search(models, fitted, network, output, settings, listener, command="align")
    meta = describe("align", models, fitted, found, settings, like=models[1:], results=True)
    write(output, found.tensors, models[0], meta)
    permutation.save(perm_path, found.permutations[0], metadata=meta, force=output.force)
    searching.state_path(output.path).unlink(missing_ok=True)
    return summary(found, settings, written=[output.path, perm_path])


def merge(
    paths: Sequence[Path],
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    weights: Sequence[float] | None = None,
    interpolation: str = "linear",
    perm: Path | None = None,
) -> dict[str, Any]:
    """Align all models, average them, re-estimate running statistics; write one model."""
    check_outputs(output)
    models = intake.read_models(paths, settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    has_data = intake.data_reference(models, settings) is not None
    repair = intake.choose_repair(fitted, settings, has_data=has_data)
    if output.dry_run:
        return planning.plan_search(models, fitted, settings.method, proof=settings.prove) | {
            "repair": repair
        }
    network = intake.need_network(fitted, settings, listener.say) if repair != "none" else None
    if network is None and settings.prove:
        network = intake.find_network(fitted, settings, listener.say)
    splits = intake.open_splits(models, settings, listener.say, wanted=["reset"]) if repair != "none" else {}
    given = read_permutation(perm, fitted) if perm else None
    found = None
    if given is None and settings.method != "none":
        proof_network = network if settings.prove else None
        found = search(models, fitted, proof_network, output, settings, listener, command="merge")
    merged = api.merge(
        found.models if found else models,
        fitted,
        method="none",
        weights=weights,
        interpolation=interpolation,
        permutations=[given] if given else None,
        repair_with=repair,
        network=network,
        train=splits.get("reset"),
        device=intake.choose_device(settings.device),
    )
    if merged.repaired:
        listener.say(
            f"repair: statistics of {merged.repaired} norms re-estimated on {splits['reset'].samples} samples"
        )
    options = {"weights": list(weights or []), "interpolation": interpolation, "repair": repair}
    meta = describe("merge", models, fitted, found, settings, like=models, options=options)
    write(output, merged.tensors, models[0], meta)
    searching.state_path(output.path).unlink(missing_ok=True)
    result = summary(found, settings, written=[output.path]) | {"models": len(models), "repair": repair}
    return result | {"repaired_norms": merged.repaired}


def barrier(
    a: Path,
    b: Path,
    settings: Settings,
    listener: Listener,
    *,
    perm: Path | None = None,
    folder: Path | None = None,
    files: dict[str, Path] | None = None,
    force: bool = False,
    command: str = "rebasin barrier",
    dry_run: bool = False,
    thresholds: dict[str, Any] | None = None,
) -> Report | None:
    """Measure the path between two models, and write the report in every format asked for.

    `folder` gets every format that has a file name, `files` maps formats to single files. Gates are judged
    in the report and never raised here: everything is written first. None after a dry run.
    """
    thresholds = thresholds or {}
    destinations = report_files(folder, files or {}, force=force)
    models = intake.read_models([a, b], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    repair = intake.choose_repair(fitted, settings, has_data=True)
    network = intake.need_network(fitted, settings, listener.say)
    device = intake.choose_device(settings.device)
    wanted = ["train", "test", *["reset"] * bool(fitted.statistics)]
    splits = intake.open_splits(models, settings, listener.say, wanted=wanted)
    rows = api.rows_to_measure(
        aligned=bool(perm) or settings.method != "none",
        reset=bool(fitted.statistics),
        ship_reset=repair != "none",
    )
    gates.check_gate_names(thresholds.get("gates", ()), rows, ("train", "test"))
    points = {row: api.REPAIRED_POINTS if row.endswith("reset") else api.POINTS for row in rows}
    seconds = planning.estimate_seconds(network, splits, points, output=settings.output, device=device)
    listener.say(
        f"plan: {sum(points.values())} points, about {max(seconds, 1) / 60:.1f} minutes of measuring"
    )
    if dry_run:
        return None
    done = iter(range(1, sum(points.values()) + 1))
    report = api.barrier(
        models[0],
        models[1],
        fitted,
        network=network,
        train=splits["train"],
        test=splits["test"],
        reset_batches=splits.get("reset"),
        method=settings.method,
        permutations=read_permutation(perm, fitted) if perm else None,
        repair_with=repair,
        scores=intake.scorer(settings, device),
        device=device,
        seed=settings.seed,
        check=intake.endpoint_check(models, splits["test"].name, splits["test"].classes, settings),
        measured=lambda: listener.step("measuring", next(done), sum(points.values()), ""),
        options=matcher_options(settings),
        prove=settings.prove,
        inputs=intake.proof_inputs(network, settings, splits),
        progress=lambda state: listener.step(
            "matching", state.sweep, None, f"objective {state.objective:.6g}"
        ),
    )
    report = dataclasses.replace(
        report,
        proof=report.proof if settings.prove else {"status": "skipped", "reason": "--no-prove"},
        command=command,
        inputs=tuple(describe_input(model) for model in models),
        data=report.data | describe_data(splits, settings),
        notes=(*report.notes, *notes(fitted, splits, settings)),
    )
    report = dataclasses.replace(report, gates=gates.evaluate_gates(report, **thresholds))
    write_reports(report, destinations, force=force)
    return report


def evaluate(path: Path, settings: Settings, listener: Listener, *, split: str = "test") -> dict[str, Any]:
    """Loss, accuracy and calibration of one model on one split."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    models = intake.read_models([path], settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    network = intake.need_network(fitted, settings, listener.say)
    device = intake.choose_device(settings.device)
    full = dataclasses.replace(settings, full=True)
    data = intake.open_splits(models, full, listener.say, wanted=[split])[split]
    scores = intake.scorer(settings, device)(networks.load(network, models[0]).to(device), data)
    if split == "test":
        intake.endpoint_check(models, data.name, data.classes, settings)({"test": [scores]})
    return {"file": str(path), "data": data.name, "split": split} | dataclasses.asdict(scores)


def train(
    net: str, data: str, output: Output, listener: Listener, *, device: str, **recipe: Any
) -> dict[str, Any]:
    """Train an endpoint and write it with its provenance; an interrupted training is kept beside it."""
    check_outputs(output)
    state = output.path.with_name(f"{output.path.stem}.training.pt")
    if state.exists() and not output.resume:
        state.unlink()
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
            net, data, device=intake.choose_device(device), state_path=state, progress=progress, **recipe
        )
    except KeyboardInterrupt:
        if state.exists():
            listener.say(f"interrupted; the last finished epoch is kept in {state}: go on with --resume")
        raise
    writing.write_safetensors(output.path, trained.tensors, metadata=trained.metadata, force=output.force)
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


def search(
    models: Sequence[Checkpoint],
    fitted: FittedSpec,
    network: Any,
    output: Output,
    settings: Settings,
    listener: Listener,
    *,
    command: str,
) -> api.Alignment:
    """Find the permutations; on Ctrl-C keep the state beside the output."""
    identity = provenance.describe(command, models, fitted, method=settings.method, seed=settings.seed)
    with searching.keeping(output.path, identity, resume=output.resume, say=listener.say) as (start, keep):

        def progress(state: matchers.State) -> None:
            keep(state)
            listener.step("matching", state.sweep, None, f"objective {state.objective:.6g}")

        return api.align(
            *models,
            fitted,
            method=settings.method,
            seed=settings.seed,
            options=matcher_options(settings),
            network=network,
            inputs=None if network is None else intake.proof_inputs(network, settings),
            start=start,
            progress=progress,
        )


def matcher_options(settings: Settings) -> Any:
    """The method's own Options, with what the user set."""
    options = matchers.registry.get(settings.method).Options() if settings.method != "none" else None
    if options is None or settings.max_sweeps is None:
        return options
    return dataclasses.replace(options, max_sweeps=settings.max_sweeps)


def permutation_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.perm.safetensors")


def check_outputs(output: Output, *beside: Path) -> None:
    """Whether everything can be written, before any work."""
    writing.check_output(output.path, force=output.force, shard_size=output.shard_size)
    for path in beside:
        writing.check_output(path, force=output.force)


def write(output: Output, tensors: Any, like: Checkpoint, metadata: dict[str, str]) -> None:
    """Write with the names, order and dtypes of the reference."""
    named = LazyTensors(like.shapes, like.dtypes, lambda name: tensors[name])
    writing.write_safetensors(
        output.path,
        named,
        metadata=metadata,
        force=output.force,
        shard_size=output.shard_size,
        out_dtype=output.dtype,
    )


def read_permutation(path: Path, fitted: FittedSpec) -> dict[str, Any]:
    found, _ = permutation.load(path)
    permutation.check(found, fitted.words)
    return found


def describe(command, models, fitted, found, settings, *, options=None, **kwargs) -> dict[str, str]:
    """Provenance, with whether the spec was proven."""
    used = {"max_sweeps": settings.max_sweeps, **(options or {})}
    meta = provenance.describe(
        command, models, fitted, method=settings.method, seed=settings.seed, options=used, **kwargs
    )
    return meta | {"rebasin.proof": proof_of(found, settings)["status"]}


def proof_of(found: api.Alignment | None, settings: Settings) -> dict[str, Any]:
    if not settings.prove:
        return {"status": "skipped", "reason": "--no-prove"}
    return api.describe_proof(found.proof if found else None)


def summary(found: api.Alignment | None, settings: Settings, *, written: Sequence[Path]) -> dict[str, Any]:
    """What a command did, as values for --json and for a person."""
    return {
        "written": [str(path) for path in written],
        "spec": api.describe_spec(found.fitted) if found else None,
        "match": api.describe_match(found),
        "proof": proof_of(found, settings),
    }


def describe_input(model: Checkpoint) -> dict[str, Any]:
    return {"file": str(model.path), "sha256": model.digest(), "recorded": provenance.recorded(model)}


def describe_data(splits: intake.Splits, settings: Settings) -> dict[str, Any]:
    test = splits["test"]
    shown = "the loader's own" if test.normalization is None else str(test.normalization)
    return {"name": test.name, "normalization": shown, "full": settings.full}


def notes(fitted: FittedSpec, splits: intake.Splits, settings: Settings) -> list[str]:
    found = []
    if "reset" in splits:
        found.append(
            f"reset: BatchNorm statistics re-estimated on {splits['reset'].samples} training samples at every "
            "inner point; the ends are the models as given"
        )
        found.append("a permutation-only figure of a BatchNorm network means nothing by itself")
    if not settings.prove:
        found.append("the spec was not proven (--no-prove)")
    return found


def report_files(folder: Path | None, files: dict[str, Path], *, force: bool) -> list[tuple[str, Path]]:
    """(format, file) for every file asked for; refuses what exists before any work begins."""
    destinations = list(files.items())
    if folder is not None:
        writing.check_report_folder(folder)
        named = {name: reports.registry.get(name).FILENAME for name in reports.registry.names()}
        destinations += [(name, folder / file) for name, file in named.items() if file]
    for _, path in destinations:
        if path.parent.exists():
            writing.check_output(path, force=force, text=True)
    return destinations


def write_reports(report: Report, destinations: Sequence[tuple[str, Path]], *, force: bool) -> None:
    rendered = [(path, reports.registry.get(name).render(report)) for name, path in destinations]
    for path, content in rendered:
        writing.make_folder(path.parent)
        writing.write_text_atomic(path, content, force=force)


def read_baseline(path: Path) -> Report:
    """The report in a JSON file, as `barrier` wrote it. Raises UsageError."""
    try:
        return reports.registry.get("json").load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
