"""rebasin barrier."""

import json
import os
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field

import pytest

from rebasin_cli.commands import barrier as command
from rebasin_cli.measure import signatures
from rebasin_cli.reports import Curve, barrier_of
from rebasin_cli.runtime.ranks import Ranks

from .conftest import contents, fresh

FILES = {"report.html", "report.md", "report.json", "junit.xml"}


def barrier(*arguments):
    return ("barrier", *arguments, "--limit", 100, "-q")


def midpoint_and_chord(curve):
    """Of a stored curve, in loss."""
    found = barrier_of(Curve(curve["lambdas"], curve["loss"], {}, curve["samples"]))
    return {"midpoint": found.midpoint, "chord": found.chord}


def quick(*arguments):
    """Of weights alone and five points, where neither is what a test is about."""
    return barrier("--method", "wm", "--points", 5, *arguments)


def test_rows_with_both_definitions_on_both_splits(trained, done):
    report = done(*barrier(*trained, "--method", "wm", "--json")).json()
    rows = {row["name"]: row for row in report["rows"]}
    shipped = [name for name, row in rows.items() if row["shipped"]]
    assert shipped == [f"aligned{' + repair' * (report['choice']['chosen'] == 'repair')}"]
    assert {"naive + repair", "random permutation", "logit ensemble"} <= set(rows)
    assert "--repair auto chose " in report["notes"][0]
    for row in (rows["naive"], rows["aligned"]):
        assert set(row["barriers"]) == {"train", "test"}
        assert {"midpoint", "chord", "accuracy_midpoint", "accuracy_chord"} == set(row["barriers"]["test"])
        assert len(row["curves"]["test"]["lambdas"]) == 25 and row["curves"]["test"]["samples"] == 100
    assert rows["aligned"]["barriers"]["test"]["chord"] < rows["naive"]["barriers"]["test"]["chord"]
    assert report["proof"]["status"] == "proven" and report["match"]["method"] == "wm"
    assert report["data"]["name"] == "digits" and report["inputs"][0]["recorded"]["rebasin.data"] == "digits"
    assert report["command"].startswith("rebasin barrier ") and "--limit 100" in report["command"]


def test_a_table_for_people_and_the_plan_on_stderr(trained, done):
    outcome = done("barrier", *trained, "--limit", 50)
    assert "naive" in outcome.out and "aligned" in outcome.out and "nats" in outcome.out
    assert "plan: 79 points in 9 rows, about 0.1 minutes of measuring" in outcome.err
    assert "gained over naive" in outcome.out or "Nothing is gained" in outcome.out
    assert "data: digits, inputs normalised 0.0/1.0" in outcome.err
    assert "\x1b" not in outcome.out


def test_batchnorm_rows_with_and_without_reset(resnets, done):
    report = done(
        *barrier(*resnets, "--data", "npz:pictures.npz", "--skip-checks", "--points", "3", "--json")
    ).json()
    names = ["naive", "aligned", "aligned + reset", "naive + reset"]
    names += ["aligned + reset + temperature", "naive + reset + temperature"]
    assert [row["name"] for row in report["rows"]] == [*names, "random permutation + reset", "logit ensemble"]
    assert [row["name"] for row in report["rows"] if row["shipped"]] == ["aligned + reset"]
    assert "a permutation-only figure of a BatchNorm network means nothing by itself" in report["notes"]


def test_a_gate_that_is_not_met_ends_with_1_after_everything_is_written(trained, run, tmp_path):
    gates = ("--max-barrier", "-1", "--gate", "naive:test:midpoint<=0.00001", "--gate", "test loss <= 9")
    outcome = run(*quick(*trained, "--report", "deep/r", "--markdown", "summary.md", *gates, "--json"))
    told = outcome.json()["gates"]
    assert outcome.code == 1 and [gate["met"] for gate in told] == [False, False, True]
    assert "rebasin: 2 of 3 gates not met" in outcome.err and gates[3] in outcome.err
    written = set(contents(tmp_path / "deep" / "r"))
    assert FILES <= written and any(name.endswith(".png") for name in written)
    assert json.loads((tmp_path / "deep/r/report.json").read_text())["gates"] == told
    assert "aligned" in (tmp_path / "summary.md").read_text()
    assert "<html" in (tmp_path / "deep/r/report.html").read_text()
    suite = ET.parse(tmp_path / "deep/r/junit.xml").getroot()
    assert len(list(suite.iter("failure"))) == 2


