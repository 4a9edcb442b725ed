"""Where to compute: the device that is asked for, if it is there, and what it can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import UsageError, unknown
from . import launchers
from .ranks import ALONE, Ranks


def choose(name: str) -> str:
    """`auto` is the first of cuda, mps and cpu that is there; a GPU may have its number, as in cuda:1.

    With CUDA, convolutions in float32 are no longer rounded to TF32 in this process: losses and activations
    are to be those of a CPU. Raises UsageError for a device that is not there.
    """
    there = _there()
    if name == "auto":
        name = next(kind for kind, count in there.items() if count)
    kind, _, number = name.partition(":")
    if kind not in there or (":" in name and not (number.isascii() and number.isdigit())):
        raise unknown("device", name, ["auto", *there])
    _check(name, kind, int(number or 0))
    if kind == "cuda":
        torch.backends.cudnn.allow_tf32 = False
    return name


def _there() -> dict[str, int]:
    """How many of each kind."""
    return {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }


def _check(name: str, kind: str, number: int) -> None:
    """Raise UsageError for a device that is not there; kinds of others' making are theirs to find."""
    if number >= _there().get(kind, math.inf):
        raise UsageError(f"device {name} is not available here", hint="Use the device cpu: --device cpu")


def own(device: str) -> str:
    """Of several GPUs in this machine, the one that is this process's; any other device as it is.

    Raises UsageError for one GPU by its number, where there are other processes: all would take it.
    """
    launcher = launchers.found()
    if not device.startswith("cuda") or launcher is None:
        return device
    if device != "cuda":
        raise UsageError(f"{device}: every process takes a GPU of its own", hint="Give --device cuda")
    return f"cuda:{launcher.here % torch.cuda.device_count()}"


def has_float64(device: str | torch.device) -> bool:
    """Whether tensors there may be float64: everywhere but on Apple's GPUs."""
    return torch.device(device).type != "mps"


def for_search(device: str | torch.device) -> str:
    """Where a search runs, and sums over activations: on the device, or on the CPU where it has no float64.

    "cuda" gets its number: which GPU is meant by it differs between threads. Raises UsageError for a GPU that
    is not there.
    """
    name = str(device)
    try:
        asked = torch.device(device)
    except RuntimeError:
        raise unknown("device", name, _there()) from None
    _check(name, asked.type, asked.index or 0)
    if name == "cuda":
        return f"cuda:{torch.cuda.current_device()}"
    return name if has_float64(name) else "cpu"


@contextmanager
def from_environment(device: str = "cpu") -> Iterator[Ranks]:
    """The processes that were started together, as long as the block runs; ALONE where there are no others.

    `device` is where they compute. However the block ends, the others end too: those that have not failed
    themselves with Elsewhere, where the cause is told on another rank, or with Lost.

    Raises UsageError where the environment is incomplete, Lost where a process does not come.
    """
    if launchers.found() is None or _together:
        yield ALONE
        return
    from .processes import joined  # torch.distributed only where it is needed

    _met.append(True)
    with joined(own(device)) as ranks:
        _together.append(ranks)  # who runs further commands within does so alone
        try:
            yield ranks
        finally:
            _together.pop()
    _met.pop()


_together: list[Ranks] = []
_met: list[bool] = []


def excuse(message: str, code: int) -> None:
    """Where this process was to work with others, and ends before: tell them why."""
    if launchers.found() is not None and not _met:
        from .rendezvous import excuse

        excuse(message, code)
