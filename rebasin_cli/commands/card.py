"""`rebasin card` on files: the model card of a merged model, for its page on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from ..checkpoints.checkpoint import open_checkpoint
from ..errors import UsageError
from ..reports import Report, _card
from ..runtime import files
from ..session.listener import SILENT, Listener
from ..session.session import Session
from ..session.subjects import ForLook, Loading
from .eval import measured as evaluated
from .verbs import provenance
from .verbs.outputs import check_files, stored_report, write_files

About = _card.About
LARGEST = 1 << 20  # bytes of a recipe
MERGED = ("merge", "repair")
MOVED = ("align", "apply")  # the last of their inputs in another order, and nothing else


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
    session = Session("card", [model], listener, **subjects)
    check_files([("card", out)], session.reads.and_files([report, recipe]), force=force)
    loading = subjects.get("loading", Loading())
    made = open_checkpoint(model, key=loading.key, unsafe_load=loading.unsafe_load)
    facts = provenance.recorded(made) or {}
    if facts.get("rebasin.command") not in MERGED:
        raise UsageError(
            f"{model} does not record that it was merged", hint="A card is for what rebasin merge wrote"
        )
    record = _card.read_record(facts, str(model))
    measured = (
        None if report is None else _of_parents(stored_report(report, "--barrier").report, record, report)
    )
    text = None if recipe is None else files.text(recipe, f"--recipe {recipe}", most=LARGEST)
    data = subjects.get("data")
    scores = (
        [evaluated(model, "test", listener, **subjects).values()] if data is not None and data.data else []
    )
    about = replace(about, name=about.name or model.stem or str(model))
    shown = _card.render(record, about, scores=scores, report=measured, recipe=text)
    write_files([(out, shown)], force=force)
    return {"written": [str(out)], "model": str(model), "scores": scores}


def _of_parents(report: Report, record: _card.Record, path: Path) -> Report:
    """The report, if it is on two models that this one was made of (or on these as they were aligned)."""
    left, others = record.parents, []
    for given in report.inputs:
        here = [digest for digest in _is_or_became(given) if digest in left]
        if here:
            left.remove(here[0])
        else:
            others.append(f"{given.get('file', '?')}  sha256 {given.get('sha256', '?')}")
    if others or not report.inputs:
        raise UsageError(
            f"--barrier {path} is on other models than this one was merged of",
            problems=others,
            hint="Name the report of rebasin barrier on two of its parents",
        )
    return report


def _is_or_became(given: Mapping[str, Any]) -> list[str]:
    """Digests under which a report's model may be a parent: its own, and of what it is an aligned copy."""
    recorded, own = _card.of_input(given), given.get("sha256")
    found = [own] if isinstance(own, str) else []
    if recorded.get("rebasin.command") in MOVED:
        facts = {key: text for key, text in recorded.items() if isinstance(text, str)}
        found += _card.read_record(facts, str(given.get("file", "?"))).inputs[-1:]
    return found
