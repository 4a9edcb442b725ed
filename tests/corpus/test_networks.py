"""Networks at the edge of numbers: weights of 1e300 or 1e-300, layers without units. A message, or right."""

from __future__ import annotations

import itertools

import pytest
import torch
from safetensors.torch import load_file

from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.nets.mlp import MLP
from tests.cli.conftest import rebasin

OUT = ("-o", "out.safetensors")
DIGITS = ("--data", "digits", "--limit", "64")
COMMANDS = {
    "wm": ("align", "PAIR", *OUT),
    "wm --no-prove": ("align", "PAIR", "--no-prove", "--effort", "high", *OUT),
    "wm --bound": ("align", "PAIR", "--bound", *OUT),
    "am": ("align", "PAIR", "--method", "am", *DIGITS, *OUT),
    "am --no-prove": ("align", "PAIR", "--method", "am", "--no-prove", *DIGITS, *OUT),
    "dual": ("align", "PAIR", "--method", "dual", "--no-prove", *DIGITS, *OUT),
    "ste": ("align", "PAIR", "--method", "ste", "--epochs", "1", "--no-prove", *DIGITS, *OUT),
    "merge-many": ("merge", "PAIR", "--method", "merge-many", *OUT),
    "universe": ("merge", "PAIR", "--method", "universe", *OUT),
    "none": ("merge", "PAIR", "--method", "none", "--repair", "none", *OUT),
    "repair": ("merge", "PAIR", "--data", "digits", "--repair", "repair", "--no-prove", *OUT),
    "bias": ("merge", "PAIR", "--data", "digits", "--repair", "bias", "--no-prove", *OUT),
    "barrier": ("barrier", "PAIR", *DIGITS, "--skip-checks", "--repair", "none", "--no-prove"),
    "compare": ("compare", "PAIR", *DIGITS, "--skip-checks", "--sharpness", "--probes", "2", "--no-prove"),
    "doctor": ("doctor", "PAIR", *DIGITS),
    "signature": ("signature", "PAIR", *DIGITS),
    "verify": ("verify", "PAIR"),
    "eval": ("eval", "a.safetensors", "--data", "digits", "--skip-checks"),
    "prove": ("spec", "prove", "mlp", "a.safetensors"),
    "inspect": ("inspect", "a.safetensors"),
}
SCALES = (1e300, 1e200, 1e154, 1e38, 1e18, 1e-300, 0.0)
LAYERS = {
    "no units": [64, 0, 10],
    "no units first": [64, 0, 6, 10],
    "no units last": [64, 6, 0, 10],
    "no inputs": [0, 6, 10],
    "no outputs": [64, 6, 0],
    "one unit": [64, 1, 10],
    "one of all": [1, 1, 1],
}
BEFORE = {  # what ended in a traceback
    *itertools.product((1e300, 1e200), ["merge-many"]),
    *itertools.product((1e38, 1e18), ["compare"]),
    *itertools.product(("no units", "no units first", "no inputs"), ["wm", "am", "prove", "merge-many"]),
}


def rows(kinds):
    found = []
    for kind, command in itertools.product(kinds, COMMANDS):
        core = (kind, command) in BEFORE or command == "wm"
        found.append(
            pytest.param(kind, command, marks=() if core else pytest.mark.sweep, id=f"{kind} {command}")
        )
    return found


def run(command, tmp_path, sizes, scale=1.0, dtype=torch.float32):
    """What the command did, after a look that no traceback was shown and that the output is finite."""
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        state = MLP(sizes).to(dtype).state_dict()
        write_safetensors(tmp_path / f"{name}.safetensors", {k: v * scale for k, v in state.items()})
    pair = ("a.safetensors", "b.safetensors")
    outcome = rebasin(*(x for word in COMMANDS[command] for x in (pair if word == "PAIR" else (word,))))
    assert "Traceback" not in outcome.err and "Error:" not in outcome.err.partition("the network fails on")[0]
    if (out := tmp_path / "out.safetensors").exists():
        assert outcome.code == 0 and all(tensor.isfinite().all() for tensor in load_file(out).values())
    return outcome


@pytest.mark.parametrize("scale, command", rows(SCALES))
def test_weights_of_any_size_give_a_message_or_a_model(scale, command, tmp_path):
    outcome = run(command, tmp_path, [64, 6, 6, 10], scale, torch.float64)
    assert outcome.code in (0, 1 if command == "verify" else 0, 3, 6)
    if outcome.code == 3:
        assert scale > 1 and any(
            words in outcome.err
            for words in ("NaN or infinite values", "more than float32", "products are beyond float64")
        )


# torch says so whenever such a layer is made.
no_warning = pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")


@no_warning
@pytest.mark.parametrize("layers, command", rows(LAYERS))
def test_layers_without_units_give_a_message_or_a_model(layers, command, tmp_path):
    outcome = run(command, tmp_path, LAYERS[layers])
    assert outcome.code in (0, 1 if command == "verify" else 0, 6)


@no_warning
def test_where_all_are_alike_the_proof_says_why_it_cannot_be(tmp_path):
    assert "answers every input alike" in run("wm", tmp_path, LAYERS["no units"]).err
