"""`rebasin train` asked for what cannot be, on a disk that is full, or where somebody planted a link."""

from __future__ import annotations

import errno
import os

import pytest

from rebasin_cli.checkpoints import writer

TRAIN = ("train", "mlp", "--data", "digits", "-o", "out.safetensors")
HUGE = "9" * 400
OPTIONS = {  # what is asked for: the exit code and the words
    ("--width", "1e23"): (2, "a width of 1e+23 makes no network: expected 0 to 1048576"),
    ("--width", "inf"): (2, "a width of inf makes no network"),
    ("--width", "nan"): (2, "a width of nan makes no network"),
    ("--width", "0"): (2, "a width of 0 makes no network"),
    ("--width", "-1"): (2, "a width of -1 makes no network"),
    ("--width", "1.5"): (2, "a number of units, not 1.5"),
    ("--width", HUGE): (2, "a width of inf makes no network"),
    ("--depth", "0"): (2, "one hidden layer at least"),
    ("--depth", "-1"): (2, "one hidden layer at least"),
    ("--depth", "1001"): (2, "a depth of 1001 makes no network: expected 1 to 1000"),
    ("--depth", HUGE): (2, "a depth of 99999999999999999999 makes no network"),
    ("--width", "1048576", "--depth", "1000"): (5, ("bytes of memory, and this machine has", "takes")),
    ("--epochs", "1000001"): (2, "--epochs"),
    ("--epochs", HUGE): (2, "--epochs"),
    ("--epochs", "0"): (2, "--epochs"),
    ("--batch-size", HUGE): (2, "--batch-size"),
    ("--batch-size", "0"): (2, "--batch-size"),
    ("--lr", "inf"): (2, "learning_rate is inf"),
    ("--lr", "nan"): (2, "learning_rate is nan"),
    ("--lr", "-1"): (2, "learning_rate is -1"),
    ("--lr", "1e400"): (2, "learning_rate is inf"),
    ("--weight-decay", "inf"): (2, "weight_decay is inf"),
    ("--weight-decay", "nan"): (2, "--weight-decay"),
    ("--lr", "1e300"): (2, "learning_rate is 1e+300"),
    ("--lr", "1e30", "--epochs", "2"): (6, "training diverged"),
    ("--norm", "x"): (2, "unknown norm 'x'"),
    ("--optimizer", "x"): (2, "unknown optimizer 'x'"),
    ("--schedule", ""): (2, "is empty"),
    ("--precision", "float8"): (2, "unknown precision 'float8'"),
    ("--normalize", "1e400/1"): (2, "is no normalization"),
    ("--normalize", "0/0"): (2, "is no normalization"),
    ("--normalize", "nan/1"): (2, "is no normalization"),
    ("--normalize", ",".join(["0"] * 999) + "/" + ",".join(["1"] * 999)): (2, "has 999 channels"),
    ("--seed", HUGE): (2, "--seed"),
    ("--limit", "0"): (2, "--limit"),
}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda words: " ".join(words)[:30])
def test_what_makes_no_training_is_told_before_it_begins(options, ends, tmp_path):
    code, says = OPTIONS[options]
    if code == 2 and isinstance(says, str) and says.startswith("--"):  # typer's own words
        outcome = ends_with_usage(ends, *TRAIN, *options)
        assert says in outcome
    else:
        ends(code, *TRAIN, *options, says=says)
    assert list(tmp_path.iterdir()) == []


def ends_with_usage(ends, *arguments):
    from tests.cli.conftest import rebasin

    outcome = rebasin(*arguments)
    assert outcome.code == 2 and "Traceback" not in outcome.err
    return outcome.err


SMALL = (*TRAIN, "--width", "4", "--epochs", "2")


@pytest.mark.parametrize("calls", [0, 2, 4])
def test_a_full_disk_is_told_without_an_assertion(calls, ends, monkeypatch):
    """The disk is full at one of the writes of a state, which torch would tell as an assertion of its own."""
    left, fsync = [calls], os.fsync

    def full(descriptor):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return fsync(descriptor)

    monkeypatch.setattr(writer.os, "fsync", full)
    monkeypatch.setattr("tests.corpus.conftest.contents", lambda folder: None)  # the last state is kept
    outcome = ends(5, *SMALL, says=("cannot be written: No space left on device", "out.training.pt"))
    assert "ASSERT" not in outcome.err and "inline_container" not in outcome.err


@pytest.mark.parametrize("to", ["precious", "nowhere"])
@pytest.mark.parametrize("more", [(), ("--force",), ("--resume",)])
def test_a_link_planted_where_the_state_goes_is_not_followed(to, more, ends, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "out.training.pt").symlink_to(tmp_path / to)
    ends(2, *SMALL, *more, says="out.training.pt is a link")


def test_links_planted_under_the_old_temporary_name_are_not_followed(ends, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / f".out.training.pt.{os.getpid()}.part").symlink_to(tmp_path / "precious")
    ends(0, *SMALL)
    assert (tmp_path / "precious").read_text() == "mine" and (tmp_path / "out.safetensors").exists()


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04", b"\x80\x02}q\x00."], ids=repr)
def test_a_state_that_is_none_is_told(content, ends, tmp_path):
    (tmp_path / "out.training.pt").write_bytes(content)
    ends(2, *SMALL, "--resume", says="is not the state of a training")


def test_a_state_with_other_tensors_is_told(ends, tmp_path, monkeypatch):
    import torch

    def stop(path, network, optimizer, history, identity):
        identity = dict(identity)
        torch.save({"network": {}, "optimizer": {}, "history": 3, "identity": identity}, path)
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.corpus.conftest.contents", lambda folder: None)
    with monkeypatch.context() as patch:
        patch.setattr("rebasin_cli.learning.training._save", stop)
        ends(130, *SMALL)
    ends(2, *SMALL, "--resume", says="is not the state of a training")
