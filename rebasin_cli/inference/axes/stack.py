"""A tensor as pieces side by side, each with axes of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .axes import Axes


@dataclass(frozen=True)
class Stack:
    """Axes of the pieces that lie side by side along the dimensions `at`, the last of them fastest.

    `lengths` are those of the pieces along each of these dimensions. Other dimensions have one length in all
    pieces, and each piece has units of its own there.
    """

    at: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]
    pieces: tuple[Axes, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        own = [axis.size for axis in self.pieces[0]]
        for dim, lengths in zip(self.at, self.lengths, strict=True):
            own[dim] = sum(lengths)
        return tuple(own)

    def each(self, how: Callable[[Axes], Any]) -> Stack | None:
        """The same stack of what becomes of each piece; None where one is not understood."""
        found = tuple(map(how, self.pieces))
        return replace(self, pieces=found) if all(isinstance(axes, tuple) for axes in found) else None

    def starts(self, dim: int) -> list[int]:
        """Where pieces start along one of the dimensions `at`, and where the last one ends."""
        return [0, *itertools.accumulate(self.lengths[self.at.index(dim)])]

    def numbers(self) -> Iterator[tuple[int, ...]]:
        """The number of every piece along each of the dimensions `at`."""
        yield from itertools.product(*(range(len(lengths)) for lengths in self.lengths))

    def along(self, dim: int, lengths: tuple[int, ...], pieces: Sequence[Axes]) -> Stack | Axes:
        """Other pieces, of these lengths along one of the dimensions `at`; of one row no stack along it."""
        place = self.at.index(dim)
        if len(lengths) > 1:
            every = (*self.lengths[:place], lengths, *self.lengths[place + 1 :])
            return replace(self, lengths=every, pieces=tuple(pieces))
        if len(self.at) == 1:
            return pieces[0]
        at = self.at[:place] + self.at[place + 1 :]
        return Stack(at, self.lengths[:place] + self.lengths[place + 1 :], tuple(pieces))

    def in_order(self) -> Stack:
        """The same with the dimensions of its pieces from the left to the right."""
        order = sorted(range(len(self.at)), key=self.at.__getitem__)
        numbered = zip(self.numbers(), self.pieces, strict=True)
        rows = sorted(numbered, key=lambda pair: [pair[0][k] for k in order])
        at, lengths = (tuple(self.at[k] for k in order), tuple(self.lengths[k] for k in order))
        return Stack(at, lengths, tuple(axes for _, axes in rows))
