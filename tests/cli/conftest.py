"""Every command as a user types it: tiny models, no downloads, the exit code and both streams."""

import contextlib
import functools
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from rebasin_cli import nets
from rebasin_cli.__main__ import main
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.learning.training import train
from rebasin_cli.runtime.seeds import seeded
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Networks this small are slower on two threads, and much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("REBASIN_DEBUG", "REBASIN_DATA", "FORCE_COLOR", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def json(self):
        return json.loads(self.out, parse_constant=pytest.fail)  # NaN is no JSON


def rebasin(*arguments):
    """Run the command in this process; whatever is not a clean exit is this test's failure."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    return Outcome(code, out.getvalue(), err.getvalue())


@pytest.fixture
def run():
    return rebasin


@pytest.fixture
def done():
    """Run a command that should succeed."""

    def done(*arguments):
        outcome = rebasin(*arguments)
        assert outcome.code == 0, outcome.err
        return outcome

    return done


@pytest.fixture
def refused(tmp_path):
    """Run a command that should end with `code` and one message, and leave the folder as it was."""

    def refused(code, *arguments, says=()):
        before = contents(tmp_path)
        outcome = rebasin(*arguments)
        assert outcome.code == code, (outcome.code, outcome.err)
        assert outcome.out == "" and "Traceback" not in outcome.err
        assert outcome.err.count("rebasin: ") == 1
        for words in [says] if isinstance(says, str) else says:
            assert words in outcome.err, outcome.err
        assert contents(tmp_path) == before
        return outcome

    return refused


def contents(folder):
    """Everything below a folder, hidden files too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


@pytest.fixture
def interrupted(monkeypatch, tmp_path):
    """Run a command that gets Ctrl-C at its n-th sign of progress; the names of the files that it left."""

    def interrupted(*arguments, after=1, task=None, says=""):
        steps = iter(range(1, 10_000))

        def step(self, name, done, total, detail):
            if task in (None, name) and next(steps) == after:
                raise KeyboardInterrupt

        before = set(contents(tmp_path))
        with monkeypatch.context() as patch:
            patch.setattr("rebasin_cli.cli.screen.Screen.step", step)
            outcome = rebasin(*arguments)
        assert outcome.code == 130, (outcome.code, outcome.err)
        assert outcome.out == "" and "\nrebasin: interrupted" in f"\n{outcome.err}"
        assert says in outcome.err
        return set(contents(tmp_path)) - before

    return interrupted


def fresh(path, name="mlp", *, seed=0, shape=(1, 8, 8), classes=10, dtype=None, metadata=None, **options):
    """A checkpoint of a network with random weights."""
    built = _built(name, seed, shape, classes, tuple(sorted(options.items())))
    given = {key: tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
             for key, tensor in built.items()}  # fmt: skip
    write_safetensors(path, given, metadata=metadata, force=metadata is not None)
    return path


@functools.cache
def _built(name, seed, shape, classes, options):
    with seeded(seed, "test"):
        return nets.build(name, input_shape=shape, classes=classes, **dict(options)).state_dict()


def pictures(path):
    """A data set of 64 random pictures, the same for training and test."""
    generator = np.random.default_rng(0)
    shown = generator.integers(0, 256, (64, 3, 8, 8), dtype=np.uint8)
    labels = generator.integers(0, 10, 64)
    np.savez(path, x_train=shown, y_train=labels, x_test=shown, y_test=labels)


def tensors(path):
    from rebasin_cli.checkpoints.checkpoint import open_checkpoint

    opened = open_checkpoint(path)
    return {name: opened[name].clone() for name in opened}


def same(one, other):
    one, other = tensors(one), tensors(other)
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def pair(tmp_path):
    """Two MLPs with three hidden layers of random weights: a search takes several sweeps."""
    return [fresh(tmp_path / f"{n}.safetensors", seed=k, width=12, depth=3) for k, n in enumerate("ab")]


@pytest.fixture
def resnets(tmp_path):
    """Two residual networks with BatchNorm, a quarter as wide, and 64 random pictures for them."""
    pictures(tmp_path / "pictures.npz")
    return [
        fresh(tmp_path / f"r{n}.safetensors", "resnet20", seed=k, shape=(3, 8, 8), width=0.25)
        for k, n in enumerate("ab")
    ]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Two MLPs that were trained on digits for a moment, with their provenance."""
    folder = tmp_path_factory.mktemp("trained")
    paths = []
    for seed in (1, 2):
        made = train("mlp", "digits", seed=seed, width=16, depth=1, epochs=8, learning_rate=0.01)
        paths.append(folder / f"{'ab'[seed - 1]}.safetensors")
        write_safetensors(paths[-1], made.tensors, metadata=made.metadata)
    return paths


@pytest.fixture
def relabelled(pair, tmp_path):
    """`b` with its units in another order, and the path to it."""
    from rebasin_cli.symmetry import permutation

    model = tensors(pair[1])
    fitted = fit(library.load("mlp"), {name: tuple(tensor.shape) for name, tensor in model.items()})
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(5))
    path = tmp_path / "relabelled.safetensors"
    write_safetensors(path, permutation.permuted(model, fitted, perms))
    return path
