"""Options: fields of a dataclass, declared where they are used.

    @dataclass(frozen=True)
    class Options:
        starts: int = option(3, "Search from this many seeds.", min=1)

A method, a repair and a command declare theirs in this one way (`Options` of a method, the operation of a
command). The command line, its help and completion, recipes and their schema, `rebasin list methods
--verbose`, provenance, --resume and docs/cli.md read them from here; a field without `option` counts too,
only that it explains nothing. How they are read without importing anything: `source`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown

_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")
_DIGITS = r"[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400}"
_REAL = re.compile(rf"\s*[+-]?((?:{_DIGITS})(e[+-]?[0-9]{{1,4}})?|inf|nan)\s*", re.IGNORECASE)
KEY = "rebasin"  # of a field's metadata
EFFECTS = ("result", "length", "nothing")
MOST: dict[type, int] = {
    int: 2**31 - 1
}  # where an option says nothing else: a count that any library of ours takes
TYPES = {"int": int, "float": float, "str": str, "bool": bool, "Path": Path}
REQUIRED = dataclasses.MISSING  # the default of what has to be given

# What the value of an option may bring about in a recipe: the one word that its declaration says of it.
READS, WRITES, MAY_READ, MAY_RUN, DATA = "reads", "writes", "may read", "may run", "data"
REPLACES = "replaces"  # a file that its command replaces by a rule of its own; where it is named
PAIR = "reads two"  # files, with a comma between
TRUSTS, PLAIN, UNSAID = "trusts", "plain", ""


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: its `name` in Python, its `flag`, what it may be, and what it means in a sentence.

    `type` is int, float, str, bool or Path: of one value, also where it takes `many`, or `count` of them
    behind one flag. A `positional` one has no flag. `also` are other spellings, such as "-o", `off` is the
    flag that says no. `min` and `max` are inclusive. `kind` says what a text means: "bytes" is a size such as
    2GB, "start" is one of `choices` or a permutation file, and others are checked before a recipe runs
    (`commands/recipes/value_checks.py`).

    `effect`: an option that changes the "result" is recorded in provenance, and a search that goes on must
    agree on it; one that only says how long to search ("length") is recorded; one that changes "nothing" but
    time, memory and what is told is neither. `role` says what its value may bring about in a recipe
    (`READS` …); without one numbers and choices are `PLAIN`, files `READS`, and anything else is refused in a
    stranger's recipe. A `gate` changes nothing that is measured. What is `everywhere` means the same in every
    command that takes it, so that it is told once (`rebasin list options`) and not in the help of each.

    Help shows it in `panel`, with its default where that is `shown`. Of a file that is written, `ending` is
    how its name ends where a recipe leaves that out. `within` is the field that holds it, where that is a
    mapping.
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
    also: tuple[str, ...] = ()
    off: str = ""
    many: bool = False
    count: int = 0
    positional: bool = False
    panel: str = ""
    shown: bool = True
    role: str = ""
    gate: bool = False
    everywhere: bool = False
    ending: str | None = None
    within: str = ""

    @property
    def shown_default(self) -> str:
        """As help shows it: nothing for what is found out, and for switches."""
        return "" if self.default is None or self.type is bool else f"{self.default}"

    @property
    def key(self) -> str:
        """As recipes call it."""
        return self.flag.removeprefix("--").replace("-", "_") or self.name

    @property
    def parameter(self) -> str:
        """Its name among all that a command takes: a method may call one of its own as the command does."""
        return f"{self.within}_{self.name}".replace("-", "_") if self.within else self.name

    @property
    def brings(self) -> str:
        """Its role, or what its type tells of that."""
        harmless = (
            self.type in (int, float) or self.kind == "bytes" or (self.choices and self.kind != "start")
        )
        return self.role or (
            MAY_READ if self.kind == "start" else PLAIN if harmless else READS * (self.type is Path)
        )

    def read(self, text: str) -> Any:
        """What a text on the command line stands for. Raises UsageError for what is not of this type."""
        if self.type is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        try:
            return self.type(text) if self.type in (str, Path) else READ[self.type](text)
        except (ValueError, KeyError):
            raise UsageError(f"{self.flag} {text!r} is not of type {self.type.__name__}") from None

    def typed(self, value: Any) -> list[str]:
        """The words of a command line that give it this value."""
        if self.type is bool:
            return [self.flag] if value else [self.off] * bool(self.off)
        values = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
        if self.positional:
            return [f"./{text}" if text.startswith("-") else text for text in values]
        if self.count:
            return [self.flag, *values]
        # as one word where it begins with a dash: it is no option
        each = ([f"{self.flag}={text}"] if text.startswith("-") else [self.flag, text] for text in values)
        return [word for words in each for word in words]

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
    help: str = "",
    *,
    flag: str = "",
    metavar: str | None = None,
    choices: Any = (),
    min: float | None = None,
    max: float | None = None,
    kind: str = "",
    effect: str = "result",
    also: tuple[str, ...] = (),
    panel: str = "",
    shown: bool = True,
    role: str = "",
    gate: bool = False,
    everywhere: bool = False,
    ending: str | None = None,
) -> Any:
    """A dataclass field that is an option; see `Option`. `flag` is by default the field's name.

    `default` is REQUIRED for one that has to be given.
    """
    if effect not in EFFECTS:
        raise ValueError(f"effect is {effect!r}, expected one of {', '.join(EFFECTS)}")
    said = {name: value for name, value in locals().items() if name != "default"}
    return dataclasses.field(default=default, metadata={KEY: said | {"choices": tuple(choices)}})


def argument(metavar: str, help: str = "", *, default: Any = REQUIRED, kind: str = "", role: str = "") -> Any:
    """A dataclass field that is given by its place on the command line; it has to be, without a `default`."""
    said = {"metavar": metavar, "help": help, "kind": kind, "role": role, "positional": True}
    return dataclasses.field(default=default, metadata={KEY: said})


def again(was: Any, default: Any, **said: Any) -> Any:
    """A subject's field with another `default`, and what else is `said` anew: `again(Samples.limit, 10)`."""
    return dataclasses.field(default=default, metadata={KEY: said})


