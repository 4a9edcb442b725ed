"""`rebasin compare` on files: how good is the merge of many models, by one method or several?"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import matchers
from ..analysis import comparison, formats
from ..analysis.comparison import Comparison
from ..errors import UsageError
from ..matchers import INITS
from ..registry import import_reference
from ..runtime import devices
from . import deciding, intake, outputs, planning, provenance, running, sampling, searching
from .settings import Settings
from .shared import Listener

CURVED_SAMPLES = 1_000  # a split, for sharpness: a probe costs several times what a loss does


def compare(
    paths: Sequence[Path],
    methods: Sequence[str],
    settings: Settings,
    listener: Listener,
    *,
    points: int = comparison.POINTS,
    once: bool = False,
    sharpness: bool = False,
    probes: int = 10,
    folder: Path | None = None,
    files: Mapping[str, Path] | None = None,
    force: bool = False,
    command: str = "rebasin compare",
    dry_run: bool = False,
) -> Comparison | dict[str, Any]:
    """Compare merges of these models, the first of which is the reference, and write what was asked for.

    `folder` gets every format, `files` maps formats to single files. A dry run gives the plan instead.
    Raises as `reporting.barrier` does.
    """
    if len(paths) < 2:
        raise UsageError("comparing merges takes at least two models", hint="rebasin compare A B C …")
    if doubled := sorted({method for method in methods if list(methods).count(method) > 1}):
        raise UsageError(f"--method {doubled[0]} is given twice")
    destinations = _destinations(folder, files or {}, force=force)
    each = _each(methods, settings)
    options = {method: searching.matcher_options(chosen, measuring=True) for method, chosen in each.items()}
    device = devices.choose(settings.device)
    scores = sampling.scorer(settings, device)
    models = intake.read_models(paths, settings, listener.say)
    fitted = intake.fit_spec(models, settings, listener.say)
    repair = deciding.choose_repair(fitted, settings, has_data=True)
    repair = "none" if repair == "auto" else repair  # nothing to reset; others are not compared
    if repair not in comparison.REPAIRS:
        raise UsageError(f"--repair {repair}: many models are compared with reset, or with none")
    network = running.need_network(fitted, settings, listener.say)
    wanted = ["train", "test", *["reset"] * (repair == "reset")]
    splits = sampling.open_splits(models, settings, listener.say, wanted=wanted)
    plan = _plan(network, splits, len(models), len(methods), points, settings, device)
    plan |= planning.not_estimated(options.items())
    listener.say(planning.in_words(plan))
    if dry_run:
        return _searches(models, fitted, each) | plan
    evidence = {
        method: searching.find_evidence(models, fitted, chosen, lambda text: None, network)
        for method, chosen in each.items()
    }
    for method in methods:
        evidence[method]["options"] = options[method]
    moved = any(method != "none" for method in methods)
    proof = searching.prove(network, fitted, models, settings, splits=splits, permuted=moved)
    curved = {s: splits[s].subset(CURVED_SAMPLES, settings.seed) for s in ("test", "train")}
    done = iter(range(1, plan["points"] + 1))
    found = comparison.compare(
        models,
        fitted,
        network=network,
        test=splits["test"],
        train=splits["train"],
        reset_batches=splits.get("reset"),
        methods=methods,
        repair_with=repair,
        points=points,
        once=once,
        curved=curved if sharpness else None,
        probes=probes,
        seed=settings.seed,
        scores=scores,
        loss=import_reference(settings.loss, error=UsageError) if settings.loss else None,
        output=settings.output,
        device=device,
        check=sampling.endpoint_check(models, splits["test"].name, splits["test"].classes, settings),
        measured=lambda: listener.step("measuring", next(done), plan["points"], ""),
        align_options=evidence,
        progress=functools.partial(_told, listener),
    )
    notes = provenance.notes({k: v for k, v in splits.items() if k != "reset"}, proof)
    found = provenance.signed(
        found, models, splits["test"], proof=proof, command=command, full=settings.full, notes=notes
    )
    _write(found, destinations, force=force)
    return found


def _each(methods: Sequence[str], settings: Settings) -> dict[str, Settings]:
    """The settings of every method: an option is for those that have it. Raises UsageError where none has."""
    for method in methods:
        deciding.check_method(dataclasses.replace(settings, method=method), or_none=True)
    known = {m: matchers.registry.get(m).Options() if m != "none" else None for m in methods}
    if searching.init_file(settings):
        raise UsageError(
            f"--init {settings.init} is for the second of two models",
            hint=f"Choose one of {', '.join(INITS)}",
        )
    given = [name for name in searching.LEARNING if getattr(settings, name) is not None]
    for name in given:
        if not any(hasattr(options, name) for options in known.values()):
            searching.matcher_options(dataclasses.replace(settings, method=next(iter(known))))  # its error
    return {
        method: dataclasses.replace(
            settings, method=method, **{name: None for name in given if not hasattr(options, name)}
        )
        for method, options in known.items()
    }


def _told(listener: Listener, method: str, state: matchers.State) -> None:
    listener.step(f"matching {method}", *searching.steps(state), searching.in_words(state))


def _plan(
    network: Any,
    splits: sampling.Splits,
    models: int,
    methods: int,
    points: int,
    settings: Settings,
    device: str,
) -> dict[str, Any]:
    """As for a barrier: rows are the models as they are, and their mixtures."""
    ends, mixed = comparison.points_to_measure(models, methods, points)
    rows = {"the models": ends, "mixtures" + " + reset" * ("reset" in splits): mixed}
    sizes = {split: data.samples for split, data in splits.items()}
    a_sample = planning.seconds_a_sample(network, splits, output=settings.output, device=device)
    read = (ends + mixed) * (sizes["train"] + sizes["test"]) + mixed * sizes.get("reset", 0)
    return {
        "rows": rows,
        "points": ends + mixed,
        "samples": sizes,
        "estimated_seconds": None if a_sample is None else a_sample * read,
    }


def _searches(models: Sequence[Any], fitted: Any, each: Mapping[str, Settings]) -> dict[str, Any]:
    """The plan of the search that needs most memory, under the names of all methods."""
    plans = [
        planning.plan_search(models, fitted, method, **searching.planned(chosen))
        for method, chosen in each.items()
    ]
    return max(plans, key=lambda plan: plan["peak_bytes"]) | {"method": ", ".join(each)}


def _destinations(folder: Path | None, files: Mapping[str, Path], *, force: bool) -> list[tuple[str, Path]]:
    """(format, file) for every file asked for; refuses what exists before any work begins."""
    found = list(files.items())
    if folder is not None:
        found += [(name, folder / file) for name, file in formats.FILENAMES.items()]
    return list(outputs.check_files(found, folder=folder, force=force))


def _write(found: Comparison, destinations: Sequence[tuple[str, Path]], *, force: bool) -> None:
    outputs.write_files([(path, formats.RENDER[name](found)) for name, path in destinations], force=force)
