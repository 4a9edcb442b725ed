"""The names that options of a kind may have, read without importing what they are names of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from . import Registry
from .source import constant


def _of(module: str, name: str, *more: str) -> Callable[[], Sequence[str]]:
    """Those that a module states, after `more`."""
    return lambda: (*more, *(constant(f"rebasin_cli.{module}", name) or ()))


KINDS: dict[str, Callable[[], Sequence[str]]] = {
    "method": lambda: [*Registry("matchers", "method").names(), "none"],
    "data": Registry("datasets", "data set").names,
    "repair": _of("repair.repairing", "REPAIRS", "auto"),
    "interpolation": _of("averages.mixing", "INTERPOLATIONS"),
    "heads": _of("averages.parts", "HEADS"),
    "extra": _of("averages.parts", "EXTRA"),
}


def known(kind: str) -> list[str]:
    """The names by the `kind` of an option; none for a kind that is not one of a few names."""
    return list(KINDS[kind]()) if kind in KINDS else []
