"""rebasin train."""

import os
import signal
import time

import pytest

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from tests import processes

from .conftest import contents

TINY = ("train", "mlp", "--data", "digits", "--width", 8, "--depth", 1, "--device", "cpu")


def test_an_endpoint_with_its_provenance(done, tmp_path):
    outcome = done(*TINY, "--epochs", 2, "--seed", 3, "-o", "a.safetensors")
    assert "written              a.safetensors" in outcome.out and "test accuracy" in outcome.out
    told = open_checkpoint("a.safetensors").metadata
    assert told["rebasin.data"] == "digits" and told["rebasin.seed"] == "3" and told["rebasin.epochs"] == "2"
    assert told["rebasin.normalization"] == "0.0/1.0" and float(told["rebasin.test_accuracy"]) >= 0
    assert set(contents(tmp_path)) == {"a.safetensors"}


def test_the_file_of_an_mlp_tells_that_it_is_tanh(done, refused):
    """So every command builds the right network from it, and `--groups all` finds the signs."""
    recipe = ("--epochs", 3, "--lr", 0.01, "-q")
    for name in "ab":
        done(*TINY, "--activation", "tanh", "--seed", ord(name), *recipe, "-o", f"{name}.safetensors")
    done(*TINY, *recipe, "-o", "relu.safetensors")
    trained = open_checkpoint("a.safetensors").metadata
    assert trained["rebasin.activation"] == "tanh"
    told = done("eval", "a.safetensors", "--json").json()
    assert told["accuracy"] == pytest.approx(float(trained["rebasin.test_accuracy"]), abs=1e-4)
    both = ("a.safetensors", "b.safetensors")
    assert "layers.0 signed" in done("merge", *both, "--groups", "all", "-o", "m.safetensors").err
    refused(4, "merge", "a.safetensors", "relu.safetensors", "-o", "x.safetensors", says="tanh")


def test_the_same_seed_the_same_bytes(done, tmp_path):
    for name in "ab":
        done(*TINY, "--epochs", 1, "--limit", 200, "-o", f"{name}.safetensors", "-q")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_dry_run_tells_what_would_be_trained_and_writes_nothing(done, refused, tmp_path):
    plan = done(*TINY, "--epochs", 2, "--limit", 200, "-o", "a.safetensors", "--dry-run", "--json").json()
    assert plan["parameters"] == 64 * 8 + 8 + 8 * 10 + 10 and plan["train_samples"] == 200
    assert plan["steps"] == 2 * 2 and plan["optimizer"] == "adam" and plan["normalization"] == "0.0/1.0"
    refused(2, *TINY, "--optimizer", "lion", "-o", "a.safetensors", "--dry-run", says="unknown optimizer")
    assert contents(tmp_path) == {}


def test_the_weights_of_epochs_are_written_beside(done, refused, tmp_path):
    recipe = (*TINY, "--epochs", 3, "--limit", 200, "--keep-every", 2)
    plan = done(*recipe, "-o", "a.safetensors", "--dry-run", "--json").json()
    assert plan["keeps"] == ["a.epoch0.safetensors", "a.epoch2.safetensors"]
    made = done(*recipe, "-o", "a.safetensors", "--json").json()
    assert made["written"] == ["a.safetensors", *plan["keeps"]] and set(contents(tmp_path)) == set(
        made["written"]
    )
    assert open_checkpoint("a.epoch2.safetensors").metadata["rebasin.epoch"] == "2"
    assert "rebasin.epoch" not in open_checkpoint("a.safetensors").metadata
    (tmp_path / "a.safetensors").unlink()
    refused(2, *recipe, "-o", "a.safetensors", "--dry-run", says="a.epoch0.safetensors exists")
    refused(2, *recipe, "-o", "a.safetensors", says=("a.epoch0.safetensors exists", "--force"))


def test_epochs_to_keep_that_never_come_are_refused(refused, tmp_path):
    few = (*TINY, "--epochs", 2, "--limit", 200, "-o", "a.safetensors")
    refused(2, *few, "--keep-every", 5, says=("--keep-every 5 keeps none of 2 epochs", "Give 2 at most"))
    assert contents(tmp_path) == {}


def test_epochs_that_were_over_before_any_was_kept_are_named(done, interrupted, tmp_path):
    recipe = (*TINY, "--epochs", 3, "--limit", 300, "-o", "a.safetensors")
    interrupted(*recipe, after=2)
    told = done(*recipe, "--keep-every", 1, "--resume")
    assert "not kept" in told.err and "a.epoch0.safetensors" in told.err.replace("\n", " ")
    assert not (tmp_path / "a.epoch0.safetensors").exists() and "a.epoch3" not in told.err


