"""rebasin curve, and points of curves as checkpoints."""

import json

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.datasets import open_data

from .conftest import contents, fresh, same, tensors

SHORT = ("--epochs", 4, "--limit", 256, "--device", "cpu")


@pytest.fixture
def curve(trained, done, tmp_path):
    done("curve", *trained, *SHORT, "-o", "ab.curve.safetensors")
    return tmp_path / "ab.curve.safetensors"


def losses(done, *files):
    return [done("eval", file, "--data", "digits", "--json", "-q").json()["loss"] for file in files]


def test_a_curve_is_lower_in_the_middle_than_the_line(trained, done, tmp_path):
    done("curve", *trained, "--epochs", 15, "-o", "ab.curve.safetensors")
    told = done(
        "merge", *trained, "--curve", "ab.curve.safetensors", "--at", 0.5, "-o", "half.safetensors"
    ).out
    assert "curve" in told and "bezier" in told
    done("merge", *trained, "--repair", "none", "-o", "line.safetensors")
    half, line = losses(done, "half.safetensors", "line.safetensors")
    assert half < line
    made = open_checkpoint("half.safetensors").metadata
    options = json.loads(made["rebasin.options"])
    assert made["rebasin.method"] == "curve" and options["at"] == 0.5 and len(options["curve"]) == 64


def test_between_models_that_say_otherwise_lies_none(trained, curve, refused, done):
    for path, act in zip(trained, ("relu", "gelu"), strict=True):
        kept = open_checkpoint(path).metadata | {"config": json.dumps({"act": act})}
        write_safetensors(path.name, tensors(path), metadata=kept)
    line = "merge", *(path.name for path in trained), "--curve", curve, "-o", "point.safetensors", "--at"
    refused(4, *line, 0.5, says=("config.act  is relu in", "--skip-checks"))
    refused(4, *line, 0.5, "--dry-run", says=("config.act  is relu in",))
    done(*line, 0.5, "--skip-checks")
    done(*line, 1, "--force")


def test_its_ends_are_the_models(trained, curve, done):
    done("align", *trained, "-o", "b_aligned.safetensors")
    for at, file in ((0, trained[0]), (1, "b_aligned.safetensors")):
        done("merge", *trained, "--curve", curve, "--at", at, "-o", "end.safetensors", "--force")
        assert same("end.safetensors", file)


def test_a_model_and_its_relabelled_copy_are_joined_by_a_point(pair, relabelled, done):
    """Aligned, they are one model: its curve stays there but for what it learns. Unaligned it does not."""
    line = ("--data", "digits", "--limit", 64, "--epochs", 1, "--lr", 1e-12)
    done("curve", pair[1], relabelled, *line, "-o", "x.curve.safetensors")
    done(
        "merge",
        pair[1],
        relabelled,
        "--curve",
        "x.curve.safetensors",
        "--at",
        0.3,
        "-o",
        "x.safetensors",
        "--data",
        "digits",
    )
    for name, tensor in tensors("x.safetensors").items():
        torch.testing.assert_close(tensor, tensors(pair[1])[name], atol=1e-6, rtol=1e-6)
    done("curve", pair[1], relabelled, *line, "-m", "none", "-o", "n.curve.safetensors")
    both = ("--curve", "x.curve.safetensors", "--curve", "n.curve.safetensors")
    few = ("-m", "none", "--data", "digits", "--limit", 100, "--points", 5, "--skip-checks")
    report = done("barrier", pair[1], relabelled, *both, *few, "--json").json()
    rows = {row["name"]: row["curves"]["test"]["loss"] for row in report["rows"]}
    aligned, unaligned = rows["curve (aligned)"], rows["curve (unaligned)"]
    assert aligned == pytest.approx([aligned[0]] * 5, abs=1e-5)
    assert max(abs(loss - unaligned[0]) for loss in unaligned) > 1e-3


def test_ctrl_c_keeps_the_training_and_resume_gives_the_same_bytes(
    trained, interrupted, done, refused, tmp_path
):
    line = ("curve", *trained, *SHORT, "--bends", 2, "--kind", "chain")
    done(*line, "-o", "whole.curve.safetensors")
    left = interrupted(*line, "-o", "ab.curve.safetensors", after=5, task="training")
    assert left == {"ab.curve.search.safetensors"}
    refused(2, *line, "-o", "ab.curve.safetensors", says=("a search was interrupted", "--resume"))
    refused(2, *line, "--weight-decay", 0.1, "-o", "ab.curve.safetensors", "--resume", says="another search")
    outcome = done(*line, "-o", "ab.curve.safetensors", "--resume")
    assert "match                wm\n" in outcome.out
    assert "going on after step 5" in outcome.err
    whole, resumed = (tmp_path / f"{name}.curve.safetensors" for name in ("whole", "ab"))
    assert whole.read_bytes() == resumed.read_bytes()
    assert not (tmp_path / "ab.curve.search.safetensors").exists()


def test_the_log_has_a_line_a_step(trained, done, tmp_path):
    done("curve", *trained, *SHORT, "--log", "log.jsonl", "-o", "ab.curve.safetensors")
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 4 * 2 + 1)) and all(row["loss"] > 0 for row in rows)


