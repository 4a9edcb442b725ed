"""What rows of heads and embeddings stand for: classes by `config.json`, words by a tokenizer's files.

Where there are none, both by what lies beside the weights in one file.

The mean, by number, of rows that stand for other things is no model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ...averages.parts import EMBEDDING, LOGITS
from ...checkpoints import declared, declared_names
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.configuration import beside
from ...errors import SpecError
from ...runtime import files
from ...runtime.text import some
from .configs import labels_of, vocabularies

TOKENIZER, PIECES = "tokenizer.json", ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
LISTS, ADDED = ("vocab.json", "vocab.txt", *PIECES), "added_tokens.json"
LARGEST = 1 << 27  # bytes of a vocabulary
NUMBERED = re.compile(r"label_\d+")  # a label that only counts
ENCODER = "text_encoder"  # begins the folder of a pipeline's part, whose tokenizer lies in one beside it
SHOWN = 2
HEAD = re.compile(
    r"(?:^|[._])(?:classif\w*|heads?|logits?|scores?|predict\w*)(?:[._]|$)"
    r"|(?:^|\.)(?:fc|cls|class|dense|linear|out|output)\.(?:weight|bias)$",
    re.IGNORECASE,
)
NO_WORDS = re.compile(r"(?:^|[._])pos|token_type|segment", re.IGNORECASE)  # embeddings of other things
Numbers = Mapping[str, int]
Vocabulary = tuple[tuple[str, bytes], ...]


def check(
    models: Sequence[Checkpoint],
    averaged: Collection[str],
    say: Callable[[str], None],
    numberings: Mapping[Checkpoint, Mapping[str, Numbers]],
    *,
    by_number: bool,
    hint: str | None = None,
) -> None:
    """Raise SpecError where models say that they number classes or words otherwise; say it of other classes.

    `averaged` are the tensors that are averaged; `numberings` are what each file declares beside its weights;
    `by_number`: also heads of other sizes are. `hint` is what to do about it, where that is not what
    `rebasin average` can.
    """
    vocabulary, numbers = cache(_vocabulary), cache(_numbers)
    classes = {model: _classes(model, numberings[model]) for model in models}
    problems: list[str] = []
    whole: list[str] = []
    for k, b in enumerate(models):
        moved: dict[str, str] = {}
        other = ""
        for a in models[:k]:
            labels, theirs = classes[a], classes[b]
            heads = _heads(a, b, labels, theirs, by_number)
            rows = [name for name in averaged if name in heads]
            unlike = [pair for pair in zip(labels, theirs, strict=False) if pair[0] != pair[1]]
            if rows and (told := _moved("class", a, labels, b, theirs)):
                moved.setdefault("class", told)
                whole += rows
            elif rows and unlike:
                one, another = (some(names, SHOWN) for names in zip(*unlike, strict=True))
                other = other or f"other classes: {one} in {a.path}, {another} in {b.path}"
            if not _of_words(a, b, by_number).isdisjoint(averaged):
                here, there = vocabulary(a.path), vocabulary(b.path)
                if here != there and (told := _moved("word", a, numbers(here), b, numbers(there))):
                    moved.setdefault("word", told)
            for key, mine in numberings[a].items():
                yours = numberings[b].get(key)
                if yours is None or not declared.moved(key, mine, yours):
                    continue
                numbered = _rows_of(a, b, mine, yours, by_number)
                if not numbered.isdisjoint(averaged):
                    moved.setdefault("class", _moved(f"{key}:", a, mine, b, yours) or "")
                    whole += [name for name in averaged if name in numbered]
        problems += moved.values()
        if other and "class" not in moved:
            say(f"{other}: rows are averaged by number")
    if problems:
        kept = "".join(f" --ignore {name}" for name in dict.fromkeys(whole))
        raise SpecError(
            "the models number their classes or words otherwise, and rows are averaged by number",
            problems=problems,
            hint=hint
            or "Put the rows of one into the order of the other first"
            + (f"; or keep the first's: rebasin average …{kept}" if whole else "")
            + "; average them all the same with --skip-checks",
        )


def _heads(a: Checkpoint, b: Checkpoint, labels: Numbers, theirs: Numbers, by_number: bool) -> set[str]:
    """The tensors with a row a class in both, some with one more for no class: those named so, if any is."""
    found: dict[str, int] = {}
    for name, shape in a.shapes.items() if labels and theirs else ():
        its = b.shapes.get(name)
        if shape and its and (by_number or shape[0] == its[0]) and not EMBEDDING.search(name):
            more = {shape[0] - len(labels), its[0] - len(theirs)}
            found |= {name: more.pop()} if more in ({0}, {1}) else {}
    named = {name for name in found if HEAD.search(name)}
    return named or {name for name, more in found.items() if not more}


def _rows_of(a: Checkpoint, b: Checkpoint, here: Numbers, there: Numbers, by_number: bool) -> set[str]:
    """The tensors with a row for each of these names, of heads, or of embeddings that have hardly more."""
    embeddings = {
        name for name in _of_words(a, b, by_number) if len(here) <= a.shapes[name][0] < 2 * len(here)
    }
    return _heads(a, b, here, there, by_number) | embeddings


def _of_words(a: Checkpoint, b: Checkpoint, by_number: bool) -> set[str]:
    """The matrices with a row a word in both: as many as the configuration says, or the largest embedding."""
    rows = {
        name: shape[0] for name, shape in a.shapes.items() if len(shape) == 2 and not NO_WORDS.search(name)
    }
    named = {name for name in rows if EMBEDDING.search(name) or LOGITS.search(name)}
    largest = max((rows[name] for name in named if EMBEDDING.search(name)), default=0)
    counts = vocabularies(beside(a.path) or {})
    told = {name for name, count in rows.items() if count in counts}
    found = (told & named) or told or {name for name in named if rows[name] == largest}
    of_b = {name: b.shapes.get(name, ()) for name in found}
    return {name for name, its in of_b.items() if len(its) == 2 and (by_number or its[0] == rows[name])}


def _moved(what: str, a: Checkpoint, here: Numbers, b: Checkpoint, there: Numbers) -> str | None:
    moved = [name for name, k in here.items() if there.get(name, k) != k]
    if not moved:
        return None
    more = f" ({len(moved):,} such)" if len(moved) > 1 else ""
    name = moved[0]
    return f"{what} {name!r}  is {here[name]} in {a.path}, {there[name]} in {b.path}{more}"


def _classes(model: Checkpoint, numberings: Mapping[str, Numbers]) -> Numbers:
    """The number of each class that has a name of its own, as transformers, timm or the file itself says."""
    config = beside(model.path) or {}
    timm = [of.get("label_names") for of in (config, config.get("pretrained_cfg")) if isinstance(of, dict)]
    names: list[Any] = labels_of(config) or next((its for its in timm if isinstance(its, list)), [])
    if not names:
        own = (
            its
            for key, its in numberings.items()
            if declared_names.OF_CLASSES.search(key.rpartition(".")[2].casefold())
        )
        numbers = next((its for its in own if 0 in its.values()), {})
        names = sorted(numbers, key=lambda name: numbers[name])
    named = {str(name).casefold(): k for k, name in enumerate(names)}
    if len(named) < len(names):  # characters, perhaps
        named = {str(name): k for k, name in enumerate(names)}
    return {} if any(NUMBERED.fullmatch(name) for name in named) or len(named) < len(names) else named


def _vocabulary(model: Path) -> Vocabulary:
    """What of the files beside a model numbers its words: their names and what is in them."""
    folder = model if model.is_dir() else model.parent
    kind = folder.resolve().name
    pipeline = [folder.parent / kind.replace(ENCODER, "tokenizer", 1)] if kind.startswith(ENCODER) else []
    for place in (folder, *pipeline):
        for name in (TOKENIZER, *LISTS):
            with suppress(OSError):
                found = [(name, files.content(place / name, LARGEST))]
                with suppress(OSError):
                    found += [(ADDED, files.content(place / ADDED, LARGEST))] if name in LISTS else []
                return tuple(found)
    return ()


def _numbers(vocabulary: Vocabulary) -> Numbers:
    """The number of each word, and of those added. None where that is unclear."""
    return {word: k for name, content in vocabulary for word, k in _read(name, content).items()}


def _read(name: str, content: bytes) -> Numbers:
    """What one file says."""
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
