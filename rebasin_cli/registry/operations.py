"""Operations: the commands of `rebasin_cli/commands/`, each with its options, read from the source.

    PANEL = "Align and merge"

    @dataclass(frozen=True, kw_only=True)
    class Merge(Loading, Network):
        \"""Align models to the first … (the help)\"""

        models: tuple[Path, ...] = argument("A B …", "Two models or more.", role=READS)

    def run(asked: Merge, listener: Listener) -> MergeResult: …

A file with a PANEL is an operation, by its own name; `lab.py` and others with a GROUP (its help) are several,
`rebasin lab run`, each a class with a function of its name. Nothing is imported before an operation is run.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from ..errors import RebasinError, UsageError
from . import Registry, source
from .options import PLAIN, UNSAID, WRITES, Option
from .results import Plan
from .source import constant

PACKAGE = "rebasin_cli.commands"
FOLDER = Path(__file__).parents[1] / "commands"
METHODS, FORMATS = Registry("matchers", "method"), Registry("reports", "report format")
UNNAMED = ("wm", "auto")  # what may be meant where no method is named
# What stands for names in a sentence of help: those that are there, of other packages too.
NAMED = {"{methods}": METHODS, "{data sets}": Registry("datasets", "data set")}


def _stated(name: str) -> property:
    """A constant of an operation's file, None where it states none."""
    return property(lambda self: source.constant(self.module, name))


