"""A model card: Markdown with the metadata that the Hugging Face hub reads, for a model that was merged.

Nothing is claimed that was not measured: results are of the model itself; a barrier report is of the path.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from . import Report, markdown
from ._format import number
from ._markup import code, escape, fence, head, line

HUB = "https://huggingface.co/docs/hub/model-cards"
TAGS = ("merge", "rebasin")


@dataclass(frozen=True)
class About:
    """What only the user knows of a model: its name, what it was merged from, its licence and library."""

    name: str = ""
    base_models: Sequence[str] = ()
    license: str | None = None
    library: str | None = None


def render(
    record: Mapping[str, str],
    about: About,
    *,
    scores: Sequence[Mapping[str, Any]] = (),
    report: Report | None = None,
    recipe: str | None = None,
) -> str:
    """The card. `record` is the provenance that the model carries, `scores` are of `rebasin eval`."""
    parts = [f"# {escape(about.name)}", _story(record, about, report)]
    if scores:
        parts.append(f"## Results\n\n{_table(scores)}")
        if "soup" in json.loads(record.get("rebasin.options", "{}")):
            parts.append("Which models to average was chosen on test samples, so these figures flatter it.")
    if report is not None:
        path = "## The path between two of its parents"
        parts.append("\n\n".join([path, *markdown.sections(report)[:1]]))
    parts.append(f"## How it was made\n\n{_made(record)}")
    if recipe is not None:
        parts.append(f"### Recipe\n\n{fence(recipe, 'yaml')}")
    return "\n\n".join([_metadata(about, scores), *parts]) + "\n"


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
    metrics = [
        {"type": name, "name": words, "value": score[name]}
        for name, words in (("accuracy", "accuracy (0–1)"), ("loss", "cross-entropy (nats)"))
        if isinstance(score.get(name), float)
    ]
    data = {"type": score["data"], "name": score["data"], "split": score["split"]}
    task = {"type": "image-classification"} if score.get("images") else {"type": "other"}
    return {"task": task, "dataset": data, "metrics": metrics}


def parents(record: Mapping[str, str]) -> list[str]:
    """Digests of the models that were averaged: of a soup those that it kept, of a repair its endpoints."""
    kept = json.loads(record.get("rebasin.options", "{}")).get("kept")
    inputs = json.loads(record.get("rebasin.inputs", "[]"))
    return kept or (inputs[1:] if record.get("rebasin.command") == "repair" else inputs)


def _story(record: Mapping[str, str], about: About, report: Report | None) -> str:
    """What it is, in a sentence or two."""
    spec = record.get("rebasin.spec", "")
    made = f"made with rebasin {record.get('rebasin.version', '')}".strip()
    what = f"{_what(record)}, {_how(record, report)}"
    lines = [f"{what}{f' (architecture {code(spec)})' if spec else ''}, {made}."]
    if about.base_models:
        lines += ["", *(f"- {escape(model)}" for model in about.base_models)]
    return "\n".join(lines)


def _what(record: Mapping[str, str]) -> str:
    of = len(json.loads(record.get("rebasin.inputs", "[]")))
    if "kept" in json.loads(record.get("rebasin.options", "{}")):
        return f"A greedy soup that kept {len(parents(record))} of {of} models"
    return f"A merge of {len(parents(record))} models"


def _how(record: Mapping[str, str], report: Report | None) -> str:
    """What this file's own record says of alignment, and what the report knows of its parents'."""
    method = record.get("rebasin.method", "none")
    if record.get("rebasin.command") == "repair":
        return (
            "no repair of which did better" if method == "none" else f"repaired by {code(method)} afterwards"
        )
    if method == "given":
        return "after alignment by a permutation that was given"
    if method != "none":
        chosen = json.loads(record.get("rebasin.options", "{}")).get("chosen")
        return f"after alignment by {code(method)}" + (f", which chose {code(chosen)}" if chosen else "")
    before = [
        recorded.get("rebasin.method", "")
        for given in (report.inputs if report else ())
        if given["sha256"] in parents(record)
        and (recorded := given.get("recorded") or {}).get("rebasin.command") == "align"
    ]
    methods = " and ".join(code(method) for method in dict.fromkeys(before))
    return "as they were given" + (f", {len(before)} of them aligned by {methods} before" * bool(before))


def _table(scores: Sequence[Mapping[str, Any]]) -> str:
    rows = head(["data", "split", "samples", "loss (nats)", "accuracy", "ECE"])
    for score in scores:
        figures = [number(score[name]) for name in ("loss", "accuracy", "ece")]
        rows.append(line([escape(score["data"]), score["split"], f"{score['samples']:,}", *figures]))
    return "\n".join(rows)


def _made(record: Mapping[str, str]) -> str:
    """The model's own record, a row a fact; digests are of contents, equal for equal tensors."""
    rows = head(["fact", "value"])
    for key, value in sorted(record.items()):
        word = key.removeprefix("rebasin.").replace("_", " ")
        values = json.loads(value) if key == "rebasin.inputs" else [value]
        rows += [line([word, code(item)]) for item in values if item]
    return "\n".join(rows)
