"""What every report format promises, and what each of them promises by itself.

REBASIN_WRITE_GOLDEN=1 pytest tests/test_reports.py writes the golden files anew; read the difference.
"""

import ast
import dataclasses
import functools
import html.parser
import json
import math
import os
import re
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from rich.cells import cell_len

from rebasin_cli.errors import UsageError
from rebasin_cli.reports import (
    Barrier,
    Curve,
    Difference,
    Gate,
    Heights,
    Middle,
    OverPairs,
    Reliability,
    Report,
    Row,
    accounts,
    barrier_of,
    path,
    pictures,
    registry,
)
from rebasin_cli.reports.format import duration, fixed, number
from rebasin_cli.reports.formats import json as json_format
from rebasin_cli.reports.formats import junit, markdown, png, terminal
from rebasin_cli.runtime.text import clean
from rebasin_cli.types import Quantity

GOLDEN = Path(__file__).parents[1] / "golden"
DOCS = Path(__file__).parents[2] / "docs"
TEXT = [name for name in registry.names() if name != "png"]
LAMBDAS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _curve(loss, accuracy, samples, lambdas=LAMBDAS):
    return Curve(lambdas, loss, {"accuracy": accuracy}, samples)


def _scores(loss, accuracy, **more):
    return {"loss": loss, "accuracy": accuracy} | more


def _sure(loss, accuracy):
    """An endpoint's calibration and intervals."""
    bins = {"samples": [10.0, 90.0], "confidence": [0.4, 0.97], "accuracy": [0.5, accuracy]}
    intervals = {"loss": [loss - 0.01, loss + 0.01], "accuracy": [accuracy - 0.005, accuracy + 0.005]}
    return {"ece": 0.0312, "reliability": bins, "intervals": intervals}


def _row(name, test, train, **flags):
    curves = {"train": train, "test": test}
    return Row(name, curves, {split: barrier_of(curve) for split, curve in curves.items()}, **flags)


def _certain(row, ece):
    """The row with calibration and intervals on test."""
    loss, accuracy = row.curves["test"].at(0.5).values()
    chord = loss - 0.3065
    intervals = {
        name: (value - 0.02, value + 0.02)
        for name, value in (("loss", loss), ("accuracy", accuracy), ("chord", chord))
    }
    bins = Reliability((4.0, 96.0, 9900.0), (0.2, 0.5, 0.96), (0.25, 0.5, accuracy))
    return dataclasses.replace(row, middle={"test": Middle(ece, bins, intervals)})


def _middle(name, test, train, **flags):
    """A row that was measured at λ = ½ alone."""
    at = [
        _curve((ends[0][0], loss, ends[1][0]), (ends[0][1], accuracy, ends[1][1]), samples, (0.0, 0.5, 1.0))
        for (loss, accuracy), ends, samples in ((test, ENDS["test"], 10000), (train, ENDS["train"], 5000))
    ]
    return _row(name, *at, **flags)


ENDS = {
    "test": ((0.301, 0.9312), (0.312, 0.9288)),
    "train": ((0.012, 0.9984), (0.015, 0.9979)),
}


def _difference(one, other, by):
    """Of two rows, with an interval of `by` to either side."""
    two = other.curves["test"].at(0.5)
    apart = {key: value - two[key] for key, value in one.curves["test"].at(0.5).items()}
    return Difference(
        one.name, other.name, "test", apart, {key: (a - by, a + by) for key, a in apart.items()}
    )