@dataclass(frozen=True)
class Operation:
    """One command: its `words` as they are typed, and the class that its options make a value of."""

    words: tuple[str, ...]
    module: str
    kind: str  # the name of the class

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @cached_property
    def help(self) -> str:
        """What it does: the first line alone, and then more."""
        return source.documentation(self.module, self.kind)

    @cached_property
    def common(self) -> tuple[str, ...]:
        """The fields that its help shows where it has a COMMON; else it shows all of its own."""
        return tuple(source.stated(self.module, self.kind, "COMMON") or ())

    # What its file states of it: where help lists it; whether no person types it; whether it is asked for its
    # figures, which a run of a recipe shows each time; whether processes run it together, and share its work;
    # or each may by itself, since it writes nothing but files that are named, and these the first one alone.
    panel, hidden, figures = _stated("PANEL"), _stated("HIDDEN"), _stated("FIGURES")
    together, only_looks = _stated("TOGETHER"), _stated("ONLY_LOOKS")

    @property
    def is_step(self) -> bool:
        """Whether a recipe may have it as a step."""
        return source.constant(self.module, "STEP") is not False

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Its own options first, then those of its subjects; last those that methods and formats declare.

        A flag that it has itself stays its own: a method's `limit` is --limit, and the file of a report
        format is then --json-file.
        """
        found, others = [], []
        for name, one in source.fields(self.module, self.kind, own_first=True).items():
            if isinstance(one, Option):
                found.append(replace(one, help=_named(one.help)))
            else:
                others += GATHERED[one](name)
        taken = {flag for one in found for flag in _flags(one)}
        for one in others:
            if taken.intersection(_flags(one)) and one.role == WRITES:
                one = replace(one, flag=f"{one.flag}-file")
            if not taken.intersection(_flags(one)):
                taken.update(_flags(one))
                found.append(one)
        return tuple(found)

    @cached_property
    def said(self) -> bool:
        """Whether somebody has said of all its arguments what they may bring about."""
        return all(one.role != UNSAID for one in self.options if one.positional)

    def made(self, given: Mapping[str, Any]) -> Any:
        """The value of this operation with these options, by their parameters.

        Of those that methods and formats declare only what was given: no None, and no switch that is off.
        """
        of = {one.parameter: one for one in self.options}
        values: dict[str, Any] = {}
        for parameter, value in given.items():
            one = of[parameter]
            if one.within and (value is None or (value is False and one.default is False)):
                continue
            if one.within:
                values.setdefault(one.within, {})[one.name] = value
            else:
                values[one.name] = value
        return getattr(importlib.import_module(self.module), self.kind)(**values)

    @property
    def run(self) -> Callable[..., Any]:
        """What does it, by its value and a listener."""
        module = importlib.import_module(self.module)
        name = self.kind.lower() if len(self.words) > 1 else "run"
        return cast(Callable[..., Any], getattr(module, name, None) or getattr(module, f"{name}_"))

    def line(self, asked: Any) -> list[str]:
        """The command line that asks for this value: its arguments, then what is not as it is by itself."""
        words = list(self.words)
        for one in self.options:
            value = getattr(asked, one.within).get(one.name) if one.within else getattr(asked, one.name)
            if value is not None and (one.positional or value != one.default):
                words += one.typed(value)
        return words

    def result(self, values: Mapping[str, Any]) -> Any:
        """A result of this operation by the values of its fields, as they were kept."""
        hint = get_type_hints(self.run)["return"]
        kind = next(kind for kind in get_args(hint) or (hint,) if kind is not Plan)
        return kind.of(values)


def _flags(one: Option) -> set[str]:
    return {flag for flag in (one.flag, one.off, *one.also) if flag}


def _named(text: str) -> str:
    for word, registry in NAMED.items():
        if word in text:
            text = text.replace(word, ", ".join(registry.names()))
    return text


@functools.cache
def words() -> dict[str, bool]:
    """The first words of all operations, and whether they are groups: files are looked at, and not parsed."""
    found = {}
    for path in sorted(FOLDER.glob("[!_]*.py")):
        if stated := re.findall(r"(?m)^(PANEL|GROUP) = ", path.read_text(encoding="utf-8")):
            found[path.stem.replace("_", "-")] = "GROUP" in stated
    return found


def group(word: str) -> tuple[str, str | None]:
    """The help of a group of operations, and the panel that it stands in."""
    return source.constant(_module(word), "GROUP") or "", source.constant(_module(word), "PANEL")


@functools.cache
def of(word: str) -> tuple[Operation, ...]:
    """The operations that begin with a word: one, those of a group, or none."""
    module = _module(word)
    if word not in words():
        return ()
    if not words()[word]:
        return (Operation((word,), module, word.title().replace("-", "")),)
    return tuple(Operation((word, name.lower()), module, name) for name in source.pairs(module))


def every() -> dict[str, Operation]:
    """All operations by their names."""
    return {one.name: one for word in words() for one in of(word)}


def everywhere() -> dict[str, Option]:
    """The options that mean the same in every command that takes them, by their flags."""
    found = (option for one in every().values() for option in one.options if option.everywhere)
    return {option.flag: option for option in sorted(found, key=lambda option: option.flag)}


def of_value(asked: Any) -> Operation:
    """The operation that a value is of."""
    word = type(asked).__module__.rpartition(".")[2].replace("_", "-")
    return next(one for one in of(word) if one.kind == type(asked).__name__)


def checked(asked: Any) -> Any:
    """The same value with its files as paths, for who made it by hand. Raises UsageError for wrong types."""
    changed: dict[str, Any] = {}
    for one in of_value(asked).options:
        if one.within:  # of methods and formats: checked by what declares them
            continue
        value = getattr(asked, one.name)
        several = value if one.many else (value,)
        if not isinstance(several, tuple | list) or (one.count and len(several) != one.count):
            raise UsageError(f"{_spelt(one)} {value!r}: expected {one.count or 'several'}, as a tuple")
        if one.type is Path:
            several = [Path(each) if isinstance(each, str | PathLike) else each for each in several]
        elif one.type is str:
            several = [fspath(each) if isinstance(each, PathLike) else each for each in several]
        for each in several:
            replace(one, flag=_spelt(one)).check(each)
        changed[one.name] = tuple(several) if one.many else several[0]
    return replace(asked, **changed)


def _spelt(one: Option) -> str:
    return one.name if one.positional else one.flag


def _module(word: str) -> str:
    return f"{PACKAGE}.{word.replace('-', '_')}"


# ---------------------------------------------------------------------- what methods and formats declare


def _of_methods(field: str) -> list[Option]:
    """The options of all methods, those of the same methods together; one for one name.

    Where methods mean different types by a name, what is given is read as the chosen method's.
    """
    having: dict[str, dict[str, Option]] = {}
    for method, known in METHODS.every_option().items():
        for option in known:
            having.setdefault(option.name, {})[method] = option
    in_order = sorted(having.items(), key=lambda item: (-len(item[1]), tuple(item[1])))
    return [_together(name, of, field) for name, of in in_order]


def _together(name: str, of: Mapping[str, Option], field: str) -> Option:
    """What several methods declare alike as one option: everything that one of them allows."""
    options = tuple(of.values())
    kinds = {str if option.kind == "bytes" else option.type for option in options}
    kind = kinds.pop() if len(kinds) == 1 else str
    flag, *also = dict.fromkeys(option.flag for option in options)
    asking = kind is bool and any(option.default for option in options)
    choices = tuple(dict.fromkeys(str(choice) for option in options for choice in option.choices))
    lows, highs = [option.min for option in options], [option.max for option in options]
    numeric = kind in (int, float)
    return Option(
        name,
        kind,
        False if kind is bool and not asking else None,
        _sentences(of),
        flag,
        metavar=next((option.metavar for option in options if option.metavar), "|".join(choices) or None),
        choices=choices,
        min=min(low for low in lows if low is not None) if numeric and None not in lows else None,
        max=max(high for high in highs if high is not None) if numeric and None not in highs else None,
        also=tuple(also),
        off=f"--no-{flag.removeprefix('--')}" if asking else "",
        panel=f"Options of {', '.join(of)}",
        shown=False,
        role=_role({option.brings for option in options}),
        within=field,
    )


def _role(roles: set[str]) -> str:
    """What one value may bring about that methods read differently: `UNSAID` where no one word covers it."""
    more = roles - {PLAIN} or {PLAIN}
    return next(iter(more)) if len(more) == 1 else UNSAID


def _sentences(of: Mapping[str, Option]) -> str:
    """One sentence where all methods say the same; else each, with the names of its methods."""
    saying: dict[str, list[str]] = {}
    for method, option in of.items():
        saying.setdefault(_sentence(option), []).append(method)
    if len(saying) == 1:
        return next(iter(saying))
    return " ".join(f"{', '.join(methods)}: {sentence}" for sentence, methods in saying.items())


def _sentence(option: Option) -> str:
    default = f" ({option.shown_default})" if option.shown_default else ""
    return option.help.removesuffix(".") + default + "." if option.help else default.strip()


def _of_formats(field: str) -> list[Option]:
    """An option for every report format that has a file name, to write it alone."""
    found = []
    for name in FORMATS.names():
        try:
            named, help = (FORMATS.constant(name, constant) for constant in ("FILENAME", "HELP"))
        except RebasinError:  # of a package that cannot be imported: it harms who asks for it
            continue
        if named:
            found.append(
                Option(
                    name,
                    str,
                    None,
                    help or f"Write the report as {name}.",
                    f"--{name}",
                    metavar="FILE",
                    panel="Report",
                    role=WRITES,
                    within=field,
                )
            )
    return found


GATHERED: dict[str, Callable[[str], list[Option]]] = {"methods": _of_methods, "formats": _of_formats}


def _of(module: str, name: str, *more: str) -> Callable[[], Sequence[str]]:
    """Those that a module states, after `more`."""
    return lambda: (*more, *(constant(f"rebasin_cli.{module}", name) or ()))


KINDS: dict[str, Callable[[], Sequence[str]]] = {
    "method": lambda: [*Registry("matchers", "method").names(), "none"],
    "data": Registry("datasets", "data set").names,
    "repair": _of("repair.repair_steps", "REPAIRS", "auto"),
    "interpolation": _of("averages.means", "INTERPOLATIONS"),
    "heads": _of("averages.parts", "HEADS"),
    "extra": _of("averages.parts", "EXTRA"),
}


def known(kind: str) -> list[str]:
    """The names by the `kind` of an option; none for a kind that is not one of a few names."""
    return list(KINDS[kind]()) if kind in KINDS else []