def test_the_summary_of_a_ci_step_and_annotations_of_missed_gates(trained, run, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "github.md"))
    gates = ("--max-barrier", "-1", "--gate", "naive:test:loss<=100")
    outcome = run(*quick(*trained, *gates, "--json"))
    assert outcome.code == 1 and len(outcome.json()["gates"]) == 2
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("::")]
    assert line.startswith("::error title=rebasin%3A gate not met::--max-barrier -1: ")
    text = (tmp_path / "github.md").read_text()
    assert text.startswith("## Barrier between ") and ": 1 of 2 gates not met\n" in text
    assert "| naive:test:loss\\<=100 | ✓ met |" in text and "### How it was measured" in text
    assert run(*quick(*trained, *gates, "--step-summary", "own.md")).code == 1
    assert (tmp_path / "own.md").read_text().startswith("## Barrier between ")
    assert (tmp_path / "github.md").read_text() == text


def test_whatever_ends_the_program_is_one_annotation_in_a_job_of_github(trained, refused, monkeypatch):
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    outcome = refused(3, *barrier(trained[0], "none.pt"), says="::error title=rebasin::none.pt")
    assert outcome.err.startswith("::error") and outcome.err.count("::error") == 1  # the message is last
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    assert "::error" not in refused(3, *barrier(trained[0], "none.pt")).err


def test_the_log_has_the_figures_where_stdout_has_json(trained, done):
    line = (
        "barrier",
        *trained,
        "--method",
        "none",
        "--points",
        5,
        "--limit",
        50,
        "--max-barrier",
        99,
        "--json",
    )
    told = done(*line)
    log = [text.strip() for text in told.err.splitlines()]
    assert told.json()["gates"][0]["met"] and "✓ met  --max-barrier 99" in told.err
    assert sum(text.startswith("▸ ") and ": test loss " in text for text in log) == 1
    assert done(*line, "-q").err == ""


def test_a_summary_that_cannot_be_written_is_told_first(trained, refused, run, monkeypatch):
    refused(5, *barrier(*trained, "--step-summary", "no/s.md"), says="there is no folder")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/s.md")
    outcome = run("barrier", *trained, "--method", "wm", "--points", 5, "--limit", 50)
    assert outcome.code == 0 and "the step summary no/s.md cannot be written" in outcome.err


