"""Versioned JSON for programs, and for `--baseline`."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import UsageError
from ...registry.results import plain
from ...runtime.text import clean, once
from ...types import ACCURACY, Quantity
from .. import SCHEMA, Barrier, Curve, Report, barrier_of
from ..format import is_number

FILENAME = "report.json"
HELP = "Write the report as JSON."

SAME = 1e-9  # what may part a barrier of a file from that of its curve, relative to 1

# JSON has no word for these; they are written as strings, and read back as numbers.
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

_NUMBERS = re.compile(r'\[\n\s*((?:"-?inf"|"nan"|[^\[\]{}"])*?)\n\s*\]')  # a list of numbers over many lines
_TIMES = re.compile(r'(?m)^  "times": \{\n\s*([^{}]*?)\n\s*\}')  # one line, for a diff to drop


def render(report: Report) -> str:
    """Strictly valid JSON: `schema` first, then the fields of `Report` in their order, full precision.

    NaN and infinities are the strings "nan", "inf" and "-inf". `load` gives the report back.
    """
    fields = report.to_dict()
    return dump({"schema": fields.pop("schema"), **fields})


def dump(values: Mapping[str, Any]) -> str:
    """Any values as text of this kind, for a person to read too: a list of numbers takes one line.

    What JSON cannot hold, whatever a matcher put into its account, is shown as text.
    """
    text = json.dumps(plain(values), indent=2, ensure_ascii=False, allow_nan=False, default=str)
    text = _TIMES.sub(lambda found: '  "times": {' + re.sub(r"\s*\n\s*", " ", found[1]) + "}", text)
    text = _NUMBERS.sub(lambda found: "[" + re.sub(r"\s*\n\s*", " ", found[1]) + "]", text)
    # Half surrogates (file names that are not UTF-8) cannot be encoded; JSON can escape them.
    return re.sub("[\ud800-\udfff]", lambda char: f"\\u{ord(char[0]):04x}", text) + "\n"


def load(text: str) -> Report:
    """The report that `render` wrote.

    Keys that are not known are passed over, so that a later version may add some. Raises UsageError for
    text that is not a report, for another schema, and for values that are missing or of the wrong kind
    (every one of them, each with its path).
    """
    try:
        content = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=once)
    except (ValueError, RecursionError) as cause:
        reason = "nested too deeply" if isinstance(cause, RecursionError) else str(cause)
        raise UsageError(f"not a JSON report: {reason}", hint=NEXT) from cause
    schema = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schema, str) or not schema.startswith("rebasin.report/"):
        raise UsageError(f"not a rebasin report: expected an object with schema {SCHEMA!r}", hint=NEXT)
    if schema == BEFORE:
        content = _upgraded(content)
    elif schema != SCHEMA:
        raise UsageError(f"the report has schema {schema!r}; this version reads {SCHEMA!r}", hint=NEXT)
    problems: list[str] = []
    try:
        report: Report = read_as(Report, _nested(content), "", problems)
        if not problems:
            _show(report)
    except ODD as cause:
        raise UsageError(
            "the report is damaged: it holds values that no report has",
            problems=[] if isinstance(cause, RecursionError) else [clean(f"{type(cause).__name__}: {cause}")],
            hint=NEXT,
        ) from cause
    if problems:
        raise UsageError("the report is damaged", problems=problems, hint=NEXT)
    return report


# What values of other kinds raise where they are shown: what a report keeps of a search, a proof and its
# inputs is of no fixed form, and a file may hold anything there.
ODD = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


def _show(report: Report) -> None:
    """Show it once as text, and let that raise what it raises."""
    from . import junit, markdown

    for form in (markdown, junit):
        form.render(report)


BEFORE = "rebasin.report/1"


def _upgraded(content: dict[str, Any]) -> dict[str, Any]:
    """A report of version 1, which kept its times in two places."""
    match = content.get("match")
    inner = match.pop("seconds", None) if isinstance(match, dict) else None
    times = {"match": inner, "total": content.get("seconds")}
    return content | {"schema": SCHEMA, "times": {word: s for word, s in times.items() if s is not None}}


def _nested(content: dict[str, Any]) -> dict[str, Any]:
    """What `Report.to_dict` gave, figures of metrics in a place of their own again, as far as it is that."""
    told = content.get("metrics", [dataclasses.asdict(ACCURACY)])
    names = [one.get("name") for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    keys = [Quantity(name).key for name in names if isinstance(name, str)]

    def curve(one: Any) -> Any:
        return (
            one | {"metrics": {key: one[key] for key in keys if key in one}} if isinstance(one, dict) else one
        )

    def barrier(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        parts = {key: {what: one.get(f"{key}_{what}") for what in ("midpoint", "chord")} for key in keys}
        return one | {"metrics": {key: both for key, both in parts.items() if f"{key}_chord" in one}}

    def difference(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        known = [key for key in ("loss", *keys) if key in one]
        intervals = {key: one[f"{key}_interval"] for key in known if one.get(f"{key}_interval")}
        return one | {"figures": {key: one[key] for key in known}, "intervals": intervals}

    def row(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        parts = (("curves", curve), ("barriers", barrier))
        held = ((key, turn) for key, turn in parts if isinstance(one.get(key), dict))
        return one | {key: {s: turn(each) for s, each in one[key].items()} for key, turn in held}

    found = dict(content)
    for name, turn in (("rows", row), ("differences", difference)):
        if isinstance(content.get(name), list):
            found[name] = [turn(one) for one in content[name]]
    return found


NEXT = "Write one with: rebasin barrier A B --data NAME --report FOLDER (it is FOLDER/report.json)"


def read_as(kind: Any, value: Any, path: str, problems: list[str]) -> Any:
    """`value` as the type that the dataclass declares; what does not fit goes to `problems`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType and type(None) in arguments:
        if value is None:
            return None
        (kind,) = (one for one in arguments if one is not type(None))
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _with_numbers(value)
    if kind is float and (value in NON_FINITE if isinstance(value, str) else is_number(value)):
        return NON_FINITE[value] if isinstance(value, str) else float(value)
    if kind is int and is_number(value) and value == int(value):
        return int(value)
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if origin is tuple and isinstance(value, list):
        kinds = arguments if arguments[-1] is not Ellipsis else [arguments[0]] * len(value)
        if len(kinds) == len(value):
            both = enumerate(zip(kinds, value, strict=True))
            return tuple(read_as(kind, item, f"{path}[{i}]", problems) for i, (kind, item) in both)
    if origin is dict and isinstance(value, dict):
        return {key: read_as(arguments[1], item, f"{path}.{key}", problems) for key, item in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _read_fields(kind, value, path, problems)
    name = kind.__name__ if isinstance(kind, type) and not isinstance(kind, types.GenericAlias) else str(kind)
    expected = {"str": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
    shape = "a list" if origin is tuple else "an object"
    shown = json.dumps(value, ensure_ascii=True)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    problems.append(f"{path.lstrip('.')}: expected {expected.get(name, shape)}, found {shown}")
    return None


_hints = functools.cache(typing.get_type_hints)  # evaluates text


def _read_fields(kind: Any, value: dict[str, Any], path: str, problems: list[str]) -> Any:
    hints, found = _hints(kind), {}
    before = len(problems)
    for field in dataclasses.fields(kind):
        if field.name in value:
            found[field.name] = read_as(
                hints[field.name], value[field.name], f"{path}.{field.name}", problems
            )
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{path}.{field.name}: missing".lstrip("."))
    if len(problems) > before:
        return None
    if (
        "lambdas" in found
        and len({len(found["lambdas"]), len(found["loss"]), *map(len, found["metrics"].values())}) > 1
    ):
        problems.append(
            f"{path.lstrip('.')}: lambdas, loss and {' and '.join(found['metrics'])} differ in length"
        )
    return kind(**found)


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_numbers(item) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


def inconsistent(report: Report) -> list[str]:
    """What a report says of its rows that cannot all be so, a sentence each: somebody changed it.

    Names are different, one row at most is shipped, and barriers are those of the curves.
    """
    names = [row.name for row in report.rows]
    found = [f"two rows are called {name!r}" for name in dict.fromkeys(names) if names.count(name) > 1]
    shipped = [row.name for row in report.rows if row.shipped]
    found += [f"{len(shipped)} rows would be shipped: {', '.join(shipped)}"] if len(shipped) > 1 else []
    for row in report.rows:
        for split, curve in row.curves.items():
            if split in row.barriers and not _is_of(row.barriers[split], curve, report.metrics):
                found.append(f"{row.name}, {split}: its barriers are not those of its curve")
    return found


def _is_of(barrier: Barrier, curve: Curve, metrics: Sequence[Quantity]) -> bool:
    """Whether these are the barriers of this curve, as far as it has its ends and nothing but numbers."""
    try:
        one, two = (each.figures for each in (barrier, barrier_of(curve, metrics)))
    except ValueError:  # no ends, or another number of values
        return False
    return one.keys() == two.keys() and all(
        one[key] == two[key]
        or (math.isnan(one[key]) and math.isnan(two[key]))
        or abs(one[key] - two[key]) <= SAME * (1 + abs(two[key]))
        for key in one
    )
