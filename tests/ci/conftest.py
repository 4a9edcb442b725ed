"""Two models and a job that passed, made once: what comes after begins with its cache."""

import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writing import write_safetensors
from rebasin_cli.networks.training import train
from rebasin_cli.permutations import permutation
from rebasin_cli.spec import library
from rebasin_cli.spec.fitting import fit

from . import cases


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A trained model, and the same with its units in another order: a path without a barrier."""
    folder = tmp_path_factory.mktemp("ci")
    models = folder / "models"
    models.mkdir()
    made = train("mlp", "digits", seed=1, width=32, depth=1, epochs=12, learning_rate=0.01)
    write_safetensors(models / "a.safetensors", made.tensors, metadata=made.metadata)
    fitted = fit(library.load("mlp"), open_checkpoint(models / "a.safetensors").shapes)
    moved = permutation.random(fitted.words, torch.Generator().manual_seed(0))
    other = permutation.permuted(made.tensors, fitted, moved)
    write_safetensors(models / "b.safetensors", other, metadata=made.metadata)
    return cases.checkout(folder / "repository", models)


@pytest.fixture(scope="session")
def passed(repository, tmp_path_factory):
    """The first run of a repository, which passes."""
    return cases.play(cases.CASES[0], tmp_path_factory.mktemp("passed"), repository, None)
