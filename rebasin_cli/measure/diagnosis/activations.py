"""What activations tell: how alike matched units are, which are dead, how much the midpoint's fade."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...averages.mixing import interpolate
from ...matchers import am
from ...matchers.activations.moments import Moments
from ...matchers.activations.observing import observed
from ...matchers.portfolio.listed import apart
from ...repair.moments import Moments as Spread
from ...spec.spec import FittedSpec
from ...symmetry.permutation import permuted
from ...types import Tensors
from .. import signatures
from .weights import ratio


@dataclass
class _Four:
    """What is added up at one place: A and B together, and the spread of other models."""

    pair: Moments
    others: tuple[Spread, ...]

    @classmethod
    def none(cls, units: int, device: torch.device) -> _Four:
        return cls(Moments.none(units, device), (Spread(), Spread()))

    def add(self, a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> None:
        self.pair.add(a, b)
        for spread, units in zip(self.others, others, strict=True):
            spread.add(units, 0)

    def finite(self) -> bool:
        return self.pair.finite()


def look(
    a: Tensors,
    b: Tensors,
    permutations: Mapping[str, torch.Tensor],
    fitted: FittedSpec,
    network: nn.Module,
    data: Iterable[Any],
    *,
    limit: int,
    output: str | int | None = None,
    not_kept: Sequence[str] = (),
    device: str = "cpu",
) -> tuple[dict[str, Any], ...]:
    """The rows of `Diagnosis.words`: one pass of A, B, and the midpoints of A with B and with B permuted."""
    middles = [
        dict(interpolate(a, other, 0.5, keep=fitted.ignored))
        for other in (b, permuted(b, fitted, permutations))
    ]
    fitted, b, permutations = apart(fitted, b, permutations)
    models = (a, b, *middles)
    problem = signatures.watched(models, fitted, network, data, output, not_kept, device)
    *_, (_, sums) = observed(problem, am.Options(limit=limit), sides=["post"], none=_Four.none)
    places: dict[str, list[_Four]] = {}
    for (_, word, *_), four in sums.items():
        places.setdefault(word, []).append(four)
    pairs = {key: four.pair for key, four in sums.items()}
    rows = []
    for row in signatures.table(pairs, fitted, permutations):
        its = places[row["word"]]
        of_a, of_b = signatures.dead([four.pair for four in its])
        naive, aligned = (_kept(its, k) for k in range(2))
        rows.append(row | {"dead_a": of_a, "dead_b": of_b, "midpoint": {"naive": naive, "aligned": aligned}})
    return tuple(rows)


def _kept(places: Iterable[_Four], which: int) -> float:
    """How much of the endpoints' mean standard deviation a midpoint's has, the mean over places."""
    ratios = []
    for four in places:
        ends = sum(std.mean().item() for std in four.pair.spread()) / 2
        ratios.append(ratio(four.others[which].std.mean().item(), ends))
    return sum(ratios) / len(ratios)
