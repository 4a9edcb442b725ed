"""What an operation asks of its session: its options as whole subjects, and the method that is meant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from ..checkpoints.writing import parse_size
from ..errors import UsageError
from ..matchers import registry
from ..registry.operations import UNNAMED
from .subjects import Data, Loading, Network, Repair, Search, Subjects

T = TypeVar("T")


def of(asked: Any, subject: type[T], **more: Any) -> T:
    """A subject of an operation: what it does not take has its default, `more` is said of what it means."""
    known = {each.name for each in fields(asked)} - more.keys()
    named = [each.name for each in fields(subject) if each.name in known]  # type: ignore[arg-type]
    return subject(**{name: getattr(asked, name) for name in named}, **more)


def subjects_of(asked: Any) -> Subjects:
    """All subjects of an operation, as a session takes them."""
    return Subjects(
        loading=of(asked, Loading),
        network=of(asked, Network),
        data=of(asked, Data),
        search=search_of(asked),
        repair=of(asked, Repair),
    )


def search_of(asked: Any) -> Search:
    """The search that an operation asks for: of several methods (`compare`) the command's own affair."""
    known = {each.name for each in fields(asked)}
    named = getattr(asked, "method", Search.method)
    options = meant(getattr(asked, "options", {}), named)
    more: dict[str, Any] = {"options": options, "prove": not getattr(asked, "no_prove", False)}
    if "method" in known:
        more |= method(named, options)
    return of(asked, Search, **more)


def method(named: str | tuple[str, ...] | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The method of a search. Where none is `named`, the first that may be meant and has these options."""
    if named is not None:
        return {"method": named if isinstance(named, str) else "none"}
    if not options:
        return {"method": UNNAMED[0], "open": True}
    known = {method: {option.name for option in registry.options(method)} for method in UNNAMED}
    having = [method for method, names in known.items() if {*options} <= names]
    if not having and {*options} <= {name for names in known.values() for name in names}:
        apart = [f"{_flags({*options} & names)} for {method}" for method, names in known.items()]
        raise UsageError(
            f"no method has all of these options: {', '.join(apart)}", hint="Leave those of one of them out"
        )
    return {"method": next(iter(having), UNNAMED[0])}


def _flags(names: Iterable[str]) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in sorted(names))


def meant(given: Mapping[str, Any], named: str | Iterable[str] | None) -> dict[str, Any]:
    """Options of methods in the types that the chosen methods mean: a text may be a size, or a number."""
    chosen = dict(given)
    if not chosen:
        return chosen
    methods = [named] if isinstance(named, str) else list(named or UNNAMED)
    known = {option.name: option for m in methods if m in registry.names() for option in registry.options(m)}
    for name, value in chosen.items():
        option = known.get(name)
        if option is not None and isinstance(value, str):
            chosen[name] = parse_size(value) if option.kind == "bytes" else option.read(value)
    return chosen