def test_a_report_has_rows_of_curves(trained, curve, done, refused, tmp_path):
    done("curve", *trained, *SHORT, "-m", "none", "-o", "none.curve.safetensors")
    line = ("barrier", *trained, "--limit", 128, "--repair", "none", "--skip-checks")
    both = ("--curve", "none.curve.safetensors", "--curve", curve)
    report = done(*line, *both, "--json", "--gate", "curve (aligned):test:loss<=9").json()
    rows = {row["name"]: row for row in report["rows"]}
    plain = {row["name"]: row for row in done(*line, "--json").json()["rows"]}
    assert [name for name in rows if name not in plain] == [
        *("curve (unaligned)", "curve (unaligned) ensemble of points"),
        *("curve (aligned)", "curve (aligned) ensemble of points"),
    ]
    assert all(rows[name] == plain[name] for name in plain)
    row = rows["curve (aligned)"]
    assert len(row["curves"]["test"]["lambdas"]) == 25 and report["gates"][0]["met"]
    ends = [row["curves"]["test"]["loss"][k] for k in (0, -1)]
    assert ends == [rows["naive"]["curves"]["test"]["loss"][k] for k in (0, -1)]
    along = row["details"]["along"]["test"]["loss"]
    assert along["highest"] == max(row["curves"]["test"]["loss"]) and 0 < along["mean_over_length"] < 5
    middle = done("merge", *trained, "--curve", curve, "--at", 0.5, "-o", "half.safetensors")
    assert middle.code == 0
    half = done("eval", "half.safetensors", "--limit", 128, "--skip-checks", "--json").json()["loss"]
    assert row["curves"]["test"]["loss"][12] == pytest.approx(half, abs=1e-6)
    assert any(note.startswith("along curve (aligned) test accuracy is") for note in report["notes"])
    beside = rows["curve (aligned) ensemble of points"]
    assert (
        beside["control"] and beside["details"] == {"cost": 5} and len(beside["curves"]["test"]["loss"]) == 3
    )
    assert beside["curves"]["test"]["loss"][1] == pytest.approx(ensemble(done, trained, curve), abs=1e-6)
    assert rows["logit ensemble"]["details"] == {"cost": 2}
    assert any(note.startswith("ensemble of points: the mean of the logits") for note in report["notes"])
    pair = ("--pair", f"{trained[0]},{trained[1]}")
    refused(2, *line, *both, *pair, says="a curve is between two models")
    refused(2, *line[:1], *trained[::-1], *line[3:], *both, says="a curve between other models")


def ensemble(done, trained, curve):
    """The loss of the mean of the logits at t = 0, ¼ … 1, from the files of these points."""
    test, logits = open_data("digits", "test").subset(128), 0.0
    for t in (0, 0.25, 0.5, 0.75, 1):
        done("merge", *trained, "--curve", curve, "--at", t, "-o", "point.safetensors", "--force")
        its = tensors("point.safetensors")
        hidden = torch.relu(test.example(128).flatten(1) @ its["layers.0.weight"].T + its["layers.0.bias"])
        logits = logits + hidden @ its["head.weight"].T + its["head.bias"]
    return torch.nn.functional.cross_entropy(logits / 5, test.source.targets).item()


@pytest.mark.sweep
def test_pam_in_rounds_lowers_the_loss_along_the_curve_until_it_does_not(trained, done, refused, monkeypatch):
    line = ("curve", *trained, *SHORT, "-o", "pam.curve.safetensors", "-m", "pam")
    once = done(*line, "--json").json()["curve"]
    told = done(*line, "--rounds", 3, "--force", "--json").json()["curve"]
    rounds = told["rounds"]
    assert 1 <= len(rounds) <= 2 and told["converged"] == (rounds[-1]["fall"] <= rounds[-1]["least"])
    assert len(rounds) == 2 or told["converged"]
    assert all(0 < it["least"] < 1e-2 and it["moved"] >= 0 for it in rounds) and "rounds" not in once
    taken = sum(it["fall"] > 0 for it in rounds)
    assert told["steps"] == once["steps"] * (1 + taken)
    shown = set()
    monkeypatch.setattr("rebasin_cli.cli.screen.Screen.step", lambda self, task, *_: shown.add(task))
    again = done(*line, "--rounds", 3, "--force")
    assert f"; round 2: loss {rounds[0]['loss']:.6g}, " in again.out and "training, later rounds" in shown
    refused(2, *line[:-1], "wm", "--force", "--rounds", 2, says="--rounds alternates permutation and curve")
    refused(2, *line, "--rounds", 2, "--bends", 2, "--force", says="a Bezier curve with one bend")


