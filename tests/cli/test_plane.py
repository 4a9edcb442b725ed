"""rebasin plane."""

import json

import pytest

from .conftest import contents, tensors

SMALL = ("--points", 3, "--limit", 100)


@pytest.fixture
def curve(trained, done, tmp_path):
    done("curve", *trained, "--epochs", 1, "--limit", 64, "-o", "ab.curve.safetensors")
    return "ab.curve.safetensors"


def test_the_plane_of_two_models_and_the_second_one_aligned(trained, done, tmp_path):
    outcome = done("plane", *trained, *SMALL, "--report", "plane", "--json")
    found = outcome.json()
    assert [one["name"] for one in found["points"]] == ["A", "B", "πB"]
    b, moved = found["points"][1:]
    assert b["loss"] == pytest.approx(moved["loss"], abs=1e-6) and moved["y"] > 0
    assert [line["name"] for line in found["lines"]] == ["A to B", "A to πB"]
    assert [len(found[axis]) for axis in ("x", "y", "loss", "accuracy")] == [3] * 4
    assert "plan: 12 points" in outcome.err and found["data"]["samples"] == 100
    assert found["match"]["method"] == "wm" and found["proof"]["status"] == "proven"
    written = contents(tmp_path / "plane")
    assert set(written) == {"plane.html", "plane.json", "plane.png"}
    assert json.loads(written["plane.json"])["loss"] == found["loss"]
    assert written["plane.png"].startswith(b"\x89PNG") and written["plane.html"].count(b"<svg") == 2
    loss = done("eval", trained[0], "--data", "digits", "--limit", 100, "--json", "-q").json()["loss"]
    assert found["points"][0]["loss"] == pytest.approx(loss)


def test_a_curve_lies_in_its_plane_and_others_are_seen_from_above(trained, curve, done):
    done("curve", *trained, "--epochs", 1, "--lr", 0.5, "--bends", 2, "-o", "two.curve.safetensors")
    found = done(
        "plane", *trained, *SMALL, "--curve", curve, "--curve", "two.curve.safetensors", "--json"
    ).json()
    assert [one["name"] for one in found["points"]] == ["A", "πB", "bend"]
    first, second = found["curves"]
    assert first["name"] == "curve (aligned)" and first["away"] < 1e-5 and second["away"] > 1e-2
    assert first["points"][0] == pytest.approx([0, 0], abs=1e-9) and len(first["points"]) == 65
    ends = [found["points"][1][axis] for axis in "xy"]
    assert first["points"][-1] == pytest.approx(ends, abs=1e-6)


def test_three_models_as_they_are_and_figures_for_people(trained, done, tmp_path):
    done("align", *trained, "-o", "c.safetensors")
    outcome = done("plane", *trained, "c.safetensors", *SMALL, "--plot", "p.png", "-q")
    firsts = [line.split()[0] for line in outcome.out.splitlines() if line.strip()]
    assert firsts[firsts.index("A") :] == ["A", "B", "C", "lowest", "highest", "written"]
    assert "loss" in outcome.out and "accuracy" in outcome.out


def test_ctrl_c_keeps_what_was_measured_and_resume_gives_the_same_figures(
    trained, done, interrupted, refused, tmp_path
):
    line = ("plane", *trained, *SMALL, "--json-file")
    done(*line, "whole.json")
    left = interrupted(*line, "p.json", after=4, task="measuring")
    into = interrupted(*line[:-1], "--report", "r", after=4, task="measuring")
    assert into == {"r", "r/plane.search.safetensors"}  # a folder that was not there yet
    assert left == {"p.search.safetensors"} and tensors("p.search.safetensors")
    refused(2, *line, "p.json", "--points", 5, "--resume", says="is from another search")
    done(*line, "p.json", "--resume")
    whole, resumed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "p"))
    assert all(whole[key] == resumed[key] for key in ("x", "y", "loss", "accuracy", "points"))


@pytest.mark.sweep
def test_norms_are_measured_anew_at_every_point(resnets, done):
    data = ("--data", "npz:pictures.npz", "--skip-checks", "--points", 3, "--json")
    found = done("plane", *resnets, *data).json()
    assert found["data"]["reset"] == 64
    line = done(
        "barrier", *resnets, "--data", "npz:pictures.npz", "--skip-checks", "--points", 3, "--json"
    ).json()
    ends = [model["test"]["loss"] for model in line["endpoints"]]
    assert [one["loss"] for one in found["points"][:2]] == pytest.approx(ends)


def test_a_plan(trained, done, tmp_path):
    before = contents(tmp_path)
    plan = done("plane", *trained, "--report", "plane", "--dry-run", "--json").json()
    assert plan["points"] == 25**2 + 3 and plan["samples"] == {"test": 360}
    assert plan["times"]["estimated"] > 0 and contents(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("-m", "none"), "two models are a line"),
        (("--split", "held"), "there is test, and train"),
        (("-m", "wmm"), "Did you mean wm"),
        (("--resume",), "Name a --report"),
    ],
)
def test_refusals(trained, refused, more, says):
    refused(2, "plane", *trained, *more, *SMALL, says=says)


def test_planes_that_there_are_not(trained, curve, done, refused):
    done("curve", *trained, "--epochs", 1, "--limit", 64, "--bends", 2, "-o", "two.curve.safetensors", "-q")
    line = ("plane", *trained, *SMALL)
    refused(
        2, *line, "--curve", "two.curve.safetensors", says=("2 control points lies in no plane", "--bends 1")
    )
    refused(2, *line, "--curve", curve, "-m", "wm", says="--method wm: a curve has its own permutation")
    refused(2, "plane", *trained[::-1], *SMALL, "--curve", curve, says="the other way round")
    refused(2, "plane", trained[0], trained[0], *SMALL, says="lie on one line")
    refused(2, "plane", *trained, trained[0], "-m", "wm", *SMALL, says="three models are a plane as they are")
