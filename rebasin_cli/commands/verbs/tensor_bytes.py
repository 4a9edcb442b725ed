"""Bytes that tensors, similarities and outputs take, from headers alone: the terms of `needs`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ...checkpoints.checkpoint import Checkpoint
from ...checkpoints.tensors import CHUNK
from ...matchers.descent.blocks import wide
from ...matchers.descent.similarity import KEEP
from ...matchers.wm import SOFT_MEMORY
from ...session.session import Session
from ...spec.notation import Axis, words_of
from .outputs import Output

BLOCKS = 48 << 20  # of what is averaged or permuted in blocks: buffers, and freed memory that is kept
BY_ROWS = ("safetensors", "sharded")  # files whose tensors are read by rows wherever rows stay
FLOWING = 8 * CHUNK  # what is read, made, digested and written a piece at a time


def similarities(session: Session, size: int) -> int:
    """Bytes of matrices beside those that stay between solves: the one at work, and another ranks' sums.

    Of a word on two axes of a tensor also its gradients, here and at the step's end, and their sums.
    """
    fitted = session.fitted
    twice = {word for axes in fitted.tensors.values() for word in _twice(axes)}
    most = max(fitted.words.values(), default=0)
    beside = 4 * max((fitted.words[word] for word in twice), default=0) ** 2
    return size * (max(most**2, beside) + (session.ranks.size > 1) * most**2)


def _twice(axes: Sequence[Axis]) -> set[str]:
    """The words that lie on several of these axes."""
    words = [word for axis in axes for word in {*words_of(axis)}]
    return {word for word in words if words.count(word) > 1}


def while_written(session: Session, output: Output | None) -> int:
    """Bytes of what is made and written a tensor at a time, when the search has ended."""
    if output is None:
        return 0
    largest, stored = max(map(largest_tensor, session.named)), sum(map(bytes_of, session.named))
    pieces = FLOWING if session.command == "align" else FLOWING + BLOCKS
    return min(pieces, 4 * stored) + (1 + 2 * output.distributed) * largest


def largest_tensor(model: Checkpoint) -> int:
    """Bytes, as it is stored."""
    return max((bytes_of_tensor(model, name) for name in model), default=0)


def moved_by_rows(session: Session, output: Output | None) -> int:
    """Bytes of tensors while one is permuted: whole where its rows move, or where the file has no rows."""
    model, fitted = session.named[-1], session.fitted

    def whole(name: str) -> bool:
        axes = fitted.tensors.get(name, ())
        moves = bool(axes) and next(words_of(axes[0]), None) is not None
        return moves or name in fitted.places or bool(fitted.within) or model.format not in BY_ROWS

    distributed = output is not None and output.distributed
    read = max((bytes_of_tensor(model, name) for name in model if whole(name)), default=0)
    return FLOWING + 2 * read + distributed * 2 * largest_tensor(model)


def numbers_of(shapes: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    """How many there are, and in the largest tensor."""
    sizes = [*map(math.prod, shapes)]
    return sum(sizes), max(sizes, default=0)


def asked_for(axes: Sequence[Axis]) -> int:
    """How often a sweep asks for a tensor: once for every word on its axes."""
    return len({word for axis in axes for word in words_of(axis)})


def bytes_of_tensor(model: Checkpoint, name: str) -> int:
    return math.prod(model.shapes[name]) * model.dtypes[name].itemsize if name in model else 0


def bytes_of(model: Checkpoint) -> int:
    """Bytes of a model's tensors, as they are stored."""
    return sum(bytes_of_tensor(model, name) for name in model)


def of_method(session: Session, matcher: Any, numbers: int) -> dict[str, int]:
    """What the method says it holds beyond the models and similarities."""
    options = session.options
    own = matcher.memory(len(session.named), numbers, options) if hasattr(matcher, "memory") else {}
    own |= {"sums": each * numbers} if (each := getattr(matcher, "BYTES_A_PARAMETER", 0)) else {}
    if getattr(options, "effort", "") == "high":
        soft = 4 * sum(size**2 for size in session.fitted.words.values())
        own |= {"a soft start": soft} if soft <= max(getattr(options, "memory", 0) or 0, SOFT_MEMORY) else {}
    return own


def between_solves(session: Session) -> int:
    """Bytes of similarities that stay between solves."""
    size = wide(session.named, list(session.fitted.tensors)).itemsize
    sizes = session.fitted.words.values()
    asked = getattr(session.options, "memory", None)
    if asked is None:
        asked = KEEP + size * max(sizes, default=0) ** 2
        if session.most is not None:  # the rest is for tensors, which every product needs
            asked = min(asked, session.most // 8)
    return min(asked, sum(size * each**2 for each in sizes))


def written_bytes(session: Session, output: Output) -> int:
    """Bytes of the weights as they are written, with an order of the units beside what was aligned."""
    model, dtypes = session.named[-1 if session.command == "align" else 0], output.dtype
    weights = sum(
        math.prod(shape) * (dtypes if dtypes and dtype.is_floating_point else dtype).itemsize
        for shape, dtype in ((shape, model.dtypes[name]) for name, shape in model.shapes.items())
    )
    return weights + 8 * sum(session.fitted.words.values()) * (session.command == "align")
