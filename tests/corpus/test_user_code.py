"""Code of a user's that fails, exits, or is not what it should be: exit 6, one message, its place."""

from __future__ import annotations

import gc
import itertools
import json
from pathlib import Path

import pytest

from rebasin_cli import nets
from tests.cli.conftest import fresh

MINE = """
import sys
import torch
import typer
from torch import nn
from rebasin_cli import errors
from rebasin_cli.nets.mlp import MLP

class Own(BaseException):
    pass

class Shy(Exception):
    def __str__(self):
        raise ValueError("not telling")
    __repr__ = __str__

class Leaving(Exception):
    def __str__(self):
        sys.exit(0)

class Fine(errors.RebasinError):
    exit_code = 0

def deep(n=0):
    return deep(n + 1)

def at(place):
    if place == PLACE:
        FAULT

at("import")

class Net(MLP):
    def forward(self, x):
        at("forward")
        return super().forward(x)

    def train(self, mode=True):
        at("train()")
        return super().train(mode)

    def state_dict(self, *args, **kwargs):
        at("state_dict()")
        return super().state_dict(*args, **kwargs)

    def named_modules(self, *args, **kwargs):
        at("named_modules()")
        return super().named_modules(*args, **kwargs)

def net():
    at("factory")
    return Net([64, 6, 10])

IMAGES, LABELS = torch.rand(8, 1, 8, 8), torch.arange(8)

class Batches:
    def __len__(self):
        at("__len__")
        return 2

    def __iter__(self):
        at("__iter__")
        for _ in range(2):
            at("__next__")
            yield IMAGES, LABELS

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, k):
        at("worker")
        return IMAGES[k % 8], LABELS[k % 8]

def loader(split):
    at("loader")
    if PLACE == "worker":
        return torch.utils.data.DataLoader(Samples(), batch_size=8, num_workers=1)
    return Batches()

def loss(outputs, targets):
    at("loss")
    return nn.functional.cross_entropy(outputs, targets)

def metric(outputs, targets):
    at("metric")
    return 0.5
"""

NET, DATA = ["--net", "mine.py:net"], ["--data", "mine.py:loader"]
BOTH = NET + DATA
SCORED = [*BOTH, "--loss", "mine.py:loss", "--metric", "mine.py:metric", "--skip-checks"]
AM = ["align", "MODELS", "--method", "am", *BOTH, "-o", "out.safetensors"]
EVAL = ["eval", "a.safetensors", *SCORED]
STE = [
    "align",
    "MODELS",
    "--method",
    "ste",
    "--epochs",
    "1",
    *BOTH,
    "--loss",
    "mine.py:loss",
    "-o",
    "out.safetensors",
]
PLACES = {  # where it happens: a command that gets there
    "import": AM,
    "factory": AM,
    "forward": AM,
    "train()": AM,
    "state_dict()": AM,
    "named_modules()": ["merge", "MODELS", "--repair", "repair", *BOTH, "-o", "out.safetensors"],
    "loader": AM,
    "__iter__": AM,
    "__next__": AM,
    "loss": EVAL,
    "metric": EVAL,
}
FAULTS = {  # what is raised: how it is told
    "sys.exit(0)": "SystemExit: 0",
    "sys.exit()": "SystemExit",
    "sys.exit('bye')": "SystemExit: bye",
    "raise GeneratorExit": "GeneratorExit",
    "raise Own('my own')": "Own: my own",
    "raise Shy": "Shy: (its message cannot be shown)",
    "raise Leaving": "Leaving: (its message cannot be shown)",
    "raise Fine('all is well')": "Fine: all is well",
    "raise errors.GateNotMet('no gate')": "GateNotMet: no gate",
    "raise errors.Interrupted('never')": "Interrupted: never",
    "raise typer.Exit(0)": "Exit",
    "raise BrokenPipeError(32, 'gone')": "BrokenPipeError: [Errno 32] gone",
    "raise StopIteration": "StopIteration",
    "raise RecursionError('deep')": "RecursionError: deep",
    "deep()": "RecursionError: maximum recursion depth exceeded",
    "raise AssertionError": "AssertionError",
    "raise KeyError('x')": "KeyError: 'x'",
    "raise Exception('a' * 10_000)": "a" * 400,
    "raise Exception('two\\nlines')": "Exception: two lines",
    "raise ValueError(chr(0xD800))": "ValueError: \\ud800",
    "1 / 0": "ZeroDivisionError: division by zero",
    "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'bad')": "UnicodeDecodeError",
    "exec('raise OSError(5, \"broken\")')": "OSError: [Errno 5] broken",
    "import nothing_of_that_name": "ModuleNotFoundError: No module named 'nothing_of_that_name'",
}
CORE = {(place, "sys.exit(0)") for place in PLACES} | {("__next__", fault) for fault in FAULTS}


