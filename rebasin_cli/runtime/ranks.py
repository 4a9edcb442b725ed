"""Processes that search together: what one of them owns, and what they do as one.

    torchrun --nproc-per-node 2 -m rebasin_cli align a.safetensors b.safetensors

Every process runs the same program on the same files. What takes long is shared, sums go over all, and
every decision is taken on the same numbers, so all come to the same result. The first rank alone proves,
prints and writes. `ALONE` does all of this by doing nothing; `processes` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    import torch

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process is number `rank` of `size`; the first one alone prints and writes.

    All but `share` and `leave` is called by every rank alike, in the same order: none goes on before the
    others come.
    """

    rank: int = 0
    size: int = 1

    def share(self, items: Sequence[Any], sizes: Sequence[int]) -> frozenset[Any]:
        """The items that are this rank's: the largest first, each to the rank that has least."""
        loads, mine = [0] * self.size, set()
        for k in sorted(range(len(items)), key=lambda k: -sizes[k]):
            owner = loads.index(min(loads))
            loads[owner] += sizes[k]
            if owner == self.rank:
                mine.add(items[k])
        return frozenset(mine)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, the same bits on each; `tensor` may be overwritten."""
        return tensor

    def sum_float(self, value: float) -> float:
        return value

    def agree(self, value: float) -> float:
        """The first rank's, for all: what each rank computed alike, but rounds as its processor does."""
        return value

    def machines(self, sees: bool = True) -> list[str]:
        """The machine of every rank, in their order; "" of one that does not see what it should."""
        return [""] if not sees else ["here"]

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        """`tensor` of the rank `source`, on all; it may be overwritten."""
        return tensor

    def first(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `step` on the first rank alone: its result, small and plain, or its error, on all."""
        return step(*args, **kwargs)

    def last(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `first`, for the end: what succeeded stays so, even if another rank has died meanwhile."""
        return step(*args, **kwargs)

    def alone(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `last`, for what is not shared and may take days: the others wait as long as the first lives."""
        return step(*args, **kwargs)

    def turn(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `alone`, in the middle of a command: all go on after it, and may still be ended by another."""
        return step(*args, **kwargs)

    def each(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `step` on every rank, each for its own result; an error of one is an error of all."""
        return step(*args, **kwargs)

    def shared(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """As `each`: what every rank has found, on all, as pickles; in their order."""
        return self.all(self.each(step, *args, **kwargs))

    def all(self, value: T) -> list[T]:
        """What every rank has here, in their order; the values go from one to the other as pickles."""
        return [value]

    def leave(self) -> None:
        """This rank ends: from here on no other's end interrupts what it still has to keep and to say."""

    def check_same(self, facts: Mapping[str, Any]) -> None:
        """Raise UsageError unless all ranks know the same facts, which are small and plain."""


ALONE = Ranks()
