"""`rebasin card`: the model card of a merged model, for its page on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import open_checkpoint
from ..errors import UsageError
from ..registry.options import PLAIN, READS, WRITES, argument, option
from ..registry.results import Result
from ..reports import Report, card
from ..runtime import files
from ..session.asked import subjects_of
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Screen, Weights
from ..session.session import Session
from ..session.subjects import DataSet, Loading, Running, Samples
from .eval import measured as evaluated
from .verbs.report_files import check_files, stored_report, write_files

PANEL = "Look"
LARGEST = 1 << 20  # bytes of a recipe
MERGED = ("merge", "repair")
MOVED = ("align", "apply")  # the last of their inputs in another order, and nothing else


@dataclass(frozen=True, kw_only=True)
class Card(Loading, Running, DataSet, Samples, Screen):
    """Write the model card of a merged model, for its page on the Hugging Face hub.

    With --data the model is measured, and its results stand in the card's metadata.

    Example: rebasin card merged.safetensors --base-model org/a --base-model org/b --data cifar10
    """

    model: Path = argument("MODEL", "What rebasin merge wrote.", role=READS)
    out: Path = option(Path("README.md"), "The card.", also=("-o",), metavar="FILE", role=WRITES)
    base_model: tuple[str, ...] = option(
        (), "A parent, as the hub calls it (org/name); repeatable.", metavar="NAME", role=PLAIN
    )
    name: str | None = option(None, "The model's name; else its file's.", role=PLAIN)
    license: str | None = option(None, "As the hub calls it, such as apache-2.0.", metavar="ID", role=PLAIN)
    library: str | None = option(None, "What loads it, such as transformers.", metavar="NAME", role=PLAIN)
    barrier: Path | None = option(
        None, "The report.json of rebasin barrier on its parents.", metavar="FILE", role=READS
    )
    recipe: Path | None = option(None, "The recipe that made it, to be shown.", metavar="FILE", role=READS)
    force: bool = Weights.force
    json: bool = Answer.json


@dataclass(frozen=True)
class CardResult(Result):
    """The card that was `written`, the `model` that it is of, its `scores` (`eval`) where data is named."""

    written: list[str]
    model: str
    scores: list[dict[str, Any]]


def run(asked: Card, listener: Listener = SILENT) -> CardResult:
    """Write a README.md: how the model was made by its own record, and what it is worth where data is named.

    Raises UsageError for a model without such a record, and for a report that is not of its parents.
    """
    model, report, recipe = asked.model, asked.barrier, asked.recipe
    subjects = subjects_of(asked)
    session = Session("card", [model], listener, subjects)
    check_files([("card", asked.out)], session.reads.and_files([report, recipe]), force=asked.force)
    made = open_checkpoint(model, key=asked.key, unsafe_load=asked.unsafe_load)
    facts = made.provenance or {}
    if facts.get("rebasin.command") not in MERGED:
        raise UsageError(
            f"{model} does not record that it was merged", hint="A card is for what rebasin merge wrote"
        )
    record = card.read_record(facts, str(model))
    measured = (
        None if report is None else _of_parents(stored_report(report, "--barrier").report, record, report)
    )
    text = None if recipe is None else files.text(recipe, f"--recipe {recipe}", most=LARGEST)
    scores = [evaluated(model, "test", listener, subjects).values()] if asked.data else []
    name = asked.name or model.stem or str(model)
    about = card.About(name, asked.base_model, asked.license, asked.library)
    shown = card.render(record, about, scores=scores, report=measured, recipe=text)
    write_files([(asked.out, shown)], force=asked.force)
    return CardResult([str(asked.out)], str(model), scores)


def _of_parents(report: Report, record: card.Record, path: Path) -> Report:
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
    recorded, own = card.of_input(given), given.get("sha256")
    found = [own] if isinstance(own, str) else []
    if recorded.get("rebasin.command") in MOVED:
        facts = {key: text for key, text in recorded.items() if isinstance(text, str)}
        found += card.read_record(facts, str(given.get("file", "?"))).inputs[-1:]
    return found
