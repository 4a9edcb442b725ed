"""Somebody else's spec to ours: a dictionary of axes as git-re-basin and its ports keep them.

    {"conv1.weight": ["P_bg0", null, null, null], …}     tensor → a word an axis, null where it stays
    {"P_bg0": [["conv1.weight", 0], …], …}               the same the other way round

The first may stand under "axes_to_perm", the second under "perm_to_axes".
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ...errors import SpecError, UsageError
from ...runtime import files
from ...runtime.text import once
from ...spec.parser import parse
from ...types import Shapes
from .axis_text import STATISTICS, spec_text

LARGEST = 1 << 24  # bytes
Axes = dict[str, tuple[str | None, ...]]

_SHAPE = 'Expected {"tensor": ["word", null, …], …}: a word an axis, null where it stays'


def read(path: Path) -> Any:
    """What a JSON or YAML file says. Raises UsageError where there is none, SpecError where it is neither."""
    text = files.text(path, str(path), most=LARGEST, error=SpecError)
    try:
        if path.suffix == ".json":
            return json.loads(text, object_pairs_hook=once)
        return yaml.load(text, Loader=_Strict)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        raise SpecError(f"{path} is not {kind}: {' '.join(str(error).split())}", hint=_SHAPE) from None


def from_axes(
    mapping: Mapping[str, Any], shapes: Shapes | None = None, *, description: str = "imported"
) -> str:
    """The YAML text of a dictionary of axes, in either direction; with `shapes`, checked and in families.

    Words are written in our characters. Running statistics go under `statistics:`. Tensors without axes
    need not be in the dictionary; of one that goes from words to tensors (which needs `shapes`), other
    tensors that it does not mention stay as they are. Names and the order of axes are kept: no layout
    is guessed. Raises SpecError that lists every problem, UsageError where `shapes` are needed.
    """
    axes = _from_mapping(mapping, shapes)
    words = _words({word for line in axes.values() for word in line if word is not None}, axes)
    tensors: dict[str, str] = {}
    statistics: dict[str, str] = {}
    for name in _ordered(axes, shapes):
        section = statistics if re.split(r"[./]", name)[-1] in STATISTICS else tensors
        line = axes.get(name, ())
        if name.endswith("num_batches_tracked") and not any(line):
            line = ()  # some dictionaries give the counter one axis
        section[name] = " ".join("." if word is None else words[word] for word in line)
    if shapes is not None and not axes.keys() & shapes.keys():
        raise SpecError(
            f"no tensor of the {len(shapes)} is named in the dictionary",
            problems=[f"it names {next(iter(axes))}, they are named {next(iter(shapes))}"],
            hint="Names and layouts are kept as they are, not guessed: those of Flax (Dense_0/kernel, inputs "
            "first) are not PyTorch's (0.weight, outputs first). Rename them and turn their axes first",
        )
    text = spec_text(tensors, statistics, description=description)
    parse(text, name="imported", source="the dictionary")
    if shapes is None:
        return text
    try:
        return spec_text(tensors, statistics, description=description, shapes=shapes)
    except SpecError as error:
        left_out = "Add them to the dictionary: null for every axis that stays"
        hint = left_out if set(shapes) - {*tensors, *statistics} else error.hint
        raise SpecError("the dictionary does not fit", problems=error.problems, hint=hint) from None


def _ordered(axes: Axes, shapes: Shapes | None) -> list[str]:
    """In the tensors' order; with those that have no axes, which nobody need mention."""
    if shapes is None:
        return list(axes)
    known = [name for name, shape in shapes.items() if name in axes or not shape]
    return [*known, *(name for name in axes if name not in shapes)]


def _from_mapping(mapping: Any, shapes: Shapes | None) -> Axes:
    if not isinstance(mapping, Mapping):
        raise SpecError(f"not a dictionary of axes but {type(mapping).__name__}", hint=_SHAPE)
    both = mapping.get("axes_to_perm"), mapping.get("perm_to_axes")
    if isinstance(both[0], Mapping):
        return _forward(both[0])
    if isinstance(both[1], Mapping):
        return _backward(both[1], shapes)
    values = list(mapping.values())
    if values and all(_is_list(v) and v and all(_is_place(item) for item in v) for v in values):
        return _backward(mapping, shapes)
    return _forward(mapping)


def _forward(mapping: Mapping[Any, Any]) -> Axes:
    problems = []
    for name, line in mapping.items():
        if not isinstance(name, str):
            problems.append(f"{name!r} is not the name of a tensor")
        elif not _is_list(line):
            problems.append(f"{name}  is {_short(line)}, not a list of words")
        else:
            problems += [
                f"{name}  axis {k} is {_short(word)}, neither a word nor null"
                for k, word in enumerate(line)
                if not (word is None or (isinstance(word, str) and word))
            ]
    if problems or not mapping:
        raise SpecError("not a dictionary of axes", problems=problems or ["it is empty"], hint=_SHAPE)
    return {name: tuple(line) for name, line in mapping.items()}


def _backward(mapping: Mapping[Any, Any], shapes: Shapes | None) -> Axes:
    """From words → [[tensor, axis], …]; how many axes a tensor has, only the tensors can say."""
    if shapes is None:
        raise UsageError(
            "a dictionary from words to axes does not say how many axes a tensor has",
            hint="Give the tensors with --checkpoint FILE",
        )
    found: dict[str, list[str | None]] = {}
    problems = []
    for word, places in mapping.items():
        if not isinstance(word, str) or not _is_list(places) or not all(map(_is_place, places)):
            problems.append(f"{word!r} is not a word with a list of [tensor, axis]")
            continue
        for tensor, axis in places:
            if tensor not in shapes:
                problems.append(f"{tensor}  is in the dictionary, not in the checkpoint")
                continue
            line = found.setdefault(tensor, [None] * len(shapes[tensor]))
            if not 0 <= axis < len(line):
                problems.append(f'{tensor}  has {len(line)} axes; "{word}" is said to be on axis {axis}')
            elif line[axis] not in (None, word):
                problems.append(f'{tensor}  axis {axis} is said to be "{line[axis]}" and "{word}"')
            else:
                line[axis] = word
    if problems or not mapping:
        raise SpecError("not a dictionary of axes", problems=problems or ["it is empty"])
    return {name: tuple(found.get(name, [None] * len(shape))) for name, shape in shapes.items()}


def _words(words: set[str], axes: Axes) -> dict[str, str]:
    """Each word in the characters that ours may have, none twice, in the order of the tensors."""
    found: dict[str, str] = {}
    for word in dict.fromkeys(word for line in axes.values() for word in line if word in words):
        plain = re.sub(r"[^A-Za-z0-9_.-]", "_", word)
        plain = plain if plain[:1].isalpha() else f"h{plain}"
        name, k = plain, 2
        while name in found.values() or (name != word and name in words):
            name, k = f"{plain}.{k}", k + 1
        found[word] = name
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _is_place(value: Any) -> bool:
    """[tensor, axis]"""
    return _is_list(value) and [type(part) for part in value] == [str, int]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"


class _Strict(yaml.SafeLoader):
    """Keys that stand twice are errors, and so are aliases: a few lines of them may stand for millions."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            line: int = self.peek_event().start_mark.line  # type: ignore[no-untyped-call]  # not in the stubs
            raise ValueError(f"line {line + 1}: aliases are not expanded")
        return super().compose_node(parent, index)


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    pairs = [
        (loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
        for key, value in node.value
    ]
    try:
        return once(pairs)
    except TypeError:
        raise ValueError("a key is not text") from None


_Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
