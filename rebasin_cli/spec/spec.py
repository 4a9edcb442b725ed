"""What a spec is, as values: `Spec` is what a file says, `FittedSpec` what it means for one architecture.

`parsing` reads the first from text, `fitting` makes the second from it; both collect every problem before
they speak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .notation import Axis, words_of

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Entry:
    """One line: a tensor, or a family of tensors where the name has `{i}` slots."""

    name: str
    axes: tuple[Axis, ...]
    rank: int | None = None  # name[4]: only tensors of this rank
    optional: bool = False  # name?
    statistic: bool = False  # moves along, but is no evidence for matching
    line: int = 0

    @property
    def family(self) -> bool:
        return "{" in self.name

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        seen: set[str] = set()

        def group(slot: re.Match) -> str:
            name = slot[1]
            again, _ = name in seen, seen.add(name)
            return f"(?P={name})" if again else f"(?P<{name}>[A-Za-z0-9_]+)"

        return re.compile(re.sub(r"\\\{(\w+)\\\}", group, re.escape(self.name)))

    def match(self, tensor: str, shape: tuple[int, ...]) -> dict[str, str] | None:
        """What the slots capture, or None where the line does not speak of this tensor."""
        if self.rank is not None and len(shape) != self.rank:
            return None
        found = self.pattern.fullmatch(tensor)
        return None if found is None else found.groupdict()


@dataclass(frozen=True)
class Spec:
    """A parsed spec file. `source` is where it was read, `digest` the sha256 of its text."""

    name: str
    entries: tuple[Entry, ...]
    net: str | None = None
    names: tuple[str, ...] = ()  # further names a user may type
    description: str = ""
    ignore: tuple[str, ...] = ()
    source: str = ""
    digest: str = ""


@dataclass(frozen=True)
class FittedSpec:
    """A spec resolved against the tensors of one architecture.

    `words` maps each permutation to its number of units; `tensors` each tensor to its axes, all sizes
    known; `ignored` tensors stay as they are.
    """

    spec: Spec
    words: dict[str, int]
    tensors: dict[str, tuple[Axis, ...]]
    shapes: dict[str, tuple[int, ...]]
    statistics: frozenset[str] = frozenset()
    ignored: frozenset[str] = field(default=frozenset())

    def log10_symmetries(self) -> float:
        """log10 of the number of networks that compute the same function: Σ log10(n!) over words."""
        return sum(math.lgamma(size + 1) for size in self.words.values()) / math.log(10)

    def moved_share(self) -> float:
        """Share of the parameters (statistics not counted) that have at least one permuted axis."""
        size = {name: math.prod(self.shapes[name]) for name in self.tensors if name not in self.statistics}
        moved = sum(
            n for name, n in size.items() if any(True for a in self.tensors[name] for _ in words_of(a))
        )
        return moved / max(1, sum(size.values()))
