"""The parameters of an experiment: a YAML file beside its module says type, range, help and both scales.

    minutes: {small: 1, full: 120}
    parameters:
      pairs: {type: int, min: 2, small: 5, full: 10, help: Pairs of networks.}

`type` is int, float or text, or ints, floats or texts for a list with commas between.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ...errors import UsageError, unknown
from ...registry import Option

SCALES = ("small", "full")
KINDS = {"int": int, "float": float, "text": str}
WORDS = {"type", "help", "min", "max", "choices", *SCALES}


@dataclass(frozen=True)
class Parameter:
    """One parameter: `option` judges a value, or each of several where it is `many`."""

    option: Option
    many: bool
    small: Any
    full: Any

    @property
    def name(self) -> str:
        return self.option.name

    @property
    def kind(self) -> str:
        word = next(word for word, kind in KINDS.items() if kind is self.option.type)
        return f"{word}s" if self.many else word

    def read(self, text: str) -> Any:
        """What --set NAME=TEXT means. Raises UsageError."""
        if not self.many:
            return self.checked(self.option.read(text.strip()))
        return self.checked([self.option.read(part.strip()) for part in text.split(",")])

    def checked(self, value: Any) -> Any:
        values = value if self.many else [value]
        if self.many and (not isinstance(value, list) or not value):
            raise UsageError(f"{self.option.flag} {value!r}: expected {self.kind} with commas between")
        if self.option.type is float:
            values = [float(each) if isinstance(each, int) else each for each in values]
        for each in values:
            self.option.check(each)
        return values if self.many else values[0]


@dataclass(frozen=True)
class Declared:
    """What the YAML file of an experiment says; `minutes` are about what it takes on two cores."""

    minutes: Mapping[str, float]
    parameters: tuple[Parameter, ...]

    def values(self, scale: str, assignments: Sequence[str] = ()) -> dict[str, Any]:
        """The value of every parameter at a scale, those of `assignments` (NAME=VALUE) instead."""
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        values = {parameter.name: getattr(parameter, scale) for parameter in self.parameters}
        known = {parameter.name: parameter for parameter in self.parameters}
        for assignment in assignments:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise UsageError(f"--set {assignment!r} sets nothing", hint="Write --set NAME=VALUE")
            if name.strip() not in known:
                raise unknown("parameter", name.strip(), known)
            values[name.strip()] = known[name.strip()].read(text)
        return values


def declared(path: Path) -> Declared:
    """Read the file. Raises UsageError with everything that is wrong with it."""
    try:
        root = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"the parameters {path} cannot be read: {error}") from None
    try:
        given = root.get("parameters") or {}
        found = [_parameter(name, told) for name, told in given.items()]
        minutes = {scale: float(root["minutes"][scale]) for scale in SCALES}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"{path} does not declare parameters: {type(error).__name__}: {error}",
            hint="Each has a type, a help and a value for both scales, small and full",
        ) from None
    return Declared(minutes, tuple(found))


def _parameter(name: str, told: Mapping[str, Any]) -> Parameter:
    if odd := sorted(set(told) - WORDS):
        raise ValueError(f"{name} has {', '.join(odd)}")
    many = told["type"] not in KINDS
    kind = KINDS[told["type"].removesuffix("s") if many else told["type"]]
    choices = tuple(told.get("choices", ()))
    low, high = told.get("min"), told.get("max")
    option = Option(name, kind, None, told["help"], f"--set {name}", None, choices, low, high)
    made = Parameter(option, many, told["small"], told["full"])
    return Parameter(option, many, made.checked(made.small), made.checked(made.full))
