"""Read a spec in two steps: *parse* (is this a spec?) and *fit* (does it cover these tensors?).

Both collect every problem before they speak. `Spec` is what a file says, `FittedSpec` what it means for
one architecture: every tensor with resolved axes, every word with one size.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import yaml

from ..errors import SpecError
from .notation import (
    ENDS,
    Axis,
    Fixed,
    Product,
    Rest,
    Sum,
    Word,
    fill,
    parse_axes,
    rewrite,
    slots_of,
    stem_of,
    words_of,
)

SCHEMA = 1
Shapes = Mapping[str, tuple[int, ...]]

_KEYS = {"schema", "net", "names", "description", "include", "tensors", "statistics", "ignore"}
_NAME = re.compile(r"(?P<name>[^\[\]?\s]+?)(?:\[(?P<rank>\d+)\])?(?P<optional>\?)?")


@dataclass(frozen=True)
class Entry:
    """One line: a tensor, or a family of tensors where the name has `{i}` slots."""

    name: str
    axes: tuple[Axis, ...]
    rank: int | None = None  # name[4]: only tensors of this rank
    optional: bool = False  # name?
    statistic: bool = False  # moves along, but is no evidence for matching
    line: int = 0

    @property
    def family(self) -> bool:
        return "{" in self.name

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        seen: set[str] = set()

        def group(slot: re.Match) -> str:
            name = slot[1]
            again, _ = name in seen, seen.add(name)
            return f"(?P={name})" if again else f"(?P<{name}>[A-Za-z0-9_]+)"

        return re.compile(re.sub(r"\\\{(\w+)\\\}", group, re.escape(self.name)))

    def match(self, tensor: str, shape: tuple[int, ...]) -> dict[str, str] | None:
        """What the slots capture, or None where the line does not speak of this tensor."""
        if self.rank is not None and len(shape) != self.rank:
            return None
        found = self.pattern.fullmatch(tensor)
        return None if found is None else found.groupdict()


@dataclass(frozen=True)
class Spec:
    """A parsed spec file. `source` is where it was read, `digest` the sha256 of its text."""

    name: str
    entries: tuple[Entry, ...]
    net: str | None = None
    names: tuple[str, ...] = ()  # further names a user may type
    description: str = ""
    ignore: tuple[str, ...] = ()
    source: str = ""
    digest: str = ""


@dataclass(frozen=True)
class FittedSpec:
    """A spec resolved against the tensors of one architecture.

    `words` maps each permutation to its number of units; `tensors` each tensor to its axes, all sizes
    known; `ignored` tensors stay as they are.
    """

    spec: Spec
    words: dict[str, int]
    tensors: dict[str, tuple[Axis, ...]]
    shapes: dict[str, tuple[int, ...]]
    statistics: frozenset[str] = frozenset()
    ignored: frozenset[str] = field(default=frozenset())

    def log10_symmetries(self) -> float:
        """log10 of the number of networks that compute the same function: Σ log10(n!) over words."""
        return sum(math.lgamma(size + 1) for size in self.words.values()) / math.log(10)

    def moved_share(self) -> float:
        """Share of the parameters (statistics not counted) that have at least one permuted axis."""
        size = {name: math.prod(self.shapes[name]) for name in self.tensors if name not in self.statistics}
        moved = sum(
            n for name, n in size.items() if any(True for a in self.tensors[name] for _ in words_of(a))
        )
        return moved / max(1, sum(size.values()))


# ---------------------------------------------------------------------------------------------- parse


def parse(text: str, *, name: str, source: str = "", include: Callable[[str], Spec] | None = None) -> Spec:
    """The spec that a YAML text says.

    `include` finds the spec that an `include:` line names. Raises SpecError with every problem and its
    line.
    """
    source = source or name
    problems: list[str] = []
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise SpecError(f"{source} is not YAML", problems=[reason]) from None
    if not isinstance(root, yaml.MappingNode):
        raise SpecError(f"{source} is not a spec: expected `tensors:` with one tensor a line")

    top: dict[str, yaml.Node] = {}
    for key, node in _items(root, problems):
        if key in _KEYS:
            top[key] = node
        else:
            problems.append(
                f'line {node.start_mark.line + 1}: unknown key "{key}"; known: {", ".join(sorted(_KEYS))}'
            )
    if "schema" in top and getattr(top["schema"], "value", None) != str(SCHEMA):
        problems.append(
            f"schema is {getattr(top['schema'], 'value', '?')}; this version reads schema {SCHEMA}"
        )
    if "tensors" not in top and "include" not in top:
        problems.append("no `tensors:`")

    base = Spec(name, ())
    if "include" in top and (wanted := _text(top["include"], "include", problems)):
        if include is None:
            problems.append(f'include "{wanted}": includes are not available here')
        else:
            base = include(wanted)

    entries = {(entry.name, entry.rank): entry for entry in base.entries}
    own: dict[tuple[str, int | None], int] = {}  # entry → its line
    for section in ("tensors", "statistics"):
        if section not in top:
            continue
        if not isinstance(top[section], yaml.MappingNode):
            problems.append(f"`{section}:` is not a mapping of tensor names to axes")
            continue
        for key, node in _items(top[section], problems):
            entry = _entry(key, node, section == "statistics", problems)
            if entry is None:
                continue
            where = entry.name, entry.rank
            if where in own:  # `x` and `x?`, or once more among the statistics
                problems.append(f'line {entry.line}: "{entry.name}" stands here and in line {own[where]}')
            own[where], entries[where] = entry.line, entry
    spec = Spec(
        name=name,
        entries=tuple(entries.values()),
        net=_text(top["net"], "net", problems) if "net" in top else base.net,
        names=_texts(top.get("names"), "names", problems),
        description=_text(top["description"], "description", problems) if "description" in top else "",
        ignore=(*base.ignore, *_texts(top.get("ignore"), "ignore", problems)),
        source=source,
        digest=hashlib.sha256((text + base.digest).encode()).hexdigest(),
    )
    if problems:
        raise SpecError(
            f"{source} is not a valid spec", problems=problems, hint="The notation: specs/README.md"
        )
    return spec


def _items(node: yaml.MappingNode, problems: list[str]):
    """Key and value nodes; duplicate keys and keys that are not text are problems."""
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            problems.append(f"line {line}: the key {getattr(key, 'value', '…')!r} is not text; quote it")
        elif key.value in seen:
            problems.append(f'line {line}: "{key.value}" stands here and in line {seen[key.value]}')
        else:
            seen[key.value] = line
            yield key.value, value


def _text(node: yaml.Node, what: str, problems: list[str]) -> str | None:
    if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
        value = node.value if isinstance(node, yaml.ScalarNode) else "…"
        problems.append(f"line {node.start_mark.line + 1}: {what} is {value!r}, not text; quote it")
        return None
    return node.value


def _texts(node: yaml.Node | None, what: str, problems: list[str]) -> tuple[str, ...]:
    if node is None:
        return ()
    if not isinstance(node, yaml.SequenceNode):
        problems.append(f"line {node.start_mark.line + 1}: {what} is not a list")
        return ()
    return tuple(text for item in node.value if (text := _text(item, what, problems)) is not None)


def _entry(key: str, node: yaml.Node, statistic: bool, problems: list[str]) -> Entry | None:
    line = node.start_mark.line + 1
    text = _text(node, f'"{key}"', problems)
    name = _NAME.fullmatch(key)
    if name is None or re.search(r"[{}]", re.sub(r"\{[A-Za-z]\w*\}", "", name["name"])):
        problems.append(f'line {line}: cannot read the tensor name "{key}"')
        return None
    if text is None:
        return None
    try:
        axes = parse_axes(text)
    except SpecError as error:
        problems.append(f"line {line}: {key}: {error.message}")
        return None
    captures = set(re.findall(r"\{(\w+)\}", name["name"]))
    for word in (word for axis in axes for word in words_of(axis)):
        for slot in slots_of(word):
            if slot.name not in captures and slot.name not in ENDS:
                problems.append(
                    f'line {line}: {key}: "{word}" uses {{{slot.name}}}, which the name does not bind'
                )
                return None
    rank = int(name["rank"]) if name["rank"] else None
    return Entry(name["name"], axes, rank, bool(name["optional"]), statistic, line)


# ------------------------------------------------------------------------------------------------ fit


def fit(spec: Spec, shapes: Shapes) -> FittedSpec:
    """Resolve a spec against tensors: which line speaks of which tensor, and one size a word.

    `shapes` maps tensor names to shapes. Raises SpecError that lists every unlisted or absent tensor,
    every wrong rank, and every word with two sizes.
    """
    problems: list[str] = []
    ignored = frozenset(n for n in shapes if any(fnmatch.fnmatchcase(n, glob) for glob in spec.ignore))
    chosen = _choose(spec, {n: s for n, s in shapes.items() if n not in ignored}, problems)
    found = _found_values(chosen)
    axes: dict[str, tuple[Axis, ...]] = {}
    for tensor, (entry, captured) in chosen.items():
        try:
            filled = tuple(_filled(axis, captured, found) for axis in entry.axes)
        except SpecError as error:
            problems.append(f"{tensor}  {error.message}")
            continue
        if (expanded := _expand_rest(filled, len(shapes[tensor]))) is None:
            text = " ".join(map(str, entry.axes))
            problems.append(
                f'{tensor}  has {len(shapes[tensor])} axes {_show(shapes[tensor])}, the spec says "{text}"'
            )
        else:
            axes[tensor] = expanded
    words = _word_sizes(axes, shapes, problems)
    resolved = {t: _resolve_axes(t, a, shapes[t], words, problems) for t, a in axes.items()}
    if problems:
        raise SpecError(f"{spec.source} does not fit", problems=problems)
    return FittedSpec(
        spec=spec,
        words=words,
        tensors=resolved,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        statistics=frozenset(t for t, (entry, _) in chosen.items() if entry.statistic),
        ignored=ignored,
    )


def _choose(spec: Spec, shapes: Shapes, problems: list[str]) -> dict[str, tuple[Entry, dict[str, str]]]:
    """The line that speaks of each tensor: an exact line beats families, two families are a problem."""
    exact = [entry for entry in spec.entries if not entry.family]
    families = [entry for entry in spec.entries if entry.family]
    chosen: dict[str, tuple[Entry, dict[str, str]]] = {}
    for tensor, shape in shapes.items():
        matches = [(e, m) for e in exact if e.name == tensor and (m := e.match(tensor, shape)) is not None]
        matches = matches or [(e, m) for e in families if (m := e.match(tensor, shape)) is not None]
        if not matches:
            problems.append(f"{tensor}  {_show(shape)} is in the checkpoint, not in the spec")
        elif len(matches) > 1:
            lines = " and ".join(f'"{entry.name}"' for entry, _ in matches)
            problems.append(f"{tensor}  is claimed by {lines}")
        else:
            chosen[tensor] = matches[0]
    used = {id(entry) for entry, _ in chosen.values()}
    for entry in spec.entries:
        if not entry.optional and id(entry) not in used:
            if entry.family:
                # a family whose members all have exact lines of their own is still spoken for
                if any(entry.match(tensor, shape) is not None for tensor, shape in shapes.items()):
                    continue
                problems.append(f"{entry.name}  matches no tensor of the checkpoint")
            else:
                problems.append(f"{entry.name}  is in the spec, not in the checkpoint")
    return chosen


def _found_values(chosen: Mapping[str, tuple[Entry, dict[str, str]]]) -> dict[str, set[tuple[str, ...]]]:
    """For every stem, the values that plain uses of it (`h{i}`, no offset) are bound to."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for entry, captured in chosen.values():
        for word in (word for axis in entry.axes for word in words_of(axis)):
            slots = slots_of(word)
            if slots and all(slot.name in captured and not slot.offset for slot in slots):
                found.setdefault(stem_of(word), set()).add(tuple(captured[slot.name] for slot in slots))
    return found


