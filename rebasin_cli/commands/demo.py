"""`rebasin demo`: the whole story in under a minute, on data that is shipped with the package.

No recipe does it: a run of one keeps its cache in the folder that it is called in, and what steps before a
failure made. A tour leaves what it tells of, in the one folder that it is given, or nothing.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoints import destination, writer
from ..learning import training
from ..registry.options import WRITES, option
from ..registry.results import Result
from ..session.listener import SILENT, Listener
from ..session.outcomes import Screen, Weights
from ..symmetry import stored
from . import align, barrier, merge
from .verbs.report_files import Written, removed_on_failure
from .verbs.resume import state_path

SEEDS = (1, 2)
EPOCHS, WIDTH = 40, 128

PANEL = "Make models"
STEP = False  # a tour


@dataclass(frozen=True, kw_only=True)
class Demo(Screen):
    """Train two MLPs on digits from different seeds, align, merge and measure them. Under a minute."""

    out: Path = option(
        Path("rebasin-demo"), "Where everything is written.", also=("-o",), metavar="DIR", role=WRITES
    )
    force: bool = Weights.force


@dataclass(frozen=True)
class DemoResult(Result):
    """What was `measured` between the two models, the folder of its `report`, and commands to try `next`."""

    measured: barrier.BarrierResult
    report: Path
    next: tuple[str, ...]


def run(asked: Demo, listener: Listener = SILENT) -> DemoResult:
    """Train two MLPs on `digits`, align, merge, measure.

    Writes a.safetensors, b.safetensors, b_aligned.safetensors, merged.safetensors and report/ into the
    folder. Raises OutputExists where they are there already.
    """
    folder = asked.out
    destination.check_report_folder(folder)
    models = [folder / "a.safetensors", folder / "b.safetensors"]
    aligned, merged, report = (
        folder / "b_aligned.safetensors",
        folder / "merged.safetensors",
        folder / "report",
    )
    weights = (*models, aligned, stored.beside(aligned), merged)
    for path in weights if folder.exists() else ():
        destination.check_output(path, force=asked.force)
    Written(report, force=asked.force).destinations()
    with removed_on_failure(*weights, *map(state_path, weights)):
        return _tell(folder, models, aligned, merged, report, listener, force=asked.force)


def _tell(
    folder: Path,
    models: list[Path],
    aligned: Path,
    merged: Path,
    report: Path,
    listener: Listener,
    *,
    force: bool,
) -> DemoResult:
    destination.make_folder(folder)
    for path, seed in zip(models, SEEDS, strict=True):
        listener.say(f"training an MLP on digits with seed {seed} → {path}")
        trained = training.train(
            "mlp",
            "digits",
            seed=seed,
            width=WIDTH,
            epochs=EPOCHS,
            progress=lambda p: listener.step(f"seed {seed}", p.epoch, p.epochs, f"loss {p.loss:.3f}"),  # noqa: B023
        )
        made, meta = trained.tensors, trained.metadata
        writer.write_safetensors(path, made, metadata=meta, force=force, finite=made)
    one, other = models
    shared: dict[str, Any] = {"data": "digits", "device": "cpu", "method": "wm", "force": force}
    align.run(align.Align(reference=one, model=other, out=str(aligned), **shared), listener)
    merge.run(merge.Merge(models=(one, other), out=str(merged), **shared), listener)
    a, b = (shlex.quote(str(path)) for path in models)
    command = f"rebasin barrier {a} {b} --data digits --method wm --report {shlex.quote(str(report))}"
    told = replace(listener, command=command)
    measured = barrier.run(barrier.Barrier(a=one, b=other, report=report, **shared), told)
    assert isinstance(measured, barrier.BarrierResult)
    suggested = (
        f"rebasin inspect {shlex.quote(str(merged))}",
        f"rebasin eval {shlex.quote(str(merged))}",
        f"rebasin verify {b} {shlex.quote(str(aligned))}",
        f"rebasin barrier {a} {b} --max-barrier 0.1",
        "rebasin spec show mlp",
        "rebasin train mlp --data mnist --seed 1 -o mnist1.safetensors",
    )
    return DemoResult(measured, report, suggested)
