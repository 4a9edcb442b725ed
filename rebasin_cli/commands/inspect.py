"""`rebasin inspect`: what a checkpoint holds, and what spec it would get."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint, open_checkpoint
from ..checkpoints.configuration import beside
from ..checkpoints.digests import of_file
from ..checkpoints.locate import INDEX, PERMUTATION
from ..errors import CheckpointError, SpecError
from ..registry.options import READS, argument
from ..registry.results import Plan, Result
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer
from ..session.subjects import Loading
from ..spec import library
from ..symmetry import stored

PANEL = "Look"
FIGURES = True
ONLY_LOOKS = True


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Show envelope, tensors, dtypes, the architecture's guess and provenance.

    Example: rebasin inspect merged.safetensors
    """

    file: Path = argument("FILE", role=READS)
    key: str | None = Loading.key
    unsafe_load: bool = Loading.unsafe_load
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class InspectResult(Result):
    """What one file holds: its `tensors` by their names, each with "shape" and "dtype"; how many numbers
    (`parameters`), how many tensors of each dtype; the spec that it would get, or why none; its metadata.

    `sha256` is that of all values, whatever file holds them, `file_sha256` that of the file's bytes, by
    which a recipe pins it (None of a folder).
    """

    file: str
    format: str
    envelope: str | None
    notes: list[str]
    tensors: Mapping[str, Mapping[str, Any]]
    parameters: int
    dtypes: Mapping[str, int]
    architecture: Mapping[str, Any]
    metadata: Mapping[str, str]
    provenance: Mapping[str, Any] | None
    sha256: str | None
    file_sha256: str | None


def run(asked: Inspect, listener: Listener = SILENT) -> InspectResult | Plan:
    """Look at a file; of its values only the digests are made."""
    path = asked.file
    model = open_checkpoint(path, key=asked.key, unsafe_load=asked.unsafe_load)
    if asked.dry_run:
        from .verbs import needs, plans  # which import all that searches and measures

        size = path.stat().st_size if path.is_file() else 0
        return Plan(plans.of_models([model], needs.of_digests(model, size)))
    notes, sha256 = list(model.notes), None
    try:
        sha256 = model.digest()
    except CheckpointError as error:  # quantised: to be looked at, not to be merged
        notes.append(f"no digest: {error.message}")
    else:
        notes += _togetherness(path, model, sha256)
    try:
        fitted = library.resolve_spec(None, [model], settings=beside(model.path))
        guess = {
            "spec": fitted.spec.name,
            "description": fitted.spec.description,
            "permutations": len(fitted.words),
            "log10_symmetries": round(fitted.log10_symmetries(), 1),
        }
    except SpecError as error:
        guess = {"spec": None, "reason": error.message}
    dtypes = {name: str(dtype).removeprefix("torch.") for name, dtype in model.dtypes.items()}
    return InspectResult(
        file=str(path),
        format=model.format,
        envelope=model.envelope or None,
        notes=notes,
        tensors={name: {"shape": list(model.shapes[name]), "dtype": dtypes[name]} for name in model},
        parameters=sum(math.prod(shape) for shape in model.shapes.values()),
        dtypes=dict(Counter(dtypes.values())),
        architecture=guess,
        metadata=dict(sorted(model.metadata.items())),
        provenance=model.provenance,
        sha256=sha256,
        file_sha256=of_file(path) if path.is_file() else None,
    )


def _togetherness(path: Path, model: Checkpoint, sha256: str) -> list[str]:
    """Whether a model and the permutation beside it were written together, where one says so."""
    try:
        if model.metadata.get(stored.KEY) in (stored.ORDERS, stored.ELEMENTS):
            recorded, beside = model.metadata.get(stored.WEIGHTS), _weights_beside(path)
            found = open_checkpoint(beside).digest() if beside else None
            names = (path.name, beside and beside.name)
        elif not path.is_file():
            return []
        else:
            beside = stored.beside(path.with_name(path.name.removesuffix(".index.json")))
            recorded = stored.load(beside).metadata.get(stored.WEIGHTS) if beside.is_file() else None
            found, names = sha256, (beside.name, path.name)
    except CheckpointError:  # what lies beside cannot be read: nobody asked about it
        return []
    if recorded is None or found is None:
        return []
    if recorded == found:
        return [f"{names[0]} and {names[1]} were written together"]
    return [f"{names[0]} was written beside other weights than {names[1]} holds: do not use them together"]


def _weights_beside(path: Path) -> Path | None:
    """The model that a permutation file lies beside: one file, or the index of its shards."""
    stem = path.name.removesuffix(PERMUTATION)
    names = (f"{stem}.safetensors", f"{stem}{INDEX}")
    return next((path.with_name(name) for name in names if path.with_name(name).is_file()), None)
