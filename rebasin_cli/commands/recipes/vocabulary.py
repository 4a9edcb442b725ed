"""What a step may say: the commands and their options, as values. The command line makes them from its own.

An option's key in a recipe is its flag without dashes, `max_barrier` for --max-barrier; positional models are
`models`, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...registry.numbers import READ

READS, WRITES, MAY_READ, TEXT = "reads", "writes", "may read", ""
MODELS = "models"
# What `rebasin run` itself decides, for all steps.
OF_THE_RUN = ("force", "resume", "dry_run", "json", "quiet", "verbose", "help")
# Options that name a file to write, or a folder; all other files are read.
WRITTEN = ("out", "report", "log", "attest", "step_summary", "plot", "json_file")
# Folders of data: large, and the same under their name; their content is not looked at.
DATA_FOLDERS = ("data_root",)
# What `out` of a command ends with, where other steps read it; a step that names none writes NAME with this.
ENDINGS = dict.fromkeys(("train", "align", "apply", "canon", "merge", "repair"), ".safetensors")
ENDINGS |= {"curve": ".curve.safetensors", "dream": ".npz"}
# Texts that may name a file: a spec, a start, a data set or code of the user's.
MAY_NAME_A_FILE = ("spec", "init", "net", "data", "held_out", "loss", "metric")


@dataclass(frozen=True)
class Parameter:
    """One option, or one argument (`flag` is ""). `kind` is int, float, bool, str or "path".

    `many` takes a list, `count` of them where it is not 0, behind one flag. `off` is the flag that says no.
    `role` tells whether it names a file.
    """

    key: str
    kind: Any
    flag: str = ""
    off: str = ""
    short: tuple[str, ...] = ()
    many: bool = False
    count: int = 0
    required: bool = False
    min: float | None = None
    max: float | None = None
    role: str = TEXT
    help: str = ""

    def wrong(self, value: Any) -> str | None:
        """What is wrong with one value; None where it is right."""
        if self.kind is bool:
            return None if isinstance(value, bool) else f"expected true or false, not {value!r}"
        if value is None or isinstance(value, bool | list | dict):
            return f"expected {self.expected}, not {_shown(value)}"
        if self.kind in (int, float):
            return self._wrong_number(value)
        return "expected a name, not nothing" if str(value) == "" else None

    def _wrong_number(self, value: Any) -> str | None:
        try:
            number = READ[self.kind](str(value))
        except ValueError:
            return f"expected {self.expected}, not {_shown(value)}"
        if self.kind is float and not math.isfinite(number):
            return f"expected a finite number, not {value}"
        if (self.min is not None and number < self.min) or (self.max is not None and number > self.max):
            return f"expected {self.expected}, not {value}"
        return None

    @property
    def expected(self) -> str:
        names = {int: "a whole number", float: "a number", "path": "the name of a file"}
        low = "" if self.min is None else f" from {self.min:,}"
        return names.get(self.kind, "text") + low + ("" if self.max is None else f" to {self.max:,}")


def _shown(value: Any) -> str:
    kinds = {list: "a list", dict: "keys", type(None): "nothing"}
    return kinds.get(type(value)) or repr(value)[:80]


@dataclass(frozen=True)
class Command:
    """A command that a step may run: `words` as typed, such as ("spec", "infer")."""

    words: tuple[str, ...]
    help: str
    parameters: tuple[Parameter, ...]

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if not p.flag)

    @property
    def takes_models(self) -> bool:
        """Whether all its arguments are files that are read, so that a step names them as `models`."""
        return bool(self.arguments) and all(p.role == READS for p in self.arguments)

    @property
    def ending(self) -> str | None:
        """Of the file that it makes, where that is weights."""
        return ENDINGS.get(self.name)

    @property
    def options(self) -> dict[str, Parameter]:
        return {p.key: p for p in self.parameters if p.flag}

    def has(self, key: str) -> bool:
        return key in self.options

    def keys(self) -> list[str]:
        """Every key that a step of this command may have."""
        own = [MODELS] if self.takes_models else [p.key for p in self.arguments]
        return own + [key for key in self.options if key not in OF_THE_RUN]

    def counts(self) -> tuple[int, int | None]:
        """How few and how many models it takes at most; None is any number."""
        few = sum(p.required for p in self.arguments) + (
            self.name == "merge"
        )  # of one there is nothing to do
        return few, None if any(p.many for p in self.arguments) else len(self.arguments)

    def line(self, arguments: Iterable[str], options: Mapping[str, Any]) -> list[str]:
        """The command line, without `rebasin`: words, arguments, then options in the order given."""
        told = [*self.words, *(f"./{text}" if text.startswith("-") else text for text in arguments)]
        for key, value in options.items():
            told += _told(self.options[key], value)
        return told


def _told(option: Parameter, value: Any) -> list[str]:
    if option.kind is bool:
        return [option.flag] if value else [option.off] if option.off else []
    values = value if isinstance(value, list) else [value]
    if option.count:
        return [option.flag, *map(str, values)]
    return [word for item in values for word in _word(option.flag, str(item))]


def _word(flag: str, value: str) -> list[str]:
    # As one word where the value begins with a dash: it is no option.
    return [f"{flag}={value}"] if value.startswith("-") else [flag, value]