def test_a_baseline(trained, done, run, refused, tmp_path, monkeypatch):
    done(*quick(*trained, "--json-file", "base.json"))
    same = done(*quick(*trained, "--baseline", "base.json", "--json")).json()["gates"]
    assert [gate["text"] for gate in same] == ["--baseline chord", "--baseline accuracy"]
    assert all("as in the baseline: within the tolerance" in gate["detail"] for gate in same)
    assert all("(paired on 100 samples)" in gate["detail"] for gate in same)
    base = json.loads((tmp_path / "base.json").read_text())
    for row in base["rows"]:
        row["curves"]["test"]["loss"] = [
            loss - 5 * (0 < k < 4) for k, loss in enumerate(row["curves"]["test"]["loss"])
        ]
        row["barriers"]["test"] |= midpoint_and_chord(row["curves"]["test"])
    base["each"] = {}
    (tmp_path / "better.json").write_text(json.dumps(base))
    missed = run(*quick(*trained, "--baseline", "better.json"))
    assert missed.code == 1 and "a real difference" in missed.err
    monkeypatch.setattr(
        "rebasin_cli.measure.report.barrier", lambda *a, **k: pytest.fail("it was measured all the same")
    )
    refused(2, *quick(*trained, "--baseline", "none.json"), says="--baseline none.json: no such file")
    (tmp_path / "odd.json").write_text("{")
    refused(2, *quick(*trained, "--baseline", "odd.json"), says="--baseline odd.json: not a JSON report")
    wrong = "--baseline is of something else than this run"
    limit = ("barrier", *trained, "--limit", 50, "--baseline", "base.json", "-q")
    refused(2, *limit, says=[wrong, "the number of test samples (--limit): 100 there, 50 here"])
    refused(
        2, *quick(*trained, "--normalize", "1/2", "--baseline", "base.json"), says="normalisation of inputs"
    )
    (tmp_path / "own.py").write_text("def loss(outputs, targets):\n    return outputs.mean()\n")
    refused(
        2, *quick(*trained, "--loss", "own.py:loss", "--baseline", "base.json"), says="--loss: None there"
    )
    wider = [fresh(tmp_path / f"{k}.safetensors", seed=k, width=20, depth=1) for k in (1, 2)]
    line = quick(*wider, "--data", "digits", "--skip-checks", "--baseline", "base.json")
    refused(2, *line, says="the widths of the network")
    base["data"]["name"] = "mnist"
    (tmp_path / "other.json").write_text(json.dumps(base))
    refused(2, *quick(*trained, "--baseline", "other.json"), says="the data set: mnist there, digits here")


@pytest.mark.parametrize("limit", ["nan", "inf", "-inf"])
def test_limits_that_are_no_limits_and_rows_that_are_not_measured_are_refused(
    limit, trained, refused, monkeypatch
):
    monkeypatch.setattr("rebasin_cli.measure.report.barrier", lambda *a, **k: pytest.fail("it was measured"))
    for option in ("--max-barrier", "--baseline-tolerance"):
        refused(2, *barrier(*trained, option, limit), says="expected a number")
    for gate in (f"aligned:test:chord<={limit}", f"test accuracy >= {limit}"):
        refused(2, *barrier(*trained, "--gate", gate), says="expected a number")
    refused(2, *barrier(*trained, "--gate", "aligned + reset:test:chord<=1"), says="unknown row")
    refused(2, *barrier(*trained, "--gate", "aligned:validation:chord<=1"), says="unknown split")


def test_an_empty_data_set_meets_no_gate(trained, refused, tmp_path):
    (tmp_path / "empty.py").write_text("def loader(split):\n    return []\n")
    line = ("barrier", *trained, "--data", "empty.py:loader", "--max-barrier", 100, "-q")
    refused(6, *line, says="holds no samples")


def test_a_permutation_of_ones_own_and_none(trained, done):
    done("align", *trained, "-o", "aligned.safetensors", "-q")
    searched = done(*barrier(*trained, "--method", "wm", "--points", 5, "--json")).json()
    given = done(*barrier(*trained, "--points", 5, "--perm", "aligned.perm.safetensors", "--json")).json()
    plan = done(*barrier(*trained, "--perm", "aligned.perm.safetensors", "--dry-run", "--json")).json()
    assert plan["method"] == "given"
    assert given["match"]["method"] == "given permutations" and given["proof"]["status"] == "proven"
    assert given["rows"][1]["barriers"] == searched["rows"][1]["barriers"]
    none = done(*barrier(*trained, "--points", 5, "--method", "none", "--json")).json()
    names = ["naive", "naive + repair", "naive + temperature", "naive + repair + temperature"]
    assert [row["name"] for row in none["rows"]] == [*names, "logit ensemble"]
    assert not any(row["control"] for row in none["rows"][:4])
    assert none["proof"] == {"status": "skipped", "reason": "nothing was permuted"}


def test_dry_run_prints_the_plan_and_measures_nothing(trained, done, tmp_path):
    outcome = done(*barrier(*trained, "--dry-run", "--report", "r"))
    assert (
        "naive: 25, aligned: 25, aligned + repair: 11, naive + repair: 3" in outcome.out
        and "estimated " in outcome.out
    )
    assert contents(tmp_path) == {}
    assert done(*barrier(*trained, "--dry-run", "--json")).json()["points"] == 79


