"""Attacks on the command line: endpoints and curves trained under one, paths measured under several."""

import json

import pytest

from rebasin_cli.checkpoints.checkpoint import open_checkpoint

from .conftest import rebasin

ATTACK = "eps=0.1,step=0.025,steps=5,restarts=1"
CURVE = ("--epochs", 2, "--limit", 256)


def train(done, name, *more):
    how = ("--data", "digits", "--width", 16, "--depth", 2, "--epochs", 4, "--lr", 0.02)
    return done("train", "mlp", *how, *more, "-o", name, "--json").json()


@pytest.fixture
def robust(done, tmp_path):
    """A training of half a second each: attacks need networks that know something."""
    for name, seed in (("a", 1), ("b", 2)):
        train(done, f"{name}.safetensors", "--attack", 0.1, "--schedule", "late", "--seed", seed)
    return [tmp_path / f"{name}.safetensors" for name in "ab"]


def test_a_training_under_attack_says_what_it_was_and_what_it_is_worth(done, tmp_path):
    told = train(done, "a.safetensors", "--attack", "0.1")
    recorded = open_checkpoint(tmp_path / "a.safetensors").metadata
    assert told["attack"] == recorded["rebasin.attack"] == ATTACK
    assert 0 < told["attacked_accuracy"] < told["test_accuracy"]
    assert f"{told['attacked_accuracy']:.4f}" == recorded["rebasin.attacked_accuracy"]
    plan = done("train", "mlp", "--data", "digits", "--attack", 0.1, "-o", "x.safetensors", "--dry-run").out
    assert ATTACK in plan


@pytest.mark.sweep
def test_paths_are_measured_under_every_attack(robust, done):
    done("curve", *robust, *CURVE, "--attack", 0.1, "-o", "ab.curve.safetensors")
    curves = ("--curve", "ab.curve.safetensors")
    under = ("--attack", 0.1, "--attack", "0.1,steps=20,restarts=2", "--attack", 0)
    report = done("barrier", *robust, *curves, *under, "--repair", "none", "--limit", 60, "--json").json()
    rows = {row["name"]: row for row in report["rows"]}
    for base in ("naive", "aligned", "curve (aligned)"):
        five, twenty, none = (rows[f"{base} + {label}"] for label in ("pgd-5@0.1", "pgd-20x2@0.1", "pgd-5@0"))
        assert five["details"]["attack"] == {
            "norm": "linf",
            "epsilon": 0.1,
            "alpha": 0.025,
            "steps": 5,
            "restarts": 1,
        }
        assert (twenty["details"]["attack"]["steps"], twenty["details"]["attack"]["restarts"]) == (20, 2)
        clean, hard, harder, still = (
            row["curves"]["test"]["accuracy"] for row in (rows[base], five, twenty, none)
        )
        assert still == clean
        assert sum(harder) <= sum(hard)
        assert sum(hard) < sum(clean) - 0.05 * len(clean)
        assert not five["shipped"]
    assert any(ATTACK in note for note in report["notes"])
    assert "along" in rows["curve (aligned) + pgd-5@0.1"]["details"]


def test_a_gate_may_be_on_an_attacked_row(robust, done):
    gate = "aligned + pgd-1@0.1:test:chord<={}"
    line = ("barrier", *robust, "--attack", "0.1,steps=1", "--repair", "none", "--limit", 50)
    line += ("--method", "wm", "--points", 5)
    done(*line, "--gate", gate.format(100))
    missed = rebasin(*line, "--gate", gate.format(-1))
    assert missed.code == 1 and "aligned + pgd-1@0.1" in missed.err


def test_a_curve_records_its_attack_and_another_one_cannot_go_on(
    robust, done, interrupted, refused, tmp_path
):
    line = ("curve", *robust, *CURVE, "--attack", "0.1")
    done(*line, "-o", "whole.curve.safetensors")
    options = json.loads(open_checkpoint("whole.curve.safetensors").metadata["rebasin.options"])
    assert options["attack"] == ATTACK
    interrupted(*line, "-o", "ab.curve.safetensors", after=2, task="training")
    other = ("curve", *robust, *CURVE, "-o", "ab.curve.safetensors", "--resume")
    refused(2, *other, says="another search")
    refused(2, *other, "--attack", 0.2, says="another search")
    done(*line, "-o", "ab.curve.safetensors", "--resume")
    whole, resumed = (tmp_path / f"{name}.curve.safetensors" for name in ("whole", "ab"))
    assert whole.read_bytes() == resumed.read_bytes()


def test_what_cannot_be_attacked_is_refused(trained, refused, tmp_path):
    loader = tmp_path / "mine.py"
    loader.write_text(
        "import torch\ndef batches(split):\n    return [(torch.rand(8, 1, 8, 8), torch.zeros(8).long())]\n"
    )
    own = ("--data", f"{loader}:batches")
    refused(2, "barrier", *trained, *own, "--skip-checks", "--attack", 0.1, says="what a pixel is")
    refused(2, "curve", *trained, *own, "--attack", 0.1, says="what a pixel is")
    refused(2, "barrier", *trained, "--attack", "a lot", says=("--attack 'a lot'", "8/255"))
    refused(2, "curve", *trained, "--attack", 7, says="--attack '7'")
    for number in ("1e400", "1e99999999", "1/", "nan"):
        refused(2, "barrier", *trained, "--attack", number, says="cannot read")
    refused(2, "barrier", *trained, "--attack", 0.1, "--points", 3, says="--points 5 or more")
    loss = ("--loss", f"{loader}:batches")
    refused(2, "barrier", *trained, *loss, "--attack", 0.1, says="--loss names another loss")