@pytest.mark.parametrize(
    "place, fault",
    [
        pytest.param(*case, marks=() if case in CORE else pytest.mark.sweep, id=" ".join(case))
        for case in itertools.product(PLACES, FAULTS)
        if case != ("__next__", "raise StopIteration")  # which ends the loop, or is a RuntimeError
    ],
)
def test_whatever_a_users_code_raises_is_exit_6_with_its_place(place, fault, ends, two, tmp_path):
    (tmp_path / "mine.py").write_text(MINE.replace("PLACE", repr(place)).replace("FAULT", fault))
    arguments = [x for word in PLACES[place] for x in (two if word == "MODELS" else [word])]
    ends(6, *arguments, says=(FAULTS[fault], "mine.py:"))


@pytest.mark.parametrize(
    "command",
    [
        STE,
        ["barrier", "MODELS", *SCORED],
        ["doctor", "MODELS", *BOTH],
        ["merge", "MODELS", "--repair", "repair", *BOTH, "-o", "out.safetensors"],
        ["spec", "prove", "mlp", "a.safetensors", *NET],
        ["spec", "infer", *NET, "--input", "2x64"],
        ["spec", "explain", *NET, "--input", "2x64"],
        ["signature", "MODELS", *BOTH],
        ["compare", "MODELS", "--method", "am", *SCORED],
        ["align", "MODELS", "--method", "dual", *BOTH, "-o", "out.safetensors"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("fault", ["sys.exit(0)", "raise Own('my own')", "deep()"])
def test_every_command_that_runs_a_network_tells_it(command, fault, ends, two, tmp_path):
    (tmp_path / "mine.py").write_text(MINE.replace("PLACE", "'forward'").replace("FAULT", fault))
    arguments = [x for word in command for x in (two if word == "MODELS" else [word])]
    ends(6, *arguments, says=(FAULTS[fault], "mine.py:"))


@pytest.fixture
def collected():
    """torch forgets a loader's processes with the loader; numbers of processes come again."""
    yield
    gc.collect()


@pytest.mark.sweep
@pytest.mark.usefixtures("collected")
@pytest.mark.parametrize("fault", ["raise ValueError('two\\nlines')", "raise KeyError('x')"])
def test_a_worker_process_that_fails_is_told_in_two_lines(fault, ends, two, tmp_path):
    """Processes are the point: torch puts a worker's whole traceback into the message."""
    (tmp_path / "mine.py").write_text(MINE.replace("PLACE", "'worker'").replace("FAULT", fault))
    outcome = ends(6, *EVAL, says=("mine.py:", "two lines" if "two" in fault else "KeyError: 'x'"))
    assert "Original" not in outcome.err and "Caught" not in outcome.err
    assert len(outcome.err.partition("rebasin: ")[2].splitlines()) == 2


@pytest.mark.sweep
@pytest.mark.usefixtures("collected")
def test_a_worker_process_that_leaves_is_no_success(ends, two, tmp_path):
    """Its place cannot be known: the process is gone."""
    (tmp_path / "mine.py").write_text(MINE.replace("PLACE", "'worker'").replace("FAULT", "sys.exit(0)"))
    ends(6, *EVAL, says="exited unexpectedly")


EVIL = """
from pathlib import Path
from rebasin_cli.nets.mlp import from_shapes
Path('ran').touch()
factory = evil = __import__ = from_shapes
"""
SPEC = """
schema: 1
net: {net}
tensors:
  layers.0.weight: h0 .
  layers.0.bias: h0
  head.weight: . h0
  head.bias: .
"""
HOLES = [  # what a spec may name: files and modules that merely look like nets of ours
    "rebasin_cli.nets.evil.py:factory",
    "rebasin_cli.nets./../evil.py:factory",
    "rebasin_cli.nets.evil:factory",
    "rebasin_cli.nets.mlp.py:from_shapes",
    "rebasin_cli.nets.mlp:MLP",
    "rebasin_cli.nets.mlp:build",
    "rebasin_cli.nets.mlp:torch",
    "rebasin_cli.nets.mlp:__import__",
    "rebasin_cli.nets.mlp:torch.load",
    "rebasin_cli.nets.mlp:from_shapes ",
    " rebasin_cli.nets.mlp:from_shapes",
    "rebasin_cli.nets.mlp::from_shapes",
    "rebasin_cli.nets.mlp.:from_shapes",
    "rebasin_cli.nets..mlp:from_shapes",
    "rebasin_cli.nets.MLP:from_shapes",
    "Rebasin_cli.nets.mlp:from_shapes",
    "rebasin_cli.nets.mlp:from_shapeſ",
    "rebasin_cli.nets.ｍlp:from_shapes",
    "rebasin_cli.nets.mlp\u200b:from_shapes",
    "rebasin_cli.nets:resolve",
    "rebasin_cli.nets.__init__:resolve",
    "rebasin_cli.nets.registry:get",
    "rebasin_cli.networks:load",
    "rebasin_cli/nets/mlp.py:from_shapes",
    "rebasin_cli.nets/mlp.py:from_shapes",
    "./evil.py:factory",
    "evil:factory",
    "evil.py:factory",
    "os:abort",
    "mlp",
    "",
]


@pytest.mark.parametrize("name", HOLES)
@pytest.mark.parametrize("command", ["align", "merge"])
def test_a_spec_runs_no_code_unless_it_is_trusted(name, command, ends, two, tmp_path):
    folders = ("rebasin_cli.nets.", "rebasin_cli.nets", "rebasin_cli/nets")
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for file in (
        "evil.py",
        "rebasin_cli.nets.evil.py",
        "rebasin_cli.nets.mlp.py",
        *(f"{f}/mlp.py" for f in folders),
    ):
        (tmp_path / file).write_text(EVIL)
    (tmp_path / "own.yaml").write_text(SPEC.format(net=json.dumps(name)), encoding="utf-8")
    says = ("names the network", "would import and run that code", "--trust-code")
    ends(2, command, *two, "--spec", "own.yaml", "-o", "out.safetensors", says=says)
    assert not (tmp_path / "ran").exists()


def test_a_spec_may_name_each_net_of_ours(ends, two, tmp_path):
    for path in (Path(nets.__file__).parent).glob("[!_]*.py"):
        assert nets.own_factory(f"rebasin_cli.nets.{path.stem}:from_shapes")
    (tmp_path / "own.yaml").write_text(SPEC.format(net="rebasin_cli.nets.mlp:from_shapes"))
    done = ends(0, "align", *two, "--spec", "own.yaml", "-o", "out.safetensors", "--json")
    assert "rebasin's own MLP" in done.json()["proof"]["network"]


def test_what_is_trusted_runs_and_the_account_says_whose_it_is(ends, two, tmp_path):
    (tmp_path / "rebasin_cli.nets.evil.py").write_text(EVIL)
    (tmp_path / "own.yaml").write_text(SPEC.format(net="rebasin_cli.nets.evil.py:factory"))
    done = ends(0, "align", *two, "--spec", "own.yaml", "--trust-code", "-o", "out.safetensors", "--json")
    assert done.json()["proof"]["network"] == "named by own.yaml" and (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "metadata",
    [
        {"rebasin.data": "evil.py:factory"},
        {"rebasin.data": "evil:factory"},
        {"rebasin.data": "npz:evil.npz"},
        {"rebasin.data": "imagefolder:/"},
        {"rebasin.data": "../evil"},
        {"rebasin.data": "digits\n"},
        {"rebasin.net": "evil.py:factory", "rebasin.spec": "./evil.yaml"},
        {"rebasin.data": "rebasin_cli.datasets.evil.py:factory"},
    ],
    ids=str,
)
def test_a_checkpoints_word_runs_no_code_and_opens_no_path(metadata, ends, two, tmp_path):
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "rebasin_cli.datasets.evil.py").write_text(EVIL)
    fresh(tmp_path / "a.safetensors", width=6, depth=1, metadata=metadata)
    ends(2, "eval", "a.safetensors", says="no data set is named")
    assert not (tmp_path / "ran").exists()


NETWORKS = {  # a factory: the words that tell what is wrong with it
    "net = 3": ("mine.py:net is int", "cannot be called"),
    "net = MLP([64, 6, 10])": ("mine.py:net is a network", "def net(): return"),
    "def net(): return None": "returned NoneType, expected a torch.nn.Module",
    "def net(): return MLP": "returned type",
    "def net(): return lambda x: x": "returned function",
    "def net(): yield MLP([64, 6, 10])": "returned generator",
    "def net(): return MLP([64, 6, 10]).state_dict()": "returned OrderedDict",
    "def net(): return [MLP([64, 6, 10])]": "returned list",
    "def net(a, b): return MLP([64, 6, 10])": "missing 1 required positional argument: 'b'",
    "def net(*, width): return MLP([64, width, 10])": "missing 1 required keyword-only argument: 'width'",
    "class net(MLP):\n def __init__(self, width): super().__init__(width)": "failed to build the network",
    "def net(): return MLP([64, 7, 10])": "is not the network of this checkpoint",
    "def net():\n with torch.device('meta'): return MLP([64, 6, 10])": (
        "on the meta device",
        "Build it on the CPU",
    ),
    "def net(): return nn.LazyLinear(10)": ("has lazy layers", "Run it once where it is built"),
    "def net(): return nn.Module()": "is not the network of this checkpoint",
    "net = property(lambda self: 3)": "cannot be called",
    "def net(": ("SyntaxError", "mine.py:4"),
    "net = torch.load": "failed to build the network",
    "def __getattr__(name): raise SystemExit(0)": "SystemExit: 0",
    "from mine import other": "ImportError",
    "class net(MLP):\n def __new__(cls): raise SystemExit(0)": "SystemExit: 0",
    "class A:\n __call__ = 1\n def __getattribute__(s, n): raise SystemExit(0)\nnet = A()": "SystemExit: 0",
    "class net(MLP):\n def __init__(self): pass": "AttributeError",
}


@pytest.mark.parametrize("source", NETWORKS)
def test_what_is_no_network_is_told(source, ends, two, tmp_path):
    (tmp_path / "mine.py").write_text(
        f"import torch\nfrom torch import nn\nfrom rebasin_cli.nets.mlp import MLP\n{source}\n"
    )
    ends(6, "align", *two, *NET, "-o", "out.safetensors", says=NETWORKS[source])
