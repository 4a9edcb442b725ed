"""`rebasin demo`: the whole story in under a minute, on data that is shipped with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import pipeline, training, writing
from .intake import Settings
from .pipeline import Listener, Output

SEEDS = (1, 2)
EPOCHS, WIDTH = 40, 128


def demo(folder: Path, listener: Listener, *, force: bool = False) -> tuple[Any, list[str]]:
    """Train two MLPs on `digits`, align, merge, measure; the report, and commands to try next.

    Writes a.safetensors, b.safetensors, b_aligned.safetensors, merged.safetensors and report/ into
    `folder`. Raises OutputExists where they are there already.
    """
    writing.check_report_folder(folder)
    models = [folder / f"{name}.safetensors" for name in "ab"]
    if not force and (there := next((path for path in models if path.exists()), None)):
        writing.check_output(there)
    writing.make_folder(folder)
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
        writing.write_safetensors(path, trained.tensors, metadata=trained.metadata, force=force)
    settings = Settings(data="digits", device="cpu")
    aligned = Output(folder / "b_aligned.safetensors", force=force)
    pipeline.align(*models, aligned, settings, listener)
    pipeline.merge(models, Output(folder / "merged.safetensors", force=force), settings, listener)
    report = pipeline.barrier(
        *models,
        settings,
        listener,
        folder=folder / "report",
        force=force,
        command=f"rebasin barrier {models[0]} {models[1]} --data digits --report {folder / 'report'}",
    )
    return report, [
        f"rebasin inspect {folder / 'merged.safetensors'}",
        f"rebasin eval {folder / 'merged.safetensors'}",
        f"rebasin verify {models[1]} {folder / 'b_aligned.safetensors'}",
        f"rebasin barrier {models[0]} {models[1]} --max-barrier 0.05",
        "rebasin spec show mlp",
        "rebasin train mlp --data mnist --seed 1 -o mnist1.safetensors",
    ]
