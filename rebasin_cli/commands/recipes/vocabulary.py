"""What a step may say: the operations and their options.

An option's key in a recipe is its flag without dashes, `max_barrier` for --max-barrier; positional models are
`models`, in their order.

Each has a role: what its value may bring about. One that nobody has said anything of is refused in a
stranger's recipe (`limits.py`); numbers name nothing.
"""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import near
from ...registry import operations
from ...registry.operations import Operation
from ...registry.options import (
    READ,
    READS,
    REQUIRED,
    Option,
)
from ...registry.source import constant

MODELS = "models"
# What `rebasin run` itself decides, for all steps.
OF_THE_RUN = ("force", "resume", "dry_run", "json", "quiet", "verbose", "help")
# Arguments that are read and are no models: they have keys of their own.
REPORTS = ("report",)
# Options that a step may write as one with parts: `baseline: {file: FILE, missing: accept}`.
PARTS = {"baseline": {"file": "baseline", "missing": "missing_baseline", "tolerance": "baseline_tolerance"}}
# Of a command: what went from it, by its key, and to which.
MOVED = {"merge": {"ignore": "average", "copy_from": "average", "extra": "average"}}
# Options whose file may be missing where another one says so.
MAY_BE_MISSING = {key: parts["missing"] for key, parts in PARTS.items() if "missing" in parts}
ACCEPTED = constant("rebasin_cli.session.outcomes", "ACCEPT")


def wrong(option: Option, value: Any) -> str | None:
    """What is wrong with one value of an option; None where it is right."""
    if option.type is bool:
        return None if isinstance(value, bool) else f"expected true or false, not {value!r}"
    if value is None or isinstance(value, bool | list | dict):
        return f"expected {expected(option)}, not {_shown(value)}"
    if option.type in (int, float):
        return _wrong_number(option, value)
    if str(value) == "":
        return "expected a name, not nothing"
    known = () if option.kind == "start" or "${" in str(value) else option.choices
    return f"unknown {value!r}; {near(str(value), known)}" if known and str(value) not in known else None


def _wrong_number(option: Option, value: Any) -> str | None:
    try:
        number = READ[option.type](str(value))
    except ValueError:
        return f"expected {expected(option)}, not {_shown(value)}"
    if not math.isfinite(number):
        return f"expected a finite number, not {value}"
    low = option.min is not None and number < option.min
    high = option.max is not None and number > option.max
    return f"expected {expected(option)}, not {value}" if low or high else None


def expected(option: Option) -> str:
    """What an option may be, in words."""
    names = {int: "a whole number", float: "a number", Path: "the name of a file"}
    low = "" if option.min is None else f" from {option.min:,}"
    return names.get(option.type, "text") + low + ("" if option.max is None else f" to {option.max:,}")


def _shown(value: Any) -> str:
    kinds = {list: "a list", dict: "keys", type(None): "nothing"}
    return kinds.get(type(value)) or repr(value)[:80]


MERGES = ("merge", "average")  # several models into one; mergekit's words mean something there


