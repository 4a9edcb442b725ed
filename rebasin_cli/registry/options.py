"""The options that a method brings: fields of its `Options` dataclass, declared where they are used.

    @dataclass(frozen=True)
    class Options:
        starts: int = option(3, "Search from this many seeds.", min=1)

This is the one place that knows them. The command line, `rebasin list methods --verbose`, provenance,
--resume and docs/cli.md read them from here; a field without `option` counts too, only that it explains
nothing.

Help must not import torch. So the declarations are read from the source, as a syntax tree: names of classes,
constants and modules are followed as imports would, and nothing is run. What cannot be read in this way (a
default that is computed, say) makes the caller import the module and read the dataclass itself.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.machinery
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown
from . import numbers

KEY = "rebasin"  # of a field's metadata
EFFECTS = ("result", "length", "nothing")
# Where an option says nothing else: a count that any library of ours takes
MOST: dict[type, int] = {int: 2**31 - 1}
TYPES = {"int": int, "float": float, "str": str, "bool": bool}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its `name` in Python, its `flag`, what it may be, and what it means in a sentence.

    `type` is int, float, str or bool. `min` and `max` are inclusive. `kind` "bytes" is a size such as 2GB,
    "start" is one of `choices` or a permutation file. `effect`: an option that changes the "result" is
    recorded in provenance, and a search that goes on must agree on it; one that only says how long to search
    ("length") is recorded; one that changes "nothing" but time, memory and what is told is neither.
    """

    name: str
    type: type
    default: Any
    help: str = ""
    flag: str = ""
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    min: float | None = None
    max: float | None = None
    kind: str = ""
    effect: str = "result"

    @property
    def shown_default(self) -> str:
        """As help shows it: nothing for what is found out, and for switches."""
        return "" if self.default is None or self.type is bool else f"{self.default}"

    def read(self, text: str) -> Any:
        """What a text on the command line stands for. Raises UsageError for what is not of this type."""
        if self.type is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            return text if self.type is str else numbers.READ[self.type](text)
        except (ValueError, KeyError):
            raise UsageError(f"{self.flag} {text!r} is not of type {self.type.__name__}") from None

    def check(self, value: Any) -> None:
        """Raise UsageError for a value that the declaration rules out."""
        if value is None and self.default is None:
            return
        whole = isinstance(value, int) and not isinstance(value, bool)
        right = {int: whole, float: whole or (isinstance(value, float) and not math.isnan(value))}
        if not right.get(self.type, isinstance(value, self.type)):
            raise UsageError(f"{self.flag} {value!r} is not of type {self.type.__name__}")
        if self.choices and self.kind != "start" and value not in self.choices:
            raise unknown(self.name.replace("_", " "), value, map(str, self.choices))
        if isinstance(value, float) and math.isinf(value):
            raise UsageError(f"{self.flag} {value}: expected a finite number")
        highest = self.max if self.max is not None or self.kind == "bytes" else MOST.get(self.type)
        low, high = self.min is not None and value < self.min, highest is not None and value > highest
        if low or high:
            bound = f"at least {self.min:g}" if low else f"at most {highest:,}"
            raise UsageError(f"{self.flag} {value:g}: expected {bound}")


def option(
    default: Any,
    help: str,
    *,
    flag: str = "",
    metavar: str | None = None,
    choices: Any = (),
    min: float | None = None,
    max: float | None = None,
    kind: str = "",
    effect: str = "result",
) -> Any:
    """A dataclass field that is an option; see `Option`. `flag` is by default the field's name."""
    if effect not in EFFECTS:
        raise ValueError(f"effect is {effect!r}, expected one of {', '.join(EFFECTS)}")
    told = {"help": help, "flag": flag, "metavar": metavar, "choices": tuple(choices), "min": min, "max": max}
    return dataclasses.field(default=default, metadata={KEY: told | {"kind": kind, "effect": effect}})


def of_class(options: type) -> tuple[Option, ...]:
    """The options of a dataclass that was imported. Fields of other types than `TYPES` are Python's alone."""
    found = []
    for field in dataclasses.fields(options):
        kind = _type(
            field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        )
        if kind is not None and field.default is not dataclasses.MISSING:
            found.append(_made(field.name, kind, field.default, field.metadata.get(KEY, {})))
    return tuple(found)


def of_module(module: Any) -> tuple[Option, ...]:
    """The options of what was imported; one without `Options` has none."""
    options = getattr(module, "Options", None)
    return of_class(options) if isinstance(options, type) and dataclasses.is_dataclass(options) else ()


def _made(name: str, kind: type, default: Any, told: Mapping[str, Any]) -> Option:
    flag = told.get("flag") or "--" + name.replace("_", "-")
    return Option(name, kind, default, **{**told, "flag": flag})


def _type(annotation: str) -> type | None:
    """`int`, `int | None`, `Optional[int]` → int; None for anything else."""
    words = annotation.replace("Optional[", "").replace("typing.", "").rstrip("]").split("|")
    names = [word.strip() for word in words if word.strip() != "None"]
    return TYPES.get(names[0]) if len(names) == 1 else None


