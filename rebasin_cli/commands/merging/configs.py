"""What `config.json` says of rows that a merge changed: sizes of vocabularies, labels, tied embeddings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...averages.names import equal_values
from ...averages.parts import EMBEDDING, LOGITS
from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.configuration import CONFIG, Config, beside, read
from ...types import Shapes
from ..verbs.outputs import Output


def fitted(
    output: Output,
    models: Sequence[Checkpoint],
    written: Shapes,
    say: Callable[[str], None],
    *,
    heads: str | None = None,
    source: Checkpoint | None = None,
) -> Output:
    """The output with a copied configuration that says what the written tensors are; says what it changed.

    `source` is the model whose configuration it is (the first). What is not certain, and what is not copied,
    is left to the user, who is told what to change.
    """
    of = source or models[0]
    copied = CONFIG in output.copies
    config = read(output.copies[CONFIG]) if copied else beside(of.path)
    if config is None:
        return output
    others = [] if heads is None else [beside(model.path) for model in models]
    told = (
        _rows(config, of.shapes, written, heads, others)
        + _ties(config, models, written)
        + _tied_now(config, of, models, written)
    )
    done = any(certain for _, certain in told)
    for line, certain in told:
        if copied or not certain:
            say(f"{CONFIG}: {line}")
        else:
            say(f"the {CONFIG} of {of.path} does not fit what is written; in a copy of it, {line}")
    if not (copied and done):
        return output
    content = (json.dumps(config, indent=2) + "\n").encode()
    return replace(output, copies={**output.copies, CONFIG: content})


Told = list[tuple[str, bool]]  # what is changed, or to be changed, and whether it is certain


def _rows(
    config: Config, before: Shapes, written: Shapes, heads: str | None, others: Sequence[Config | None]
) -> Told:
    groups: dict[tuple[int, int], list[str]] = {}
    for name, shape in written.items():
        was = before.get(name, shape)
        if tuple(was) != tuple(shape) and len(was) == len(shape) > 0:
            groups.setdefault((was[0], shape[0]), []).append(name)
    found: Told = []
    kinds: list[Config] = [config]
    if isinstance(inner := config.get("text_config"), dict):
        kinds.append(inner)
    for (old, new), names in groups.items():
        rows = f"{', '.join(names[:3])}{' …' * (len(names) > 3)} had {old} rows and has {new}"
        sizes = [each for each in kinds if _is(each, "vocab_size", old)]
        labels = labels_of(config)
        labelled = labels is not None and len(labels) == old
        if sizes and not labelled:
            for each in sizes:
                each["vocab_size"] = new
            found.append((f'"vocab_size" is {new}, not {old}: {rows}', True))
        elif labelled and not sizes:
            named = _joined(heads, [labels_of(each) if each else None for each in others])
            if named is not None and len(named) == new == len({*named}):
                config["id2label"] = {str(k): label for k, label in enumerate(named)}
                config["label2id"] = {label: k for k, label in enumerate(named)}
                if "num_labels" in config:
                    config["num_labels"] = new
                found.append((f'"id2label" and "label2id" have {new} labels, not {old}: {rows}', True))
            else:
                found.append((f'write {new} labels into "id2label" and "label2id": {rows}', False))
        else:
            found.append((f"change what stands there for {old}: {rows}", False))
    return found


def _is(config: Any, key: str, value: int) -> bool:
    return isinstance(config, dict) and config.get(key) == value and not isinstance(config[key], bool)


def labels_of(config: Config) -> list[str] | None:
    """The labels of a classifier in their order; None where the configuration is of none, or unclear.

    transformers leaves them out where there are two without names.
    """
    named, numbers = config.get("id2label"), config.get("label2id")
    if not named and isinstance(numbers, dict):
        named = {str(k): label for label, k in numbers.items()}
    named = dict(enumerate(named)) if isinstance(named, list) else named
    if isinstance(named, dict):
        found = {str(k): str(label) for k, label in named.items() if isinstance(label, str | int | float)}
        labels = [found.get(str(k)) for k in range(len(named))]
        known = [label for label in labels if label is not None]
        return known if len(known) == len(labels) else None
    count = config.get("num_labels")
    kinds = config.get("architectures")
    if count is None and isinstance(kinds, list) and any("Classification" in str(kind) for kind in kinds):
        count = 2
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count < 1 << 20:
        return None
    return [f"LABEL_{k}" for k in range(count)]


def _joined(heads: str | None, both: Sequence[list[str] | None]) -> list[str] | None:
    """The labels of two heads put together so; None where a model's are not known."""
    known = [labels for labels in both if labels is not None]
    if len(both) != 2 or len(known) < 2:
        return both[-1] if heads == "keep-b" and both else None
    a, b = known
    if heads == "concat":
        numbered = [f"LABEL_{k}" for k in range(len(a) + len(b))]
        if a == numbered[: len(a)] and b == numbered[: len(b)]:
            return numbered
        return [*a, *(f"{label} (2)" if label in a else label for label in b)]
    if heads == "average":
        longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
        return longer if longer[: len(shorter)] == shorter else None
    return {"keep-a": a, "keep-b": b}.get(heads or "")


def _ties(config: Config, models: Sequence[Checkpoint], written: Shapes) -> Told:
    """An embedding that the configuration ties, and of which two other averages are written."""
    if config.get("tie_word_embeddings") is not True:
        return []
    matrices = _of_words(config, {name: shape for name, shape in written.items() if len(shape) == 2})
    for head in (name for name in matrices if LOGITS.search(name) and not EMBEDDING.search(name)):
        for name in matrices:
            if written[name] != written[head] or not EMBEDDING.search(name):
                continue
            having = [model for model in models if head in model and name in model]
            if any(not equal_values(model, head, name) for model in having):
                config["tie_word_embeddings"] = False
                return [(f'"tie_word_embeddings" is false: {head} and {name} differ', True)]
    return []


def vocabularies(config: Config) -> set[int]:
    """How many words there are, as the configuration says, or that of its part for text."""
    found = (kind.get("vocab_size") for kind in (config, config.get("text_config")) if isinstance(kind, dict))
    return {count for count in found if type(count) is int}


def _of_words(config: Config, matrices: Shapes) -> list[str]:
    """Those with a row a word, where the configuration says how many words there are; else all."""
    counts = vocabularies(config)
    return [name for name, shape in matrices.items() if shape[0] in counts] or [*matrices]


def _tied_now(config: Config, of: Checkpoint, models: Sequence[Checkpoint], written: Shapes) -> Told:
    """A head of its own that the configuration promises, and that was left out beside its embedding.

    What loads it would begin such a head at random. Certain where another model's configuration ties the two.
    """
    if config.get("tie_word_embeddings") is not False:
        return []
    for head, shape in of.shapes.items():
        if head in written or len(shape) != 2 or EMBEDDING.search(head) or not LOGITS.search(head):
            continue
        for name in (name for name in written if written[name] == shape and EMBEDDING.search(name)):
            if any((beside(model.path) or {}).get("tie_word_embeddings") is True for model in models):
                config["tie_word_embeddings"] = True
                return [(f'"tie_word_embeddings" is true: {head} is not written, and {name} is', True)]
            told = f'"tie_word_embeddings" is false, and {head} is not written: it would begin at random'
            return [(told, False)]
    return []
