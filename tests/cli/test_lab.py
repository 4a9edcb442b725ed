"""rebasin lab: experiments listed, shown, run, interrupted and gone on with."""

import json
import re
import sys

import pytest

from rebasin_cli.lab import registry

from .conftest import contents

QUICK = ("hardness", "--set", "size=3", "--set", "draws=4")
FILES = {f"lab/hardness.{kind}" for kind in ("md", "png", "json")}


def test_every_experiment_is_listed_with_its_title_and_papers(done):
    told = done("lab", "list").out.splitlines()
    assert [line.split()[0] for line in told] == registry.names()
    found = done("lab", "list", "--json").json()["experiments"]
    assert all(each["title"] and each["paper"] and each["minutes"]["small"] <= 5 for each in found)


def test_an_experiment_shows_its_parameters(done):
    out = done("lab", "show", "hardness").out
    assert "Git Re-Basin Lemma 1" in out and "size int: Rows of the matrices" in out
    assert "small 4; full 5" in out
    assert {p["name"] for p in done("lab", "show", "hardness", "--json").json()["parameters"]} == {
        "size",
        "draws",
    }


def test_a_run_writes_a_page_a_picture_and_json(done, tmp_path):
    outcome = done("lab", "run", *QUICK, "--seed", 3)
    assert FILES | {"lab"} == set(contents(tmp_path))
    assert "confirmed" in outcome.out and "written    lab/hardness.md" in outcome.out
    made = json.loads((tmp_path / "lab/hardness.json").read_text())
    assert made["schema"] == "rebasin.lab/1" and made["seed"] == 3
    assert made["parameters"] == {"size": 3, "draws": 4} and set(made["versions"]) >= {"rebasin", "torch"}
    assert [claim["verdict"] for claim in made["claims"]] == ["undecided", "confirmed", "confirmed"]
    page = (tmp_path / "lab/hardness.md").read_text()
    assert "\nrebasin lab run hardness --scale small --seed 3 --set size=3 --set draws=4\n" in page
    assert "(hardness.png)" in page


def test_the_same_run_gives_the_same_but_for_the_time(done):
    first, second = (done("lab", "run", *QUICK, "-o", folder, "--json").json() for folder in "ab")
    for made in (first, second):
        assert made["experiments"][0].pop("times")["seconds"] >= 0 and made["experiments"][0].pop("written")
    assert first == second
    other = done("lab", "run", *QUICK, "-o", "c", "--seed", 1, "--json").json()["experiments"][0]
    assert other["tables"] != first["experiments"][0]["tables"]


def test_what_makes_no_sense_is_refused(refused):
    refused(2, "lab", "run", "harness", says=("unknown experiment 'harness'", "hardness"))
    refused(2, "lab", "show", "harness", says="unknown experiment")
    refused(2, "lab", "run", "hardness", "--scale", "large", says=("unknown scale 'large'", "small"))
    refused(2, "lab", "run", "hardness", "--set", "size=99", says="at most 6")
    refused(2, "lab", "run", "all", "--set", "size=3", says="--set is for one experiment")


