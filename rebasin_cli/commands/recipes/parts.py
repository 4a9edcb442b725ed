"""Options that are written as one with parts: `baseline: {file: FILE, missing: accept}`."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import near
from .reading import Problems, Value
from .vocabulary import PARTS


def parted(given: Mapping[str, Value], problems: Problems) -> dict[str, Value]:
    """Options by their keys, each part as the option that it is."""
    found: dict[str, Value] = {}
    for key, value in given.items():
        if key not in PARTS or not value.is_map:
            found[key] = value
            continue
        known = PARTS[key]
        for word, part in value.items():
            if word not in known:
                problems.add(part, f"`{key}` has no part {word!r}; {near(word, known)}")
            elif known[word] != key and known[word] in given:
                problems.add(part, f"stands here and as {known[word]!r}")
            else:
                found[known[word]] = part
        if "file" not in value.value:
            problems.add(value, f"`{key}` lacks its file: {form(key)}")
    return found


def overridden(given: Mapping[str, Value], default: Value) -> bool:
    """Whether a default is a part of an option that a step says itself: then it is of another file."""
    return any(key in given and default.path.startswith(f"defaults.{key}.") for key in PARTS)


def form(key: str, file: str = "FILE") -> str:
    """How an option is written whose file may be missing on a first run."""
    return f"`{key}: {{file: {file}, missing: accept}}`"
