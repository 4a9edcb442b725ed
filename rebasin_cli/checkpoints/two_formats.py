"""Weights in safetensors beside files of torch.save: one model in two formats, or a half of it in each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence, Set
from pathlib import Path

import torch

from ..errors import CheckpointError, RebasinError
from ..runtime import files
from .safetensors_format import SafetensorsFile, read_header
from .torch_file import Shard

FEW = 64  # files whose tensors are looked at
LOOKED_AT = 4  # tensors that tell two models apart
MODELS = ("model", "pytorch_model")  # what the one file of a model is called


def check_rest(folder: Path, weights: Sequence[str], others: Sequence[str]) -> None:
    """Raise CheckpointError for `others`, of torch.save, that hold the rest of what `weights` hold a part of.

    Most such folders have the same model in both formats, the one perhaps below a name that the other lacks.
    """
    if not others or len(others) + len(weights) > FEW:
        return
    try:
        here = {tensor for name in weights for tensor in names_in(folder / name)}
        beside = {name: set(names_in(folder / name)) for name in others}
        known = here | _within(here)
        rest = [
            name
            for name, there in beside.items()
            if there and not there & known and not _within(there) & here
            if not _is_one(folder, weights, here, name, there)
        ]
    except (RebasinError, OSError):  # of what is read that is told where it is opened
        return
    if here and rest:
        raise CheckpointError(
            f"{folder} holds parts of a model in two formats, with no tensor in common",
            problems=[*weights, *others],
            hint="Save the whole in one format where it was made, or name what is meant, such as "
            f"{folder / weights[0]}.",
        )


def _is_one(folder: Path, weights: Sequence[str], here: Set[str], name: str, there: Set[str]) -> bool:
    """Whether a file has the tensors of others by other words before their names: some are looked at."""
    one, other = _bare(here), _bare(there)
    if len(weights) > 1 or one.keys() != other.keys():
        return False
    first, second = SafetensorsFile(folder / weights[0]), Shard(folder / name)
    for bare in sorted(one)[:: len(one) // LOOKED_AT + 1]:
        x, y = first.tensor(one[bare]), second.tensor(other[bare])
        if x.shape != y.shape or not torch.allclose(x.double(), y.double(), rtol=2**-7):
            return False
    return True


def _bare(names: Set[str]) -> dict[str, str]:
    """Names without the words that all of them begin with → these names."""
    parts = [name.split(".") for name in names]
    same = len(os.path.commonprefix(parts)) if len(parts) > 1 else 0
    return {".".join(words[same:]): ".".join(words) for words in parts}


def _within(names: Iterable[str]) -> set[str]:
    """These names below each of the first parts of theirs: of "bert.pooler.weight" two."""
    return {
        ".".join(parts[k:]) for name in names for parts in [name.split(".")] for k in range(1, len(parts))
    }


def names_in(path: Path) -> list[str]:
    """The names of the tensors in one file of weights, as they are stored."""
    if path.suffix != ".safetensors":
        return list(Shard(path).entries)
    with files.opened(path) as file:
        return list(read_header(file, path)[0])