def test_ctrl_c_leaves_the_weights_of_finished_epochs_and_resume_adds_the_rest(done, interrupted, tmp_path):
    recipe = (*TINY, "--epochs", 3, "--limit", 300, "--keep-every", 1)
    done(*recipe, "-o", "whole.safetensors")
    left = interrupted(*recipe, "-o", "a.safetensors", after=2)
    assert "a.training.pt" in left and "a.epoch0.safetensors" in left and "a.epoch3.safetensors" not in left
    done(*recipe, "-o", "a.safetensors", "--resume")
    for epoch in range(4):
        names = (f"{name}.epoch{epoch}.safetensors" for name in ("a", "whole"))
        assert len({(tmp_path / name).read_bytes() for name in names}) == 1


def test_the_papers_trainings_can_be_said(done):
    plan = done(
        *("train", "mlp", "--data", "digits", "--width", 15, "--device", "cpu", "--optimizer", "sgd"),
        *("--momentum", 0, "--lr", 0.05, "--schedule", "constant", "--warmup", 0, "--weight-decay", 0),
        *("--init", "kaiming", "--classes-split", "5:0.2,0.8", "--part", "a", "--split-seed", 123),
        *("-o", "a.safetensors", "--dry-run", "--json"),
    ).json()
    assert (plan["momentum"], plan["nesterov"], plan["init"], plan["warmup"]) == (0, False, "kaiming", 0)
    assert 0.45 < plan["train_samples"] / 1437 < 0.55
    assert (plan["width"], plan["classes_split"], plan["part"]) == (15, "5:0.2,0.8", "a")


def test_what_no_data_set_augments_is_not_said_to_be(refused):
    line = (*TINY, "--augment", "-o", "a.safetensors", "--dry-run")
    refused(2, *line, says="--augment: digits does not say how its samples are augmented")


def test_a_plan_names_network_seed_and_share(done):
    wanted = ("--norm", "batch", "--seed", 7, "--subset", 0.5)
    plan = done(*TINY, *wanted, "-o", "a.safetensors", "--dry-run", "--json").json()
    assert (plan["width"], plan["depth"], plan["norm"], plan["seed"]) == (8, 1, "batch", 7)
    assert plan["subset"] == 0.5 and plan["train_samples"] == round(1437 / 2)


def test_json_and_quiet(done):
    outcome = done(*TINY, "--epochs", 1, "--limit", 100, "-o", "a.safetensors", "--json", "-q")
    assert outcome.json()["epochs"] == 1 and outcome.err == ""


def test_ctrl_c_keeps_the_last_epoch_and_resume_gives_the_same_bytes(done, interrupted, tmp_path):
    recipe = (*TINY, "--epochs", 4, "--limit", 300)
    done(*recipe, "-o", "whole.safetensors")
    left = interrupted(*recipe, "-o", "a.safetensors", after=2)
    assert left == {"a.training.pt"}
    done(*recipe, "-o", "a.safetensors", "--resume")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not (tmp_path / "a.training.pt").exists()


def test_ctrl_c_while_the_state_is_written_leaves_the_one_before(done, interrupted, monkeypatch, tmp_path):
    import torch

    real, calls = torch.save, iter(range(10))

    def save(state, path):
        real(state, path)
        if next(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save)
    recipe = (*TINY, "--epochs", 3, "--limit", 300)
    assert interrupted(*recipe, "-o", "a.safetensors", after=1000) == {"a.training.pt"}
    assert done(*recipe, "-o", "a.safetensors", "--resume").code == 0


def test_epochs_are_kept_through_no_link_and_others_files_are_not_told_as_ours(
    done, refused, interrupted, tmp_path
):
    recipe = (*TINY, "--epochs", 3, "--limit", 300, "-o", "a.safetensors")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a.epoch0.safetensors").symlink_to(tmp_path / "mine")
    refused(2, *recipe, "--keep-every", 1, "--force", says="a.epoch0.safetensors is a link")
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / "a.epoch0.safetensors").unlink()
    interrupted(*recipe, after=2)
    (tmp_path / "a.epoch0.safetensors").write_text("another's")
    told = done(*recipe, "--keep-every", 1, "--resume", "--json").json()["written"]
    assert "a.epoch0.safetensors" not in told and "a.epoch3.safetensors" in told


def test_a_network_that_the_last_step_broke_is_not_written(refused, tmp_path):
    few = ("--limit", 10, "--batch-size", 10, "--epochs", 1, "--warmup", 0)
    line = ("train", "mlp", "--data", "digits", "--width", 16, "--optimizer", "sgd", "--lr", "1e30", *few)
    refused(6, *line, "-o", "huge.safetensors", says="test loss is")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.sweep),
    ],
)
def test_a_signal_ends_the_process_and_the_state_is_kept(tmp_path, number, code, word):
    """In a process, whose exit code is what a shell sees of a signal."""
    line = (*TINY, "--epochs", 100000, "-o", "a.safetensors")
    running = processes.rebasin(*line, log=tmp_path.with_name(f"{tmp_path.name}-process"))
    try:
        while not (tmp_path / "a.training.pt").exists():
            assert running.poll() is None, running.err
            time.sleep(0.01)
        running.send_signal(number)
        running.wait()
    finally:
        running.kill()
    out, err = running.out, running.err
    assert running.returncode == code and out == ""
    assert "go on with --resume" in err and err.endswith(f"rebasin: {word}\n") and "Traceback" not in err
    assert set(contents(tmp_path)) == {"a.training.pt"}


