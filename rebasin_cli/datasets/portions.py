"""Which samples of a split are trained on: so many, a share, or one of two parts that share out classes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, unknown
from ..registry.options import real, whole
from ..runtime.seeds import generator
from . import Data

PARTS = ("a", "b")


@dataclass(frozen=True)
class ClassSplit:
    """Part a has the share `first` of the samples of each of the first `classes`, and `rest` of the others'.

    Part b has all that a has not. Ainsworth et al. 2022, section 5.4.
    """

    classes: int
    first: float
    rest: float

    @staticmethod
    def parse(text: str) -> ClassSplit:
        """`50:0.2,0.8`. Raises UsageError."""
        try:
            count, shares = text.split(":")
            first, rest = map(real, shares.split(","))
            found = ClassSplit(whole(count), first, rest)
        except ValueError:
            found = None
        if found is None or found.classes < 1 or not (0 <= found.first <= 1 and 0 <= found.rest <= 1):
            raise UsageError(
                f"--classes-split {text!r} is no split of classes",
                hint="Write COUNT:SHARE,SHARE, such as 50:0.2,0.8: part a has a fifth of the samples of "
                "classes 0–49 and four fifths of the others'",
            )
        return found

    def parts(self, targets: Tensor, classes: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The numbers of the samples of a and of b, in their order: disjoint, together all."""
        mine = torch.zeros(len(targets), dtype=torch.bool)
        for kind in range(classes):
            at = torch.nonzero(targets == kind)[:, 0]
            at = at[torch.randperm(len(at), generator=rng)]
            mine[at[: round(len(at) * (self.first if kind < self.classes else self.rest))]] = True
        return torch.nonzero(mine)[:, 0], torch.nonzero(~mine)[:, 0]


@dataclass(frozen=True)
class Portion:
    """`limit` samples, or a share `subset` of them, drawn by the training's seed; before that one `part` of
    two by `classes_split`, drawn by `split_seed`, which both models have in common.
    """

    limit: int | None = None
    subset: float | None = None
    classes_split: str | None = None
    part: str | None = None
    split_seed: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.subset is not None:
            raise UsageError("--limit and --subset both say how many samples", hint="Give one of them")
        if self.subset is not None and not 0 < self.subset <= 1:
            raise UsageError(
                f"--subset {self.subset:g} is no share of the samples", hint="Give one above 0, 1 at most"
            )
        if self.part is not None and self.part not in PARTS:
            raise unknown("part", self.part, PARTS)
        if self.classes_split is None and (self.part is not None or self.split_seed is not None):
            flag = "--part" if self.part is not None else "--split-seed"
            raise UsageError(f"{flag} is for --classes-split", hint="Such as --classes-split 5:0.2,0.8")
        if self.classes_split is not None:
            ClassSplit.parse(self.classes_split)
            if self.part is None:
                raise UsageError(
                    "--classes-split makes two parts of the samples",
                    hint="Say which to train on: --part a or --part b",
                )

    def of(self, data: Data, seed: int) -> Data:
        """These samples of a split, in its order. Raises UsageError where none are left."""
        if self.classes_split is not None:
            data = self._part(data)
        if self.subset is not None:
            return data.subset(max(1, round(self.subset * data.samples)), seed)
        return data if self.limit is None else data.subset(self.limit, seed)

    def _part(self, data: Data) -> Data:
        split = ClassSplit.parse(self.classes_split or "")
        if data.vocabulary is not None:
            raise UsageError(f"{data.name} is text, which has no classes", hint="Leave out --classes-split")
        if split.classes >= data.classes:
            raise UsageError(
                f"--classes-split {self.classes_split}: {data.name} has {data.classes} classes",
                hint=f"Give the number of those that come first, {data.classes - 1} at most",
            )
        parts = split.parts(
            data.source.targets, data.classes, generator(self.split_seed or 0, "classes split")
        )
        at = parts[PARTS.index(self.part)]
        if not len(at):
            raise UsageError(f"--classes-split {self.classes_split} leaves nothing for part {self.part}")
        return replace(data, source=data.source.at(at))

    def told(self) -> dict[str, Any]:
        """What was asked for, by names, without the limit: how many samples there are is recorded anyway."""
        found = {name: value for name, value in asdict(self).items() if value is not None and name != "limit"}
        return found | ({"split_seed": self.split_seed or 0} if self.classes_split is not None else {})
