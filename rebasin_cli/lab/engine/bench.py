"""What an experiment works with: its parameters, seeds, progress, and what is done already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from ...runtime import seeds


@dataclass
class Bench:
    """`p` has the parameters as attributes, `root` is where data files are (None: as usual).

    `known` holds the finished parts by their names; `keep` is called after each one.
    """

    values: Mapping[str, Any]
    seed: int = 0
    root: Any = None
    step: Callable[[str, int, int | None, str], None] = lambda task, done, total, detail: None
    known: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[Mapping[str, Any]], None] = lambda known: None

    @property
    def p(self) -> SimpleNamespace:
        return SimpleNamespace(**self.values)

    def generator(self, purpose: str) -> torch.Generator:
        """Random numbers for a purpose, the same whatever else was drawn."""
        return seeds.generator(self.seed, purpose)

    def derive(self, purpose: str) -> int:
        return seeds.derive(self.seed, purpose)

    def each(self, task: str, items: Iterable[Any], function: Callable[[Any], Any]) -> list[Any]:
        """`function` of every item; results are plain values (JSON), and those known are not made again."""
        every, found = list(items), []
        for done, item in enumerate(every):
            name = f"{task} {item}"
            self.step(task, done, len(every), str(item))
            if name not in self.known:
                self.known[name] = function(item)
                self.keep(self.known)
            found.append(self.known[name])
        self.step(task, len(every), len(every), "")
        return found
