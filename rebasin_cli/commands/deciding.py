"""What the options decide by themselves, and what is refused before a file is read or an hour is spent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .. import matchers
from ..api import INTERPOLATIONS
from ..errors import UsageError, unknown
from ..permutations.averages import average
from ..repair import MATCHES, REPAIRS
from ..spec.spec import FittedSpec
from .settings import Settings


def check_method(settings: Settings, *, or_none: bool = False) -> None:
    """Raise UsageError for a method that there is not, before anything is read."""
    if settings.method == "none" and or_none:
        return
    if settings.method == "none":
        raise UsageError("--method none leaves nothing to do", hint="Choose one of: rebasin list methods")
    known = [*matchers.registry.names(), *["none"] * or_none]
    if settings.method not in known:
        raise unknown("method", settings.method, known)


def check_merge(models: int, weights: Sequence[float] | None, interpolation: str, *, given: bool) -> None:
    """Raise UsageError for what cannot be merged so, before an hour of searching."""
    if models < 2:
        raise UsageError("merging takes at least two models", hint="rebasin merge A B …")
    if interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", interpolation, INTERPOLATIONS)
    if interpolation == "slerp" and models != 2:
        raise UsageError(f"slerp joins two models, not {models}", hint="Use --interpolation linear")
    if given and models != 2:
        raise UsageError(
            f"--perm is for the second of two models, not of {models}",
            hint="Apply it first: rebasin apply PERM MODEL -o aligned.safetensors",
        )
    if weights is not None:
        average([{}] * models, weights)  # only its checks


def reference_first(
    paths: Sequence[Path], reference: Path | None, weights: Sequence[float] | None
) -> tuple[Sequence[Path], Sequence[float] | None]:
    """The models, and their weights, in an order that begins with the reference. Raises UsageError."""
    if reference is None or not paths:
        return paths, weights
    first = next((k for k, path in enumerate(paths) if path.resolve() == reference.resolve()), None)
    if first == 0:
        return paths, weights
    if first is None:
        raise UsageError(
            f"--reference {reference} is none of the models",
            problems=[str(path) for path in paths],
            hint="Name one of those that are merged",
        )
    if weights is not None and len(weights) != len(paths):
        average([{}] * len(paths), weights)  # its error
    order = [first, *(k for k in range(len(paths)) if k != first)]
    return [paths[k] for k in order], weights and [weights[k] for k in order]


def choose_repair(fitted: FittedSpec, settings: Settings, *, has_data: bool) -> str:
    """ "reset" where there are running statistics and data, unless told otherwise.

    There "repair" is "reset" too. "auto" stays where it is to be chosen by held-out loss: with data, and
    without running statistics. Raises UsageError for running statistics without data, whose average
    describes neither model, and for a repair that this network or a lack of data rules out.
    """
    if settings.repair not in ("auto", *REPAIRS):
        raise unknown("repair", settings.repair, ["auto", *REPAIRS])
    if settings.new_bias and settings.repair not in ("repair", "reshift"):
        raise UsageError("--allow-new-bias is for --repair repair or reshift")
    if not fitted.statistics and settings.repair in (*MATCHES, "bias"):
        if settings.repair != "bias" and not has_data:
            raise UsageError(
                f"--repair {settings.repair} measures channels on training samples, and no data set is known",
                hint="Name one with --data, or choose --repair bias, which needs none",
            )
        return settings.repair
    if settings.repair == "auto" and not fitted.statistics and has_data:
        return "auto"
    if settings.repair == "none" or not fitted.statistics:
        if settings.repair == "reset":
            raise UsageError("--repair reset: this network has no running statistics to reset")
        return "none"
    if fitted.statistics and settings.repair not in ("auto", "reset", "repair"):
        raise UsageError(
            f"--repair {settings.repair} is for networks without BatchNorm, and this one has its statistics",
            hint="Re-estimate them with --repair reset",
        )
    if not has_data:
        raise UsageError(
            "this network has BatchNorm statistics, and averaging them makes a broken model",
            hint="Re-estimate them with --data NAME, or merge all the same with --repair none",
        )
    return "reset"
