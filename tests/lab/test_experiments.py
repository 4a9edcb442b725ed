"""What every experiment promises, by being in the folder."""

import dataclasses
import inspect
import json
import math
import os
from pathlib import Path

import pytest

from rebasin_cli.commands import lab
from rebasin_cli.lab import registry
from rebasin_cli.lab.engine import page, parameters
from rebasin_cli.lab.engine.bench import Bench
from rebasin_cli.reports import pictures
from rebasin_cli.reports.document import Document
from rebasin_cli.runtime.threads import on_one_thread

from .conftest import TINY, bench

NAMES = registry.names(own=True)
LONG = {"many-models", "width", "failures", "curve-costs"}  # half a second or more


def test_every_experiment_has_a_tiny_form():
    assert sorted(TINY) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_declares_itself(name):
    module = registry.get(name)
    declared = parameters.declared(Path(inspect.getfile(module)).with_suffix(".yaml"))
    title, _, about = inspect.getdoc(module).partition("\n\n")
    assert title.endswith((".", "?")) and about and module.PAPER and module.FASTER
    assert declared.minutes["small"] <= 5 and declared.values("small") != declared.values("full")
    assert {p.name for p in declared.parameters} >= set(TINY[name])
    assert all(p.option.help.endswith(".") for p in declared.parameters)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sweep if name in LONG else ()) for name in NAMES]
)
def test_an_experiment_runs_and_gives_the_same_again(name):
    values = parameters.declared(Path(inspect.getfile(registry.get(name))).with_suffix(".yaml")).values(
        "small"
    )
    kept = []
    first = bench(name, **{k: v for k, v in values.items() if k not in TINY[name]})
    first.keep = lambda known: kept.append(json.dumps(known, allow_nan=False))
    outcome = registry.get(name).run(first)
    assert outcome.claims and outcome.tables and outcome.panels
    for claim in outcome.claims:
        assert claim.source and claim.says and claim.about
        assert (
            not claim.interval
            or claim.interval[0] <= claim.estimate <= claim.interval[1]
            or math.isnan(claim.estimate)
        )
    for table in outcome.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    told = Document(name, [], [page.figure(name, outcome.panels)])
    assert pictures.png(told).startswith(b"\x89PNG")
    _as_recorded(name, outcome)
    # From what it kept, all but nothing is made again: parts went through JSON, and say the same.
    again = Bench(dataclasses.replace(first).values, known=json.loads(kept[-1]))
    again.keep = lambda known: pytest.fail("a part was made again")
    assert _plain(registry.get(name).run(again)) == _plain(outcome)


def _plain(outcome):
    return json.dumps(outcome.plain())


PAGES = Path(__file__).parents[2] / "docs" / "lab"


def _made(name):
    return json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))


RECORD = Path(__file__).parents[1] / "golden" / "lab.json"


def _as_recorded(name, outcome):
    """A page, whatever its scale, is stale where its experiment gives other numbers in a moment than it did.

    REBASIN_GOLDEN=write writes these anew, once the page is.
    """
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    made, known = _made(name), record.get(name, {"page": "", "claims": []})
    if _same_claims(known["claims"], outcome.claims):
        return
    page_ = f"{made['date']}, {made['times']['seconds']} s"
    if os.environ.get("REBASIN_GOLDEN") != "write" or known["page"] == page_:
        pytest.fail(f"{_stale(made)}, then tests/golden/{RECORD.name} with REBASIN_GOLDEN=write")
    record[name] = {
        "page": page_,
        "claims": [[*_words(c), float(f"{c.estimate:.5g}")] for c in outcome.claims],
    }
    lines = [f'"{key}": {json.dumps(record[key], ensure_ascii=False)}' for key in sorted(record)]
    RECORD.write_text(
        "{\n" + ",\n".join(lines).replace(" [[", " [\n[").replace("], [", "],\n[") + "\n}\n", encoding="utf-8"
    )


def _words(claim):
    return claim.source, claim.says, claim.about


def _same_claims(known, claims, share=0.0):
    """Whether claims have these words, and numbers near for another torch, or by a share of intervals."""
    if [tuple(words) for *words, _ in known] != list(map(_words, claims)):
        return False
    for (*_, old), claim in zip(known, claims, strict=True):
        low, high = claim.interval or (0, 0)
        near = max(0.02 * abs(old), share * (high - low), 1e-5)
        if not (abs(old - claim.estimate) <= near or math.isnan(old) and math.isnan(claim.estimate)):
            return False
    return True


def _stale(made):
    by = f"by {made['versions']['rebasin']} of {made['date']}"
    return f"docs/lab/{made['name']}.md, {by}, is stale: make it anew"


QUICK = {"counterexample", "hardness", "statements"}  # half a second each at most
SHORT = ["overlap", "slerp", "split-data", "steepest-descent"]  # seconds; all others take up to minutes


@pytest.mark.parametrize(
    "name", [*sorted(QUICK), *(pytest.param(name, marks=pytest.mark.sweep) for name in SHORT)]
)
def test_a_page_is_not_stale(name):
    """What its page says comes out again: its claims, and their numbers near enough for another torch."""
    page_ = _made(name)
    with on_one_thread():
        outcome = registry.get(name).run(Bench(page_["parameters"], page_["seed"]))
    known = [(*(c[key] for key in ("source", "says", "about")), c["estimate"]) for c in page_["claims"]]
    assert _same_claims(known, outcome.claims, share=0.25), _stale(page_)


def test_every_experiment_has_its_page_in_the_documents():
    pages = Path(__file__).parents[2] / "docs" / "lab"
    index = (pages / "README.md").read_text(encoding="utf-8")
    for name in NAMES:
        made = json.loads((pages / f"{name}.json").read_text(encoding="utf-8"))
        values = parameters.declared(Path(inspect.getfile(registry.get(name))).with_suffix(".yaml")).values(
            "small"
        )
        assert made["parameters"] == values and made["scale"] == "small", (
            f"docs/lab/{name}.md is of another run"
        )
        assert (pages / f"{name}.md").exists() and (pages / f"{name}.png").exists()
        assert f"[{name}]({name}.md)" in index
    for path in pages.glob("*/*.json"):
        assert f"[{path.parent.name}/{path.stem}]({path.parent.name}/{path.stem}.md)" in index


def test_a_page_says_what_its_run_gave():
    """Every figure of it, at whatever scale; and the list of all says what the pages do."""
    for path in PAGES.rglob("*.json"):
        made = json.loads(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".md").read_text(encoding="utf-8") == page.page(made), path
    minutes = {name: lab._declared(name).minutes["full"] for name in registry.names()}
    index = page.index(list(map(_made, minutes)), lab.HEAD, minutes=minutes, others=lab._others(PAGES))
    assert (PAGES / "README.md").read_text(encoding="utf-8") == index
