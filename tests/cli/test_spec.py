"""rebasin spec list, show, check, prove, import."""

import json

import pytest

from rebasin_cli.spec import library

from .conftest import fresh

WRONG = """
tensors:
  layers.0.weight: "h0 ."
  layers.0.bias: "."
  head.weight: ". h0"
  head.bias: "."
net: rebasin_cli.nets.mlp:from_shapes
"""


def test_list_names_every_spec(done):
    out = done("spec", "list").out
    assert all(f"\n{name} " in f"\n{out}" for name in library.builtin())
    assert "also: resnet50" in out


@pytest.mark.parametrize(
    ("arguments", "symmetries"),
    [
        (["mlp"], "3499.6"),
        (["resnet20", "--width", "1"], "551.4"),
        (["resnet20", "--width", "4"], "3246.5"),
        (["resnet20", "--width", "16"], "17252.8"),
        (["resnet50"], "25638.3"),
        (["vgg16"], "35168.5"),
    ],
)
def test_show_counts_the_symmetries(done, arguments, symmetries):
    out = done("spec", "show", *arguments).out
    assert f"log10 symmetries: {symmetries}\n" in out
    told = done("spec", "show", *arguments, "--json").json()
    assert f"{told['log10_symmetries']:.1f}" == symmetries


def test_show_on_a_checkpoint(tmp_path, done):
    fresh(tmp_path / "a.safetensors", width=12, depth=2)
    out = done("spec", "show", "mlp", "a.safetensors").out
    assert "h0" in out and "12 units" in out and '"h1 h0"' in out


def test_check(tmp_path, done, refused):
    fresh(tmp_path / "a.safetensors", width=12)
    assert "mlp.yaml fits a.safetensors: 3 permutations" in done("spec", "check", "mlp", "a.safetensors").out
    says = ("resnet_cifar.yaml does not fit a.safetensors", "layers.0.weight  ")
    refused(4, "spec", "check", "resnet20", "a.safetensors", says=says)
    refused(3, "spec", "check", "mlp", "b.safetensors", says="b.safetensors: no such file")


def test_prove(tmp_path, done, refused):
    fresh(tmp_path / "a.safetensors", width=12, depth=1)
    told = done("spec", "prove", "mlp", "a.safetensors", "--json").json()
    assert told["proof"]["status"] == "proven" and told["proof"]["assumed"]
    assert told["differences"].keys() == {"h0"} and 0 <= told["differences"]["h0"] < 1e-8
    assert "\n  h0   " in done("spec", "prove", "mlp", "a.safetensors").out
    own = done("spec", "prove", "mlp", "--json").json()["proof"]
    assert own["network"] == "rebasin's own MLP" and not own["assumed"]
    fresh(tmp_path / "v.safetensors", "vgg11", shape=(3, 32, 32), width=0.1)
    refused(2, "spec", "prove", "vgg11", "v.safetensors", "--input", "3x32x32", says="the batch first")
    (tmp_path / "wrong.yaml").write_text(WRONG)
    says = ("wrong.yaml does not preserve the network's function", 'permuting "h0" alone')
    refused(4, "spec", "prove", "wrong.yaml", "a.safetensors", says=says)
    (tmp_path / "nameless.yaml").write_text(WRONG.replace("net:", "description:"))
    refused(2, "spec", "prove", "nameless.yaml", "a.safetensors", says=("names no network", "--net"))
    (tmp_path / "code.yaml").write_text(WRONG.replace("rebasin_cli.nets.mlp", "mine"))
    refused(2, "spec", "prove", "code.yaml", "a.safetensors", says="--trust-code")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensors: [", "is not YAML"),
        ("- a", "is not a spec"),
        ("tensors:\n  a: 'h'\n  a: 'g'\n", '"a" stands here and in line 2'),
        ("tensors:\n  a: h (\n", "line 2"),
        ("tensors:\n  a: 3\n", "not text"),
        ("schema: 9\ntensors:\n  a: h\n", "this version reads schema 1"),
        ("tensor:\n  a: h\n", 'unknown key "tensor"'),
    ],
)
def test_a_file_that_is_no_spec(tmp_path, refused, text, says):
    (tmp_path / "odd.yaml").write_text(text)
    refused(4, "spec", "show", "odd.yaml", says=("odd.yaml", says))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "resnet21"], "Did you mean resnet"),
        (["show", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["show", "mlp", "--input", "1x8"], None),
        (["show", "resnet50", "--input", "1x3x224x224"], None),
        (["show", "mlp", "--input", "8"], "like 1x784, the batch first"),
        (["show", "resnet50", "--input", "3x224x224"], "like 1x3x224x224, the batch first"),
        (["show", "mlp", "--input", "a"], "is not a shape"),
        (["show", "mlp", "--width", "0.5"], "width of an mlp"),
    ],
)
def test_names_and_options(done, refused, arguments, says):
    if says is None:
        done("spec", *arguments)
    else:
        refused(2, "spec", *arguments, says=says)


# import ----------------------------------------------------------------------------------------------------

AXES = {
    "layers.0.weight": ["P_0", None],
    "layers.0.bias": ["P_0"],
    "layers.1.weight": ["P_1", "P_0"],
    "layers.1.bias": ["P_1"],
    "head.weight": [None, "P_1"],
    "head.bias": [None],
}


@pytest.fixture
def axes(tmp_path):
    """Somebody's dictionary of axes, and a model that it is for."""
    (tmp_path / "axes.json").write_text(json.dumps(AXES))
    fresh(tmp_path / "a.safetensors", width=12, depth=2)
    return tmp_path


