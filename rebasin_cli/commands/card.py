"""`rebasin card` on files: the model card of a merged model, for its page on the Hugging Face hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ..checkpoints.checkpoint import open_checkpoint
from ..errors import UsageError
from ..reports import Report, _card
from .eval import evaluate
from .job import provenance
from .job.listener import SILENT, Listener
from .job.outputs import check_files, read_report, write_files
from .job.settings import ForLook, Loading

About = _card.About
MERGED = ("merge", "repair")


def card(
    model: Path,
    out: Path,
    about: About,
    listener: Listener = SILENT,
    *,
    report: Path | None = None,
    recipe: Path | None = None,
    force: bool = False,
    **subjects: Unpack[ForLook],
) -> dict[str, Any]:
    """Write a README.md: how the model was made by its own record, and what it is worth where data is named.

    Raises UsageError for a model without such a record, and for a report that is not of its parents.
    """
    check_files([("card", out)], force=force)
    loading = subjects.get("loading", Loading())
    made = open_checkpoint(model, key=loading.key, unsafe_load=loading.unsafe_load)
    record = provenance.recorded(made) or {}
    if record.get("rebasin.command") not in MERGED:
        raise UsageError(
            f"{model} does not record that it was merged", hint="A card is for what rebasin merge wrote"
        )
    measured = None if report is None else _of_parents(read_report(report, "--barrier"), record, report)
    text = None if recipe is None else _text(recipe)
    data = subjects.get("data")
    scores = [evaluate(model, listener, **subjects)] if data is not None and data.data else []
    about = replace(about, name=about.name or model.stem or str(model))
    shown = _card.render(record, about, scores=scores, report=measured, recipe=text)
    write_files([(out, shown)], force=force)
    return {"written": [str(out)], "model": str(model), "scores": scores}


def _of_parents(report: Report, record: dict[str, str], path: Path) -> Report:
    """The report, if it is on models that this one was made of (or on these as they were aligned)."""
    parents = record["rebasin.inputs"]
    known = [
        given["sha256"] in parents or any(digest in parents for digest in _inputs(given.get("recorded")))
        for given in report.inputs
    ]
    if not all(known):
        raise UsageError(
            f"--barrier {path} is on other models than this one was merged of",
            problems=[
                str(given["file"]) for given, good in zip(report.inputs, known, strict=True) if not good
            ],
            hint="Name the report of rebasin barrier on its parents",
        )
    return report


def _inputs(recorded: dict[str, str] | None) -> list[str]:
    return json.loads((recorded or {}).get("rebasin.inputs", "[]"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"--recipe {path} cannot be read: {reason}") from None
