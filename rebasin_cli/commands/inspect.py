"""What a checkpoint holds, and what spec it would get."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import open_checkpoint
from ..errors import CheckpointError, SpecError
from ..spec import library
from .job import provenance


def inspect(
    path: Path, *, key: str | None = None, unsafe_load: bool = False, digest: bool = True
) -> dict[str, Any]:
    """Format, envelope, tensors, dtypes, the architecture's guess, provenance: without reading values.

    Only `digest` (sha256 over all values) reads everything.
    """
    model = open_checkpoint(path, key=key, unsafe_load=unsafe_load)
    notes, sha256 = list(model.notes), None
    if digest:
        try:
            sha256 = model.digest()
        except CheckpointError as error:  # quantised: to be looked at, not to be merged
            notes.append(f"no digest: {error.message}")
    try:
        fitted = library.find(model.shapes)
        guess = {
            "spec": fitted.spec.name,
            "description": fitted.spec.description,
            "permutations": len(fitted.words),
            "log10_symmetries": round(fitted.log10_symmetries(), 1),
        }
    except SpecError as error:
        guess = {"spec": None, "reason": error.message}
    return {
        "file": str(path),
        "format": model.format,
        "envelope": model.envelope or None,
        "notes": notes,
        "tensors": {
            name: {"shape": list(model.shapes[name]), "dtype": str(model.dtypes[name]).removeprefix("torch.")}
            for name in model
        },
        "parameters": sum(math.prod(shape) for shape in model.shapes.values()),
        "dtypes": dict(Counter(str(dtype).removeprefix("torch.") for dtype in model.dtypes.values())),
        "architecture": guess,
        "metadata": dict(sorted(model.metadata.items())),
        "provenance": provenance.recorded(model),
        "sha256": sha256,
    }