def test_no_prove_is_noted(trained, done):
    report = done(*quick(*trained, "--no-prove", "--json")).json()
    assert (
        report["proof"]["status"] == "skipped" and "the spec was not proven (--no-prove)" in report["notes"]
    )


def test_endpoints_fed_the_wrong_normalisation_stop_the_run(trained, refused, done):
    wrong = quick(*trained, "--normalize", "5/0.01")
    refused(
        6,
        *wrong,
        "--report",
        "r",
        says=("a.safetensors  accuracy", "b.safetensors  accuracy", "--skip-checks"),
    )
    done(*wrong, "--skip-checks")


def test_models_that_record_different_data(trained, refused, tmp_path):
    from rebasin_cli.checkpoints.writer import write_safetensors

    from .conftest import tensors

    other = {"rebasin.data": "mnist"}
    write_safetensors("m.safetensors", tensors(trained[1]), metadata=other)
    says = ("a.safetensors  records digits", "m.safetensors  records mnist", "--data")
    refused(2, *barrier(trained[0], "m.safetensors"), says=says)
    other = {"rebasin.data": "digits", "rebasin.normalization": "0.5/0.5"}
    write_safetensors("n.safetensors", tensors(trained[1]), metadata=other)
    says = ("differently normalised", "n.safetensors  0.5/0.5", "--normalize")
    refused(2, *barrier(trained[0], "n.safetensors"), says=says)


def test_recorded_nonsense_does_no_harm(trained, done):
    from rebasin_cli.checkpoints.writer import write_safetensors

    from .conftest import tensors

    odd = {"rebasin.data": "digits", "rebasin.test_accuracy": "very good"}
    write_safetensors("odd.safetensors", tensors(trained[1]), metadata=odd)
    done(*quick(trained[0], "odd.safetensors"))


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--gate", "naive:test"], 2, "has no comparison"),
        (["--gate", "test barier <= 1"], 2, "Did you mean barrier?"),
        (["--gate", "aligne barrier <= 1"], 2, "rows: naive, aligned, "),
        (["--gate", "naiv:test:chord<=1"], 2, "Did you mean naive?"),
        (["--gate", "naive + reset:test:chord<=1"], 2, "unknown row"),
        (["--max-barrier", "nan"], 2, "--max-barrier"),
        (["--gate", "accuracy >= 95"], 2, "did you mean 0.95?"),
        (["--min-accuracy", "0.9"], 2, "--min-accuracy is a gate now: --gate 'test accuracy >= 0.9'"),
        (["--max-accuracy-drop=.1"], 2, "--gate 'test accuracy drop <= .1'"),
        (["--method", "wn"], 2, "Did you mean wm?"),
        (["--html", "x", "--json-file", "x"], 2, "cannot be both"),
        (["--json-file", "there.json"], 2, "there.json exists"),
        (["--report", "there.json"], 2, "is a file, not a folder"),
        (["--report", "/proc/self/r"], 5, "cannot be written"),
        (["--json-file", "/proc/self/r/r.json"], 5, "cannot be written"),
        (["--net", "tinyten"], 6, "tinyten"),
        (["--perm", "there.json"], 3, "there.json"),
    ],
)
def test_refusals_before_anything_is_measured(trained, refused, tmp_path, monkeypatch, options, code, says):
    (tmp_path / "there.json").write_text("{}")
    monkeypatch.setattr(
        "rebasin_cli.measure.report.barrier", lambda *a, **k: pytest.fail("it was measured all the same")
    )
    refused(code, *barrier(*trained, *options), says=says)


def test_other_classes(tmp_path, refused):
    fresh(tmp_path / "a.safetensors", width=8)
    fresh(tmp_path / "b.safetensors", width=8, classes=9)
    refused(4, *barrier("a.safetensors", "b.safetensors", "--data", "digits"), says="head.bias")


