"""What rows of heads and embeddings stand for: classes by `config.json`, words by a tokenizer's files.

The mean, by number, of rows that stand for other things is no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ...averages.parts import EMBEDDING, LOGITS
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.configuration import beside
from ...errors import SpecError
from ...runtime import files
from ...runtime.text import some
from .configs import labels_of

TOKENIZER, PIECES = "tokenizer.json", ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
LISTS = ("vocab.json", "vocab.txt", *PIECES)
LARGEST = 1 << 27  # bytes of a vocabulary
NUMBERED = "LABEL_"  # a label that only counts
SHOWN = 2
Numbers = dict[str, int]


def check(
    models: Sequence[Checkpoint], averaged: Collection[str], say: Callable[[str], None], *, by_number: bool
) -> None:
    """Raise SpecError where models say that they number classes or words otherwise; say it of other classes.

    `averaged` are the tensors that are averaged; `by_number`: also heads of other sizes are.
    """
    classes, vocabulary, numbers = cache(_classes), cache(_vocabulary), cache(_numbers)
    problems: list[str] = []
    whole: list[str] = []
    for k, b in enumerate(models):
        moved: dict[str, str] = {}
        other = ""
        for a in models[:k]:
            labels, theirs = classes(a), classes(b)
            rows = [name for name in averaged if _has_rows(name, a, b, labels, theirs, by_number)]
            unlike = [pair for pair in zip(labels, theirs, strict=False) if pair[0] != pair[1]]
            if rows and (told := _moved("class", a, labels, b, theirs)):
                moved.setdefault("class", told)
                whole += rows
            elif rows and unlike:
                mine, its = (some(names, SHOWN) for names in zip(*unlike, strict=True))
                other = other or f"other classes: {mine} in {a.path}, {its} in {b.path}"
            if any(_has_words(name, a, b, by_number) for name in averaged):
                here, there = vocabulary(a.path), vocabulary(b.path)
                if here != there and (told := _moved("word", a, numbers(*here), b, numbers(*there))):
                    moved.setdefault("word", told)
        problems += moved.values()
        if other and "class" not in moved:
            say(f"{other}: rows are averaged by number")
    if problems:
        kept = "".join(f" --ignore {name}" for name in dict.fromkeys(whole))
        raise SpecError(
            "the models number their classes or words otherwise, and rows are averaged by number",
            problems=problems,
            hint="Put the rows of one into the order of the other first"
            + (f"; or keep the first's: rebasin average …{kept}" if whole else "")
            + "; average them all the same with --skip-checks",
        )


def _has_rows(
    name: str, a: Checkpoint, b: Checkpoint, labels: Numbers, theirs: Numbers, by_number: bool
) -> bool:
    """Whether a tensor has a row a class in both, which are averaged."""
    if EMBEDDING.search(name) or not (labels and theirs and a.shapes.get(name) and b.shapes.get(name)):
        return False
    sizes = a.shapes[name][0], b.shapes[name][0]
    return sizes == (len(labels), len(theirs)) and (by_number or sizes[0] == sizes[1])


def _has_words(name: str, a: Checkpoint, b: Checkpoint, by_number: bool) -> bool:
    """Whether a tensor has a row a word, in both: as the largest embedding, or where none is, as it says."""
    embeddings = [its for of, its in a.shapes.items() if EMBEDDING.search(of) and len(its) == 2]
    shape, its = a.shapes.get(name, ()), b.shapes.get(name, ())
    if len(shape) != 2 or len(its) != 2 or not (EMBEDDING.search(name) or LOGITS.search(name)):
        return False
    said = (beside(a.path) or {}).get("vocab_size")
    words = max((rows for rows, _ in embeddings), default=said)
    return shape[0] == words and (by_number or shape[0] == its[0])


def _moved(what: str, a: Checkpoint, here: Numbers, b: Checkpoint, there: Numbers) -> str | None:
    moved = [name for name, k in here.items() if there.get(name, k) != k]
    if not moved:
        return None
    more = f" ({len(moved):,} such)" if len(moved) > 1 else ""
    name = moved[0]
    return f"{what} {name!r}  is {here[name]} in {a.path}, {there[name]} in {b.path}{more}"


def _classes(model: Checkpoint) -> Numbers:
    """The number of each class that has a name of its own."""
    labels = labels_of(beside(model.path) or {}) or []
    named = {label.casefold(): k for k, label in enumerate(labels)}
    return {} if any(label.startswith(NUMBERED) for label in labels) or len(named) < len(labels) else named


def _vocabulary(model: Path) -> tuple[str, bytes]:
    """The file beside a model that numbers its words, and what is in it; nothing where there is none."""
    folder = model if model.is_dir() else model.parent
    for name in (TOKENIZER, *LISTS):
        with suppress(OSError):
            return name, files.content(folder / name, LARGEST)
    return "", b""


def _numbers(name: str, content: bytes) -> Numbers:
    """The number of each word; of a whole tokenizer also of those added. None where that is unclear."""
    if name in PIECES:
        return {word: k for k, word in enumerate(_pieces(content))}
    try:
        parsed = (
            content.decode().replace("\r", "").removesuffix("\n").split("\n")
            if name.endswith(".txt")
            else json.loads(content)
        )
    except (ValueError, RecursionError):
        return {}
    words: Any = parsed
    added: Any = None
    if name == TOKENIZER and isinstance(parsed, dict):
        inner, added = parsed.get("model"), parsed.get("added_tokens")
        words = inner.get("vocab") if isinstance(inner, dict) else None
    if isinstance(words, list):  # unigrams: each with its score
        first = ((word[0] if isinstance(word, list) and word else word) for word in words)
        words = {word: k for k, word in enumerate(first) if isinstance(word, str)}
    pairs = [*words.items()] if isinstance(words, dict) else []
    pairs += [
        (each.get("content"), each.get("id"))
        for each in (added if isinstance(added, list) else [])
        if isinstance(each, dict)
    ]
    return {word: k for word, k in pairs if isinstance(word, str) and type(k) is int}


def _pieces(content: bytes) -> list[str]:
    """The words of a SentencePiece model in their order; none where the file is no such one.

    It is a message of Protocol Buffers, whose first field, again and again, has a word in its own first.
    """
    try:
        return [
            next(word for at, word in _fields(piece) if at == 1).decode()
            for field, piece in _fields(content)
            if field == 1
        ]
    except (ValueError, IndexError, StopIteration):
        return []


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and content of each field; of plain numbers without it. Raises ValueError, IndexError."""
    at = 0

    def number() -> int:
        nonlocal at
        found, shift = 0, 0
        while True:
            byte = message[at]
            found, shift, at = found | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return found

    while at < len(message):
        field, kind = divmod(number(), 8)
        if kind == 0:
            number()
            continue
        size = {1: 8, 5: 4}.get(kind) or (number() if kind == 2 else len(message) + 1)
        if at + size > len(message):
            raise ValueError("it ends within a field")
        at += size
        yield field, message[at - size : at] if kind == 2 else b""