def gathered(source: str) -> Any:
    """A field of values by name, for options that others declare: all "methods", or report "formats"."""
    return dataclasses.field(default_factory=dict, metadata={KEY: {"gathered": source}})


def of_class(options: type) -> tuple[Option, ...]:
    """The options of a dataclass that was imported. Fields of other types than `TYPES` are Python's alone."""
    found = []
    for field in dataclasses.fields(options):
        hint = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        if field.default is not REQUIRED:
            one = made(field.name, hint, field.default, field.metadata.get(KEY, {}))
            found += [] if one is None else [one]
    return tuple(found)


def of_module(module: Any) -> tuple[Option, ...]:
    """The options of what was imported; one without `Options` has none."""
    options = getattr(module, "Options", None)
    return of_class(options) if isinstance(options, type) and dataclasses.is_dataclass(options) else ()


def made(name: str, annotation: str, default: Any, said: Mapping[str, Any]) -> Option | None:
    """The option that a field is, by what its declaration said; None where its type is Python's alone."""
    kind = _kind(annotation)
    if kind is None:
        return None
    of, more = kind
    flag = said.get("flag") or "--" + name.replace("_", "-")
    more |= {"off": f"--no-{flag.removeprefix('--')}"} if of is bool and default is not False else {}
    more |= {"flag": "" if said.get("positional") else flag}
    return Option(name, of, default, **{**said, **more})


def _kind(annotation: str) -> tuple[type, dict[str, Any]] | None:
    """`int | None`, `Optional[int]` → int; `tuple[Path, ...]` → Path, of which there are many."""
    words = annotation.replace("Optional[", "").replace("typing.", "").removesuffix(" | None")
    several = re.fullmatch(r"tuple\[(\w+), (\.\.\.|\w+(?:, \w+)*)\]", words)
    if several and (of := TYPES.get(several[1])) is not None:
        return of, {"many": True, "count": 0 if several[2] == "..." else several[2].count(",") + 2}
    names = [word.strip() for word in words.rstrip("]").split("|") if word.strip() != "None"]
    found = TYPES.get(names[0]) if len(names) == 1 else None
    return None if found is None else (found, {})


def whole(text: str) -> int:
    """A whole number: digits, and a sign. Raises ValueError."""
    if not _WHOLE.fullmatch(text):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def real(text: str) -> float:
    """A number with a point or an exponent, `inf` or `nan` too: who asks refuses those. Raises ValueError."""
    if not _REAL.fullmatch(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def is_number(text: str) -> bool:
    return bool(_REAL.fullmatch(text))


_TIME = re.compile(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})\s*([smh]?)\s*")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST = 30 * 24 * 3600.0  # seconds


def seconds(text: str) -> float | None:
    """A time: `60`, `60s`, `5m`, `1.5h`; None for what is none, nothing, or longer than 30 days."""
    found = _TIME.fullmatch(text)
    time = float(found[1]) * _UNITS[found[2]] if found else 0.0
    return time if 0 < time <= LONGEST else None


def with_unit(time: str) -> str:
    """A time as a person reads it: of a plain number `s` is its unit."""
    return f"{time} s" if time[-1:].isdigit() else time


READ: dict[Any, Any] = {int: whole, float: real}