def test_a_full_disk_leaves_no_report(trained, refused, monkeypatch):
    count, real = iter(range(100)), os.fsync

    def full(descriptor):
        if next(count) >= 4:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    refused(5, *quick(*trained, "--report", "deep/r"), says="No space left on device")


def test_ctrl_c_leaves_no_report(trained, interrupted):
    assert (
        interrupted("barrier", *trained, "--method", "wm", "--limit", 50, "--report", "deep/r", after=20)
        == set()
    )


def test_a_loader_of_ones_own(trained, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from helper import digits\n\ndef loader(split):\n    return list(digits(split))\n"
    )
    (tmp_path / "helper.py").write_text(
        "from rebasin_cli.datasets import open_data\n\n"
        "def digits(split): return open_data('digits', split, limit=60, batch_size=30)\n"
    )
    report = done(
        "barrier", *trained, "--method", "wm", "--points", 5, "--data", "mine.py:loader", "--json", "-q"
    ).json()
    assert report["data"]["samples"] == {"train": 60, "test": 60}
    assert report["data"]["normalization"] == "the loader's own"
    assert not any("first samples" in note for note in report["notes"])
    cut = done(
        "barrier",
        *trained,
        "--method",
        "wm",
        "--points",
        5,
        "--data",
        "mine.py:loader",
        "--limit",
        45,
        "--json",
        "-q",
    ).json()
    (note,) = (note for note in cut["notes"] if "first samples" in note)
    assert note.endswith("the first samples were taken, in its own order: train 45, test 45")


def test_rows_of_channels_matched_to_the_endpoints(trained, done, refused):
    by = ("--method", "wm", "--repair", "rescale")
    report = done("barrier", *trained, *by, "--points", 11, "--limit", "100", "--json").json()
    names = ["naive", "aligned", "aligned + rescale", "naive + rescale"]
    names += ["aligned + rescale + temperature", "naive + rescale + temperature"]
    assert [row["name"] for row in report["rows"]] == [*names, "random permutation", "logit ensemble"]
    assert [row["name"] for row in report["rows"] if row["shipped"]] == ["aligned + rescale"]
    assert any("rescale: channels matched" in note for note in report["notes"])
    row = report["rows"][2]["curves"]["test"]
    done("merge", *trained, *by, "-o", "m.safetensors")
    measured = done("eval", "m.safetensors", "--json").json()
    assert len(row["loss"]) == 11 and measured["accuracy"] == pytest.approx(row["accuracy"][5], abs=0.1)
    refused(2, "barrier", *trained, "--repair", "bias", says="not measured along a path")


def test_a_refit_stands_beside_its_control_and_the_verdict_tells_what_is_whose(trained, done):
    asked = ("--method", "wm", "--repair", "refit", "--repair-samples", "300", "--ridge", "0.1", "--json")
    told = done("barrier", *trained, *asked, "--limit", "400").json()
    points = {row["name"]: len(row["curves"]["test"]["lambdas"]) for row in told["rows"]}
    assert points["aligned + refit"] == 11 and points["naive + refit"] == 3
    assert not any("reset" in name for name in points)
    shipped, control = (
        next(r for r in told["rows"] if r["name"] == f"{n} + refit") for n in ("aligned", "naive")
    )
    assert shipped["shipped"] and control["control"]
    done("merge", *trained, *asked, "-o", "m.safetensors")
    whole = done("eval", "m.safetensors", "--json", "--limit", "400").json()
    curve = shipped["curves"]["test"]
    assert whole["loss"] == pytest.approx(curve["loss"][curve["lambdas"].index(0.5)], rel=1e-5)
    tuned = next(row for row in told["rows"] if row["name"] == "endpoint fine-tuned")
    assert tuned["control"] and tuned["details"]["labels"] == 300 and tuned["details"]["steps"] > 8
    assert any("fitted on 300 training samples, without their labels" in note for note in told["notes"])


