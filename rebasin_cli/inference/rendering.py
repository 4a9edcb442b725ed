"""From solved axes to a spec's text: names for the variables, one line a tensor."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from ..errors import SpecError
from ..spec.fitting import fit
from ..spec.parsing import parse
from ..spec.spec import FittedSpec, Shapes
from .axes import Axes, Expr, Fixed, Product, Var, variables
from .families import compact, compact_sizes
from .units import Units

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def names(
    units: Units, tensors: Mapping[str, Axes], used: Sequence[str], hints: Sequence[tuple[Expr, str]]
) -> dict[Var, str]:
    """Every variable goes by the module that writes it: that whose tensors mention it first.

    Where a module writes several, each adds what it is called there (`heads`), or a number.
    """
    called: dict[Var, str] = {}
    for axis, hint in hints:
        if isinstance(var := units.resolve(axis), Var):
            called.setdefault(var, hint)
    written: dict[str, list[Var]] = {}
    for name in dict.fromkeys([*used, *tensors]):
        for axis in tensors[name]:
            for var in variables(units.resolve(axis)):
                if not any(var in known for known in written.values()):
                    written.setdefault(_module(name), []).append(var)
    found: dict[Var, str] = {}
    for module, group in written.items():
        endings = Counter(called.get(var, "") for var in group)
        for k, var in enumerate(group):
            hint = called.get(var, "")
            alone = len(group) == 1
            wanted = module if alone else f"{module}.{hint if hint and endings[hint] == 1 else k}"
            found[var] = _unused(wanted, set(found.values()))
    return found


def _module(tensor: str) -> str:
    """`layer1.0.conv1.weight` → `layer1.0.conv1`, in characters that a word may have."""
    path = tensor.rpartition(".")[0] or tensor
    path = re.sub(r"\.parametrizations\.\w+$", "", path)
    path = re.sub(r"[^A-Za-z0-9_.-]", "_", path).strip(".-")
    return path if path[:1].isalpha() else f"h{path}"


def _unused(wanted: str, taken: set[str]) -> str:
    name, k = wanted, 2
    while name in taken:
        name, k = f"{wanted}.{k}", k + 1
    return name


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


def text_of(
    units: Units,
    tensors: Mapping[str, Axes],
    words: Mapping[Var, str],
    *,
    description: str,
    sizes: Mapping[str, int] | None = None,
    groups: Mapping[str, str] | None = None,
    shapes: Shapes | None = None,
) -> str:
    """The whole spec as YAML; with the tensors' `shapes`, families where layers repeat.

    Raises SpecError for a tensor whose name cannot be written.
    """
    lines: dict[str, dict[str, str]] = {"tensors": {}, "statistics": {}}
    for name, axes in tensors.items():
        section = "statistics" if name.rpartition(".")[2] in STATISTICS else "tensors"
        lines[section][name] = " ".join(axis_text(units.resolve(axis), words) for axis in axes)
    return spec_text(**lines, sizes=sizes or {}, groups=groups, description=description, shapes=shapes)


def spec_text(
    tensors: Mapping[str, str],
    statistics: Mapping[str, str],
    *,
    description: str,
    sizes: Mapping[str, int] | None = None,
    groups: Mapping[str, str] | None = None,
    shapes: Shapes | None = None,
) -> str:
    """A spec as YAML from one line a tensor; with `shapes`, families where layers repeat.

    The families are believed only where they fit these tensors with the very same axes and words. Raises
    SpecError for a tensor whose name cannot be written, and with `shapes` where the lines do not fit.
    """
    for name in (*tensors, *statistics):
        if re.search(r"[\s\[\]{}?]", name) or not name:
            raise SpecError(
                f'a spec cannot speak of a tensor called "{name}"',
                hint="Rename the module: names in a spec have no spaces, brackets, braces or question marks",
            )
    sizes, groups = sizes or {}, groups or {}
    plain = _layout(description, tensors, statistics, sizes, groups)
    if shapes is None:
        return plain
    wanted = fit(parse(plain, name="the spec"), shapes)
    families = compact(tensors, statistics)
    fewer = compact_sizes(sizes, wanted.words), compact_sizes(groups, wanted.words)
    for told in (fewer, (sizes, groups)):
        text = _layout(description, *families, *told)
        try:
            found = fit(parse(text, name="the spec"), shapes)
        except SpecError:  # never seen; then the plain lines it is
            continue
        if replace(found, spec=wanted.spec) == wanted and _texts(found) == _texts(wanted):
            return text
    return plain


def _texts(fitted: FittedSpec) -> dict[str, str]:
    """The axes with the sides of their words, which equality leaves out."""
    return {name: " ".join(map(str, axes)) for name, axes in fitted.tensors.items()}


def _layout(
    description: str,
    tensors: Mapping[str, str],
    statistics: Mapping[str, str],
    sizes: Mapping[str, int],
    groups: Mapping[str, str],
) -> str:
    parts = ["schema: 1", f"description: {json.dumps(description, ensure_ascii=False)}"]
    parts += ["tensors:" if tensors else "tensors: {}"]
    parts += [f'  {_key(name)}: "{text}"' for name, text in tensors.items()]
    if statistics:
        parts += ["statistics:", *(f'  {_key(name)}: "{text}"' for name, text in statistics.items())]
    if sizes:
        parts += ["sizes:", *(f"  {_key(word)}: {size}" for word, size in sizes.items())]
    if groups:
        parts += ["groups:", *(f"  {_key(word)}: {kind}" for word, kind in groups.items())]
    return "\n".join(parts) + "\n"


def _key(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][\w{}-]*(\.[\w{}-]+)+(\[\d+\])?", name, re.ASCII)
    return name if plain else json.dumps(name, ensure_ascii=False)