def example() -> Report:
    """A report as `rebasin barrier` makes it, with few points."""
    rows = (
        _row(
            "naive",
            _curve((0.301, 0.94, 2.2371, 2.3118, 0.312), (0.9312, 0.71, 0.3204, 0.3105, 0.9288), 10000),
            _curve((0.012, 0.6, 1.8473, 0.65, 0.015), (0.9984, 0.8, 0.4491, 0.79, 0.9979), 5000),
        ),
        _row(
            "aligned",
            _curve((0.301, 0.62, 1.0167, 0.64, 0.312), (0.9312, 0.86, 0.7502, 0.855, 0.9288), 10000),
            _curve((0.012, 0.31, 0.6881, 0.33, 0.015), (0.9984, 0.93, 0.8361, 0.925, 0.9979), 5000),
        ),
        _row(
            "aligned + reset",
            _curve((0.301, 0.3204, 0.3586, 0.3611, 0.312), (0.9312, 0.925, 0.9171, 0.9164, 0.9288), 10000),
            _curve((0.012, 0.0331, 0.0629, 0.0352, 0.015), (0.9984, 0.9921, 0.9864, 0.9917, 0.9979), 5000),
            shipped=True,
        ),
        _row(
            "naive + reset",
            _curve((0.301, 1.7066, 0.312), (0.9312, 0.4713, 0.9288), 10000, (0.0, 0.5, 1.0)),
            _curve((0.012, 1.3436, 0.015), (0.9984, 0.5841, 0.9979), 5000, (0.0, 0.5, 1.0)),
            control=True,
        ),
        _middle(
            "aligned + reset + temperature",
            (0.3401, 0.9171),
            (0.0644, 0.9864),
            details={"temperature": 1.2345},
        ),
        _middle("random permutation + reset", (1.7212, 0.4698), (1.3502, 0.5811), control=True),
        _middle("logit ensemble", (0.2711, 0.9391), (0.0121, 0.9986), control=True, details={"cost": 2}),
    )
    rows = tuple(_certain(row, 0.01 * place) for place, row in enumerate(rows, start=1))
    naive, aligned, shipped, control, ensemble = (rows[place] for place in (0, 1, 2, 3, 6))
    return Report(
        rebasin="0.2.0",
        command="rebasin barrier runs/a.safetensors runs/b.safetensors --data cifar10 --report report/",
        seed=17,
        inputs=(
            {
                "file": "runs/a.safetensors",
                "sha256": "a1" * 32,
                "recorded": {"rebasin.data": "cifar10", "rebasin.test_accuracy": "0.9312"},
            },
            {"file": "runs/b.safetensors", "sha256": "b2" * 32, "recorded": None},
        ),
        spec={
            "name": "resnet20",
            "sha256": "c3" * 32,
            "words": 12,
            "log10_symmetries": 2104.6,
            "moved_share": 0.968,
        },
        data={
            "name": "cifar10",
            "normalization": "0.491,0.482,0.447/0.247,0.243,0.262",
            "samples": {"train": 5000, "test": 10000},
            "full": False,
        },
        match={
            "method": "wm",
            "sweeps": 9,
            "objective_before": 812.34567,
            "objective_after": 2310.98765,
        },
        proof={
            "status": "proven",
            "largest_difference": 3.5527136788005009e-13,
            "reason": None,
            "network": "recorded in the checkpoints",
            "assumed": False,
        },
        endpoints=tuple(
            {
                "name": letter,
                "train": _scores(*ENDS["train"][place]),
                "test": _scores(*ENDS["test"][place], **_sure(*ENDS["test"][place])),
            }
            for place, letter in enumerate("AB")
        ),
        rows=rows,
        gates=(
            Gate("--max-barrier 0.1", 0.0521, 0.1, True, "aligned + reset, test: barrier is 0.0521 nats"),
            Gate("aligned:test:chord<=0.5", 0.7102, 0.5, False, "aligned, test: barrier is 0.7102 nats"),
        ),
        notes=("The control `naive + reset` shows how little the reset does by itself.",),
        times={"match": 3.4567, "total": 212.3},
        differences=(
            _difference(aligned, naive, 0.02),
            _difference(shipped, naive, 0.02),
            _difference(control, naive, 0.02),
            _difference(aligned, shipped, 0.01),
            _difference(control, shipped, 0.02),
            _difference(ensemble, shipped, 0.01),
        ),
        pairs=tuple(
            {
                "inputs": [{"file": f"runs/{one}.safetensors"}, {"file": f"runs/{other}.safetensors"}],
                "rows": {},
            }
            for one, other in ("ab", "cd", "ef")
        ),
        over_pairs=(
            OverPairs(
                "aligned + reset",
                "test",
                3,
                {"loss": 0.3621, "accuracy": 0.9166, "chord": 0.0533},
                {"loss": (0.3521, 0.3721), "accuracy": (0.9116, 0.9216), "chord": (0.0433, 0.0633)},
            ),
        ),
        signature=(
            {
                "word": "h0",
                "units": 64,
                "dead": 3,
                "before": {"mean": 0.0123, "std": 0.21},
                "after": {"mean": 0.8123, "std": 0.11},
            },
            {
                "word": "h1",
                "units": 32,
                "dead": 0,
                "before": {"mean": -0.0523, "std": 0.18},
                "after": {"mean": 0.5567, "std": 0.31},
            },
        ),
    )