@pytest.mark.sweep
def test_a_distillation_is_told_and_planned_by_its_own_name(trained, done):
    asked = (
        "--repair",
        "distill",
        "--method",
        "wm",
        "--repair-samples",
        "60",
        "--limit",
        "60",
        "--points",
        "3",
        "--json",
    )
    told = done("barrier", *trained, *asked).json()
    rows = {row["name"]: row for row in told["rows"]}
    assert rows["aligned + distill"]["shipped"] and rows["naive + distill"]["control"]
    assert any("distill: a refit, and all weights trained on 60 training" in note for note in told["notes"])
    refit = done("barrier", *trained, "--repair", "refit", *asked[2:]).json()
    steps = [
        next(row for row in one["rows"] if row["name"] == "endpoint fine-tuned")["details"]["steps"]
        for one in (refit, told)
    ]
    assert steps[1] > steps[0]


def test_a_refit_of_norms_stands_beside_resets(resnets, done):
    asked = ("--repair", "refit", "--repair-samples", "16", "--method", "none", "--data", "npz:pictures.npz")
    told = done("barrier", *resnets, *asked, "--skip-checks", "--dry-run", "--json").json()
    assert told["rows"]["naive + refit"] == 11 and told["rows"]["naive + reset"] == 3
    assert told["times"]["estimated"] > 0


