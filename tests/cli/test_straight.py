"""ste and ste-mm as a user runs them: long, interrupted, killed, taken up again."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from rebasin_cli import nets, networks
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.cli.screen import _line
from rebasin_cli.datasets import open_data
from rebasin_cli.datasets.held_out import held_out
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.runtime.seeds import derive
from rebasin_cli.session import samples

from .conftest import fresh, same

SHORT = ["--epochs", "2", "--batch-size", "100", "--limit", "600", "--data", "digits"]


@pytest.fixture
def models(tmp_path):
    return [fresh(tmp_path / f"{n}.safetensors", seed=k, width=12, depth=2) for k, n in enumerate("abc")]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_ste_aligns_two_models(models, done):
    outcome = done("align", *models[:2], "--method", "ste", *SHORT, "--lr", "0.01", "-o", "out.safetensors")
    assert "ste from wm, 12 steps" in outcome.out and "proven" in outcome.out
    told = open_checkpoint("out.safetensors").metadata
    options = json.loads(told["rebasin.options"])
    assert options["epochs"] == 2 and options["learning_rate"] == 0.01 and options["batch_size"] == 100
    assert options["init"] == "wm"  # nobody asked for it


def test_ste_of_three_models_tells_the_loss_of_the_merge_that_it_writes(models, done):
    def match(command, *some, out):
        return done(command, *some, "--method", "ste", *SHORT, "--json", "-o", out).json()["match"]

    a, b, c = models
    found = match("merge", a, b, c, out="all.safetensors")
    pairs = [match("align", a, other, out=f"{other.stem}2.safetensors") for other in (b, c)]
    for name in ("objective_before", "objective_after"):  # and of its start, which is that of no pair
        assert found[name] not in [pair[name] for pair in pairs]
    train = open_data("digits", "train").subset(600, 0)
    held = held_out(train, derive(0, "held out"))[1]
    network = nets.registry.get("mlp").from_shapes(open_checkpoint("all.safetensors").shapes)
    networks.load(network, open_checkpoint("all.safetensors"))
    assert -found["objective_after"] == pytest.approx(evaluate(network, held).loss, rel=1e-5)
    done("merge", a, b, c, "--method", "wm", "--repair", "none", "-o", "start.safetensors")
    aligned = open_checkpoint("start.safetensors")
    assert -found["objective_before"] == pytest.approx(
        evaluate(networks.load(network, aligned), held).loss, rel=1e-5
    )
    assert found["sweeps"] == 24
    looks = [{"model": k, **row} for k, pair in zip((2, 3), pairs, strict=True) for row in pair["history"]]
    assert found["history"] == looks


def test_ste_mm_merges_many_and_says_every_step(models, done, tmp_path):
    outcome = done("merge", *models, "--method", "ste-mm", *SHORT, "--log", "log.jsonl", "--json").json()
    assert outcome["models"] == 3 and outcome["match"]["sweeps"] == 12
    told = json.loads(open_checkpoint(outcome["written"][0]).metadata["rebasin.options"])
    assert told["init"] == outcome["match"]["init"] == "wm"
    assert "converged" not in outcome["match"]  # it ends with its last step, whatever is left to gain
    assert outcome["repair"] == "none" and "repaired_norms" not in outcome
    history = outcome["match"]["history"]
    assert outcome["match"]["objective_after"] == -min(row["held_out_loss"] for row in history)
    rows = lines(tmp_path / "log.jsonl")
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == list(range(1, 13))
    assert all(row.keys() == {"step", "loss", "changed"} and 0 <= row["changed"] <= 1 for row in steps)
    looks = {row["step"]: row["held_out_loss"] for row in rows if "held_out_loss" in row}
    assert looks == {int(row["step"]): row["held_out_loss"] for row in history[1:]}


def test_progress_says_loss_and_what_is_left(models, done):
    told = done("merge", *models, "--method", "ste-mm", *SHORT, "--verbose").err
    assert "matching 1/12  loss " in told and "held-out loss" in told and "accuracy" in told
    assert "% of units moved" in told and " s left" in told


def test_the_reference_may_be_any_of_the_models(models, done, refused):
    a, b, c = models
    spelt = b.parent / "." / ".." / b.parent.name / b.name
    done("merge", a, b, c, "--reference", spelt, "--weights", "0.2,0.5,0.3", "-o", "named.safetensors")
    done("merge", b, a, c, "--weights", "0.5,0.2,0.3", "-o", "first.safetensors")
    assert same("named.safetensors", "first.safetensors")
    done("merge", a, b, c, "--weights", "0.2,0.5,0.3", "-o", "other.safetensors")
    assert not same("named.safetensors", "other.safetensors")
    refused(2, "merge", a, b, "--reference", c, "-o", "x.safetensors", says="is none of the models")
    refused(2, "merge", a, b, "--reference", b, "--weights", "1", says="1 weights for 2 models")


def test_a_plan_names_what_is_held(models, done):
    plan = ("merge", *models, "--method", "ste-mm", "--data", "digits", "--dry-run")
    told = done(*plan, "--json").json()
    row, parts = 4 * told["parameters"], told["search_parts"]
    own = {"models": 3 * row, "dummies": 2 * row, "optimizers": 4 * row, "network": 4 * row}
    assert own.items() <= parts.items() and sum(parts.values()) == told["search_bytes"]
    sgd = done(*plan, "--optimizer", "sgd", "--json").json()
    assert sgd["search_parts"]["optimizers"] == 2 * row and sgd["search_bytes"] < told["search_bytes"]
    shown = dict(re.findall(r"(?m)^(search \w+) +(.*)$", done(*plan).out))
    sizes = [int(size.replace(",", "")) for size in re.findall(r"([\d,]+) MB", shown["search parts"])]
    rounded = _line("search_parts", dict.fromkeys("abc", 4_600_000))  # 13.8 MB
    assert sum(map(int, re.findall(r"\d+", rounded))) == 14 and rounded.count(" MB") == 3
    assert len(sizes) == len(parts) and f"{sum(sizes):,} MB" == shown["search bytes"]


def test_a_plan_says_that_the_training_is_not_in_its_minutes(trained, done):
    plan = ("barrier", *trained, "--dry-run", "--method", "ste", "--epochs")
    outcome = done(*plan, "3")
    assert "minutes of measuring, without the training of ste (3 epochs)" in outcome.err
    assert "not estimated        the training of ste (3 epochs)" in outcome.out
    merge = done("merge", *trained, "--dry-run", "--method", "ste-mm", "--epochs", "1", "--json").json()
    assert merge["not_estimated"] == "the training of ste-mm (1 epoch)"
    compare = done("compare", *trained, "--dry-run", "-m", "ste", "-m", "wm", "-m", "ste-mm", "--json").json()
    assert compare["not_estimated"] == "the training of ste (8 epochs) and the training of ste-mm (8 epochs)"
    assert "without" not in done("barrier", *trained, "--method", "wm", "--dry-run").err
    assert "not_estimated" not in done("align", *trained, "--dry-run", "--json").json()


@pytest.mark.sweep
def test_a_killed_search_goes_on_to_the_same_bytes(models, done, tmp_path):
    """kill -9 in the middle: nothing can be caught, all that is left is what was written before."""
    search = ["merge", *map(str, models), "--method", "ste-mm", "--epochs", "40", *SHORT[2:]]
    search += ["--log", "log.jsonl", "--checkpoint-every", "1"]
    done(*search, "-o", "whole.safetensors")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rebasin_cli", *search, "-o", "out.safetensors", "-q"]
    (tmp_path / "log.jsonl").unlink()
    with subprocess.Popen(command, env=environment) as running:
        until = time.monotonic() + 120
        while time.monotonic() < until and running.poll() is None:
            log = tmp_path / "log.jsonl"
            if log.exists() and len(log.read_bytes().splitlines()) > 20:
                break
            time.sleep(0.01)
        assert running.poll() is None, "it ended before it could be killed"
        running.send_signal(signal.SIGKILL)
    assert (tmp_path / "out.search.safetensors").exists() and not (tmp_path / "out.safetensors").exists()
    outcome = done(*search, "-o", "out.safetensors", "--resume")
    assert "going on after step" in outcome.err
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert [r["step"] for r in lines(tmp_path / "log.jsonl") if "loss" in r] == list(range(1, 241))


def test_what_changes_a_search_cannot_go_on_with_it(models, interrupted, refused):
    search = ["merge", *models, "--method", "ste-mm", *SHORT, "-o", "out.safetensors"]
    interrupted(*search, "--log", "log.jsonl", after=3, task="matching")
    refused(2, *search, says="out.search.safetensors exists: a search was interrupted")
    refused(2, *search, "--log", "log.jsonl", says="out.search.safetensors exists: a search was interrupted")
    for other in (["--lr", "0.5"], ["--batch-size", "50"], ["--seed", "9"], ["--share", "1"]):
        refused(2, *search, *other, "--resume", says="is from another search")


def test_of_several_searches_those_that_ended_are_kept(models, done, interrupted, tmp_path):
    search = ["merge", *models, "--method", "ste", *SHORT, "--json"]
    whole = done(*search, "-o", "whole.safetensors", "--verbose")
    assert "matching 1/24  model 2 of 3  loss" in whole.err
    assert "matching 13/24  model 3 of 3  loss" in whole.err
    search += ["--log", "log.jsonl", "-o", "out.safetensors"]
    interrupted(*search, after=20, task="matching")
    assert max(row["model"] for row in lines(tmp_path / "log.jsonl")) == 3  # in the second search
    resumed = done(*search, "--resume")
    assert "of model 3" in resumed.err
    found, expected = resumed.json()["match"], whole.json()["match"]
    assert found == expected
    steps = [(row["model"], row["step"]) for row in lines(tmp_path / "log.jsonl") if "loss" in row]
    assert steps == [(model, step) for model in (2, 3) for step in range(1, 13)]


def test_permutations_of_ones_own_to_begin_with(models, done, refused):
    a, b, c = models
    done("align", a, b, "-o", "found.safetensors")
    short = [*SHORT, "--lr", "1e-9", "--json"]
    given = done(
        "align", a, b, "-m", "ste", "--init", "found.perm.safetensors", *short, "-o", "x.safetensors"
    )
    found = done("align", a, b, "-m", "ste", "--init", "wm", *short, "-o", "y.safetensors")
    assert given.json()["match"]["history"] == found.json()["match"]["history"]
    still = done("align", a, b, "-m", "ste", "--init", "identity", *short, "-o", "z.safetensors").json()
    assert still["match"]["history"][0] != found.json()["match"]["history"][0]
    assert "identity" in open_checkpoint("z.safetensors").metadata["rebasin.options"]
    told = json.loads(open_checkpoint("x.safetensors").metadata["rebasin.options"])
    assert len(told["init"]) == 64  # its digest, not its name
    many = ["merge", a, b, c, "-m", "ste-mm", *SHORT, "--init", "found.perm.safetensors"]
    refused(2, *many, says="is for the second of two models, not of 3")
    refused(
        2, "align", a, b, "-m", "ste", *SHORT, "--init", "nowhere", says="neither a way to start nor a file"
    )


def test_a_barrier_over_what_was_learnt(models, done, tmp_path):
    data = ["--data", "digits", "--limit", "200", "--skip-checks", "--epochs", "1"]
    outcome = done("barrier", *models[:2], "--method", "ste", *data, "--json").json()
    assert outcome["match"]["method"] == "ste" and len(outcome["match"]["history"]) > 1


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--method", "wm", "--epochs", "3"], "--epochs: the method wm has no such option"),
        (["--method", "wm", "--lr", "0.1"], "--lr: the method wm has no such option"),
        (["--method", "ste-mm", "--mixture", "half"], "--mixture: the method ste-mm has no such option"),
        (["--method", "ste", "--precision", "fp8"], "fp8"),
        (["--method", "ste", "--share", "0"], "0 is no share"),
    ],
)
def test_options_that_do_not_belong_are_refused(models, refused, extra, words):
    refused(2, "merge", *models, "--data", "digits", *extra, says=words)


def test_a_log_that_cannot_be_written_is_said_before_the_search(models, refused):
    refused(5, "merge", *models, "-m", "ste-mm", *SHORT, "--log", "no/such/log.jsonl", says="no such folder")


def test_a_log_never_takes_the_place_of_something_else(models, done, refused, tmp_path):
    a, b, c = models
    search = ["merge", *models, "-m", "ste-mm", *SHORT, "-o", "out.safetensors"]
    refused(2, *search, "--log", a, says="is read by this very command, and would be replaced")
    for own in ("out.safetensors", "out.perm.safetensors", "out.search.safetensors", "./out.safetensors"):
        refused(2, *search, "--log", own, says="cannot be both the")
    (tmp_path / "log.jsonl").write_text("mine")
    refused(2, *search, "--log", "log.jsonl", says="log.jsonl exists")
    refused(2, "merge", *models, "-m", "wm", "--log", "new.jsonl", says="takes no steps that could be logged")
    done(*search, "--log", "log.jsonl", "--force")
    assert len(lines(tmp_path / "log.jsonl")) > 12


def test_a_permutation_file_is_for_one_pair(models, done, refused):
    a, b, c = models
    done("align", a, b, "-o", "found.safetensors")
    few = ["--data", "digits", "--limit", "100", "--skip-checks", "--init", "found.perm.safetensors"]
    refused(2, "compare", a, b, c, "-m", "ste-mm", *few, says="is for the second of two models")
    refused(2, "barrier", a, b, "--pair", f"{a},{c}", "-m", "ste", *few, says="is for one pair of models")


def test_options_of_methods_mean_nothing_to_none(models, refused):
    refused(2, "merge", *models, "-m", "none", "--epochs", "3", says="the method none has no such option")
    refused(2, "merge", *models, "-m", "none", "--cost", "l2", says="the method none has no such option")


def test_a_limit_of_samples_is_taken_where_samples_are_looked_at_and_refused_elsewhere(models, done, refused):
    few, nothing = ("--data", "digits", "--limit", "90"), "--limit 90 limits nothing: "
    for command, options, why in (
        ("merge", ("-m", "wm"), "--method wm goes by weights alone, and repairs measure on 2,560"),
        ("merge", ("-m", "wm", "--repair", "none"), "--method wm goes by weights alone"),
        ("merge", ("-m", "wm", "--repair", "refit"), "--method wm goes by weights alone"),
        ("align", (), "--method wm goes by weights alone"),
    ):
        refused(2, command, *models[:2], *options, *few, says=(nothing + why, "such as am or auto"))
    for options in (("--net", "mlp"), ("-m", "auto", "--net", "mlp")):
        out = done("merge", *models[:2], *few, *options, "--budget", "1s", "-o", "m.safetensors", "--force")
        assert "method: auto" in out.err
        recorded = json.loads(open_checkpoint("m.safetensors").metadata["rebasin.options"])
        assert recorded["limit"] == 90


def test_what_methods_looked_at_is_recorded(models, done):
    a, b, _ = models
    done("align", a, b, "-m", "am", "--data", "digits", "--limit", "50", "-o", "few.safetensors")
    options = json.loads(open_checkpoint("few.safetensors").metadata["rebasin.options"])
    assert options["limit"] == 50 and options["data"] == "digits"


@pytest.mark.sweep
def test_statistics_after_training_are_measured_on_one_epoch(resnets, done, monkeypatch):
    monkeypatch.setattr(samples, "RESET_SAMPLES", 20)
    monkeypatch.setattr(samples, "HELD_SAMPLES", 16)
    merge = ("merge", *resnets, "--data", "npz:pictures.npz", "--force", "--method")
    steps = ("--epochs", "1", "--batch-size", "32", "--init", "wm")
    expected = [
        (20, ["wm"]),
        (40, ["ste", *steps, "--limit", "40"]),
        (20, ["ste", *steps, "--limit", "10"]),  # no fewer than after any other method
        (64, ["ste-mm", *steps, "--bake-temperature"]),
    ]
    for count, method in expected:
        outcome = done(*merge, *method, "--json")
        assert f"statistics of 21 norms re-estimated on {count} samples" in outcome.err
    assert outcome.json()["temperature"]["samples"] == 16
