"""*Parse*: is this text a spec? Strict YAML, one tensor a line, every problem with its line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import yaml

from ..errors import SpecError
from ..groups import is_known, names
from .notation import ENDS, parse_axes, words_of
from .patterns import MOST, slots_of
from .spec import Entry, Spec

SCHEMA = 1
LARGEST = 4 << 20  # characters, some 100,000 lines
MOST_NODES, DEEPEST = 500_000, 100  # names and axes, and how far they lie within one another
SHORT = 20_000  # characters that PyYAML's own reader takes: it says more of errors, in ten times the time
COMPILED = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_KEYS = {
    "schema",
    "net",
    "names",
    "description",
    "include",
    "tensors",
    "statistics",
    "ignore",
    "sizes",
    "groups",
    "within",
    "stays",
    "unlike",
    "without",
    "classes",
}
_WORD = re.compile(r"(?:[A-Za-z]|\{[A-Za-z]\w*\})(?:[\w.-]|\{[A-Za-z]\w*\})*")
_NAMES = re.compile(r"[A-Za-z][\w.-]*(?: [A-Za-z][\w.-]*)*", re.ASCII)
_SLOTS = re.compile(r"\{(\w+)(?::[\w|]+)?\}")
_ANY_SLOT = re.compile(r"\{([A-Za-z]\w*(:\w+(\|\w+)*)?)?\}", re.ASCII)
_BRACE = re.compile(r"[{}]")
_NAME = re.compile(r"(?P<name>[^\[\]?\s]+?)(?:\[(?P<rank>[0-9]{1,3})\])?(?P<optional>\?)?")


def parse(
    text: str,
    *,
    name: str,
    source: str = "",
    include: Callable[[str], Spec] | None = None,
    compiled: bool = False,
) -> Spec:
    """The spec that a YAML text says.

    `include` finds the spec that an `include:` line names. Long texts, and those to be read by what is
    `compiled`, are read by libyaml. Raises SpecError with every problem and its line.
    """
    source = source or name
    problems: list[str] = []
    if len(text) > LARGEST:
        raise SpecError(f"{source} is no spec: {len(text):,} characters, at most {LARGEST:,} are read")
    try:
        if compiled:  # which is shipped, and lies no deeper than it should
            root = yaml.compose(text, COMPILED)
        elif len(text) > SHORT:
            root = _composed(text, source)
        else:
            root = yaml.compose(text, yaml.SafeLoader)
    except RecursionError:
        raise SpecError(f"{source} is not a spec: too many things lie within one another") from None
    except (yaml.YAMLError, UnicodeError) as error:
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
    if "include" in top and (wanted := _text(top["include"], "include", problems)) is not None:
        if include is None:
            problems.append(f'include "{wanted}": includes are not available here')
        else:
            base = include(wanted)
    if "without" in top and (before := _text(top["without"], "without", problems)) is not None:
        base = _without(base, before, problems)

    entries = {(entry.name, entry.rank): entry for entry in base.entries}
    own: dict[tuple[str, int | None], int] = {}  # entry → its line
    for section in ("tensors", "statistics"):
        if section not in top:
            continue
        lines = top[section]
        if not isinstance(lines, yaml.MappingNode):
            problems.append(f"`{section}:` is not a mapping of tensor names to axes")
            continue
        for key, node in _items(lines, problems):
            entry = _entry(key, node, section == "statistics", problems)
            if entry is None:
                continue
            where = entry.name, entry.rank
            if where in own:  # `x` and `x?`, or once more among the statistics
                problems.append(f'line {entry.line}: "{entry.name}" stands here and in line {own[where]}')
            own[where], entries[where] = entry.line, entry
    sizes, looked_up = _sizes(top["sizes"], problems) if "sizes" in top else ({}, {})
    inherited = {word: names for word, names in base.looked_up.items() if word not in sizes}
    groups = _groups(top["groups"], problems) if "groups" in top else {}
    within = _within(top["within"], problems) if "within" in top else {}
    spec = Spec(
        name=name,
        entries=tuple(entries.values()),
        net=_text(top["net"], "net", problems) if "net" in top else base.net,
        names=_texts(top.get("names"), "names", problems),
        description=(_text(top["description"], "description", problems) if "description" in top else "")
        or "",
        ignore=(*base.ignore, *_texts(top.get("ignore"), "ignore", problems)),
        source=source,
        digest=hashlib.sha256((text + base.digest).encode()).hexdigest(),
        sizes={**base.sizes, **sizes},
        groups={**base.groups, **groups},
        looked_up={**inherited, **looked_up},
        stays=(*base.stays, *_texts(top.get("stays"), "stays", problems)),
        unlike=(*base.unlike, *_texts(top.get("unlike"), "unlike", problems)),
        within={**base.within, **within},
        classes=_texts(top.get("classes"), "classes", problems),
    )
    if problems:
        raise SpecError(
            f"{source} is not a valid spec", problems=problems, hint="The notation: specs/README.md"
        )
    return spec


def _composed(text: str, source: str) -> yaml.Node | None:
    """As `yaml.compose`, by libyaml, which must not see what lies too deep: it would overflow the stack."""
    depth = nodes = 0
    for event in yaml.parse(text, COMPILED):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        nodes += isinstance(event, yaml.NodeEvent)
        if depth > DEEPEST:
            raise RecursionError
        if nodes > MOST_NODES:
            raise SpecError(f"{source} is no spec: at most {MOST_NODES:,} names and axes are read")
    return yaml.compose(text, COMPILED)


def refers_to(text: str) -> list[tuple[str, str]]:
    """("include", name) and ("net", reference), as far as a text says them; nothing is judged."""
    found: list[tuple[str, str]] = []
    depth, key, is_key = 0, "", True
    with suppress(yaml.YAMLError, UnicodeError):
        for event in yaml.parse(text, COMPILED):
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth == 1 and isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                if isinstance(event, yaml.ScalarEvent) and is_key:
                    key = event.value
                elif isinstance(event, yaml.ScalarEvent) and key in ("include", "net"):
                    found.append((key, event.value))
                if not isinstance(event, yaml.CollectionStartEvent):
                    is_key = not is_key
            depth += isinstance(event, yaml.CollectionStartEvent)
    return found


def _items(node: yaml.MappingNode, problems: list[str]) -> Iterator[tuple[str, yaml.Node]]:
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
    return str(node.value)


def _texts(node: yaml.Node | None, what: str, problems: list[str]) -> tuple[str, ...]:
    if node is None:
        return ()
    if not isinstance(node, yaml.SequenceNode):
        problems.append(f"line {node.start_mark.line + 1}: {what} is not a list")
        return ()
    return tuple(text for item in node.value if (text := _text(item, what, problems)) is not None)


def _without(base: Spec, before: str, problems: list[str]) -> Spec:
    """The included spec, for tensors whose names lack this beginning."""
    if not any(entry.name.startswith(before) for entry in base.entries):
        problems.append(f'without "{before}": no line of what is included begins so')
    entries = tuple(replace(entry, name=entry.name.removeprefix(before)) for entry in base.entries)
    return replace(base, entries=entries)


def _sizes(node: yaml.Node, problems: list[str]) -> tuple[dict[str, int], dict[str, tuple[str, ...]]]:
    """Sizes that are stated, and the names that tell others."""
    sizes: dict[str, int] = {}
    looked_up: dict[str, tuple[str, ...]] = {}
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"line {node.start_mark.line + 1}: `sizes:` is not a mapping of words to their sizes")
        return sizes, looked_up
    for key, value in _items(node, problems):
        line = value.start_mark.line + 1
        if not _WORD.fullmatch(key):
            problems.append(f'line {line}: cannot read the word "{key}"')
        elif value.tag == "tag:yaml.org,2002:str" and _NAMES.fullmatch(value.value):
            looked_up[key] = tuple(value.value.split())
        elif value.tag != "tag:yaml.org,2002:int" or not re.fullmatch(r"[1-9][0-9]{0,17}", value.value):
            what = repr(value.value[:40]) if isinstance(value, yaml.ScalarNode) else "…"
            problems.append(f'line {line}: the size of "{key}" is {what}, not a whole number above 0')
        else:
            sizes[key] = int(value.value)
    return sizes, looked_up


def _groups(node: yaml.Node, problems: list[str]) -> dict[str, str]:
    if not isinstance(node, yaml.MappingNode):
        problems.append(
            f"line {node.start_mark.line + 1}: `groups:` is not a mapping of words to their groups"
        )
        return {}
    groups = {}
    for key, value in _items(node, problems):
        line, kind = value.start_mark.line + 1, getattr(value, "value", None)
        if not _WORD.fullmatch(key):
            problems.append(f'line {line}: cannot read the word "{key}"')
        elif not isinstance(kind, str) or not is_known(kind):
            what = repr(kind[:40]) if isinstance(kind, str) else "…"
            problems.append(f'line {line}: the group of "{key}" is {what}; known: {", ".join(names())}')
        else:
            groups[key] = kind
    return groups


def _within(node: yaml.Node, problems: list[str]) -> dict[str, str]:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.MappingNode):
        problems.append(f"line {line}: `within:` is not a mapping of starred words to what they lie within")
        return {}
    found = {}
    for key, value in _items(node, problems):
        line, outer = value.start_mark.line + 1, _text(value, f'"{key}"', problems)
        if wrong := [word for word in (key, outer) if word is not None and not _WORD.fullmatch(word)]:
            problems.append(f'line {line}: cannot read the word "{wrong[0]}"')
        elif outer is not None and not set(_SLOTS.findall(outer)) <= set(_SLOTS.findall(key)):
            problems.append(f'line {line}: "{outer}" has a slot that "{key}" does not bind')
        elif outer is not None:
            found[key] = outer
    return found


def _entry(key: str, node: yaml.Node, statistic: bool, problems: list[str]) -> Entry | None:
    line = node.start_mark.line + 1
    text = _text(node, f'"{key}"', problems)
    name = _NAME.fullmatch(key)
    if name is None or ("{" in key or "}" in key) and _BRACE.search(_ANY_SLOT.sub("", name["name"])):
        problems.append(f'line {line}: cannot read the tensor name "{key}"')
        return None
    if text is None:
        return None
    try:
        axes = parse_axes(text)
    except SpecError as error:
        problems.append(f"line {line}: {key}: {error.message}")
        return None
    if name["name"].count("{") > MOST:
        problems.append(f'line {line}: "{key}" has more than {MOST} slots')
        return None
    if name["name"].count("{}") > 1:
        problems.append(
            f'line {line}: "{key}" has {name["name"].count("{}")} empty slots; one list at a time'
        )
        return None
    captures = set(_SLOTS.findall(name["name"]))
    for word in (word for axis in axes for word in words_of(axis) if "{" in text):
        for slot in slots_of(word):
            if slot.name not in captures and slot.name not in ENDS:
                problems.append(
                    f'line {line}: {key}: "{word}" uses {{{slot.name}}}, which the name does not bind'
                )
                return None
    rank = int(name["rank"]) if name["rank"] else None
    return Entry(name["name"], axes, rank, bool(name["optional"]), statistic, line)