NASTY = "a|b`c``<script>alert(1)</script>$x$ \x1b[31m\n\u202e*_[l](http://e)@x\udcff&amp;]]>\ufffe\x00.pt"


def nasty() -> Report:
    """Text that every format has to disarm, wherever text may come from outside."""
    report = example()
    return dataclasses.replace(
        report,
        command=f"rebasin barrier {NASTY}",
        inputs=tuple({"file": NASTY, "sha256": NASTY, "recorded": {NASTY: NASTY}} for _ in "ab"),
        spec={"name": NASTY, NASTY: NASTY},
        data={"name": NASTY, "normalization": NASTY, "samples": {NASTY: 3}},
        match={"method": NASTY, "sweeps": NASTY},
        proof={"status": NASTY, "reason": NASTY},
        rows=(*report.rows, dataclasses.replace(report.rows[0], name=NASTY, details={"cost": NASTY})),
        pairs=({"inputs": [{"file": NASTY}], "rows": {}},),
        over_pairs=(dataclasses.replace(report.over_pairs[0], row=NASTY),),
        signature=(*report.signature, {"word": NASTY}),
        gates=(Gate(NASTY, math.nan, 0.1, False, NASTY),),
        notes=(NASTY,),
    )


def bare() -> Report:
    """The least a report may hold, with figures that are no numbers."""
    broken = Row(
        "naive",
        {"test": Curve((0.0, 0.4, 1.0), (math.nan, math.inf, 1e300), {"accuracy": (0.1, math.nan, 0.1)}, 3)},
        {"test": Barrier(math.nan, math.inf, {"accuracy": Heights(-math.inf, math.nan)})},
    )
    nothing = Row("none", {}, {})
    return Report("0", "", 0, (), {}, {}, {}, {}, (), (broken, nothing))


@functools.cache
def rendered(name, make):
    return registry.get(name).render(make())


@pytest.mark.parametrize("name", registry.names())
@pytest.mark.parametrize("make", [example, nasty, bare])
def test_every_format_renders_the_same_report_to_the_same_content(name, make):
    first = rendered(name, make)
    if make is example:
        assert registry.get(name).render(make()) == first
    assert len(first) > 50
    assert isinstance(first, bytes) or first.encode("utf-8").endswith(b"\n")  # no half surrogate is left


@pytest.mark.parametrize("name", TEXT)
def test_every_text_format_holds_the_key_figures(name):
    report, text = example(), rendered(name, example)
    markup = {"html": r"<[^>]*>", "markdown": r"\*\*|\\"}.get(name)
    plain = re.sub(markup, "", text) if markup else text
    barrier = report.shipped.barriers["test"]
    # JSON holds full precision, the others what is good to read.
    show = repr if name == "json" else fixed
    naive = report.row("naive").barriers["train"].chord
    for figure in (barrier.chord, barrier.midpoint, naive, 0.9171, 0.0629):
        assert show(figure) in plain
    for text in ("runs/a.safetensors", "runs/b.safetensors", "aligned + reset", "naive + reset", "0.2.0"):
        assert text in plain


def test_file_names_of_the_formats_are_different():
    names = [registry.get(name).FILENAME for name in registry.names()]
    names = [name for name in names if name]
    assert len(set(names)) == len(names) >= 5


def test_every_format_says_in_one_line_what_it_is():
    assert all(registry.summary(name) for name in registry.names())


GOLDEN_FILES = {
    "terminal": "report.txt",
    "markdown": "report.md",
    "json": "report.json",
    "junit": "report.junit.xml",
}


