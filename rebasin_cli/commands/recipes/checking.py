"""What can be told of a value before anything is opened: names of methods and files, gates, sizes."""

from __future__ import annotations

import os
from collections.abc import Callable

from ...errors import RebasinError, near
from ...registry import Registry
from ...registry.source import constant
from .vocabulary import ACCEPTED, REFUSED


def wrong(key: str, text: str, command: str = "") -> str | None:
    """What is wrong with the text of an option; None where nothing is, or only its command can tell."""
    check = _CHECKS.get(f"{command} {key}") or _CHECKS.get(key)
    return check(text) if check and "${" not in text else None  # a variable that was not there


def _method(text: str) -> str | None:
    known = [*Registry("matchers", "method").names(), "none"]
    return None if text in known else f"unknown method {text!r}; {near(text, known)}"


def _reference(text: str) -> str | None:
    """A user's code must be there: `file.py:name`."""
    file, colon, _ = text.rpartition(":")
    if colon and file.endswith(".py") and not os.path.isfile(file):
        return f"{file}: no such file"
    return None


def _data(text: str) -> str | None:
    known = Registry("datasets", "data set").names()
    if ":" in text or text in known or os.path.exists(text):
        return _reference(text)
    return f"unknown data set {text!r}; {near(text, known)}"


def _spec(text: str) -> str | None:
    is_file = text.endswith((".yaml", ".yml")) or "/" in text
    return f"{text}: no such file" if is_file and not os.path.isfile(text) else None


def _by(parse: Callable[[str], object]) -> Callable[[str], str | None]:
    """A check that an option's own reader makes."""

    def check(text: str) -> str | None:
        try:
            parse(text)
        except RebasinError as error:
            return "; ".join(map(str.strip, str(error).splitlines()))
        return None

    return check


def _gate(text: str) -> None:
    from ...measure.thresholds import parse_gate

    parse_gate(text)


def _model_gate(text: str) -> None:
    from ...measure.model_gates import parse

    parse(text)


def _dtype(text: str) -> None:
    from ...checkpoints.writing import parse_dtype

    parse_dtype(text)


def _size(text: str) -> None:
    from ...checkpoints.writing import parse_size

    parse_size(text)


def _attack(text: str) -> None:
    from ...networks.attacks import Attack

    Attack.parse(text)


def _input(text: str) -> None:
    from ...networks.inputs import parse

    parse(text)


def _normalization(text: str) -> None:
    from ...datasets import Normalization

    Normalization.parse(text, Normalization())  # what a data set says of itself is read with it


def _one_of(module: str, name: str, *more: str) -> Callable[[str], str | None]:
    """A check against the names that a module states."""

    def check(text: str) -> str | None:
        known = [*more, *(constant(f"rebasin_cli.{module}", name) or ())]
        return None if text in known else f"unknown {text!r}; {near(text, known)}"

    return check


# `repair.REPAIRS`, which is put together there and cannot be read off the source.
REPAIRS = ("auto", "none", "reset", "repair", "rescale", "reshift", "refit", "distill", "bias")


def _repair(text: str) -> str | None:
    return None if text in REPAIRS else f"unknown repair {text!r}; {near(text, REPAIRS)}"


def _missing(text: str) -> str | None:
    known = (REFUSED, ACCEPTED)
    return None if text in known else f"unknown {text!r}; {near(text, known)}"


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "method": _method,
    "net": _reference,
    "loss": _reference,
    "metric": _reference,
    "data": _data,
    "spec": _spec,
    "gate": _by(_gate),
    "eval gate": _by(_model_gate),
    "missing_baseline": _missing,
    "repair": _repair,
    "interpolation": _one_of("averages.mixing", "INTERPOLATIONS"),
    "heads": _one_of("averages.parts", "HEADS"),
    "extra": _one_of("averages.parts", "EXTRA"),
    "soup": _one_of("commands.merging.average", "SOUPS"),
    "out_dtype": _by(_dtype),
    "out_shard_size": _by(_size),
    "attack": _by(_attack),
    "input": _by(_input),
    "normalize": _by(_normalization),
}
