"""What a network asks of its numbers, and other answers than it got.

An `if`, a loop or an index goes by `bool(x)`, `x.item()`, `x.tolist()` or by how many rows a mask leaves.
Each place in the code that asks so gets the answers that it did not get, all times that it asks in one run,
and places that only run then, in their turn. What Python computes of a number before it decides stays
unknown: of truths there is one other answer, of numbers some are tried.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch

TIMES = 64  # that a place gets another answer in one run: loops are to end
LARGE = 1e9 + 7  # a prime, for who turns something by it
FOLLOWING = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("graph", "proof"))
ROWS = "rows"

Place = tuple[str, int, int]  # file, line, instruction


@dataclass
class Answers:
    """What a network learns of its numbers in one run; at the places of `forced`, other answers.

    `asked`: of each place what it asks for (`bool`, `int`, `float`, or how many `ROWS`). `most` operations
    may run, as many as there are without a number.
    """

    forced: Mapping[Place, int] = field(default_factory=dict)
    most: int | None = None
    asked: dict[Place, str] = field(default_factory=dict)
    _times: Counter[Place] = field(default_factory=Counter)

    def of(self, place: Place | None, value: Any) -> Any:
        """The answer to who asks for this value: a number, a truth, or lists of these."""
        if place is None:
            return value
        kind = type(_first(value)).__name__
        if kind in OTHERS:
            self.asked.setdefault(place, kind)
        return _each(value, OTHERS[kind][self.forced[place]]) if self._forces(place, kind) else value

    def rows(self, place: Place | None, masks: list[torch.Tensor]) -> list[torch.Tensor]:
        """The masks, or numbers that are zero or not, that say how many rows there are."""
        if place is None or not masks:
            return masks
        self.asked.setdefault(place, ROWS)
        if not self._forces(place, ROWS):
            return masks
        return [(mask == 0).to(mask.dtype) for mask in masks]

    def _forces(self, place: Place, kind: str) -> bool:
        if place not in self.forced or self.asked.get(place) != kind:
            return False
        self._times[place] += 1
        return self._times[place] <= TIMES

    @property
    def ways(self) -> list[tuple[Place, int]]:
        """Every place with the number of an answer that it did not get."""
        return [
            (place, way) for place, kind in self.asked.items() for way in range(len(OTHERS.get(kind, "1")))
        ]


OTHERS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "bool": (lambda truth: not truth,),
    "int": (lambda n: n + 1, lambda n: max(n - 1, 0), lambda n: n + 7, lambda _: 0),
    "float": (lambda _: LARGE, lambda _: -LARGE, lambda _: 0.0),
}


def _first(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _each(value: Any, other: Callable[[Any], Any]) -> Any:
    return [_each(one, other) for one in value] if isinstance(value, list) else other(value)


def asking(outside: FrameType | None = None) -> Place | None:
    """Who asks: the innermost line of the network's own; where PyTorch has all, the innermost there.

    Frames from `outside` on, and what follows a network here, are no part of it.
    """
    frame: FrameType | None = sys._getframe(1)
    inner = None
    while frame is not None and frame is not outside:
        file = frame.f_code.co_filename
        own = file.startswith(FOLLOWING)
        if not own and "/torch/" not in file:
            return file, frame.f_lineno, frame.f_lasti
        if inner is None and not own and not file.endswith(("_ops.py", "_python_dispatch.py")):
            inner = file, frame.f_lineno, frame.f_lasti
        frame = frame.f_back
    return inner