@pytest.mark.parametrize("name", GOLDEN_FILES)
def test_the_example_looks_as_it_did(name):
    path, text = GOLDEN / GOLDEN_FILES[name], registry.get(name).render(example())
    if os.environ.get("REBASIN_WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_a_proof_on_an_assumed_network_says_so(name):
    network = {"network": "rebasin's own MLP, assumed from the tensors' names", "assumed": True}
    report = dataclasses.replace(example(), proof=example().proof | network)
    text = " ".join(html.unescape(registry.get(name).render(report)).split())
    assert "proven on rebasin's own MLP, assumed from the tensors' names (give yours with --net)" in text
    assert "give yours" not in registry.get(name).render(example())


def test_rich_and_matplotlib_are_imported_only_where_they_are_needed():
    folder = registry.path
    for file in folder.glob("*.py"):
        top = [node for node in ast.parse(file.read_text(encoding="utf-8")).body]
        modules = {n.module or "" for n in top if isinstance(n, ast.ImportFrom)}
        modules |= {alias.name for n in top if isinstance(n, ast.Import) for alias in n.names}
        assert not any(module.startswith("matplotlib") for module in modules), file
        assert file.name == "terminal.py" or not any(module.startswith("rich") for module in modules), file


def test_importing_the_formats_is_light():
    """In a process, for in this one everything is imported."""
    names = ", ".join(
        f"rebasin_cli.reports.formats.{name}" for name in registry.names() if name != "terminal"
    )
    names += ", rebasin_cli.commands.recipes.documents"  # where torch is broken, a run has to say so
    code = f"import sys, {names}; print(*{{'matplotlib', 'rich', 'torch', 'jinja2'}} & {{*sys.modules}})"
    root = Path(__file__).parents[2]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


# terminal


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("make", [example, nasty])
def test_terminal_keeps_to_its_width_and_cuts_no_figure(width, make):
    text = terminal.render(make(), width=width)
    assert max(map(cell_len, text.splitlines())) <= min(width, terminal.WIDEST)
    assert fixed(example().shipped.barriers["test"].chord) in text
    assert fixed(0.9171) in text


def test_terminal_without_colour_has_no_escapes_whatever_the_file_is_called():
    assert "\x1b" not in terminal.render(nasty())
    assert "\x1b[" in terminal.render(example(), color=True)
    assert "\x1b[31m*" not in terminal.render(nasty(), color=True)


def test_terminal_does_not_ask_the_environment(monkeypatch):
    before = terminal.render(example())
    for name, value in {"COLUMNS": "40", "LINES": "9", "FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    assert terminal.render(example()) == before


def test_terminal_marks_the_shipped_row_and_every_gate_without_colour():
    lines = terminal.render(example()).splitlines()
    assert [line.split("  ")[0] for line in lines if line.startswith(" ▸")] == [" ▸ aligned + reset"] * 3
    assert any(line.startswith(" ✓ met") and "--max-barrier" in line for line in lines)
    assert any(line.startswith(" ✗ NOT MET") and "aligned:test" in line for line in lines)


def test_terminal_shows_test_before_train_and_the_end_of_long_paths():
    inputs = tuple({"file": "deep/" * 30 + name} for name in ("one.pt", "two.pt"))
    lines = terminal.render(dataclasses.replace(example(), inputs=inputs)).splitlines()
    rows = [line for line in lines if line.startswith(("   A  …", "   B  …"))]
    assert [re.search(r"(\w+)\.pt", row)[1] for row in rows] == ["one", "two"] * 2
    headings = [line.split()[0] for line in lines if "loss    accuracy" in line]
    assert headings == ["test", "train"]


# JSON


def test_json_gives_the_report_back():
    assert json_format.load(json_format.render(example())) == example()
    again = json_format.render(json_format.load(json_format.render(nasty())))
    assert again == json_format.render(nasty())


def test_json_is_strict_and_writes_infinities_as_text():
    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads(json_format.render(bare()), parse_constant=refuse)
    assert content["rows"][0]["barriers"]["test"] == {
        "midpoint": "nan",
        "chord": "inf",
        "accuracy_midpoint": "-inf",
        "accuracy_chord": "nan",
    }
    assert list(content)[0] == "schema"
    loaded = json_format.load(json_format.render(bare())).rows[0]
    assert loaded.barriers["test"].chord == math.inf
    assert math.isnan(loaded.curves["test"].loss[0])


def test_json_keeps_a_curve_on_one_line_and_text_as_it_is():
    report = dataclasses.replace(bare(), notes=("[ 1,\n 2 ]", '["inf"]'))
    text = json_format.render(report)
    assert '"loss": ["nan", "inf", 1e+300],' in text
    assert json.loads(text)["notes"] == ["[ 1,\n 2 ]", '["inf"]']


def test_json_shows_values_it_does_not_know_as_text():
    report = dataclasses.replace(example(), match={"file": Path("x.perm"), "odd": {1: {2.5}}})
    assert json.loads(json_format.render(report))["match"] == {"file": "x.perm", "odd": {"1": "{2.5}"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a JSON report"),
        ('{"schema": "rebasin.report/2"', "not a JSON report"),
        ("[" * 100_000, "not a JSON report"),
        ('{"schema": "rebasin.report/2", "rows": [], "rows": [1]}', "'rows' appears twice"),
        ("[1]", "not a rebasin report"),
        ('{"schema": 3}', "not a rebasin report"),
        ('{"schema": "rebasin.report/3"}', "'rebasin.report/3'"),
    ],
)
def test_json_refuses_what_is_not_a_report_of_this_schema(text, said):
    with pytest.raises(UsageError, match=said) as caught:
        json_format.load(text)
    assert "--report" in caught.value.hint


def test_json_names_everything_that_is_wrong_in_a_damaged_report():
    content = json.loads(json_format.render(example()))
    content["rows"][1]["barriers"]["test"]["chord"] = "low"
    content["rows"][2]["curves"]["train"]["loss"].pop()
    content["seed"] = 1.5
    content["notes"] = "none"
    content["rows"][0]["shipped"] = 1
    content["later"] = "an addition is no damage"
    del content["command"], content["gates"]  # gates have a default
    with pytest.raises(UsageError) as caught:
        json_format.load(json.dumps(content))
    assert sorted(caught.value.problems) == [
        "command: missing",
        'notes: expected a list, found "none"',
        "rows[0].shipped: expected true or false, found 1",
        'rows[1].barriers.test.chord: expected a number, found "low"',
        "rows[2].curves.train: lambdas, loss and accuracy differ in length",
        "seed: expected a whole number, found 1.5",
    ]


def test_json_accepts_additions_and_a_byte_order_mark():
    content = json.loads(json_format.render(example()))
    content["later"] = {"x": 1}
    assert json_format.load("\ufeff" + json.dumps(content)) == example()


def test_a_report_of_version_1_is_read_with_its_times_in_their_new_place():
    content = json.loads(json_format.render(example()))
    times = content.pop("times")
    content |= {"schema": "rebasin.report/1", "seconds": times["total"]}
    content["match"]["seconds"] = times["match"]
    assert json_format.load(json.dumps(content)) == example()


@pytest.mark.parametrize("name", ["json", "markdown", "html", "terminal"])
def test_times_are_one_line_and_nothing_else_knows_of_them(name):
    """The JSON's is the last field; in the others it is the last line with a figure."""
    one, two = (
        registry.get(name).render(dataclasses.replace(example(), times=times)).splitlines()
        for times in ({"match": 3.4567, "total": 212.3}, {"match": 7.7, "total": 65_432.1})
    )
    assert len(one) == len(two)
    differ = [(a, b) for a, b in zip(one, two, strict=True) if a != b]
    assert len(differ) == 1 and ("times" in differ[0][0] or "took" in differ[0][0])


# JUnit


def test_junit_has_a_case_for_every_gate_and_fails_the_missed():
    suite = ET.fromstring(junit.render(example())).find("testsuite")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["--max-barrier 0.1", "aligned:test:chord<=0.5"]
    assert [case.find("failure") is not None for case in cases] == [False, True]
    assert cases[1].find("failure").get("message") == "aligned, test: barrier is 0.7102 nats"
    assert {case.get("classname") for case in cases} == {"rebasin.barrier"}
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_junit_without_gates_says_that_it_was_measured():
    suite = ET.fromstring(junit.render(dataclasses.replace(example(), gates=()))).find("testsuite")
    assert [case.get("name") for case in suite.findall("testcase")] == ["measured"]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")
    values = {item.get("name"): item.get("value") for item in suite.iter("property")}
    assert values["aligned + reset:test:barrier_chord"] == fixed(example().shipped.barriers["test"].chord)
    assert values["shipped"] == "aligned + reset"


def test_junit_is_valid_xml_whatever_the_file_is_called():
    ET.fromstring(junit.render(nasty()).encode("utf-8"))


# Markdown


def test_markdown_tables_keep_their_shape_whatever_the_file_is_called():
    lines = [line for line in markdown.render(nasty()).splitlines() if line.startswith("|")]
    sizes = [
        2 + 2 + 8,
        2 + 2 + 8,
        2 + 2 + 8,
        2 + 1,
        2 + 3,
        2 + 1,
    ]  # splits, intervals, pairs, signature, gates
    assert len(lines) == sum(sizes)
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    assert bars == [n for n, size in zip((6, 6, 6, 5, 6, 6), sizes, strict=True) for _ in range(size)]


def test_markdown_from_outside_is_text_and_code_stays_in_its_fence():
    text = markdown.render(nasty())
    code = r"(`{3,})sh\n.*?\n\1|(?<!`)(`+)(?!`).*?(?<!`)\2(?!`)"
    outside = re.sub(code, "", re.sub(r"\\.", "", text), flags=re.DOTALL)
    assert "script" in outside
    for markup in ("<script", "[l", "@x", "://", "*_"):
        assert markup not in outside
    assert "```sh\nrebasin barrier" in text
    assert markdown.code("a`b``c") == "```a`b``c```"
    assert markdown.code("`a") == "`` `a ``"
    assert markdown.fence("a ``` b").startswith("````sh\n")


# HTML


class _Page(html.parser.HTMLParser):
    VOID = {"meta", "img", "br", "wbr"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def pages():
    return {make.__name__: _Page(rendered("html", make)) for make in (example, nasty, bare)}


def test_html_is_well_formed_and_runs_nothing(pages):
    for page in pages.values():
        assert page.open == []
        assert not {"script", "link", "iframe", "a"} & {*page.tags}
        for tag, attributes in page.attributes:
            assert not any(name.startswith("on") for name in attributes)
            assert tag == "img" or not {"src", "href"} & {*attributes}
    assert "<script>alert(1)</script>" in "".join(pages["nasty"].text)  # shown, as text


def test_html_is_readable_by_those_who_cannot_see_it(pages):
    attributes = pages["example"].attributes
    assert all(dict_["scope"] in ("row", "col") for tag, dict_ in attributes if tag == "th")
    labels = [dict_["aria-label"] for tag, dict_ in attributes if dict_.get("role") == "img"]
    titles = [label.partition(":")[0] for label in labels]
    assert titles == [
        "Loss, nats per sample",
        "Accuracy, 0–1",
        "Accuracy over confidence, test",
        "Correlation of matched units, mean ± std",
    ]
    assert fixed(example().shipped.barriers["test"].chord) in labels[0]
    assert all(
        name in labels[2] for name in ("A (ECE", "B (ECE", "aligned + reset (ECE", "logit ensemble (ECE")
    )
    tables = 2 + 1 + 2 + 1 + 1 + 7  # splits, gates, intervals and differences, pairs, signature, every row
    assert pages["example"].tags.count("caption") == pages["example"].tags.count("table") == tables


def test_html_shows_everything_that_the_report_holds(pages):
    report, text = example(), "".join(pages["example"].text)
    for digest in ("a1" * 32, "b2" * 32, "c3" * 32):
        assert digest in text
    for value in (
        report.command,
        "seed 17",
        "resnet20",
        "cifar10",
        report.data["normalization"],
        "3.553e-13",
        repr(report.proof["largest_difference"]),
        "rebasin.test_accuracy",
        "9 sweeps",
        report.gates[1].detail,
        "how little the reset does by itself",
        "0.3105",  # a point of a curve that is in no table of barriers
        report.schema,
    ):
        assert value in text, value


def test_html_draws_every_row_on_light_and_dark_pages():
    text = rendered("html", example)
    style, _, body = text.partition("</style>")
    for row in example().rows:
        light, dark = path.color(row.name)[0]
        name = f"c{light[1:].lower()}"
        assert f"--{name}: {light};" in style and f"--{name}: {dark};" in style
        assert f"stroke: var(--{name})" in body or f"fill: var(--{name})" in body  # drawn
        assert f'style="--row: var(--{name})"' in body  # and told in the legend
    of_light = re.findall("(?:stroke|fill|color): ?#[0-9a-f]{3}", body, re.IGNORECASE)
    assert not of_light  # every colour has a value for dark pages
    ids = re.findall(' id="([^"]+)"', body)
    assert len(ids) == len(set(ids))


# PNG


def _chunks(content):
    place = 8
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        yield content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        place += 12 + length


def _pixels(content, color):
    import io

    import numpy as np
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        pixels = np.asarray(image.convert("RGB").crop((0, 0, 800, 784)), dtype=np.int16)
    wanted = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels - wanted).max(axis=2) < 8).sum())


