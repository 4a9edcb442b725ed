"""A model card: Markdown with the metadata that the Hugging Face hub reads, for a model that was merged.

Its form is that of https://huggingface.co/docs/hub/model-cards. Nothing is claimed that was not
measured: results are of the model itself; a barrier report is of the path.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ..errors import CheckpointError
from ..types import ACCURACY, CROSS_ENTROPY, Quantity
from . import Report, barrier
from .document import Block, Code, Column, Command, Document, Fold, Inline, Kind, Notes, On, Row, Table
from .format import number
from .formats import markdown

TAGS = ("merge", "rebasin")


@dataclass(frozen=True)
class About:
    """What only the user knows of a model: its name, what it was merged from, its licence and library."""

    name: str = ""
    base_models: Sequence[str] = ()
    license: str | None = None
    library: str | None = None


@dataclass(frozen=True)
class Record:
    """What a model says of its making: `facts` as they stand in its file, and what some of them hold."""

    facts: Mapping[str, str]
    options: Mapping[str, Any]
    inputs: Sequence[str]
    kept: Sequence[str] | None = None  # of a soup

    def get(self, what: str, default: str = "") -> str:
        return self.facts.get(f"rebasin.{what}", default)

    @property
    def parents(self) -> list[str]:
        """Digests of the models that were averaged: of a soup those it kept, of a repair its endpoints."""
        return list(self.kept or (self.inputs[1:] if self.get("command") == "repair" else self.inputs))


def read_record(facts: Mapping[str, str], name: str) -> Record:
    """The record in a file's metadata. Raises CheckpointError where it is none that rebasin wrote."""
    options = _held(facts, "rebasin.options", "{}", name, lambda v: isinstance(v, dict), "an object")
    inputs = _held(facts, "rebasin.inputs", "[]", name, _are_texts, "a list of digests")
    kept = options.get("kept")
    if not (kept is None or _are_texts(kept)):
        raise _damaged(name, 'rebasin.options: "kept" should be a list of digests')
    return Record(facts, options, inputs, kept)


def _held(
    facts: Mapping[str, str], key: str, default: str, name: str, fits: Callable[[Any], bool], what: str
) -> Any:
    try:
        found = json.loads(facts.get(key, default))
    except (ValueError, RecursionError):
        raise _damaged(name, f"{key} should be JSON") from None
    if not fits(found):
        raise _damaged(name, f"{key} should be {what}")
    return found


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _damaged(name: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: what it records of its making is damaged",
        problems=[problem],
        hint="A card is for what rebasin merge or repair wrote: write it again",
    )


def render(
    record: Record,
    about: About,
    *,
    scores: Sequence[Mapping[str, Any]] = (),
    report: Report | None = None,
    recipe: str | None = None,
) -> str:
    """The card. `record` is the provenance that the model carries, `scores` are of `rebasin eval`.

    Nothing of what the files say is Markdown, HTML or YAML: it is shown as it stands there.
    """
    shown = Document(about.name, [_story(record, report)], _blocks(record, about, scores, report, recipe))
    return f"{_metadata(about, scores)}\n\n{markdown.text(shown, level=1)}"


def _blocks(
    record: Record,
    about: About,
    scores: Sequence[Mapping[str, Any]],
    report: Report | None,
    recipe: str | None,
) -> list[Block]:
    flattered = "Which models to average was chosen on test samples, so these figures flatter it."
    return [
        Notes("", about.base_models),
        _results(scores, flattered * ("soup" in record.options)),
        *(
            []
            if report is None
            else [Fold("The path between two of its parents", _path(report), open=True, on=On.ALL)]
        ),
        _made(record),
        Command("Recipe", recipe or "", language="yaml"),
    ]


def _metadata(about: About, scores: Sequence[Mapping[str, Any]]) -> str:
    told: dict[str, Any] = {"license": about.license} if about.license else {}
    told |= {"library_name": about.library} if about.library else {}
    if about.base_models:
        told |= {"base_model": list(about.base_models), "base_model_relation": "merge"}
    told["tags"] = list(TAGS)
    if scores:
        told["model-index"] = [{"name": about.name, "results": [_result(score) for score in scores]}]
    return f"---\n{yaml.safe_dump(told, sort_keys=False, allow_unicode=True)}---"


