"""How models are averaged, and what is refused of it before an hour of searching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...api import INTERPOLATIONS
from ...errors import UsageError, unknown
from ...averages.mixing import average


@dataclass(frozen=True)
class Average:
    """One weight a model, adding up to 1 (None: equal), along a line or an arc.

    `reference` is the model that the others are aligned to (None: the first). `perm` is a permutation file
    for the second of two models, in place of a search.
    """

    reference: Path | None = None
    weights: Sequence[float] | None = None
    interpolation: str = "linear"
    perm: Path | None = None

    def reference_first(self, paths: Sequence[Path]) -> tuple[Sequence[Path], Average]:
        """The models, and their weights, in an order that begins with the reference. Raises UsageError."""
        reference, weights = self.reference, self.weights
        if reference is None or not paths:
            return paths, self
        first = next((k for k, path in enumerate(paths) if path.resolve() == reference.resolve()), None)
        if first == 0:
            return paths, self
        if first is None:
            raise UsageError(
                f"--reference {reference} is none of the models",
                problems=[str(path) for path in paths],
                hint="Name one of those that are merged",
            )
        if weights is not None and len(weights) != len(paths):
            average([{}] * len(paths), weights)  # its error
        order = [first, *(k for k in range(len(paths)) if k != first)]
        return [paths[k] for k in order], replace(self, weights=weights and [weights[k] for k in order])

    def check(self, models: int) -> None:
        """Raise UsageError for what so many models cannot be averaged like."""
        if models < 2:
            raise UsageError("merging takes at least two models", hint="rebasin merge A B …")
        if self.interpolation not in INTERPOLATIONS:
            raise unknown("interpolation", self.interpolation, INTERPOLATIONS)
        if self.interpolation == "slerp" and models != 2:
            raise UsageError(f"slerp joins two models, not {models}", hint="Use --interpolation linear")
        if self.perm and models != 2:
            raise UsageError(
                f"--perm is for the second of two models, not of {models}",
                hint="Apply it first: rebasin apply PERM MODEL -o aligned.safetensors",
            )
        if self.weights is not None:
            average([{}] * models, self.weights)  # only its checks