def test_what_is_there_is_not_overwritten_without_force(done, refused, tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hardness.png").write_text("precious")
    refused(2, "lab", "run", *QUICK, says=("lab/hardness.png exists", "--force"))
    done("lab", "run", *QUICK, "--force")
    assert FILES <= set(contents(tmp_path))


def test_what_another_run_made_is_not_taken_for_this_one_and_stays(done, refused):
    done("lab", "run", *QUICK)
    assert "written" not in done("lab", "run", *QUICK, "--resume").out
    refused(2, "lab", "run", *QUICK, "--seed", 1, "--resume", says=("is from another run", "--force"))
    done("lab", "run", *QUICK, "--seed", 1, "--resume", "--force")


def test_a_dry_run_says_what_is_there_already(refused, done, tmp_path):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hardness.png").write_text("precious")
    refused(2, "lab", "run", *QUICK, "--dry-run", says=("lab/hardness.png exists", "--force"))
    done("lab", "run", *QUICK, "--dry-run", "--force")
    assert (tmp_path / "lab" / "hardness.png").read_text() == "precious"


def test_a_dry_run_prints_the_plan_and_writes_nothing(done, tmp_path):
    out = done("lab", "run", *QUICK, "--dry-run").out
    assert re.search(r"hardness: about [\d.]+ minutes\n  size +3\n  draws +4\n", out)
    assert contents(tmp_path) == {}


def test_ctrl_c_keeps_what_is_finished_and_resume_goes_on(done, interrupted, refused, tmp_path, monkeypatch):
    done("lab", "run", *QUICK, "-o", "whole")
    assert interrupted("lab", "run", *QUICK, after=3) == {"lab", "lab/hardness.state.json"}
    state = json.loads((tmp_path / "lab/hardness.state.json").read_text())
    assert list(state["parts"]) == ["draw 0", "draw 1"]
    refused(2, "lab", "run", *QUICK, says=("an experiment was interrupted", "--resume"))
    refused(2, "lab", "run", *QUICK, "--seed", 5, "--resume", says=("is from another run", "seed: 0, now 5"))
    (tmp_path / "lab/hardness.state.json").write_text(
        json.dumps(state | {"parts": {"draw 0": [1.0, 0.0, 0.5]}})
    )
    done("lab", "run", *QUICK, "--resume")
    assert FILES | {"lab"} == {name for name in contents(tmp_path) if name.startswith("lab")}
    rows = [
        json.loads((tmp_path / f"{f}/hardness.json").read_text())["tables"][0]["rows"]
        for f in ("whole", "lab")
    ]
    assert rows[0] != rows[1]  # it took the draw that was planted in the state


def test_ctrl_c_before_anything_is_finished_leaves_nothing(interrupted):
    assert interrupted("lab", "run", *QUICK, after=1) == set()


def test_all_runs_every_experiment_and_lists_their_claims(done, tmp_path, monkeypatch):
    """Of two of them: all of them are for their own tests."""
    monkeypatch.setattr(registry, "names", lambda: ["hardness", "statements"])
    monkeypatch.setattr(
        "rebasin_cli.lab.engine.parameters.Declared.values",
        lambda self, scale, assignments=(): (
            {"size": 3, "draws": 4} if self.parameters[0].name == "size" else {"models": 3, "draws": 200}
        ),
    )
    outcome = done("lab", "run", "all")
    assert "written    lab/README.md" in outcome.out
    index = (tmp_path / "lab/README.md").read_text()
    assert "| [hardness](hardness.md) |" in index and "did not come out as the paper says" in index
    assert re.search(
        r"\| Git Re-Basin Table 1 \| resnet50 has 10\^55109 .*\[statements\]\(statements.md\) \|", index
    )
    before = (tmp_path / "lab/hardness.png").stat().st_mtime_ns
    done("lab", "run", "all", "--resume")
    assert (tmp_path / "lab/hardness.png").stat().st_mtime_ns == before


def test_an_unwritable_folder(refused):
    refused(5, "lab", "run", *QUICK, "-o", "/proc/self/lab", says="cannot be written")


@pytest.mark.parametrize("text", ["", "{}", "[1]"])
def test_a_state_that_is_none_is_refused(refused, tmp_path, text):
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "hardness.state.json").write_text(text)
    refused(2, "lab", "run", *QUICK, "--resume", says="is not what an experiment leaves")


OWN = '''"""Is a coin fair?

A coin of our own.
"""

from rebasin_cli.lab.engine.claims import share
from rebasin_cli.lab.engine.claims import Line, Outcome, Panel, Table

PAPER = "our own"
FASTER = "fewer throws"


def run(bench):
    (heads,) = bench.each("throwing", ["all"], lambda _: bench.p.throws // 2)
    claim = share("ours", "it is fair", "share of heads", (0.4, 0.6), heads, bench.p.throws)
    panel = Panel("", "", "", [Line("", [0], [heads])])
    return Outcome([claim], [Table("Throws", ("heads",), [(heads,)])], [panel])
'''
OWN_YAML = """
minutes: {small: 0.1, full: 1}
parameters:
  throws: {type: int, min: 1, small: 1000, full: 2000, help: Throws.}
"""


def test_an_experiment_of_another_package_is_found_and_runs(done, tmp_path, monkeypatch):
    (tmp_path / "coins.py").write_text(OWN)
    (tmp_path / "coins.yaml").write_text(OWN_YAML)
    info = tmp_path / "coins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rebasin_cli.lab]\ncoin = coins\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "coin" in done("lab", "list").out
    assert "throws int: Throws." in done("lab", "show", "coin").out
    assert "confirmed  ours: it is fair" in done("lab", "run", "coin").out
    sys.modules.pop("coins")
