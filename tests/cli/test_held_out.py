"""`--held-out`: choices by samples that no endpoint was trained on, and figures without them."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from rebasin_cli import open_checkpoint
from rebasin_cli.datasets import open_data
from rebasin_cli.errors import DataError
from rebasin_cli.session.samples import HeldOut


def test_a_part_of_the_test_split_is_chosen_by_and_in_no_figure(trained, done):
    outcome = done("barrier", *trained, "--held-out", "0.75", "--limit", 100, "--json", "-m", "none")
    report, whole = outcome.json(), open_data("digits", "test").samples
    held = report["data"]["held_out"]
    assert held == {"fraction": 0.75, "samples": round(whole * 0.75)}
    assert report["data"]["samples"]["test"] == whole - held["samples"]
    assert report["choice"]["unseen"] and report["choice"]["samples"] == held["samples"]
    assert any("--held-out 0.75, which no figure is measured on" in note for note in report["notes"])


def test_what_is_held_out_and_the_rest_are_the_whole_split_and_drawn_by_the_seed():
    test = open_data("digits", "test")
    rest, held = HeldOut.parse("0.1").parted(test, seed=3)
    both = torch.cat([rest.source.inputs, held.source.inputs]).flatten(1)
    assert sorted(both.tolist()) == sorted(test.source.inputs.flatten(1).tolist())
    again, other = (HeldOut.parse("0.1").parted(test, seed=seed)[1] for seed in (3, 4))
    assert torch.equal(again.source.inputs, held.source.inputs)
    assert not torch.equal(other.source.inputs, held.source.inputs)


def test_without_data_there_is_nothing_to_hold_out(pair, refused):
    refused(2, "merge", *pair, "--held-out", "0.1", says=("--held-out", "no data set is known", "--data"))


def test_a_merge_records_what_it_was_chosen_by(trained, done):
    outcome = done("merge", *trained, "--method", "wm", "--held-out", "test", "-o", "m.safetensors")
    assert "samples that no endpoint was trained on" in outcome.err
    options = json.loads(open_checkpoint("m.safetensors").metadata["rebasin.options"])
    samples = open_data("digits", "test").samples
    assert options["held_out"] == {"split": "test", "samples": samples}
    assert options["repair_choice"]["unseen"]


def test_training_samples_are_no_unseen_ones_by_another_name(trained, done):
    outcome = done("merge", *trained, "--method", "wm", "--held-out", "train", "-o", "m.safetensors")
    assert "training samples" in outcome.err and "no endpoint was trained on" not in outcome.err


def test_they_may_be_another_data_set(trained, done, tmp_path):
    digits = open_data("digits", "test").source
    x, y = (digits.inputs[:50].numpy(), digits.targets[:50].numpy())
    np.savez(tmp_path / "own.npz", x_test=x, y_test=y)
    report = done(
        "barrier", *trained, "--held-out", "npz:own.npz", "--limit", 100, "--json", "-m", "none"
    ).json()
    assert report["data"]["held_out"] == {"split": "test", "data": "npz", "samples": 50}
    assert report["data"]["samples"]["test"] == 100


def test_a_fifth_of_the_test_split_is_taken_where_nobody_says_how_many(trained, done, refused, tmp_path):
    digits = open_data("digits", "test").source
    parts = {"x_test": digits.inputs.repeat(2, 1, 1, 1), "y_test": digits.targets.repeat(2)}
    parts |= {"x_train": digits.inputs, "y_train": digits.targets}
    np.savez(tmp_path / "own.npz", **{name: part.numpy() for name, part in parts.items()})
    given = ("--data", "npz:own.npz", "--held-out", "auto", "--json")
    report = done("barrier", *trained, *given, "--limit", 100, "-m", "none").json()
    whole = len(parts["y_test"])
    assert report["data"]["held_out"] == {"fraction": "auto", "samples": round(whole / 5)}
    assert done("eval", trained[0], *given).json()["samples"] == whole - round(whole / 5)
    few = ("of 360 test samples are 72", "0.5")
    refused(6, "eval", trained[0], "--held-out", "auto", says=few)
    refused(6, "merge", *trained, "--held-out", "auto", "--dry-run", "-o", "m.safetensors", says=few)


@pytest.mark.parametrize("samples, held", [(500, 100), (9_990, 1_998), (40_000, 2_000), (495, None)])
def test_by_itself_it_is_never_too_few_or_needlessly_many(samples, held):
    test = open_data("digits", "test")
    drawn = test.source.at(torch.arange(samples) % test.samples)
    test, asked = replace(test, source=drawn), HeldOut.parse("auto")
    if held is None:
        with pytest.raises(DataError, match="of 495 test samples are 99: fewer than 100"):
            asked.parted(test, seed=0)
    else:
        assert [part.samples for part in asked.parted(test, seed=0)] == [samples - held, held]


def test_eval_leaves_the_same_samples_out(trained, done):
    whole = open_data("digits", "test").samples
    found = done("eval", trained[0], "--held-out", "0.25", "--json").json()
    assert found["samples"] == whole - round(whole / 4) and found["held_out"] == {"fraction": 0.25}


def test_a_loader_of_ones_own_may_have_a_split_for_it(trained, done, tmp_path):
    (tmp_path / "mine.py").write_text(
        "from rebasin_cli.datasets import open_data\n"
        "def loader(split):\n"
        "    part = {'train': 'train', 'test': 'test', 'validation': 'test'}[split]\n"
        "    return list(open_data('digits', part, limit=60 if split == 'validation' else 300))\n"
    )
    options = ("--data", "mine.py:loader", "--held-out", "validation", "-m", "none", "--limit", 100)
    report = done("barrier", *trained, *options, "--json").json()
    assert report["data"]["held_out"] == {"split": "validation", "samples": 60}


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("1.5", 2, "a fraction lies between 0 and 1"),
        ("0", 2, "a fraction lies between 0 and 1"),
        ("nan", 2, "a fraction lies between 0 and 1"),
        ("a b", 2, "is no fraction, split or data set"),
        ("validation", 2, "digits has no such split"),
        ("test", 2, "leaves no test samples to measure on"),
        ("0.0001", 6, "both parts need some"),
        ("npz:gone.npz", 6, "no such file"),
    ],
)
def test_what_cannot_be_held_out_is_refused(trained, refused, text, code, says):
    refused(code, "barrier", *trained, "--method", "none", "--held-out", text, says=says)
