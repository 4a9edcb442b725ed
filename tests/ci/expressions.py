"""GitHub's expressions, as far as the project's files use them; anything else is an error of the test."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILLED = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|==|!=|&&|\|\||[!(),]|[A-Za-z_][\w.-]*|\d+)")
STATUS = ("success", "failure", "cancelled", "always")


@dataclass
class Context:
    """What expressions may ask: `values` by their first word, how the job stands, and where its files lie."""

    values: Mapping[str, Any]
    workspace: Path
    status: str = "success"

    def filled(self, text: str) -> str:
        """A text with its expressions replaced by what they say."""
        return _FILLED.sub(lambda found: _text(self.value(found[1])), text)

    def holds(self, condition: str) -> bool:
        """Whether a step with this `if:` is run; without a word on the job's status, where it is well."""
        found = _FILLED.fullmatch(condition.strip())
        text = found[1] if found else condition
        said = any(f"{word}()" in text for word in STATUS)
        return (said or self.status == "success") and _true(self.value(text or "true"))

    def value(self, text: str) -> Any:
        words = _words(text)
        found = _chain(words, self)
        assert not words, f"left over in {text!r}: {words}"
        return found

    def name(self, word: str) -> Any:
        if word in ("true", "false"):
            return word == "true"
        value: Any = self.values
        for number, part in enumerate(word.split(".")):
            if value == "":
                return ""  # nothing of what was skipped
            known = isinstance(value, Mapping) and part in value
            assert known or (number > 1 and word.startswith(("steps.", "needs."))), f"unknown: {word}"
            value = value[part] if known else ""
        return value

    def call(self, name: str, given: list[Any]) -> Any:
        if name in STATUS:
            return name == "always" or name == {"failed": "failure"}.get(self.status, self.status)
        if name == "format":
            return given[0].format(*given[1:])
        if name == "hashFiles":
            files = sorted({path for text in given for path in self.workspace.glob(text) if path.is_file()})
            digests = b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)
            return hashlib.sha256(digests).hexdigest() if files else ""
        if name == "startsWith":
            return _text(given[0]).lower().startswith(_text(given[1]).lower())
        raise AssertionError(f"unknown function: {name}")


def _words(text: str) -> list[str]:
    found, at = [], 0
    text = text.strip()
    while at < len(text):
        word = _TOKEN.match(text, at)
        assert word, f"cannot be read: {text[at:]!r}"
        found.append(word[1])
        at = word.end()
    return found


# What joins two values, in levels: what stands first is read last, and so holds less closely.
_JOINS: Sequence[Mapping[str, Callable[[Any, Any], Any]]] = (
    {"||": lambda one, other: one if _true(one) else other},
    {"&&": lambda one, other: other if _true(one) else one},
    {"==": lambda one, other: _is(one, other), "!=": lambda one, other: not _is(one, other)},
)


def _chain(words: list[str], context: Context, level: int = 0) -> Any:
    """What the first of the `words` mean up to a join of a lower level; these are taken away."""
    if level == len(_JOINS):
        return _one(words, context)
    value = _chain(words, context, level + 1)
    while words and words[0] in _JOINS[level]:
        join = _JOINS[level][words.pop(0)]
        value = join(value, _chain(words, context, level + 1))
    return value


def _is(one: Any, other: Any) -> bool:
    return _text(one).lower() == _text(other).lower()


def _one(words: list[str], context: Context) -> Any:
    word = words.pop(0)
    if word == "!":
        return not _true(_one(words, context))
    if word == "(":
        value = _chain(words, context)
        assert words.pop(0) == ")"
        return value
    if word.startswith("'"):
        return word[1:-1].replace("''", "'")
    if word.isdigit():
        return int(word)
    if words[:1] != ["("]:
        return context.name(word)
    words.pop(0)
    given = []
    while words[0] != ")":
        given.append(_chain(words, context))
        if words[0] == ",":
            words.pop(0)
    words.pop(0)
    return context.call(word, given)


def _true(value: Any) -> bool:
    return value not in (False, "", 0, None)


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
