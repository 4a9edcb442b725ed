"""rebasin spec infer, and --spec infer where a spec is wanted."""

import pytest
import torch

from rebasin_cli.spec.fitting import fit
from rebasin_cli.spec.parsing import parse
from rebasin_cli.writing import write_safetensors

MODEL = """
import torch
from torch import nn

class Gated(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.stem = nn.Linear(4, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, 8), nn.Linear(width, 8)
        self.down, self.head = nn.Linear(8, width), nn.Linear(width, 3)

    def forward(self, x):
        x = self.stem(x)
        h = self.norm(x)
        return self.head(x + self.down(torch.relu(self.gate(h)) * self.up(h)))

def build():
    return Gated()

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) if x.sum().item() > 0 else x
"""
WORDS = {6, 8}  # the residual stream, and the units between gate and down


@pytest.fixture
def files(tmp_path):
    """Two models of a network that has no built-in spec."""
    (tmp_path / "model.py").write_text(MODEL)
    namespace: dict = {"__name__": "model"}
    exec(compile(MODEL, "model.py", "exec"), namespace)
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        write_safetensors(tmp_path / f"{name}.safetensors", namespace["build"]().state_dict())
    return tmp_path


def test_a_spec_is_printed_that_reads_back(files, done):
    outcome = done("spec", "infer", "--net", "model.py:build", "--input", "2x4")
    shapes = {name: tuple(t.shape) for name, t in torch_state(files).items()}
    assert set(fit(parse(outcome.out, name="printed"), shapes).words.values()) == WORDS
    assert "head.weight axis 0" in outcome.err and "the network's output" in outcome.err


def torch_state(files):
    from rebasin_cli import open_checkpoint

    return dict(open_checkpoint(files / "a.safetensors"))


def test_a_spec_is_written_and_serves_as_one(files, done, run):
    told = done("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "own.yaml").out
    assert "written              own.yaml" in told and "proven" in told
    assert done("spec", "check", "own.yaml", "a.safetensors").out
    assert done("align", "a.safetensors", "b.safetensors", "--spec", "own.yaml", "-o", "one.safetensors").out
    again = run("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "own.yaml")
    assert again.code == 2 and "exists" in again.err
    assert done("spec", "infer", "--net", "model.py:build", "--input", "2x4", "-o", "own.yaml", "--force").out


def test_no_yaml_is_needed_to_align(files, done):
    options = ["--net", "model.py:build", "--input", "2x4"]
    out = done("align", "a.safetensors", "b.safetensors", "--spec", "infer", *options).out
    assert "spec                 inferred, 2 permutations" in out and "proven" in out
    assert (files / "b_aligned.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["align", "a.safetensors", "b.safetensors", "--spec", "infer"], "--net file.py:factory"),
        (["spec", "infer", "--net", "model.py:build"], "Give a shape with --input"),
        (["spec", "infer", "--net", "mlp"], "Give a checkpoint"),
        (["spec", "show", "infer"], "rebasin spec infer"),
    ],
)
def test_what_is_missing_is_said(files, run, arguments, said):
    outcome = run(*arguments)
    assert outcome.code == 2 and said in outcome.err and "Traceback" not in outcome.err


def test_a_network_that_cannot_be_traced_is_an_error_of_its_code(files, run):
    outcome = run("spec", "infer", "--net", "model.py:Broken", "--input", "2x4", "-o", "own.yaml")
    assert outcome.code == 6 and "Traceback" not in outcome.err
    assert not (files / "own.yaml").exists()