def test_resuming_with_other_options_is_refused(refused, interrupted):
    interrupted(*TINY, "--epochs", 3, "--limit", 300, "-o", "a.safetensors", after=2)
    says = ("a.training.pt is the state of another training", "rebasin.epochs: 3 there, 4 here")
    refused(2, *TINY, "--epochs", 4, "--limit", 300, "-o", "a.safetensors", "--resume", says=says)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["mlpp", "--data", "digits"], 2, "Did you mean mlp?"),
        (["mlp", "--data", "digitz"], 2, "Did you mean digits?"),
        (["mlp", "--data", "npz:nowhere.npz"], 6, "nowhere.npz: no such file"),
        (["mlp", "--data", "digits", "--optimizer", "adamm"], 2, "Choose adam or adamw or sgd"),
        (["mlp", "--data", "digits", "--lr", "-1"], 2, "learning_rate is -1"),
        (["mlp", "--data", "digits", "--width", "8.5"], 2, "number of units, not 8.5"),
        (["mlp", "--data", "digits", "--depth", "0"], 2, "one hidden layer at least"),
        (["mlp", "--data", "digits", "--norm", "bach"], 2, "unknown norm 'bach'"),
        (["mlp", "--data", "digits", "--activation", "gelu"], 2, "unknown activation 'gelu' of an mlp"),
        (["mlp", "--data", "digits", "--normalize", "0/0"], 2, "is no normalization"),
        (["mlp", "--data", "digits", "--device", "gpu"], 2, "unknown device 'gpu'"),
        (["mlp", "--data", "digits", "--resume"], 2, "there is no a.training.pt"),
        (["mlp", "--data", "digits", "--lr", "1e30", "--optimizer", "sgd", "--epochs", "3"], 6, "diverged"),
        (["mlp", "--data", "json:loader"], 2, "loader"),
        (["mlp", "--data", "digits", "--momentum", "0.5"], 2, "--momentum is of SGD"),
        (["mlp", "--data", "digits", "--classes-split", "half"], 2, "is no split of classes"),
        (["mlp", "--data", "digits", "--classes-split", "5:0.2,0.8"], 2, "--part a or --part b"),
        (["mlp", "--data", "digits", "--init", "zeros"], 2, "Choose kaiming or lecun or xavier"),
    ],
)
def test_refusals(refused, arguments, code, says):
    refused(code, "train", *arguments, "-o", "a.safetensors", says=says)


def test_outputs_that_cannot_be(refused, tmp_path):
    (tmp_path / "there.safetensors").write_text("")
    refused(2, *TINY, "-o", "there.safetensors", says=("there.safetensors exists", "--force"))
    refused(2, *TINY, "-o", "a.pt", says="Use a.safetensors")
    refused(5, *TINY, "-o", "/proc/self/a.safetensors", says="cannot be written")


def test_an_interrupted_training_is_begun_anew_only_with_force(refused, interrupted, done, tmp_path):
    interrupted(*TINY, "--epochs", 3, "--limit", 300, "-o", "a.safetensors", after=2)
    anew = (*TINY, "--epochs", 2, "--limit", 300, "-o", "a.safetensors")
    refused(2, *anew, says=("a.training.pt exists", "--resume", "--force"))
    refused(2, "train", "mlpp", *anew[2:], "--force", says="Did you mean mlp?")
    done(*anew, "--force")
    assert set(contents(tmp_path)) == {"a.safetensors"}


def test_a_file_of_another_kind_under_the_states_name_is_kept(refused, tmp_path):
    (tmp_path / "a.training.pt").write_text("precious")
    refused(2, *TINY, "-o", "a.safetensors", says="a.training.pt exists")
    refused(2, *TINY, "-o", "a.safetensors", "--resume", says="is not the state of a training")


def test_a_single_sample_left_over_does_not_stop_batchnorm(done):
    done(*TINY, "--norm", "batch", "--batch-size", 718, "--epochs", 1, "-o", "a.safetensors")


def test_a_full_disk(refused, monkeypatch):
    def full(descriptor):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("rebasin_cli.learning.training._save", lambda *a: None)
    refused(5, *TINY, "--epochs", 1, "--limit", 100, "-o", "a.safetensors", says="No space left on device")