def test_png_is_a_picture_without_time_or_software():
    content = rendered("png", example)
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert {kind for kind, _ in _chunks(content)} <= {b"IHDR", b"pHYs", b"IDAT", b"IEND"}


def test_png_draws_every_row_and_the_shipped_one_heavier():
    report = example()
    other = [dataclasses.replace(row, shipped=row.name == "aligned") for row in report.rows]
    content, swapped = rendered("png", example), png.render(dataclasses.replace(report, rows=tuple(other)))
    colors = {row.name: path.color(row.name)[0][0] for row in report.rows}
    assert all(_pixels(content, color) > 15 for color in colors.values())
    assert _pixels(content, colors["aligned + reset"]) > 2 * _pixels(swapped, colors["aligned + reset"])
    assert _pixels(swapped, colors["aligned"]) > 2 * _pixels(content, colors["aligned"])


def test_png_is_drawn_outside_the_global_figures_of_matplotlib():
    assert rendered("png", example)
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_a_picture_has_whole_sentences_of_the_verdict():
    text = "Aligned loses 0.1 nats. " + "The better endpoint " * 5 + "is better. " + "Much more of it " * 20
    assert pictures.sentences(text, 70, lines=2) == [
        "Aligned loses 0.1 nats. The better endpoint The better endpoint The",
        "better endpoint The better endpoint The better endpoint is better.",
    ]
    (_, second) = pictures.sentences("word " * 100, 70, lines=2)
    assert second.endswith("word …")


