"""A trained curve in a file, `*.curve.safetensors`: control points, what aligns B, and whose they are.

control.1/NAME …     parameters of the control points, in their order from A to B
perm/WORD …          the elements that align B to A, as `symmetry.stored` has them (`perm/WORD:map`)
metadata             rebasin.kind "curve", rebasin.curve (bezier or chain), digests of both models, the spec
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...checkpoints.checkpoint import Checkpoint, open_checkpoint
from ...checkpoints.validation import finite
from ...checkpoints.writer import write_safetensors
from ...errors import CheckpointError, SpecError, UsageError
from ...spec.library import to_same
from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry import permutation
from ...symmetry.elements import Elements, of_tensors, tensors_of
from ...symmetry.folds import NONE, Folds
from ...symmetry.form import standing
from ...symmetry.stored import SPEC
from .curve import KINDS, Curve

KIND = "curve"
SUFFIX = ".curve.safetensors"


def save(
    path: Path,
    kind: str,
    controls: Sequence[Mapping[str, Tensor]],
    elements: Elements,
    *,
    metadata: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    force: bool = False,
) -> Path:
    """Write a curve. `metadata` is that of provenance: its `rebasin.inputs` are the digests of A and B.

    `form` is as `symmetry.stored.save` takes it.
    """
    tensors = {f"perm/{name}": tensor for name, tensor in tensors_of(elements).items()}
    for k, control in enumerate(controls, start=1):
        tensors |= {f"control.{k}/{name}": tensor.contiguous() for name, tensor in control.items()}
    about = {"rebasin.kind": KIND, "rebasin.curve": kind, **(form or {})}
    write_safetensors(path, tensors, metadata={**metadata, **about}, force=force, finite=tensors)
    return path


@dataclass(frozen=True)
class Stored:
    """What a file holds, and its digest; `inputs` are those of A and B, and `spec` is that of the spec."""

    path: Path
    kind: str
    controls: tuple[dict[str, Tensor], ...]
    elements: Elements
    inputs: tuple[str, ...]
    spec: str
    digest: str
    metadata: Mapping[str, str]

    @property
    def aligned(self) -> bool:
        return bool(self.elements.maps) or not permutation.is_identity(self.elements.permutations)

    def between(self, a: Checkpoint, b: Checkpoint, fitted: FittedSpec, folds: Folds = NONE) -> Curve:
        """The curve from A to the aligned B, both as they are folded.

        Raises UsageError for other models than it was trained for.
        """
        if SPEC not in self.metadata and self.spec not in (fitted.spec.digest, fitted.spec.before or None):
            raise SpecError(
                f"{self.path} was trained with another spec ({self.metadata.get('rebasin.spec')}) than "
                f"{fitted.spec.source}",
                hint=to_same(self.metadata.get("rebasin.spec"), fitted.spec),
            )
        found = (a.digest(), b.digest())
        if found != self.inputs:
            swapped = found == self.inputs[::-1]
            raise UsageError(
                f"{self.path} is a curve between other models",
                problems=[
                    f"{model.path}  {digest[:16]}…, the curve's is {own[:16]}…"
                    for model, digest, own in zip((a, b), found, self.inputs, strict=True)
                    if digest != own
                ],
                hint="Give its two models the other way round"
                if swapped
                else "Name the models that it was trained for, as they were",
            )
        acts.check(self.elements, fitted)
        _check_shapes(self.path, self.controls, fitted)
        first, second = standing((a, b), fitted, (self.elements,), folds)
        return Curve(self.kind, first, second, self.controls, fitted.ignored)


def load(path: Path) -> Stored:
    """The curve in a file. Raises CheckpointError for any other file."""
    found = open_checkpoint(path)
    meta = found.metadata
    try:
        told = json.loads(meta.get("rebasin.inputs", "[]"))
    except (ValueError, RecursionError):
        told = None
    inputs = tuple(told) if isinstance(told, list) else ()
    controls: dict[int, dict[str, Tensor]] = {}
    own_tensors: dict[str, Tensor] = {}
    strange: list[str] = []
    for name in found:
        place, _, own = name.partition("/")
        number = place.removeprefix("control.")
        if place == "perm":
            own_tensors[own] = found[name]
        elif place != number and number.isascii() and number.isdigit() and len(number) < 10:
            controls.setdefault(int(number), {})[own] = found[name]
        else:
            strange.append(name)
    elements = of_tensors(own_tensors)
    whole = controls and sorted(controls) == list(range(1, len(controls) + 1))
    alike = len({frozenset(control) for control in controls.values()}) == 1
    if (
        meta.get("rebasin.kind") != KIND
        or meta.get("rebasin.curve") not in KINDS
        or not (whole and alike)
        or strange
        or any(perm.dtype != torch.int64 or perm.ndim != 1 for perm in elements.permutations.values())
        or len(inputs) != 2
        or not all(isinstance(one, str) for one in inputs)
    ):
        raise CheckpointError(
            f"{path} is not a curve", hint="rebasin curve A B writes one: *.curve.safetensors"
        )
    return Stored(
        path,
        meta["rebasin.curve"],
        tuple(controls[k] for k in sorted(controls)),
        elements,
        inputs,
        meta.get("rebasin.spec_sha256", ""),
        found.digest(),
        meta,
    )


def _check_shapes(path: Path, controls: Sequence[Mapping[str, Tensor]], fitted: FittedSpec) -> None:
    problems = []
    for k, control in enumerate(controls, start=1):
        for name, tensor in control.items():
            if name not in fitted.shapes:
                problems.append(f"control point {k}: {name}  is no tensor of the models")
            elif tuple(tensor.shape) != tuple(fitted.shapes[name]) or not tensor.is_floating_point():
                told = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
                problems.append(
                    f"control point {k}: {name}  {told}, the models' is {list(fitted.shapes[name])}"
                )
            elif not finite(tensor):
                problems.append(f"control point {k}: {name}  holds NaN or infinite values")
    if problems:
        raise CheckpointError(f"{path}: its control points do not fit the models", problems=problems)