def _result(score: Mapping[str, Any]) -> dict[str, Any]:
    """One measurement in the hub's own form."""
    loss, *metrics_ = _quantities(score)
    named = [(m.key, f"{m.name} ({m.spread})" if m.spread else m.name) for m in metrics_]
    named.append(("loss", f"{loss.name} ({loss.unit})" if loss.unit else loss.name))
    metrics = [
        {"type": key, "name": words, "value": score[key]}
        for key, words in named
        if isinstance(score.get(key), float)
    ]
    data = {"type": score["data"], "name": score["data"], "split": score["split"]}
    task = {"type": "image-classification"} if score.get("images") else {"type": "other"}
    return {"task": task, "dataset": data, "metrics": metrics}


def _quantities(score: Mapping[str, Any]) -> tuple[Quantity, ...]:
    """What the figures of `rebasin eval` are of."""
    told = score.get("measured") or {"loss": vars(CROSS_ENTROPY), "metrics": [vars(ACCURACY)]}
    return tuple(Quantity(**one) for one in (told["loss"], *told["metrics"]))


def _story(record: Record, report: Report | None) -> Inline:
    """What it is, in a sentence or two."""
    spec, version = record.get("spec"), record.get("version")
    architecture = (" (architecture ", Code(spec), ")") if spec else ()
    made = f", made with rebasin {version}".rstrip()
    return (f"{_what(record)}, ", *_how(record, report), *architecture, f"{made}.")


def _what(record: Record) -> str:
    if "kept" in record.options:
        return f"A greedy soup that kept {len(record.parents)} of {len(record.inputs)} models"
    return f"A merge of {len(record.parents)} models"


def _how(record: Record, report: Report | None) -> tuple[str, ...]:
    """What this file's own record says of alignment, and what the report knows of its parents'."""
    method = record.get("method", "none")
    if record.get("command") == "repair":
        nothing = method == "none"
        return (
            ("no repair of which did better",) if nothing else ("repaired by ", Code(method), " afterwards")
        )
    if method == "given":
        return ("after alignment by a permutation that was given",)
    if method != "none":
        chosen = record.options.get("chosen")
        return ("after alignment by ", Code(method), *((", which chose ", Code(chosen)) if chosen else ()))
    before = [
        str(recorded.get("rebasin.method", ""))
        for given in (report.inputs if report else ())
        if given.get("sha256") in record.parents
        and (recorded := of_input(given)).get("rebasin.command") == "align"
    ]
    methods = [piece for method in dict.fromkeys(before) for piece in (" and ", Code(method))]
    told = (f", {len(before)} of them aligned by ", *methods[1:], " before") if before else ()
    return ("as they were given", *told)


def of_input(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a report tells of the record of one of its models."""
    found = given.get("recorded")
    return found if isinstance(found, Mapping) else {}


def _results(scores: Sequence[Mapping[str, Any]], note: str) -> Table:
    heads: dict[str, str] = {}  # of several measurements, by the keys of their figures
    for score in scores:
        loss, *metrics = _quantities(score)
        heads.setdefault("loss", f"loss ({loss.unit})" if loss.unit else "loss")
        heads |= {metric.key: metric.name for metric in metrics}
        heads |= {"ece": "ECE"} if loss == CROSS_ENTROPY else {}
    rows = [
        Row(
            [
                score["data"],
                score["split"],
                number(score["samples"]),
                *(number(score.get(key)) for key in heads),
            ]
        )
        for score in scores
    ]
    columns = [Column("data", Kind.TEXT), Column("split", Kind.TEXT)]
    return Table("Results", [*columns, *map(Column, ("samples", *heads.values()))], rows, note)


def _path(report: Report) -> list[Block]:
    told = barrier.measured(report)
    return [*(Notes("", [said]) for said in told.headline if said), *told.blocks]


def _made(record: Record) -> Table:
    """The model's own record, a row a fact; digests are of contents, equal for equal tensors."""
    rows = []
    for key, value in sorted(record.facts.items()):
        values = record.inputs if key == "rebasin.inputs" else [value]
        rows += [Row([key.removeprefix("rebasin.").replace("_", " "), Code(item)]) for item in values if item]
    return Table("How it was made", [Column("fact", Kind.TEXT), Column("value", Kind.TEXT)], rows)