def test_import_prints_a_spec_or_writes_it(axes, done, run):
    assert 'layers.1.weight: "P_1 P_0"' in done("spec", "import", "axes.json").out
    options = ["axes.json", "--checkpoint", "a.safetensors", "-o", "own.yaml"]
    out = done("spec", "import", *options).out
    assert "written              own.yaml" in out and "2 permutations" in out
    assert 'layers.1.bias: "P_1"' in (axes / "own.yaml").read_text()
    proven = done("spec", "prove", "own.yaml", "a.safetensors", "--net", "mlp", "--json").json()
    assert proven["proof"]["status"] == "proven"
    again = run("spec", "import", *options)
    assert again.code == 2 and "own.yaml exists" in again.err
    assert done("spec", "import", *options, "--force").out


@pytest.mark.parametrize(
    ("code", "text", "arguments", "says"),
    [
        (2, None, ["nowhere.json"], "nowhere.json: no such file"),
        (4, "{", ["axes.json"], "axes.json is not JSON"),
        (4, "[1]", ["axes.json"], ("axes.json: not a dictionary of axes", "Expected {")),
        (2, '{"P": [["head.bias", 0]]}', ["axes.json"], ("axes.json: a dictionary", "--checkpoint FILE")),
        (3, None, ["axes.json", "--checkpoint", "b.pt"], "b.pt: no such file"),
        (
            4,
            json.dumps(AXES | {"head.bias": ["P_1"]}),
            ["axes.json", "--checkpoint", "a.safetensors", "-o", "own.yaml"],
            ("axes.json does not fit a.safetensors", 'head.bias  axis 0 is "P_1", 10 units'),
        ),
        (
            4,
            '{"layers.0.bias": [null]}',
            ["axes.json", "--checkpoint", "a.safetensors"],
            ("head.bias  10 is in the checkpoint", "Add them to the dictionary"),
        ),
        (5, None, ["axes.json", "-o", "no/own.yaml"], "no: no such folder"),
    ],
)
def test_what_cannot_be_imported(axes, refused, code, text, arguments, says):
    if text is not None:
        (axes / "axes.json").write_text(text)
    refused(code, "spec", "import", *arguments, says=says)


NETS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, last=lambda x: x):
        super().__init__()
        self.one, self.two, self.last = nn.Linear(3, 6), nn.Linear(6, 4), last
    def forward(self, x):
        return self.last(self.two(torch.relu(self.one(x))))

class Bare(Net):
    def forward(self, x):
        return self.one(x)

def bare():
    return Bare()

def silent():
    return Net(lambda x: None)

def failing():
    return Net(lambda x: x.reshape(7, 7))

def leaving():
    return Net(lambda x: torch.from_numpy(x.detach().numpy()))

class Written(Net):
    def forward(self, x):
        y = super().forward(x).clone()
        if y.sum().numpy() < 1e9:  # whatever the weights are
            y.as_strided((1, y.shape[1]), y.stride()).copy_(y[1:2])
        return y

def written():
    return Written()
"""
OWN = """
tensors:
  one.weight: "h ."
  one.bias: "h"
  two.weight: ". h"
  two.bias: "."
"""


@pytest.fixture
def own_nets(tmp_path):
    (tmp_path / "own_nets.py").write_text(NETS)
    (tmp_path / "own.yaml").write_text(OWN)


@pytest.mark.parametrize(
    ("factory", "code", "says"),
    [
        (
            "bare",
            4,
            ("nothing of own_nets.py:bare may be permuted", "it is the network's output", "spec explain"),
        ),
        ("silent", 6, ("returns no tensor", "Let forward return")),
        ("failing", 6, "the network fails on inputs tuple of 1: float32 (2, 3)"),
        ("written", 6, ("cannot be traced", "outside of torch cannot be followed")),
    ],
)
def test_an_inference_that_finds_nothing_is_no_success(own_nets, tmp_path, refused, factory, code, says):
    arguments = ("--net", f"own_nets.py:{factory}", "--input", "2x3", "-o", "found.yaml")
    refused(code, "spec", "infer", *arguments, says=says)
    assert not (tmp_path / "found.yaml").exists()


def test_outputs_that_leave_pytorch_at_the_end_stay_and_the_rest_is_inferred(own_nets, done):
    told = done("spec", "infer", "--net", "own_nets.py:leaving", "--input", "2x3", "-o", "found.yaml").out
    assert "1 permutations" in told and "proven" in told
    own = done("spec", "infer", "--net", "own_nets.py:Net", "--input", "2x3", "-o", "own_found.yaml").out
    assert told.count("92.3 %") == own.count("92.3 %") == 1


def test_an_inferred_spec_that_the_proof_refuses_is_no_success(own_nets, done, refused, monkeypatch):
    from rebasin_cli.inference.rules import flow

    arguments = ("spec", "infer", "--net", "own_nets.py:Net", "--input", "2x3")
    monkeypatch.setattr(flow, "_freeze", lambda walk, value, told: None)  # outputs may move: a mistake
    refused(4, *arguments, says=("does not hold: the proof refused a part of it", "--no-prove"))
    assert "two.weight" in done(*arguments, "--no-prove").out


def test_a_network_alone_says_which_tensors_a_spec_is_proven_on(own_nets, done, refused):
    arguments = ("spec", "prove", "own.yaml", "--net", "own_nets.py:Net", "--input", "2x3")
    assert "proven: outputs differ by" in done(*arguments).out
    refused(4, *arguments[:4], "own_nets.py:bare", *arguments[5:], says="own.yaml")