@pytest.mark.sweep
def test_points_of_a_curve_have_statistics_of_their_own(resnets, done):
    data = ("--data", "npz:pictures.npz", "--skip-checks", "-m", "none")
    done(
        "curve",
        *resnets,
        *data[:2],
        "--epochs",
        1,
        "--batch-size",
        32,
        "-m",
        "none",
        "-o",
        "r.curve.safetensors",
    )
    report = done("barrier", *resnets, *data, "--curve", "r.curve.safetensors", "--json").json()
    row, ends, together = [row for row in report["rows"] if row["name"].startswith("curve")]
    assert together["name"] == "curve (unaligned) ensemble of points"
    assert row["name"] == "curve (unaligned) + reset" and ends["name"] == row["name"] + ", ends too"
    own, again = (its["curves"]["test"]["loss"] for its in (row, ends))
    assert len(own) == 25 and len(again) == 3 and ends["control"] and not row["control"]
    assert own[12] == pytest.approx(again[1], abs=1e-6)  # the same there, and the ends are other networks
    assert own[0] != again[0] and own[-1] != again[-1]
    given = [end["test"]["loss"] for end in report["endpoints"]]
    assert [own[0], own[-1]] == pytest.approx(given)


def test_statistics_are_estimated_anew_at_the_point(resnets, done, tmp_path):
    data = ("--data", "npz:pictures.npz", "--skip-checks")
    done(
        "curve",
        *resnets,
        "--data",
        "npz:pictures.npz",
        "--epochs",
        1,
        "--batch-size",
        32,
        "-m",
        "none",
        "-o",
        "r.curve.safetensors",
    )
    curve = ("--curve", "r.curve.safetensors", "--at", 0.25, "--groups", "permutations")
    told = done("merge", *resnets, *curve, *data, "-o", "m.safetensors", "--json").json()
    assert told["repair"] == "reset"
    line = done("merge", *resnets, *curve, *data, "--repair", "none", "-o", "n.safetensors", "--json").json()
    assert line["repair"] == "none"
    one, other = tensors("m.safetensors"), tensors("n.safetensors")
    differing = {name for name in one if not torch.equal(one[name], other[name])}
    assert differing and all("running" in name or "num_batches" in name for name in differing)


def test_a_plan(trained, done, tmp_path):
    before = contents(tmp_path)
    plan = done("curve", *trained, *SHORT, "--dry-run", "--json").json()
    assert plan["curve"]["kind"] == "bezier" and plan["samples"] == 256 and plan["times"]["estimated"] > 0
    assert contents(tmp_path) == before


def test_other_models_and_other_files_are_refused(trained, curve, refused, pair):
    line = ("--curve", curve, "--at", 0.5, "-o", "x.safetensors")
    swapped = ("is a curve between other models", "the other way round")
    refused(2, "merge", *trained[::-1], *line, says=swapped)
    refused(2, "merge", trained[0], trained[0], *line, says=("other models", "as they were"))
    refused(
        3, "merge", *trained, "--curve", trained[0], "--at", 0.5, "-o", "x.safetensors", says="is not a curve"
    )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--curve", "ab.curve.safetensors"), "needs a point"),
        (("--at", 0.5), "--at is for a point of a curve"),
        (("--curve", "ab.curve.safetensors", "--at", 1.5), "is no point of a curve"),
        (
            ("--curve", "ab.curve.safetensors", "--at", 0.5, "--weights", "0.3,0.7"),
            "--weights makes no sense",
        ),
        (("--curve", "ab.curve.safetensors", "--at", 0.5, "--repair", "repair"), "--repair repair is for"),
        (("--curve", "ab.curve.safetensors", "--at", 0.5, "--polish", "1steps"), "--polish makes no sense"),
        (("--curve", "ab.curve.safetensors", "--at", 0.5, "--method", "am"), "--method am makes no sense"),
        (("--curve", "ab.curve.safetensors", "--at", 0.5, "--max-sweeps", 3), "--max-sweeps makes no sense"),
        (("--curve", "ab.curve.safetensors", "--at", 0.5, "--groups", "all"), "--groups all makes no sense"),
    ],
)
def test_what_a_point_cannot_be(trained, curve, refused, more, says):
    refused(2, "merge", *trained, *more, "-o", "x.safetensors", says=says)


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (("--kind", "bezir"), 2, "Did you mean bezier?"),
        (("--schedule", "linear"), 2, "unknown schedule 'linear'"),
        (("--lr", "-1"), 2, "learning_rate is -1"),
        (("--method", "wmm"), 2, "Did you mean wm"),
        (("--data", "digitz"), 2, "Did you mean digits?"),
        (("--augment",), 2, "digits does not say how its samples are augmented"),
        (("--device", "gpu"), 2, "unknown device 'gpu'"),
        (("-o", "ab.safetensors"), 2, "Use ab.curve.safetensors"),
        (("--lr", "1e12", "--epochs", "50"), 6, "Try a tenth of the learning rate"),
        (("--resume",), 2, "there is no between.curve.search.safetensors"),
    ],
)
def test_refusals(trained, refused, more, code, says):
    refused(code, "curve", *trained, *more, says=says)


def test_models_of_other_sizes_are_refused(pair, refused, tmp_path):
    fresh(tmp_path / "c.safetensors", width=8, depth=3)
    refused(4, "curve", pair[0], "c.safetensors", "--data", "digits", says="c.safetensors")