def _filled(axis: Axis, captured: dict[str, str], found: dict[str, set[tuple[str, ...]]]) -> Axis:
    return rewrite(axis, lambda leaf: fill(leaf.name, captured, found) if isinstance(leaf, Word) else leaf)


def _expand_rest(axes: tuple[Axis, ...], rank: int) -> tuple[Axis, ...] | None:
    """`...` replaced by as many fixed axes as are missing; None where the ranks cannot agree."""
    missing = rank - (len(axes) - 1 if Rest() in axes else len(axes))
    if Rest() in axes and missing >= 0:
        at = axes.index(Rest())
        return (*axes[:at], *[Fixed()] * missing, *axes[at + 1 :])
    return axes if missing == 0 and Rest() not in axes else None


def _word_sizes(axes: Mapping[str, tuple[Axis, ...]], shapes: Shapes, problems: list[str]) -> dict[str, int]:
    """One size a word: plain axes say it outright, composite axes once all but one part is known."""
    claims: dict[str, dict[int, tuple[str, int]]] = {}  # word → size → where it was first said
    places = [(t, k, a, shapes[t][k]) for t, tensor_axes in axes.items() for k, a in enumerate(tensor_axes)]
    for tensor, k, axis, size in places:
        if isinstance(axis, Word):
            claims.setdefault(axis.name, {}).setdefault(size, (tensor, k))
    words = {word: min(sizes) for word, sizes in claims.items()}
    open_places = [place for place in places if isinstance(place[2], (Product, Sum))]
    while True:
        before = len(words)
        for tensor, k, axis, size in open_places:
            unknown = {word for word in words_of(axis) if word not in words}
            if len(unknown) == 1 and (solved := _solve(axis, size, words)) is not None:
                word = unknown.pop()
                words[word] = solved
                claims.setdefault(word, {})[solved] = (tensor, k)
        if len(words) == before:
            break
    for word, sizes in claims.items():
        if len(sizes) > 1:
            for size, (tensor, k) in sizes.items():
                problems.append(f'{tensor}  axis {k} is "{word}", {size} units')
            problems.append("  these should be equal")
    return words


