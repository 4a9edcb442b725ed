"""Code of a user's that fails, exits, or is not what it should be: exit 6, one message, its place."""

from __future__ import annotations

import itertools

import pytest

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
