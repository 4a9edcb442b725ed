"""From solved axes to a spec's text, one line a tensor."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby

from ...errors import SpecError
from ...spec.fits import fit
from ...spec.parser import parse
from ...spec.spec import FittedSpec
from ...types import Shapes
from ..axes.axes import Axes, Expr, Fixed, Product, Var
from ..axes.units import Units
from .families import compact, compact_words

LISTED = "__list__"  # for `{}` where a name is looked at as that of one tensor
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def axis_text(axis: Expr, words: Mapping[Var, str], *, whole: bool = True) -> str:
    """One resolved axis in the notation; `whole` where it stands alone."""
    if isinstance(axis, Fixed):
        return "." if whole else str(axis.size)
    if isinstance(axis, Var):
        return words[axis]
    if isinstance(axis, Product):
        return f"({' '.join(axis_text(factor, words, whole=False) for factor in axis.factors)})"
    runs = []
    for text, group in groupby(axis_text(term, words, whole=False) for term in axis.terms):
        count = len(list(group))
        inner = text[1:-1] if text.startswith("(") and _closes_last(text) else text
        if inner[0].isdigit() and "*" in inner:  # "(4 d*)": the first number is what it lies within
            runs += [text] * count
        else:
            runs.append(text if count == 1 else f"({count} {inner})")
    return " + ".join(runs)


def _closes_last(text: str) -> bool:
    """Whether the parenthesis that opens the text is the one that ends it."""
    depth = 0
    for k, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return k == len(text) - 1
    return False


def lines_of(
    units: Units, tensors: Mapping[str, Axes], words: Mapping[Var, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """One line a tensor, those of statistics apart."""
    lines: tuple[dict[str, str], dict[str, str]] = ({}, {})
    for name, axes in tensors.items():
        statistic = name.rpartition(".")[2] in STATISTICS
        lines[statistic][name] = " ".join(axis_text(units.resolve(axis), words) for axis in axes)
    return lines


def spec_text(
    tensors: Mapping[str, str],
    statistics: Mapping[str, str],
    *,
    description: str,
    sizes: Mapping[str, int] | None = None,
    within: Mapping[str, str] | None = None,
    groups: Mapping[str, str] | None = None,
    shapes: Shapes | None = None,
    optional: Collection[str] = (),
) -> str:
    """A spec as YAML from one line a tensor; with `shapes`, families where layers repeat.

    Tensors that are `optional` may be absent, such as the second name of a tied one.

    The families are believed only where they fit these tensors with the very same axes and words. Raises
    SpecError for a tensor whose name cannot be written, and with `shapes` where the lines do not fit.
    """
    for name in (*tensors, *statistics):
        if re.search(r"[\s\[\]{}?]", name.replace("{}", "", 1)) or not name:  # {}: a list
            raise SpecError(
                f'a spec cannot speak of a tensor called "{name}"',
                hint="Rename the module: names in a spec have no spaces, brackets, braces or question marks",
            )
    sizes, within, groups = sizes or {}, within or {}, groups or {}
    layout = partial(_layout, description, optional=optional)
    plain = layout(tensors, statistics, sizes, within, groups)
    if shapes is None:
        return plain
    wanted = fit(parse(plain, name="the spec"), shapes)
    families = compact(_renamed(tensors, "{}", LISTED), _renamed(statistics, "{}", LISTED))
    families = _renamed(families[0], LISTED, "{}"), _renamed(families[1], LISTED, "{}")
    short = (
        compact_words(sizes, wanted.words),
        compact_words(within, wanted.words),
        compact_words(groups, wanted.words),
    )
    for told in (short, (sizes, within, groups)):
        text = layout(families[0], families[1], *told)
        try:
            found = fit(parse(text, name="the spec"), shapes)
        except SpecError:  # never seen; then the plain lines it is
            continue
        if replace(found, spec=wanted.spec) == wanted and _texts(found) == _texts(wanted):
            return text
    return plain


def _renamed(lines: Mapping[str, str], old: str, new: str) -> dict[str, str]:
    return {name.replace(old, new): text for name, text in lines.items()}


def _texts(fitted: FittedSpec) -> dict[str, str]:
    """The axes with the sides of their words, which equality leaves out."""
    return {name: " ".join(map(str, axes)) for name, axes in fitted.tensors.items()}


def _layout(
    description: str,
    tensors: Mapping[str, str],
    statistics: Mapping[str, str],
    sizes: Mapping[str, int],
    within: Mapping[str, str],
    groups: Mapping[str, str],
    optional: Collection[str],
) -> str:
    parts = ["schema: 1", f"description: {json.dumps(description, ensure_ascii=False)}"]
    parts += ["tensors:" if tensors else "tensors: {}"]
    parts += [f'  {_key(name + "?" * (name in optional))}: "{text}"' for name, text in tensors.items()]
    if statistics:
        parts += ["statistics:", *(f'  {_key(name)}: "{text}"' for name, text in statistics.items())]
    if sizes:
        parts += ["sizes:", *(f"  {_key(word)}: {size}" for word, size in sizes.items())]
    if within:
        parts += ["within:", *(f'  {_key(word)}: "{outer}"' for word, outer in within.items())]
    if groups:
        parts += ["groups:", *(f"  {_key(word)}: {kind}" for word, kind in groups.items())]
    return "\n".join(parts) + "\n"


def _key(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][\w{}-]*(\.[\w{}-]+)+(\[\d+\])?\??", name, re.ASCII)
    return name if plain else json.dumps(name, ensure_ascii=False)
