"""What operations give back: dataclasses, and the same as plain values where JSON or a screen wants them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __bool__(self) -> bool:
        return False


UNSET = Unset.UNSET  # of a field that this result does not have: neither JSON nor the screen tells of it
IN_JSON_ONLY = {"in_json_only": True}  # the metadata of a field that is too much for a screen


@dataclasses.dataclass(frozen=True)
class Result:
    """What an operation did or found: its fields are the keys of --json, in their order."""

    @property
    def yes(self) -> bool:
        """Whether the answer is yes, for what asks a question: else it ends with exit code 1."""
        return True


@dataclasses.dataclass(frozen=True)
class Plan(Result):
    """What an operation would do, as `--dry-run` tells it: each fact by its name, in the order of telling."""

    facts: Mapping[str, Any]


def values(result: Any, *, screen: bool = False) -> dict[str, Any]:
    """A result by the names of its fields, but what is UNSET; for a `screen`, but what is for JSON only."""
    if isinstance(result, Plan):
        return dict(result.facts)
    fields = [
        each for each in dataclasses.fields(result) if not (screen and each.metadata.get("in_json_only"))
    ]
    found = {each.name: getattr(result, each.name) for each in fields}
    return {name: value for name, value in found.items() if value is not UNSET}


def plain(value: Any) -> Any:
    """As JSON has it: NaN and infinities, which it lacks, are strings, as in reports."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(values(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
