"""Models for the page's recipe."""

from pathlib import Path

import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.learning.training import train
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.symmetry import permutation


def pair(folder: Path) -> Path:
    """a.safetensors, which was trained; b, the same with its units in another order; c, of another seed."""
    folder.mkdir()
    for name, seed in (("c", 2), ("a", 1)):
        made = train("mlp", "digits", seed=seed, width=32, depth=1, epochs=12, learning_rate=0.01)
        write_safetensors(folder / f"{name}.safetensors", made.tensors, metadata=made.metadata)
    fitted = fit(library.load("mlp"), open_checkpoint(folder / "a.safetensors").shapes)
    moved = permutation.random(fitted.words, torch.Generator().manual_seed(0))
    other = permutation.permuted(made.tensors, fitted, moved)
    write_safetensors(folder / "b.safetensors", other, metadata=made.metadata)
    return folder