# ------------------------------------------------------------------------------------- without importing


class Unreadable(Exception):
    """The source says something that only running it can tell."""


def declared(module: str) -> tuple[Option, ...] | None:
    """The options of a module by its name, without importing it; None where only an import can tell."""
    try:
        return tuple(_fields(module, "Options").values())
    except Exception:  # whatever is wrong with it, the import says so in words
        return None


def constant(module: str, name: str) -> Any:
    """A top-level constant of a module, without importing it; None where there is none, or it is computed."""
    try:
        return _value(module, ast.Name(name))
    except Exception:
        return None


def _fields(module: str, name: str) -> dict[str, Option]:
    """The fields of class `name` in a module's source, those of its bases first."""
    place, node = _find(module, name)
    if not isinstance(node, ast.ClassDef):
        raise Unreadable(name)
    found: dict[str, Option] = {}
    for base in reversed(node.bases):
        found |= _fields(*_class(place, base))
    for line in node.body:
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name) or line.value is None:
            continue
        kind = _type(ast.unparse(line.annotation).strip("'\""))
        if kind is not None:
            default, told = _declaration(place, line.value)
            found[line.target.id] = _made(line.target.id, kind, default, told)
    return found


def _class(module: str, node: ast.expr) -> tuple[str, str]:
    """The module and name of a base class: `Training`, or `am.Options` of an imported module."""
    if isinstance(node, ast.Name):
        return module, node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return _module(module, node.value.id), node.attr
    raise Unreadable(ast.unparse(node))


def _declaration(module: str, node: ast.expr) -> tuple[Any, dict[str, Any]]:
    """A field's default, and what `option(…)` says of it."""
    if not isinstance(node, ast.Call):
        return _value(module, node), {}
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    words = {word.arg: word.value for word in node.keywords if word.arg is not None}
    if called != "option" or len(node.args) != 2 or len(words) < len(node.keywords):
        raise Unreadable(ast.unparse(node))
    default, text = (_value(module, argument) for argument in node.args)
    told: dict[str, Any] = {
        word: (_choices if word == "choices" else _value)(module, value) for word, value in words.items()
    }
    made = option(default, text, **told)  # fills in what was left out
    return made.default, dict(made.metadata[KEY])


def _value(module: str, node: ast.expr) -> Any:
    """A literal, or a constant by its name."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.Name):
        place, found = _find(module, node.id)
        if isinstance(found, ast.expr):
            return _value(place, found)
    raise Unreadable(ast.unparse(node))


def _choices(module: str, node: ast.expr) -> tuple[Any, ...]:
    """As `_value`; of a table by name only the keys, whatever it leads to."""
    place, found = _find(module, node.id) if isinstance(node, ast.Name) else (module, node)
    if isinstance(found, ast.Dict):
        return tuple(_value(place, key) for key in found.keys if key is not None)
    if isinstance(found, ast.ClassDef):
        raise Unreadable(ast.unparse(node))
    return tuple(_value(place, found))


def _find(module: str, name: str) -> tuple[str, ast.ClassDef | ast.expr]:
    """Where a top-level name of a module is really defined: the module, and the class or the value there."""
    for line in _tree(module).body:
        if isinstance(line, ast.ClassDef) and line.name == name:
            return module, line
        if isinstance(line, ast.Assign) and any(_is(target, name) for target in line.targets):
            return module, line.value
        if isinstance(line, ast.AnnAssign) and _is(line.target, name) and line.value is not None:
            return module, line.value
    for place, wanted, bound in _imported(module):
        if bound == name:
            return _find(place, wanted)
    raise Unreadable(f"{module}.{name}")


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _imported(module: str) -> Iterator[tuple[str, str, str]]:
    """(module, name there, name here) of every `from … import …` at the top of a module."""
    package = module if _path(module).name == "__init__.py" else module.rpartition(".")[0]
    for line in _tree(module).body:
        if not isinstance(line, ast.ImportFrom):
            continue
        above = package.split(".")[: len(package.split(".")) - (line.level - 1)] if line.level else []
        place = ".".join([*above, *([line.module] if line.module else [])])
        for alias in line.names:
            yield place, alias.name, alias.asname or alias.name


def _module(module: str, name: str) -> str:
    """The full name of a module that is imported as `name`."""
    for place, wanted, bound in _imported(module):
        if bound == name:
            return f"{place}.{wanted}"
    raise Unreadable(name)


@functools.cache
def _tree(module: str) -> ast.Module:
    return ast.parse(_path(module).read_text(encoding="utf-8"))


@functools.cache
def _path(module: str) -> Path:
    """The source file of a module; no package is imported to find it, not even the one it lies in."""
    top, *below = module.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ValueError, ImportError):
        spec = None
    name = top
    for word in below:
        places = None if spec is None else spec.submodule_search_locations
        name = f"{name}.{word}"
        spec = None if places is None else importlib.machinery.PathFinder.find_spec(name, list(places))
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise Unreadable(module)
    return Path(spec.origin)
