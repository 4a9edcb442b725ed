"""A loss and metrics of the user's own: by their own names and units in everything that is told of them."""

import json
import re

import pytest

MINE = '''
import torch
from torch.nn import functional as F


def regret(outputs, targets):
    """Per sample, in cents."""
    return 100 * (1 - outputs.softmax(1).gather(1, targets[:, None]).squeeze(1))


regret.unit = "cents"


def cross(outputs, targets):
    return F.cross_entropy(outputs.double(), targets, reduction="none")


class Worst:
    """The worst class's share of right answers: over the whole set alone."""

    name, range = "worst class", (0, 1)

    def __init__(self):
        self.reset()

    def reset(self):
        self.right, self.all = torch.zeros(10), torch.zeros(10)

    def update(self, outputs, targets):
        for k in range(10):
            self.all[k] += (targets == k).sum()
            self.right[k] += ((outputs.argmax(1) == k) & (targets == k)).sum()

    def compute(self):
        return (self.right / self.all.clamp(min=1)).min()


def misses(outputs, targets):
    return (outputs.argmax(1) != targets).double()


misses.larger_is_better, misses.range = False, (0, 1)
'''
FOREIGN = re.compile(r"\bnats\b|\baccura|\bece\b|calibration", re.IGNORECASE)


@pytest.fixture
def own(tmp_path):
    """The options of a loss and two metrics, on few points."""
    (tmp_path / "mine.py").write_text(MINE)
    metrics = ("--metric", "mine.py:Worst", "--metric", "mine.py:misses")
    return ("--data", "digits", "--limit", 200, "--loss", "mine.py:regret", *metrics)


def foreign(text):
    """Lines that speak of nats, accuracy or calibration; what files record of their training is theirs."""
    lines = (line for line in text.splitlines() if "_accuracy" not in line)
    return [line for line in lines if FOREIGN.search(line)]


def test_no_format_of_a_report_speaks_of_nats_accuracy_or_ece(trained, done, own, tmp_path):
    gates = (
        "--gate",
        "worst_class drop <= 1",
        "--gate",
        "test misses rise <= 100%",
        "--gate",
        "barrier <= 90 cents",
    )
    files = ("--report", "report", "--step-summary", "summary.md")
    told = done("barrier", *trained, *own, *gates, *files, "--points", 5, "--method", "wm")
    texts = {
        path.name: path.read_text(errors="replace")
        for path in (tmp_path / "report").iterdir()
        if path.suffix != ".png"
    }
    texts |= {"summary.md": (tmp_path / "summary.md").read_text(), "stdout": told.out, "stderr": told.err}
    assert {name: found for name, text in texts.items() if (found := foreign(text))} == {}
    report = json.loads(texts["report.json"])
    row = report["rows"][0]
    assert report["loss"]["unit"] == "cents" and [m["name"] for m in report["metrics"]] == [
        "worst class",
        "misses",
    ]
    assert len(row["curves"]["test"]["worst_class"]) == 5 and "misses_chord" in row["barriers"]["test"]
    assert row["middle"]["test"]["intervals"].keys() == {"loss", "misses", "chord"}
    assert "cents" in texts["report.html"] and "worst class" in texts["report.md"]


@pytest.mark.parametrize(
    "words",
    [
        ("eval", "{a}"),
        ("compare", "{a}", "{b}", "--points", 1, "--method", "wm"),
        ("plane", "{a}", "{b}", "--points", 3, "--method", "wm"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",), ("--html", "page.html")])
def test_no_other_command_does_either(trained, done, own, tmp_path, words, form):
    if words[0] == "eval" and "--html" in form:
        pytest.skip("eval writes no page")
    filled = [str(word).format(a=trained[0], b=trained[1]) for word in words]
    told = done(*filled, *own, *form)
    page = (tmp_path / "page.html").read_text() if "--html" in form else ""
    assert foreign(told.out + told.err + page) == []
    assert "misses" in told.out + page


def test_smaller_is_better_gates_the_right_way(trained, done, run, refused, own):
    done("eval", trained[0], *own, "--gate", "misses <= 90%")
    assert run("eval", trained[0], *own, "--gate", "misses <= 0.01%").code == 1
    refused(2, "eval", trained[0], *own, "--gate", "misses >= 0.5", says="better when smaller")
    refused(
        2, "eval", trained[0], *own, "--gate", "accuracy >= 0.5", says="figures: loss, worst_class, misses"
    )


def test_a_cross_entropy_of_ones_own_has_the_intervals_of_the_default(trained, done, own):
    few = ("barrier", *trained, "--data", "digits", "--limit", 100, "--points", 3, "--method", "wm", "--json")
    one, other = (done(*few, *more).json() for more in ((), ("--loss", "mine.py:cross")))
    for a, b in zip(one["rows"][:2], other["rows"][:2], strict=True):
        assert a["curves"]["test"] == b["curves"]["test"]
        assert a["middle"]["test"]["intervals"] == b["middle"]["test"]["intervals"]
    assert other["loss"] == {"name": "cross", "unit": "", "larger_is_better": False, "range": ["-inf", "inf"]}


def test_a_baseline_of_another_loss_metric_or_unit_is_refused(trained, done, refused, own, tmp_path):
    few = ("barrier", *trained, *own, "--points", 3, "--method", "wm")
    done(*few, "--json-file", "base.json")
    done(*few, "--baseline", "base.json")
    other = MINE.replace('"cents"', '"euros"')
    (tmp_path / "mine.py").write_text(other)
    refused(2, *few, "--baseline", "base.json", says="what is measured: regret (cents)")
    plain = ("barrier", *trained, "--data", "digits", "--limit", 200, "--points", 3, "--method", "wm")
    refused(2, *plain, "--baseline", "base.json", says="--loss: mine.py:regret there, None here")
