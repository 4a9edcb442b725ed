"""--groups all on networks where a rotation or a fold does not hold everywhere."""

import importlib.util

import pytest
import torch

from rebasin_cli.checkpoints.writing import write_safetensors
from tests.transformers import drawn, transformer

from .conftest import tensors

NETS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.example_shape = kind, (5, 8)
        self.into, self.norm, self.out = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.up, self.down = nn.Linear(16, 24), nn.Linear(24, 16)
        if kind == "gain":
            self.scale = nn.Parameter(torch.rand(5, 16) + 0.5)
        if kind == "convolution":
            self.out = nn.Conv1d(16, 3, 3, padding=1)
        if kind == "largest":
            self.more = nn.Linear(16, 16)

    def forward(self, x):
        x = self.into(x)
        if self.kind == "post":
            x = self.norm(x)
            return self.out(x + self.down(torch.relu(self.up(x))))
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        if self.kind == "convolution":
            return self.out(self.norm(x).transpose(1, 2))
        if self.kind == "gain":
            return self.out(x * self.scale)
        y = self.out(self.norm(x))
        if self.kind == "largest":
            return y + torch.relu(self.more(x)).amax(-1, keepdim=True)
        return y + x.mean(-1, keepdim=True) if self.kind == "mean" else y


def mean():
    return Net("mean")


def gain():
    return Net("gain")


def convolution():
    return Net("convolution")


def largest():
    return Net("largest")


def post():
    return Net("post")
"""

# A norm whose output is the stream keeps its gain, so its stream may not turn: the claim is wrong.
CLAIMED = """
schema: 1
tensors:
  into.weight: "s ."
  into.bias: "s"
  norm.weight: "|s|"
  norm.bias: "|s|"
  up.weight: "u s"
  up.bias: "u"
  down.weight: "s u"
  down.bias: "s"
  out.weight: ". s"
  out.bias: "."
groups: {s: O1}
"""


@pytest.fixture
def made(tmp_path):
    """Two models of a network in nets.py, by its name, and what a file computes."""
    (tmp_path / "nets.py").write_text(NETS)
    spec = importlib.util.spec_from_file_location("odd_nets", tmp_path / "nets.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def make(kind):
        for name, seed in (("a", 0), ("b", 1)):
            state = {key: tensor.float() for key, tensor in drawn(getattr(module, kind)(), seed).items()}
            write_safetensors(f"{name}.safetensors", state)
        return "a.safetensors", "b.safetensors", "--net", f"nets.py:{kind}"

    def computes(kind, file):
        network = getattr(module, kind)().double()
        network.load_state_dict({name: tensor.double() for name, tensor in tensors(file).items()})
        with torch.no_grad():
            return network(
                torch.randn(4, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            )

    return make, computes


@pytest.mark.parametrize("kind", ["mean", "largest", "gain", "convolution"])
def test_what_reads_more_of_a_stream_than_its_norm_keeps_the_function(made, done, kind):
    """A merge with all of its weight on B is B, moved."""
    make, computes = made
    line = ("--groups", "all", "--repair", "none", "--weights", "0,1", "-o", "x.safetensors")
    done("merge", *make(kind), *line)
    wanted = computes(kind, "b.safetensors")
    assert (computes(kind, "x.safetensors") - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("kind", ["gain", "convolution"])
def test_a_norm_that_no_reader_can_take_up_is_left(made, done, kind):
    a, _, *net = made[0](kind)
    assert done("canon", a, *net, "-o", "c.safetensors", "--json").json()["outputs_differ"] < 1e-12


def test_a_claimed_group_that_the_weights_do_not_allow_is_refused(tmp_path, made, refused):
    (tmp_path / "claimed.yaml").write_text(CLAIMED)
    line = ("--spec", "claimed.yaml", "--groups", "all", "--repair", "none", "-o", "x.safetensors")
    refused(4, "merge", *made[0]("post"), *line)


def test_quantised_numbers_are_not_folded(refused):
    state = {key: tensor.to(torch.float8_e4m3fn) for key, tensor in drawn(transformer(), 0).items()}
    write_safetensors("q.safetensors", state)
    net = ("--net", "tests.transformers:transformer")
    refused(3, "canon", "q.safetensors", *net, "-o", "c.safetensors", says="not folded")


def test_heads_that_differ_are_no_matter_of_groups(made, refused):
    line = ("--groups", "all", "--heads", "concat", "-o", "x.safetensors")
    refused(2, "merge", *made[0]("mean"), *line, says="--heads")