@pytest.mark.parametrize(
    "given",
    [("--budget", "5G"), pytest.param(("--budget", "120G"), marks=pytest.mark.sweep), ("--method", "wm")],
)
def test_what_auto_ships_is_what_merge_writes(trained, done, given):
    report = done("barrier", *trained, *given, "--points", 3, "--json", "-q").json()
    done("merge", *trained, *given, "-o", "m.safetensors", "-q")
    row = next(row for row in report["rows"] if row["shipped"])["curves"]["test"]
    measured = done("eval", "m.safetensors", "--json").json()
    assert measured["loss"] == pytest.approx(row["loss"][len(row["loss"]) // 2], rel=1e-5)


def test_rows_at_the_midpoint_have_intervals_and_gates(trained, done, run):
    gates = ("--gate", "logit ensemble:test:loss<=9", "--gate", "random permutation:test:accuracy>=0")
    report = done("barrier", *trained, "--method", "wm", "--points", 5, "--json", "-q", *gates).json()
    assert [gate["met"] for gate in report["gates"]] == [True, True]
    rows = {row["name"]: row for row in report["rows"]}
    for row in rows.values():
        loss = row["curves"]["test"]["loss"][len(row["curves"]["test"]["loss"]) // 2]
        low, high = row["middle"]["test"]["intervals"]["loss"]
        assert low < loss < high
    assert rows["logit ensemble"]["curves"]["test"]["lambdas"] == [0.0, 0.5, 1.0]
    assert rows["logit ensemble"]["details"] == {"cost": 2}
    assert rows["aligned + temperature"]["details"]["temperature"] > 0
    assert report["endpoints"][0]["test"]["ece"] < 0.2


def test_a_loss_of_ones_own_leaves_out_what_needs_logits(trained, done, refused, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef loss(outputs, targets):\n"
        "    return torch.nn.functional.multi_margin_loss(outputs, targets)\n\n"
        "def top(outputs, targets):\n    return outputs.amax(1)\n"
    )
    own = (
        "--method",
        "wm",
        "--points",
        5,
        "--loss",
        "mine.py:loss",
        "--metric",
        "mine.py:top",
        "--limit",
        50,
        "-q",
    )
    report = done("barrier", *trained, *own, "--json").json()
    names = [row["name"] for row in report["rows"]]
    assert names == ["naive", "aligned", "aligned + repair", "naive + repair", "random permutation"]
    assert any("no ensemble and no temperatures" in note for note in report["notes"])
    assert any("no intervals of the loss" in note for note in report["notes"])
    assert all(row["middle"]["test"]["intervals"].keys() == {"top"} for row in report["rows"])
    gate = ("--gate", "logit ensemble:test:loss<=9")
    refused(2, "barrier", *trained, *own, *gate, says="unknown row")


def test_several_pairs(trained, done, refused, tmp_path):
    pair = ("--pair", f"{trained[1]},{trained[0]}")
    report = done(*quick(*trained, *pair, "--json", "--repair", "none")).json()
    assert [[model["file"] for model in p["inputs"]] for p in report["pairs"]] == [
        [str(trained[0]), str(trained[1])],
        [str(trained[1]), str(trained[0])],
    ]
    over = {(row["row"], row["split"]): row for row in report["over_pairs"]}
    losses = [p["rows"]["naive"]["test"]["loss"] for p in report["pairs"]]
    assert over["naive", "test"]["mean"]["loss"] == pytest.approx(sum(losses) / 2)
    low, high = over["aligned", "test"]["intervals"]["loss"]
    assert low <= over["aligned", "test"]["mean"]["loss"] <= high
    plan = done(*barrier(*trained, *pair, "--dry-run", "--json")).json()
    assert (plan["pairs"], plan["points"]) == (2, 158)
    fresh(tmp_path / "wide.safetensors", width=24)
    refused(2, *barrier(*trained, "--pair", "c.safetensors"), says="is not two files")
    refused(3, *barrier(*trained, "--pair", "c.safetensors,d.safetensors"), says="c.safetensors")
    wide = ("--pair", "wide.safetensors,wide.safetensors")
    refused(2, *barrier(*trained, *wide), says="another architecture than the first pair")
    (tmp_path / "p.safetensors").write_text("")
    perm = ("--perm", "p.safetensors")
    refused(2, *barrier(*trained, *pair, *perm), says="is for one pair of models")


@dataclass(frozen=True)
class Noting(Ranks):
    """The first of two, which does the work of both, and notes what the other waits for."""

    size: int = 2
    noted: list[str] = field(default_factory=list)

    def last(self, step, *given, **more):
        self.noted.append("last")
        return step(*given, **more)

    def alone(self, step, *given, **more):
        self.noted.append("alone")
        return step(*given, **more)

    def turn(self, step, *given, **more):
        self.noted.append("turn")
        return step(*given, **more)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({"method": "none"}, ["last"]),
        ({"method": "auto", "options": {"budget": "0.001T"}}, ["turn", "turn", "last"]),
    ],
)
def test_ranks_begin_to_end_once_all_pairs_are_measured(trained, how, expected):
    """Until then a rank that ends, ends all."""
    ranks, pair = Noting(), (f"{trained[1]},{trained[0]}",)
    asked = {"points": 3, "limit": 50, "repair": "none", "skip_checks": True, "no_prove": True} | how
    command.run(command.Barrier(a=trained[0], b=trained[1], pair=pair, **asked), ranks=ranks)
    assert ranks.noted == expected


def test_how_alike_matched_units_are_stands_in_the_report(trained, done, tmp_path):
    report = done(*quick(*trained, "--report", "report", "--json")).json()
    told = done("signature", *trained, "--limit", 100, "-q", "--json").json()
    assert [row["word"] for row in report["signature"]] == [row["word"] for row in told["signature"]]
    assert all(row["after"]["mean"] > row["before"]["mean"] + 0.1 for row in report["signature"])
    page = (tmp_path / "report/report.html").read_text()
    assert "Matched correlation" in page and "as they were learnt" not in page
    still = done(*quick(*trained, "--method", "none", "--json")).json()
    assert still["signature"] == []


def test_a_network_that_does_not_show_its_units_has_a_report_all_the_same(trained, done, monkeypatch):
    from rebasin_cli.errors import SpecError

    def nothing(*args, **kwargs):
        raise SpecError("a word without a site")

    monkeypatch.setattr(signatures, "signature", nothing)
    assert done(*quick(*trained, "--json")).json()["signature"] == []


@pytest.mark.sweep  # what is drawn: reports/test_reports.py
def test_what_a_search_learnt_is_drawn(trained, done, tmp_path):
    done(*quick(*trained, "--method", "ste", "--epochs", "2", "--report", "report"))
    page = (tmp_path / "report/report.html").read_text()
    history = json.loads((tmp_path / "report/report.json").read_text())["match"]["history"]
    best = min(history, key=lambda row: row["held_out_calibrated"])
    assert "The permutations, as they were learnt" in page
    told = f"step {best['step']:.0f}, {best['held_out_loss']:.4f}"
    assert f"kept, for the least loss at the best temperature: {told}" in page
    assert page.count('aria-label="Held-out loss at the midpoint, as it was learnt') == 1


def test_an_arc_is_measured_beside_the_straight_line(trained, done):
    alone = ("--method", "wm", "--repair", "none")
    five = ("--points", 5)
    line = done(*barrier(*trained, *alone, *five, "--json")).json()
    for how in ("slerp", "slerp-whole"):
        arc = done(*barrier(*trained, *alone, *five, "--interpolation", how, "--json")).json()
        rows = {row["name"]: row for row in arc["rows"]}
        straight = next(row for row in line["rows"] if row["name"] == "aligned")["curves"]["test"]["loss"][2]
        curve = rows["aligned"]["curves"]["test"]
        assert arc["data"]["interpolation"] == how and "interpolation" not in line["data"]
        assert rows["straight line"]["curves"]["test"]["loss"][1] == straight != curve["loss"][2]
        done("merge", *trained, *alone, "--interpolation", how, "-o", "m.safetensors", "--force")
        merged = done("eval", "m.safetensors", "--data", "digits", "--limit", 100, "--json", "-q").json()
        assert merged["loss"] == pytest.approx(curve["loss"][2], abs=1e-6)
        (pairs,) = (d for d in arc["differences"] if (d["row"], d["other"]) == ("straight line", "aligned"))
        assert (
            pairs["loss"] == pytest.approx(straight - curve["loss"][2]) and len(pairs["loss_interval"]) == 2
        )
        (note,) = (note for note in arc["notes"] if note.startswith(f"paths turn ({how})"))
        assert f"test loss is {-pairs['loss']:+.4f} (95 % " in note


@pytest.mark.sweep
def test_the_straight_line_beside_an_arc_is_repaired_as_what_is_shipped(resnets, done):
    data = ("--data", "npz:pictures.npz", "--skip-checks", "--json", "--points", 3)
    line = done(*quick(*resnets, *data)).json()["rows"]
    arc = done(*quick(*resnets, *data, "--interpolation", "slerp")).json()["rows"]
    shipped, straight = (
        next(row for row in rows if row["name"] == name)["curves"]["test"]["loss"][1]
        for rows, name in ((line, "aligned + reset"), (arc, "straight line"))
    )
    assert shipped == straight


def test_points_are_asked_for_and_full_takes_more(trained, done, refused):
    def points(*more):
        plan = done(*barrier(*trained, "--dry-run", "--json", *more)).json()["rows"]
        return [plan[name] for name in ("naive", "aligned", "aligned + repair", "logit ensemble")]

    assert points() == [25, 25, 11, 3]
    assert points("--full") == [65, 65, 25, 3]
    assert points("--points", 7) == points("--points", 7, "--full") == [7, 7, 7, 3]
    refused(2, *barrier(*trained, "--points", 10), says=("have none at λ = ½", "such as 11"))
    refused(2, *barrier(*trained, "--interpolation", "slrp"), says="Did you mean slerp or slerp-whole?")


def test_pairs_are_measured_along_the_same_paths(trained, done):
    plain = ("--interpolation", "slerp", "--points", 3, "--repair", "none", "--json")
    pair = ("--pair", ",".join(map(str, trained)))
    (one, other) = done(*quick(*trained, *plain, *pair)).json()["pairs"]
    assert one["rows"] == other["rows"] and "straight line" in one["rows"]
