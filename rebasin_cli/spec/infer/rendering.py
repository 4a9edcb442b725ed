"""From solved axes to a spec's text: names for the variables, one line a tensor."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby

from ...errors import SpecError
from .axes import Axes, Expr, Fixed, Product, Sum, Units, Var, variables

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
) -> str:
    """The whole spec as YAML. Raises SpecError for a tensor whose name cannot be written."""
    lines: dict[str, list[str]] = {"tensors": [], "statistics": []}
    for name, axes in tensors.items():
        if re.search(r"[\s\[\]{}?]", name) or not name:
            raise SpecError(f'a spec cannot speak of a tensor called "{name}"')
        section = "statistics" if name.rpartition(".")[2] in STATISTICS else "tensors"
        text = " ".join(axis_text(units.resolve(axis), words) for axis in axes)
        lines[section].append(f'  {_key(name)}: "{text}"')
    parts = ["schema: 1", f"description: {json.dumps(description, ensure_ascii=False)}"]
    for section, found in lines.items():
        if found or section == "tensors":
            parts += [f"{section}:", *found] if found else [f"{section}: {{}}"]
    return "\n".join(parts) + "\n"


def _key(name: str) -> str:
    plain = re.fullmatch(r"[A-Za-z][\w-]*(\.[\w-]+)+", name, re.ASCII)
    return name if plain else json.dumps(name, ensure_ascii=False)


def unsized(units: Units, tensors: Mapping[str, Axes]) -> list[Var]:
    """Variables whose sizes the text would not tell: an axis of two unknown words has many solutions."""
    axes = [units.resolve(axis) for found in tensors.values() for axis in found]
    known = {axis for axis in axes if isinstance(axis, Var)}
    left = [axis for axis in axes if isinstance(axis, (Product, Sum))]
    while True:
        before = len(known)
        for axis in left:
            unknown = [var for var in variables(axis) if var not in known]
            if len(unknown) == 1:
                known.add(unknown[0])
            elif len(set(unknown)) == 1 and isinstance(axis, Sum) and _one_run(axis, unknown[0]):
                known.add(unknown[0])
        if len(known) == before:
            break
    return list(dict.fromkeys(var for axis in left for var in variables(axis) if var not in known))


def _one_run(axis: Sum, var: Var) -> bool:
    """`u + u + 8` is written `(2 u) + 8`, and that tells the size of u."""
    terms = [k for k, term in enumerate(axis.terms) if var in variables(term)]
    same = len({axis.terms[k] for k in terms}) == 1
    return (
        same
        and terms == list(range(terms[0], terms[-1] + 1))
        and list(variables(axis.terms[terms[0]])).count(var) == 1
    )
