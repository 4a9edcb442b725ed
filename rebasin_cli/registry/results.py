"""What operations give back: dataclasses, and the same as plain values where JSON or a screen wants them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Self


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __bool__(self) -> bool:
        return False


UNSET = Unset.UNSET  # of a field that this result does not have: neither JSON nor the screen tells of it
# The metadata of a field that is too much for a screen, that is for a screen alone, that has facts by names
# of their own.
IN_JSON_ONLY, ON_SCREEN_ONLY, NAMED = {"in_json_only": True}, {"on_screen_only": True}, {"named": True}


@dataclasses.dataclass(frozen=True)
class Result:
    """What an operation did or found: its fields are the keys of --json, in their order."""

    @property
    def yes(self) -> bool:
        """Whether the answer is yes, for what asks a question: else it ends with exit code 1."""
        return True

    def values(self) -> dict[str, Any]:
        """The fields by their names, but those that are UNSET, or not for JSON."""
        found: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value is not UNSET and not each.metadata.get("on_screen_only"):
                found |= dict(value) if each.metadata.get("named") else {each.name: value}
        return found

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The result that has these values, as `values` gives them."""
        return cls(**{each.name: values.get(each.name, UNSET) for each in dataclasses.fields(cls)})

    def shown(self) -> dict[str, Any]:
        """The same without what is for JSON only."""
        hidden = {each.name for each in dataclasses.fields(self) if each.metadata.get("in_json_only")}
        return {name: value for name, value in self.values().items() if name not in hidden}

    def json(self) -> str:
        """As --json prints it."""
        return dumped(self.values())

    def document(self) -> Any:
        """The same as a document for a screen (`reports.document`); None where a line a fact is enough."""
        return None

    def warnings(self) -> Sequence[Any]:
        """Gates that may be told of without being missed: what nothing was compared with."""
        return ()

    def end(self) -> None:
        """Called once it was shown. Raises GateNotMet for what was asked of it and is not so."""


@dataclasses.dataclass(frozen=True)
class Plan(Result):
    """What an operation would do, as `--dry-run` tells it: each fact by its name, in the order of telling."""

    facts: Mapping[str, Any] = dataclasses.field(metadata=NAMED)


def plain(value: Any) -> Any:
    """As JSON has it: NaN and infinities, which it lacks, are strings, as in reports."""
    if isinstance(value, Result):
        return plain(value.values())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def dumped(values: Mapping[str, Any]) -> str:
    """As JSON in lines."""
    return json.dumps(plain(values), indent=2, allow_nan=False) + "\n"
