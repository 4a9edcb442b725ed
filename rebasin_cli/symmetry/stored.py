"""Elements in a file: `*.perm.safetensors`, which also holds the spec that they are of and what is folded
before.

A word's order is stored under its name, its map under `NAME:map`. With the spec and the folds in its
metadata a file can be applied to another checkpoint without the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..checkpoints.checkpoint import open_checkpoint
from ..checkpoints.staging import Staging
from ..checkpoints.writing import write_safetensors
from ..errors import CheckpointError, UsageError
from . import permutation
from .elements import Elements, of_tensors, tensors_of

KIND = "group elements"
SPEC, FOLDS = "rebasin.groups.spec", "rebasin.groups.folds"  # texts: the spec, the folds


def save(
    path: Path,
    elements: Elements,
    *,
    spec: str,
    folds: str,
    metadata: Mapping[str, str],
    force: bool = False,
    stage: Staging | None = None,
) -> None:
    """Write elements; with a `stage` they wait there for their weights."""
    tensors = tensors_of(elements)
    meta = {permutation.KEY: KIND, SPEC: spec, FOLDS: folds, **metadata}
    write_safetensors(path, tensors, metadata=meta, force=force, stage=stage, finite=tensors)


def refuse_elements(path: Path) -> None:
    """Raise UsageError for a file with elements where one with permutations alone is needed."""
    if is_stored(path):
        raise UsageError(
            f"{path} holds elements of groups beyond permutations, which act on models in canonical form",
            hint=f"Let them act first: rebasin apply {path} MODEL; then go on with --method none, and the "
            "reference that rebasin canon wrote",
        )


def is_stored(path: Path) -> bool:
    """Whether a file holds elements beyond permutations. Raises CheckpointError for what is no checkpoint."""
    return open_checkpoint(path).metadata.get(permutation.KEY) == KIND


def load(path: Path) -> tuple[Elements, dict[str, str]]:
    """Elements and the file's metadata. Raises CheckpointError for any other file."""
    checkpoint = open_checkpoint(path)
    meta = dict(checkpoint.metadata)
    if meta.get(permutation.KEY) != KIND or not {SPEC, FOLDS} <= meta.keys():
        raise CheckpointError(
            f"{path} holds no group elements",
            hint="rebasin align --groups all writes them: *.perm.safetensors",
        )
    return of_tensors(checkpoint), meta
