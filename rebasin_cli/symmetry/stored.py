"""Elements in a file, `*.perm.safetensors`: of every word its order, and as `WORD:map` its map if it has one.

Elements that act on models in canonical form bring the spec that they are of and what is folded before, in
the metadata: they can be applied to another checkpoint without the network. Orders alone need neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..checkpoints.checkpoint import open_checkpoint
from ..checkpoints.stages import Staging
from ..checkpoints.writer import write_safetensors
from ..errors import CheckpointError
from .elements import Elements, of_tensors, tensors_of

KEY = "rebasin.kind"  # in the metadata: what a file holds
ORDERS, ELEMENTS = "permutations", "group elements"
WEIGHTS = "rebasin.weights"  # the digest of the weights written with it
SPEC, FOLDS = "rebasin.groups.spec", "rebasin.groups.folds"  # texts: the spec, the folds
NET = "rebasin.groups.net"  # the network that the spec names, where it names one


@dataclass(frozen=True)
class Stored:
    """What a file holds; `metadata` has all its texts, the kind and the canonical form among them."""

    elements: Elements
    metadata: Mapping[str, str]

    @property
    def brings_spec(self) -> bool:
        """Whether its elements act on models in canonical form."""
        return SPEC in self.metadata


def beside(weights: Path) -> Path:
    """Where the elements of a model lie that `align` wrote."""
    return weights.with_name(f"{weights.stem}.perm.safetensors")


def save(
    path: Path,
    elements: Elements,
    *,
    metadata: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    force: bool = False,
    stage: Staging | None = None,
) -> None:
    """Write elements; `form` has the texts of the canonical form that they act in (`SPEC`, `FOLDS`, `NET`).

    With a `stage` they wait there for their weights. Raises CheckpointError where a map has numbers that are
    not finite, OutputExists where a file is there and not to be overwritten (`force`).
    """
    tensors = tensors_of(elements)
    meta = {KEY: ELEMENTS if form else ORDERS, **(form or {}), **metadata}
    write_safetensors(path, tensors, metadata=meta, force=force, stage=stage, finite=tensors)


def load(path: Path) -> Stored:
    """Elements and their file's metadata; they are not held against a spec.

    Raises CheckpointError for any other file.
    """
    checkpoint = open_checkpoint(path)
    found = dict(checkpoint.metadata)
    whole = found.get(KEY) == ORDERS or (found.get(KEY) == ELEMENTS and {SPEC, FOLDS} <= found.keys())
    if not whole:
        raise CheckpointError(
            f"{path} is not a permutation file",
            hint="rebasin align writes one beside its output: *.perm.safetensors",
        )
    return Stored(of_tensors(checkpoint), found)