def test_a_loss_far_out_gets_a_logarithmic_axis():
    report = example()
    far = dataclasses.replace(report.rows[0].curves["test"], loss=(0.3, 9.0, 4000.0, 9.0, 0.3))
    rows = (dataclasses.replace(report.rows[0], curves={"test": far}), *report.rows[1:])
    far = dataclasses.replace(report, rows=rows)
    assert path.logarithmic(far) and not path.logarithmic(report)
    drawn = pictures.svg(path.path(far).panels[0], "Loss")
    assert ">1000<" in drawn and ">1000<" not in pictures.svg(path.path(report).panels[0], "Loss")
    assert png.render(far)


def test_user_settings_of_matplotlib_do_not_change_the_picture():
    import matplotlib

    before = rendered("png", example)
    theirs = {"font.size": 20, "lines.linewidth": 9, "axes.grid": True, "savefig.bbox": "tight"}
    with matplotlib.rc_context(theirs):
        assert png.render(example()) == before


# numbers, words, the documents


def test_numbers_are_rounded_alike_everywhere():
    values = [0, 3, 1234567, 0.00123456, 12.3456, 123456.7, 1.23456e-12, -0.0, 2.5e12, math.nan, -math.inf]
    shown = "0|3|1,234,567|0.001235|12.35|123,457|1.235e-12|0|2,500,000,000,000|nan|-inf"
    assert "|".join(map(number, values)) == shown
    assert [fixed(value) for value in (-0.00001, 2.30258, 1e7, math.inf, None)] == [
        "0.0000",
        "2.3026",
        "1.000e+07",
        "inf",
        "—",
    ]
    times = [duration(value) for value in (0.04, 12.3, 75.2, 99.6, 212.3, 3723)]
    assert times == ["0.0 s", "12 s", "75 s", "1 min 40 s", "3 min 32 s", "1 h 02 min"]