@dataclass(frozen=True)
class Command:
    """An operation as a recipe knows it: a command that a step may run, and is a value of."""

    operation: Operation

    @property
    def name(self) -> str:
        return self.operation.name

    @property
    def words(self) -> tuple[str, ...]:
        """As they are typed, such as ("spec", "infer")."""
        return self.operation.words

    @property
    def help(self) -> str:
        """What it does, in a line."""
        return self.operation.help.partition("\n")[0]

    @property
    def parameters(self) -> tuple[Option, ...]:
        return self.operation.options

    @property
    def arguments(self) -> tuple[Option, ...]:
        return tuple(p for p in self.parameters if p.positional)

    @property
    def takes_models(self) -> bool:
        """Whether all its arguments are files that are read, so that a step names them as `models`."""
        return bool(self.arguments) and all(
            p.brings == READS and p.key not in REPORTS for p in self.arguments
        )

    @property
    def ending(self) -> str | None:
        """How the file ends that other steps read of it; None where it makes none."""
        return next((p.ending for p in self.parameters if p.ending), None)

    @property
    def options(self) -> dict[str, Option]:
        return {p.key: p for p in self.parameters if not p.positional}

    def has(self, key: str) -> bool:
        return key in self.options

    def keys(self) -> list[str]:
        """Every key that a step of this command may have."""
        own = [MODELS] if self.takes_models else [p.key for p in self.arguments]
        return own + [key for key in self.options if key not in OF_THE_RUN]

    def counts(self) -> tuple[int, int | None]:
        """How few and how many models it takes at most; None is any number."""
        few = sum(p.default is REQUIRED for p in self.arguments)
        few += self.name in MERGES  # of one there is nothing to do
        return few, None if any(p.many for p in self.arguments) else len(self.arguments)

    def wrong_count(self, models: int) -> str | None:
        """What is wrong with so many models; None where nothing is."""
        few, many = self.counts()
        if few <= models and (many is None or models <= many):
            return None
        expected = f"{few}" if many == few else f"{few} or more" if many is None else f"{few} to {many}"
        noun = "model" if many == few == 1 else "models"
        return f"`{self.name}` takes {expected} {noun}, and here are {models}"

    def made(self, arguments: Sequence[str], options: Mapping[str, Any]) -> Any:
        """The value of its operation: what a recipe says of each option, in the type that this has."""
        values, rest = dict[str, Any](), list(arguments)
        for option in self.parameters:
            if option.positional:
                taken, rest = (rest, []) if option.many else (rest[:1], rest[1:])
                values |= (
                    {option.parameter: _value(option, taken if option.many else taken[0])} if taken else {}
                )
            elif option.key in options:
                values[option.parameter] = _value(option, options[option.key])
        return self.operation.made(values)

    def line(self, arguments: Iterable[str], options: Mapping[str, Any]) -> list[str]:
        """The command line, without `rebasin`: words, arguments, then options in the order given."""
        told = [*self.words, *(f"./{text}" if text.startswith("-") else text for text in arguments)]
        return told + [word for key, value in options.items() for word in self.options[key].typed(value)]


@functools.cache
def vocabulary() -> dict[str, Command]:
    """The commands that a step may run, by their words."""
    return {name: Command(one) for name, one in sorted(operations.every().items()) if one.is_step}


def _value(option: Option, value: Any) -> Any:
    if option.many:
        return tuple(_one(option, item) for item in (value if isinstance(value, list) else [value]))
    return _one(option, value)


def _one(option: Option, value: Any) -> Any:
    if option.type is bool or value is None:
        return value
    return option.read(str(value))


def moved_key(command: str, key: str) -> str | None:
    """What a recipe says for a key that the command had; None for any other."""
    to = MOVED.get(command, {}).get(key)
    return to and f"{key!r} is of `{to}` now (models as they are): `{to}: {{models: …, {key}: …}}`"


def moved_flag(command: str, flag: str) -> str | None:
    """The command that has a flag now; None for any other."""
    return MOVED.get(command, {}).get(flag.removeprefix("--").replace("-", "_")) if flag[:2] == "--" else None


def moved_line(arguments: Sequence[str]) -> str | None:
    """What is wrong with a command line that has such a flag, with the line to type; None for any other."""
    if not arguments:
        return None
    command, *rest = arguments
    gone = [word.partition("=")[0] for word in rest if moved_flag(command, word.partition("=")[0])]
    if not gone:
        return None
    to = str(moved_flag(command, gone[0]))
    typed = shlex.join(["rebasin", to, *_without_method(rest)])
    return f"{' and '.join(dict.fromkeys(gone))}: of rebasin {to} now. Type: {typed}"


def _without_method(words: Sequence[str]) -> list[str]:
    """Without the word that said that nothing is aligned, which the other command never does."""
    left: list[str] = []
    for word in words:
        if word == "none" and left[-1:] in (["--method"], ["-m"]):
            left.pop()
        elif word not in ("--method=none", "-mnone"):
            left.append(word)
    return left
