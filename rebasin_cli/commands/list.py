"""`rebasin list`: what there is to name in an option, and the options that methods bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import RebasinError, unknown
from ..registry import Option, Registry, operations
from ..registry.options import PLAIN, argument, option
from ..registry.results import NAMED, ON_SCREEN_ONLY, Result
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer

PANEL = "Look"
STEP = False
ONLY_LOOKS = True

# Of the folders, and not of the packages in them, which import torch: a list is read off sources.
METHODS, NETS = Registry("matchers", "method"), Registry("nets", "net")

KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "methods": lambda: [_method(name) for name in METHODS.names()],
    "specs": lambda: _specs(),
    "nets": lambda: [
        _thing(variant, NETS.summary(name))
        for name in NETS.names()
        for variant in NETS.constant(name, "VARIANTS")
    ],
    "data": lambda: _things(Registry("datasets", "data set")),
    "reports": lambda: _things(Registry("reports", "report format")),
    "options": lambda: [_everywhere(option) for option in operations.everywhere().values()],
}
ONE_OF = dict(zip(KINDS, ("method", "spec", "net", "data set", "report format", "option"), strict=True))


@dataclass(frozen=True, kw_only=True)
class List:
    """List methods, specs, nets, data sets and report formats, those of other packages included.

    Of one method its options are shown; of options those that mean the same in every command.

    Example: rebasin list methods wm
    """

    kind: str | None = argument(
        "[KIND]", "methods, specs, nets, data, reports, options.", default=None, role=PLAIN
    )
    name: str | None = argument("[NAME]", "The only one to show.", default=None, role=PLAIN)
    verbose: bool = option(False, "The options of every method, too.", also=("-v",), role=PLAIN)
    json: bool = Answer.json


@dataclass(frozen=True)
class ListResult(Result):
    """By kind, every thing's "name" and "summary"; of methods also their "options".

    `verbose` tells of the options on a screen, too.
    """

    kinds: Mapping[str, Sequence[Mapping[str, Any]]] = field(metadata=NAMED)
    verbose: bool = field(default=False, metadata=ON_SCREEN_ONLY)


def run(asked: List, listener: Listener = SILENT) -> ListResult:
    """Read lists off sources. Raises UsageError for an unknown kind, or name of one."""
    if asked.kind is not None and asked.kind not in KINDS:
        raise unknown("kind", asked.kind, KINDS)
    wanted = [asked.kind] if asked.kind else KINDS
    found = {kind: KINDS[kind]() for kind in wanted}
    if asked.kind is not None and asked.name is not None:
        named = {thing["name"].removeprefix("--"): thing for thing in found[asked.kind]}
        if asked.name not in named:
            raise unknown(ONE_OF[asked.kind], asked.name, named)
        found = {asked.kind: [named[asked.name]]}
    return ListResult(found, asked.verbose or asked.name is not None)


def _specs() -> list[dict[str, Any]]:
    from ..spec import library  # and with it YAML

    return [_thing(name, spec.description) for name, spec in library.builtin().items()]


def _things(registry: Registry) -> list[dict[str, Any]]:
    return [_thing(name, registry.summary(name)) for name in registry.names()]


def _thing(name: str, summary: str) -> dict[str, Any]:
    return {"name": name, "summary": summary}


def _method(name: str) -> dict[str, Any]:
    """A method of another package that cannot be imported is listed with the reason."""
    found = _thing(name, METHODS.summary(name))
    try:
        return found | {"options": [_option(option) for option in METHODS.options(name)]}
    except RebasinError as error:
        return found | {"options": [], "broken": error.message}


def _everywhere(option: Option) -> dict[str, Any]:
    more = ", ".join(filter(None, [*option.also, "" if option.many else option.shown_default]))
    return _thing(option.flag, option.help.removesuffix(".") + (f" ({more})." if more else "."))


def _option(option: Option) -> dict[str, Any]:
    """What help says of an option, and what it says nothing of: its name in Python."""
    told = {
        "name": option.name,
        "flag": option.flag,
        "type": "bytes" if option.kind == "bytes" else option.type.__name__,
        "default": option.default,
        "help": option.help,
    }
    if option.choices:
        told["choices"] = list(option.choices)
    told |= {name: getattr(option, name) for name in ("min", "max") if getattr(option, name) is not None}
    return told


def option_lines(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """An option a line: flag, what it may be, its default, its sentence."""
    rows = [(each["flag"], _values(each), each["help"]) for each in options]
    wide, values = (max((len(row[k]) for row in rows), default=0) for k in (0, 1))
    return [f"{flag:<{wide}}  {may:<{values}}  {help}".rstrip() for flag, may, help in rows]


def _values(option: Mapping[str, Any]) -> str:
    kind = "|".join(map(str, option.get("choices", ()))) or option["type"]
    low, high = option.get("min"), option.get("max")
    if low is not None or high is not None:
        kind += f" {'' if low is None else f'{low:g}'}…{'' if high is None else f'{high:g}'}"
    default = option["default"]
    return (
        kind
        if default is None
        else f"{kind} ({str(default).lower() if option['type'] == 'bool' else default})"
    )