def _size(axis: Axis, words: Mapping[str, int]) -> int | None:
    """The length of an axis, None while a part is unknown."""
    if isinstance(axis, Word):
        return words.get(axis.name)
    if isinstance(axis, Fixed):
        return axis.size
    sizes = [_size(part, words) for part in (axis.factors if isinstance(axis, Product) else axis.terms)]
    if None in sizes:
        return None
    return math.prod(sizes) if isinstance(axis, Product) else sum(sizes)


def _solve(axis: Axis, size: int, words: Mapping[str, int]) -> int | None:
    """The size of the single unknown word in `axis`, given the axis's length; None where it has none."""
    if isinstance(axis, Word):
        return size if axis.name not in words else None
    parts = axis.factors if isinstance(axis, Product) else axis.terms if isinstance(axis, Sum) else ()
    unknown = [part for part in parts if _size(part, words) is None]
    if len(unknown) != 1:
        return None
    known = [_size(part, words) for part in parts if part is not unknown[0]]
    if isinstance(axis, Product):
        left, remainder = divmod(size, math.prod(known))
        return _solve(unknown[0], left, words) if remainder == 0 and left > 0 else None
    return _solve(unknown[0], size - sum(known), words) if size > sum(known) else None


def _resolve_axes(tensor, axes, shape, words, problems) -> tuple[Axis, ...]:
    resolved = []
    for k, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        exact = _resolve(axis, size, words)
        if exact is None and not isinstance(axis, Word):
            known = ", ".join(f"{word} = {words.get(word, '?')}" for word in words_of(axis))
            problems.append(
                f'{tensor}  axis {k} has {size} entries, the spec says "{axis}"'
                + (f" ({known})" if known else "")
            )
        resolved.append(exact if exact is not None else axis)
    return tuple(resolved)


def _resolve(axis: Axis, size: int, words: Mapping[str, int]) -> Axis | None:
    """The axis with every fixed part's size filled in; None where it cannot be `size` long."""
    if isinstance(axis, Word):
        return axis if words.get(axis.name) == size else None
    if isinstance(axis, Fixed):
        return Fixed(size) if axis.size in (None, size) else None
    parts = axis.factors if isinstance(axis, Product) else axis.terms
    sizes = [_size(part, words) for part in parts]
    if sizes.count(None) == 1:
        known = [s for s in sizes if s is not None]
        left = size / math.prod(known) if isinstance(axis, Product) else size - sum(known)
        if left != int(left) or left < 1:
            return None
        sizes[sizes.index(None)] = int(left)
    total = None if None in sizes else math.prod(sizes) if isinstance(axis, Product) else sum(sizes)
    if total != size:
        return None
    exact = [_resolve(part, part_size, words) for part, part_size in zip(parts, sizes, strict=True)]
    return None if None in exact else type(axis)(tuple(exact))


def _show(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
