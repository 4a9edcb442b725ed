"""What a user's loader does wrong: one message and exit code 6 from every command that reads samples."""

from __future__ import annotations

import itertools

import pytest
import torch

from rebasin_cli.datasets import batches, loaders

LOADERS = """
import torch

torch.manual_seed(0)
IMAGES, LABELS = torch.rand(8, 1, 8, 8), torch.arange(8)

def loader(split):
    return BATCHES

class Raises:
    def __iter__(self):
        yield IMAGES, LABELS
        raise OSError("no such disk")

class Endless:
    def __iter__(self):
        while True:
            yield IMAGES.repeat(32, 1, 1, 1), LABELS.repeat(32)

BATCHES = """

FAULTS = {
    "wrong shapes": (
        "[(IMAGES, LABELS), (torch.rand(8, 3, 8, 8), LABELS)]",
        "the network fails on inputs float32 (8, 3, 8, 8)",
    ),
    "fewer inputs than targets": (
        "[(IMAGES, LABELS), (IMAGES[:5], LABELS)]",
        "batch 1 of the data has 5 inputs and 8 targets",
    ),
    "NaN": ("[(IMAGES, LABELS), (IMAGES / 0 * 0, LABELS)]", "batch 1 of the data has NaN or infinite inputs"),
    "no batches": ("[]", "no "),
    "empty batches": ("[(IMAGES[:0], LABELS[:0])] * 3", "no "),
    "raises in the middle": ("Raises()", "the data failed at batch 1: OSError: no such disk"),
    "splits that hold themselves": (
        "{}\nBATCHES['train'] = BATCHES['test'] = BATCHES",
        "mine.py:loader returns {train: {train: {train: …, test: …}",
    ),
    "inputs that hold themselves": (
        "[]\nround_ = [IMAGES]\nround_.append(round_)\nBATCHES.append((round_, LABELS))",
        "the data failed at batch 0: RecursionError",
    ),
    "inputs in 300 tuples": (
        "IMAGES\nfor _ in range(300): BATCHES = (BATCHES,)\nBATCHES = [(BATCHES, LABELS)]",
        "tuple of 1: tuple of 1: tuple of 1: …",
    ),
    "no pairs": ("[IMAGES]", "batch 0 of the data is float32 (8, 1, 8, 8)"),
}
COMMANDS = {
    "align": ["align", "--method", "am", "-o", "out.safetensors"],
    "align dual": ["align", "--method", "dual", "-o", "out.safetensors"],
    "merge": ["merge", "--repair", "repair", "-o", "out.safetensors"],
    "barrier": ["barrier", "--method", "am", "--repair", "repair", "--skip-checks", "--points", "3"],
}
every_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture
def reading(pair, tmp_path):
    """A command on two networks that reads batches written in Python."""

    def reading(command, batches, *more):
        (tmp_path / "mine.py").write_text(LOADERS + batches + "\n")
        name, *options = COMMANDS[command]
        return [name, *pair, *options, "--data", "mine.py:loader", *more]

    return reading


# Each fault by one of the commands, and one of them by all: they read batches by one reader.
FEW = {*zip(itertools.cycle(COMMANDS), FAULTS), *((command, "raises in the middle") for command in COMMANDS)}


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        pytest.param(*case, marks=[pytest.mark.sweep] * (case not in FEW))
        for case in itertools.product(COMMANDS, FAULTS)
    ],
)
def test_a_loader_that_does_wrong_is_one_message(command, fault, reading, refused):
    batches, says = FAULTS[fault]
    outcome = refused(6, *reading(command, batches), says=says)
    assert "cannot be traced" not in outcome.err


@every_command
def test_labels_out_of_range_are_refused_where_they_are_read(command, reading, refused, done):
    arguments = reading(command, "[(IMAGES, LABELS + 5)] * 3")
    if command == "barrier":
        refused(6, *arguments, says=("targets lie in 5…12", "10 classes"))
    else:  # matching and repairing look at inputs alone
        done(*arguments)


@every_command
def test_empty_batches_among_others_are_passed_over(command, reading, done):
    done(*reading(command, "[(IMAGES[:0], LABELS[:0]), (IMAGES, LABELS), (IMAGES[:0], LABELS[:0])]"))


@pytest.mark.sweep
@every_command
def test_a_loader_without_an_end_is_read_as_far_as_the_limit(command, reading, done):
    limit = [] if command == "merge" else ["--limit", "20"]  # a repair always looks at 2,560 samples
    done(*reading(command, "Endless()", *limit))


def test_a_loader_without_an_end_and_without_a_limit_is_refused(reading, refused, done, monkeypatch):
    monkeypatch.setattr(loaders, "ENDLESS", 100)
    says = ("(test) yields more than 100 samples, with no end in sight", "--limit N")
    refused(6, *reading("barrier", "Endless()"), says=says)
    done(*reading("barrier", "[(IMAGES, LABELS)] * 20"))  # 160, but it has a length


def test_several_targets_a_sample_are_no_fault():
    tokens = torch.zeros(4, 6), torch.zeros(24, dtype=torch.int64)
    assert len(list(batches.checked([tokens]))) == 1
