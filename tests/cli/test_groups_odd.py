"""--groups all on networks where a rotation or a fold does not hold everywhere."""

import importlib.util

import pytest
import torch

from rebasin_cli.checkpoints.writer import write_safetensors
from tests.transformers import drawn, outputs, transformer

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
    """The proof evens out gains, so that a claim may hold there; the models' own gains tell."""
    (tmp_path / "claimed.yaml").write_text(CLAIMED)
    line = ("--spec", "claimed.yaml", "--groups", "all", "--repair", "none", "-o", "x.safetensors")
    says = (
        "rotations of units need norms that are folded away",
        "norm.weight  differs along axis 0",
        "claims",
    )
    refused(4, "merge", *made[0]("post"), *line, says=says)
    assert not (tmp_path / "x.safetensors").exists()


def test_a_claimed_group_that_does_not_hold_is_named_by_the_proof(tmp_path, made, refused):
    (tmp_path / "claimed.yaml").write_text(CLAIMED.replace("s: O1", "u: signed"))
    line = ("--spec", "claimed.yaml", "--groups", "all", "--repair", "none", "-o", "x.safetensors")
    says = (
        "claimed.yaml does not preserve the network's function",
        '"u" is signed (any order and signs): a random element of it alone changes them by',
        "Take these words out of `groups:`",
    )
    refused(4, "merge", *made[0]("post"), *line, says=says)


@pytest.fixture
def plain(tmp_path):
    """Two models of a transformer, and the line that merges them by groups."""
    for name, seed in (("a", 0), ("b", 1)):
        state = {key: tensor.float() for key, tensor in drawn(transformer(), seed).items()}
        write_safetensors(f"{name}.safetensors", state)
    net = ("--net", "tests.transformers:transformer")
    return net, ("--groups", "all", "--repair", "none", "-o", "x.safetensors")


def test_quantised_numbers_are_not_folded_and_the_file_is_named(plain, refused):
    net, how = plain
    state = tensors("b.safetensors")
    state["blocks.0.up.weight"] = state["blocks.0.up.weight"].to(torch.float8_e4m3fn)
    write_safetensors("q.safetensors", state)
    says = (
        "q.safetensors: integers and quantised numbers can be permuted, not folded",
        "blocks.0.up.weight  float8_e4m3fn",
        "--groups permutations",
    )
    refused(3, "canon", "q.safetensors", *net, "-o", "c.safetensors", says=says)
    refused(3, "merge", "a.safetensors", "q.safetensors", *net, *how, says=says)


def test_a_singular_product_is_left_as_it_is_and_told(plain, done):
    """A direction of one head's queries that does nothing: it is rotated, and not scaled."""
    net, how = plain
    state = tensors("b.safetensors")
    state["blocks.0.q.weight"][0] = state["blocks.0.q.bias"][0] = 0
    write_safetensors("s.safetensors", state)
    told = done("merge", "a.safetensors", "s.safetensors", *net, *how, "--weights", "0,1").err
    assert "not balanced: blocks.0.dim of s.safetensors: the product of its two sides is singular" in told
    network = transformer()
    wanted = outputs(network, {name: tensor.double() for name, tensor in state.items()})
    found = outputs(network, {name: tensor.double() for name, tensor in tensors("x.safetensors").items()})
    assert (found - wanted).abs().max() < 1e-5 * wanted.abs().max()


HEADS = """
schema: 1
tensors:
  place: ". ."
  embed.{p}: "..."
  blocks.0.{part}.{p}: "..."
  norm.{p}: "..."
  head.{p}: "..."
  blocks.0.q.weight: "(heads dim*) ."
  blocks.0.q.bias: "(heads dim*)"
  blocks.0.k.weight: "(heads dim~*) ."
  blocks.0.k.bias: "(heads dim~*)"
sizes: {heads: 3}
groups: {dim: GL}
"""


def test_heads_that_do_not_divide_are_refused(plain, refused, tmp_path):
    net, how = plain
    (tmp_path / "heads.yaml").write_text(HEADS)
    says = (
        "heads.yaml does not fit a.safetensors",
        'blocks.0.k.weight  axis 0 has 8 entries, the spec says "(heads dim~*)" (heads = 3 by `sizes`',
        "Sizes that no axis tells stand under `sizes:`",
    )
    refused(4, "merge", "a.safetensors", "b.safetensors", *net, *how, "--spec", "heads.yaml", says=says)


def test_heads_that_differ_are_no_matter_of_groups(made, refused):
    line = ("--groups", "all", "--heads", "concat", "-o", "x.safetensors")
    refused(2, "merge", *made[0]("mean"), *line, says="--heads")


def test_float8_keeps_its_bits_where_groups_are_orders_alone(tmp_path, done):
    (tmp_path / "nets.py").write_text(ORDERS)
    for name, seed in (("a", 0), ("b", 1)):
        rng = torch.Generator().manual_seed(seed)
        shapes = {"up.weight": (6, 4), "up.bias": (6,), "down.weight": (2, 6), "down.bias": (2,)}
        made = {
            key: torch.randn(shape, generator=rng).to(torch.float8_e4m3fn) for key, shape in shapes.items()
        }
        write_safetensors(tmp_path / f"{name}.safetensors", made)
    how = ("--net", "nets.py:net", "--groups", "all")
    done("align", "a.safetensors", "b.safetensors", *how, "-o", "al.safetensors")
    assert tensors("al.safetensors")["up.weight"].dtype == torch.float8_e4m3fn
    assert done("verify", "b.safetensors", "al.safetensors", *how, "--json").json()["answer"] == "yes"


ORDERS = """
import torch
from torch import nn


class Net(nn.Module):
    example_shape = (4,)

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.down(nn.functional.gelu(self.up(x)))


def net():
    return Net()
"""
