"""Batches of any numbers (float64 as numpy makes it, whole numbers, arrays, lists), used in every way."""

from __future__ import annotations

import pytest

LOADER = """
import numpy as np
import torch

torch.manual_seed(0)
BYTES = torch.randint(0, 256, (16, 1, 8, 8))
LABELS = torch.arange(16) % 10

def loader(split):
    return [(KIND(BYTES[k : k + 8]), TARGETS(LABELS[k : k + 8])) for k in (0, 8)]
"""
KINDS = {
    "float64": "lambda x: x.double() / 255",
    "float16": "lambda x: (x / 255).half()",
    "bfloat16": "lambda x: (x / 255).bfloat16()",
    "int64": "lambda x: x",
    "int32": "lambda x: x.int()",
    "uint8": "lambda x: x.byte()",
    "numpy float64": "lambda x: x.numpy() / 255",
    "numpy float32 read-only": "lambda x: np.broadcast_to((x.numpy() / 255).astype('f4'), x.shape)",
    "numpy big-endian": "lambda x: (x.numpy() / 255).astype('>f8')",
    "numpy backwards": "lambda x: (x.numpy() / 255)[:, :, ::-1]",
    "numpy long double": "lambda x: (x.numpy() / 255).astype(np.longdouble)",
    "numpy int64": "lambda x: x.numpy()",
    "numpy uint8": "lambda x: x.numpy().astype('u1')",
    "numpy uint16": "lambda x: x.numpy().astype('u2')",
    "numpy bool": "lambda x: x.numpy() > 128",
    "a list of floats": "lambda x: (x / 255).tolist()",
    "a list of whole numbers": "lambda x: x.tolist()",
    "a list of one array": "lambda x: [x.numpy() / 255]",
}
TARGETS = {
    "tensor": "lambda y: y",
    "int32": "lambda y: y.int()",
    "numpy uint8": "lambda y: y.numpy().astype('u1')",
    "a list": "lambda y: y.tolist()",
}
USES = {
    "am": ["align", "PAIR", "--method", "am", "-o", "out.safetensors"],
    "dual": ["align", "PAIR", "--method", "dual", "-o", "out.safetensors"],
    "ste": ["align", "PAIR", "--method", "ste", "--epochs", "1", "-o", "out.safetensors"],
    "ste-mm": ["merge", "PAIR", "--method", "ste-mm", "--epochs", "1", "-o", "out.safetensors"],
    "merge --repair repair": ["merge", "PAIR", "--repair", "repair", "-o", "out.safetensors"],
    "merge --repair rescale": ["merge", "PAIR", "--repair", "rescale", "-o", "out.safetensors"],
    "merge --repair reshift": ["merge", "PAIR", "--repair", "reshift", "-o", "out.safetensors"],
    "merge --repair bias": ["merge", "PAIR", "--repair", "bias", "-o", "out.safetensors"],
    "merge --repair auto": ["merge", "PAIR", "--repair", "auto", "--net", "mlp", "-o", "out.safetensors"],
    "merge --bake-temperature": ["merge", "PAIR", "--bake-temperature", "-o", "out.safetensors"],
    "doctor": ["doctor", "PAIR"],
    "barrier": ["barrier", "PAIR", "--skip-checks", "--repair", "repair"],
    "compare": ["compare", "PAIR", "--skip-checks", "--sharpness", "--probes", "2"],
    "signature": ["signature", "PAIR"],
    "eval": ["eval", "a.safetensors", "--skip-checks"],
    "spec prove": ["spec", "prove", "mlp", "a.safetensors", "--net", "mlp"],
}
CORE = (
    {(use, "numpy float64") for use in USES}
    | {(use, "int64") for use in USES}
    | {("am", kind) for kind in KINDS}
)


def command(use, pair):
    words = [x for word in USES[use] for x in (pair if word == "PAIR" else [word])]
    return [*words, *(["--data", "mine.py:loader"] if words[0] != "spec" else [])]


@pytest.fixture
def loader(tmp_path):
    def loader(kind, targets="lambda y: y"):
        text = LOADER.replace("KIND(", f"({kind})(").replace("TARGETS(", f"({targets})(")
        (tmp_path / "mine.py").write_text(text)

    return loader


@pytest.mark.parametrize(
    "use, kind",
    [
        pytest.param(use, kind, marks=() if (use, kind) in CORE else pytest.mark.sweep)
        for use in USES
        for kind in KINDS
    ],
)
@pytest.mark.sweep
def test_a_network_gets_the_numbers_that_it_computes_in(use, kind, loader, pair, done):
    loader(KINDS[kind])
    outcome = done(*command(use, pair))
    assert "failed" not in outcome.out and "fails" not in outcome.out


@pytest.mark.parametrize("targets", TARGETS)
def test_class_numbers_may_be_any_whole_numbers(targets, loader, pair, done):
    loader(KINDS["float64"], TARGETS[targets])
    assert done(*command("eval", pair), "--json").json()["samples"] == 16


def test_what_is_converted_is_said_once(loader, pair, done):
    loader(KINDS["int64"])
    told = done(*command("barrier", pair)).err
    assert told.count("inputs of int64 are converted to float32") == 1
    loader(KINDS["float64"])
    assert done(*command("am", pair)).err.count("inputs of float64 are converted to float32") == 1


def test_the_same_numbers_in_another_type_give_the_same_figures(loader, pair, done):
    found = []
    for kind in ("lambda x: x.float() / 255", KINDS["float64"], KINDS["numpy float64"]):
        loader(kind)
        found.append(done(*command("eval", pair), "--json").json())
    assert found[0] == found[1] == found[2]


EMBEDDING = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.layers = nn.ModuleList([nn.Embedding(64, 12)])
        self.up, self.down = nn.Linear(12, 6), nn.Linear(6, 10)

    def forward(self, tokens):
        return self.down(torch.relu(self.up(self.layers[0](tokens).mean(1))))

def net():
    torch.manual_seed(0)
    return Net(0)

def loader(split):
    torch.manual_seed(1)
    return [(torch.randint(0, 64, (8, 5)).numpy(), torch.arange(8)) for _ in range(2)]
"""


def test_token_numbers_stay_whole(tmp_path, done, monkeypatch):
    (tmp_path / "mine.py").write_text(EMBEDDING)
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine
    import torch

    from rebasin_cli.checkpoints.writer import write_safetensors

    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        write_safetensors(tmp_path / f"{name}.safetensors", mine.Net(seed).state_dict())
    common = ["--spec", "infer", "--net", "mine.py:net", "--data", "mine.py:loader", "-o"]
    told = done("align", "a.safetensors", "b.safetensors", "--method", "am", *common, "out.safetensors").err
    assert "converted" not in told


def test_whole_numbers_that_fit_no_network_are_refused(tmp_path, pair, refused, loader):
    loader("lambda x: x[..., 0]")
    refused(6, *command("am", pair), says="the network fails on inputs int64 (8, 1, 8)")


def test_numbers_beyond_the_networks_range_are_refused(pair, refused, loader):
    loader("lambda x: x.double() * 1e300")
    refused(6, *command("am", pair), says=("more than float32 holds", "e+30"))