def test_clean_text_is_one_line_that_commands_nothing():
    assert clean("a\nb\tc\x1b[0m\u202ed\udcffe\ufffe") == "a b c�[0m�d�e�"
    assert clean("naïve λ ½ 模型") == "naïve λ ½ 模型"


def test_a_curve_knows_its_points():
    curve = example().rows[0].curves["test"]
    assert curve.at(0.5) == curve.at(0.5 + 1e-12) == {"loss": 2.2371, "accuracy": 0.3204}
    assert curve.at(0.51) is None


def test_the_documented_example_is_a_report_in_its_canonical_form():
    page = (DOCS / "report-json.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert json_format.render(json_format.load(text)) == text


def test_every_field_of_the_schema_is_documented():
    text = (DOCS / "report-json.md").read_text(encoding="utf-8")
    for kind in (Report, Row, Curve, Barrier, Gate, Middle, Reliability, Difference, OverPairs, Quantity):
        for field in dataclasses.fields(kind):
            if field.name == "figures":  # they stand under their own names
                continue
            assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name}"


def test_every_format_and_gate_definition_is_documented():
    from rebasin_cli.measure.thresholds import PLAIN

    text = (DOCS / "report.md").read_text(encoding="utf-8")
    own = [name for name in registry.names() if (registry.path / f"{name}.py").is_file()]
    words = [figure.name for figure in PLAIN.figures.values()]
    assert all(f"`{name}`" in text for name in (*own, *PLAIN.figures, *words))


