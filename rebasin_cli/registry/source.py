"""Declarations read from the source, as a syntax tree: names of classes, constants and modules are followed
as imports would, and nothing is run. Help must not import torch.

What cannot be read in this way (a default that is computed, say) makes the caller import the module and read
the dataclass itself.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.machinery
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from .options import KEY, REQUIRED, Option, again, argument, gathered, made, option

DECLARING: dict[str, Callable[..., dataclasses.Field[Any]]] = {
    "option": option,
    "again": again,
    "argument": argument,
    "gathered": gathered,
}


class Unreadable(Exception):
    """The source says something that only running it can tell."""


def declared(module: str, name: str = "Options") -> tuple[Option, ...] | None:
    """The options of a module by its name, without importing it; None where only an import can tell."""
    try:
        found = [one for one in fields(module, name).values() if isinstance(one, Option)]
        return tuple(one for one in found if one.default is not REQUIRED)
    except Exception:  # whatever is wrong with it, the import says so in words
        return None


def constant(module: str, name: str) -> Any:
    """A top-level constant of a module, without importing it; None where there is none, or it is computed."""
    try:
        return _value(module, ast.Name(name))
    except Exception:
        return None


def pairs(module: str) -> list[str]:
    """The classes of a module, in their order, that have a function of their name: `Infer` and `infer`."""
    body = _tree(module).body
    functions = {line.name.removesuffix("_") for line in body if isinstance(line, ast.FunctionDef)}
    return [line.name for line in body if isinstance(line, ast.ClassDef) and line.name.lower() in functions]


def documentation(module: str, name: str) -> str:
    """The docstring of a class."""
    _, node = _find(module, name)
    return (ast.get_docstring(node) or "") if isinstance(node, ast.ClassDef) else ""


@functools.cache
def fields(module: str, name: str, *, own_first: bool = False) -> Mapping[str, Option | str]:
    """The options of class `name` in a module's source, those of its bases first.

    With `own_first` its own come first, and then those of its bases as they are written. A field of options
    that others declare is the word that `gathered` has. Raises Unreadable.
    """
    place, node = _find(module, name)
    if not isinstance(node, ast.ClassDef):
        raise Unreadable(name)
    inherited: dict[str, Option | str] = {}
    for base in node.bases if own_first else reversed(node.bases):
        above = fields(*_class(place, base))
        inherited |= {key: one for key, one in above.items() if not (own_first and key in inherited)}
    own: dict[str, Option | str] = {}
    panel = str(_stated(place, node, "PANEL") or "")
    for line in node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            found = _field(place, line.target.id, line, panel)
            own |= {} if found is None else {line.target.id: found}
    return (
        own | {key: one for key, one in inherited.items() if key not in own} if own_first else inherited | own
    )


def _field(module: str, name: str, line: ast.AnnAssign, panel: str) -> Option | str | None:
    """One field; `Samples.limit` is the one that class has under that name."""
    if line.value is None:
        return made(name, _text(line.annotation), REQUIRED, {"panel": panel})
    if isinstance(line.value, ast.Attribute):
        return _taken(module, line.value)
    default, said = _declaration(module, line.value)
    if isinstance(line.value, ast.Call) and _called(line.value) == "again":
        before = _taken(module, line.value.args[0])
        kind = made(name, _text(line.annotation), default, {})
        if kind is None:
            raise Unreadable(name)
        more = {} if name == before.name else {"name": name, "flag": kind.flag}
        return replace(before, **{**more, "default": default, "off": kind.off, **said})
    if "gathered" in said:
        return str(said["gathered"])
    return made(name, _text(line.annotation), default, said | {"panel": said.get("panel") or panel})


def _taken(module: str, node: ast.expr) -> Option:
    """The option that a class has under this name: `Samples.limit`."""
    if not isinstance(node, ast.Attribute):
        raise Unreadable(ast.unparse(node))
    found = fields(*_class(module, node.value))[node.attr]
    if not isinstance(found, Option):
        raise Unreadable(ast.unparse(node))
    return found


def _called(node: ast.expr) -> str:
    """The name of the function that is called, "" where none is."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _text(annotation: ast.expr) -> str:
    return ast.unparse(annotation).strip("'\"")


def stated(module: str, name: str, constant: str) -> Any:
    """A constant that a class states in its own body, None where it does not."""
    place, node = _find(module, name)
    return _stated(place, node, constant) if isinstance(node, ast.ClassDef) else None


def _stated(module: str, node: ast.ClassDef, name: str) -> Any:
    for line in node.body:
        if isinstance(line, ast.Assign) and any(_is(target, name) for target in line.targets):
            return _value(module, line.value)
    return None


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
    called = _called(node)
    if called not in DECLARING or any(word.arg is None for word in node.keywords):
        raise Unreadable(ast.unparse(node))
    arguments = node.args[1:] if called == "again" else node.args  # whose first is looked at by `_field`
    given = [None] * (called == "again") + [_value(module, each) for each in arguments]
    said = {
        str(word.arg): (_choices if word.arg == "choices" else _value)(module, word.value)
        for word in node.keywords
    }
    field = DECLARING[called](*given, **said)  # fills in what was left out
    return field.default, dict(field.metadata[KEY])


def _value(module: str, node: ast.expr) -> Any:
    """A literal, or a constant by its name."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    if isinstance(node, ast.Name):
        if node.id == "REQUIRED":
            return REQUIRED
        place, found = _find(module, node.id)
        if isinstance(found, ast.expr):
            return _value(place, found)
    if isinstance(node, ast.Tuple):
        return tuple(each for item in node.elts for each in _items(module, item))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Path" and len(node.args) == 1:
        return Path(_value(module, node.args[0]))
    raise Unreadable(ast.unparse(node))


def _items(module: str, node: ast.expr) -> tuple[Any, ...]:
    return _value(module, node.value) if isinstance(node, ast.Starred) else (_value(module, node),)


def _choices(module: str, node: ast.expr) -> tuple[Any, ...]:
    """As `_value`; of a table by name only the keys, whatever it leads to."""
    place, found = _find(module, node.id) if isinstance(node, ast.Name) else (module, node)
    if isinstance(found, ast.Dict):
        return tuple(_value(place, key) for key in found.keys if key is not None)
    return tuple(_value(place, cast(ast.expr, found)))


@functools.cache
def _find(module: str, name: str) -> tuple[str, ast.expr | ast.ClassDef]:
    """Where a top-level name of a module is really defined: the module, and the class or the value there."""
    for line in _tree(module).body:
        if isinstance(line, ast.ClassDef) and line.name == name:
            return module, line
        if isinstance(line, ast.Assign) and any(_is(target, name) for target in line.targets):
            return module, line.value
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Tuple):
            for target in (each for each in line.targets if isinstance(each, ast.Tuple)):
                for one, value in zip(target.elts, line.value.elts, strict=True):
                    if _is(one, name):
                        return module, value
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