def learnt(losses):
    rows = [
        {"step": 5.0 * k, "loss": 1.0, "held_out_loss": loss, "held_out_accuracy": 0.5}
        for k, loss in enumerate(losses)
    ]
    return dataclasses.replace(example(), match=example().match | {"history": rows})


@pytest.mark.parametrize("name", ["terminal", "markdown", "html"])
def test_what_was_learnt_is_one_line(name):
    told = "held-out loss 2.0000 → 0.2500 (best, step 10) → 0.3000 (step 15)"
    text = registry.get(name).render(learnt([2.0, 1.0, 0.25, 0.3]))
    assert told in text.replace("\\", "") and told not in registry.get(name).render(example())
    if name == "terminal":
        assert any(told in line for line in text.splitlines())


def test_the_best_of_what_was_learnt_is_that_at_the_best_temperature():
    report = learnt([2.0, 1.0, 0.25, 0.3])
    for row, loss in zip(report.match["history"], [1.5, 0.1, 0.2, 0.3], strict=True):
        row["held_out_calibrated"] = loss
    told = "held-out loss 2.0000 → 1.0000 (best, step 5) → 0.3000 (step 15)"
    assert told in registry.get("markdown").render(report)


@pytest.mark.parametrize(("count", "best"), [(1, 0), (2, 0), (7, 3), (300, 17), (300, 299)])
def test_markdown_has_few_rows_of_what_was_learnt(count, best):
    text = registry.get("markdown").render(learnt([2.0 - (k == best) for k in range(count)]))
    table = text.partition("| **held-out samples at the midpoint, by step** | loss | accuracy |\n")[2]
    rows = table.partition("\n\n")[0].splitlines()[1:]
    assert min(count, 9) <= len(rows) <= 10 and f"| {5 * best}, the best | 1.0000 | 0.5000 |" in rows
    assert rows[0].startswith("| 0") and rows[-1].startswith(f"| {5 * (count - 1)}")
    steps = [int(re.match(r"\| (\d+)", row)[1]) for row in rows]
    assert steps == sorted(set(steps))


def test_png_draws_what_was_learnt():
    size = struct.Struct(">II")
    plain, longer = (
        size.unpack(content[16:24]) for content in (rendered("png", example), png.render(learnt([2.0, 1.0])))
    )
    assert longer[0] > plain[0]
    assert png.render(learnt([2.0, 1.0])) != png.render(learnt([2.0, 1.5]))


def test_the_legend_of_the_reliability_diagram_covers_nothing(monkeypatch):
    kept, legend = [], pictures._legend
    monkeypatch.setattr(pictures, "_legend", lambda figure, *how: kept.append(figure) or legend(figure, *how))
    png.render(example())
    figure = kept[0]
    assert [len(each.get_texts()) for each in figure.legends] == [7 + 2 + 1, 4]  # rows, splits, chord; models
    lowest = min(panel.get_window_extent().y0 for panel in figure.axes)
    for each in figure.legends:
        box = each.get_window_extent()
        assert 0 <= box.y0 and box.y1 < lowest and 0 <= box.x0 and box.x1 <= figure.bbox.x1


def test_what_auto_tried_is_told_a_method_after_the_other_and_the_same_reason_once():
    rows = [
        {"method": "wm", "repair": "none", "held_out_loss": 0.25},
        {"method": "wm", "repair": "repair", "held_out_loss": 0.125},
        {"method": "wm", "repair": "refit", "why": "too long"},
        {"method": "wm", "repair": "distill", "why": "too long"},
        {"method": "am", "repair": "none"},  # nothing finite
        {"method": "dual", "why": "too long"},
        {"method": "ste", "why": "too long"},
    ]
    told = accounts.tried_in_words({"tried": rows})
    assert told == (
        "held-out loss at the mean wm 0.2500, repair 0.1250, refit, distill too long; am inf; "
        "dual, ste too long"
    )
    rows[0]["distance"] = 0.0625
    told = accounts.tried_in_words({"tried": rows})
    assert told.startswith("held-out loss at the mean wm 0.2500 (0.0625 apart), repair 0.1250, refit")
    assert told.endswith("the distance to the endpoints' mean answer (apart) together")
    assert accounts.tried_in_words({}) == ""
    assert accounts.tried_in_words({"tried": rows[-1:]}) == "ste too long"
