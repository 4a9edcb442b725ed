"""What weights alone tell of two models: as they are, matched, and beside what is matched by chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...matchers import Problem, wm
from ...permutations.permutation import permuted
from ...runtime.seeds import generator
from ...spec.spec import FittedSpec

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """What weights alone show; cosines and distances (of ‖A‖) are over the matrices."""

    tensors: tuple[dict[str, Any], ...]
    cosine: float
    distance: float
    aligned_cosine: float
    aligned_distance: float
    chance: float
    in_place: float
    identical: bool
    permutations: dict[str, torch.Tensor]


def weigh(a: Tensors, b: Tensors, fitted: FittedSpec, *, seed: int = 0) -> Weights:
    """Compare weights as they are, matched, and with B's values shuffled within each tensor: by chance."""
    evidence = [
        name
        for name, axes in fitted.tensors.items()
        if name not in fitted.statistics and a[name].is_floating_point() and a[name].numel()
    ]
    # Vectors lie: norms' scales are all near 1, and biases near 0, in networks that have nothing in common
    names = [name for name in evidence if len(fitted.shapes[name]) > 1] or evidence
    options = wm.Options(effort="fast")
    found = wm.match(Problem(fitted, (a, b), seed), options).permutations[0]
    aligned = permuted(b, fitted, found)
    shuffled = _shuffled(b, seed)
    by_chance = wm.match(Problem(fitted, (a, shuffled), seed), options).permutations[0]
    chance = permuted(shuffled, fitted, by_chance)
    rows, totals = [], {which: [0.0] * 4 for which in ("naive", "aligned", "chance")}
    for name in names:
        own = a[name].double()
        sums = {
            which: _products(own, other[name].double())
            for which, other in (("naive", b), ("aligned", aligned), ("chance", chance))
        }
        for which, its in sums.items():
            totals[which] = [x + y for x, y in zip(totals[which], its, strict=True)]
        naive, after = sums["naive"], sums["aligned"]
        rows.append(
            {
                "tensor": name,
                "cosine": _cosine(naive),
                "aligned_cosine": _cosine(after),
                "norm_ratio": ratio(naive[1] ** 0.5, naive[2] ** 0.5),
            }
        )
    units = sum(fitted.words.values())
    stay = sum(int((perm == torch.arange(len(perm))).sum()) for perm in found.values())
    return Weights(
        tuple(rows),
        _cosine(totals["naive"]),
        ratio(totals["naive"][3] ** 0.5, totals["naive"][1] ** 0.5),
        _cosine(totals["aligned"]),
        ratio(totals["aligned"][3] ** 0.5, totals["aligned"][1] ** 0.5),
        _cosine(totals["chance"]),
        stay / units if units else 1.0,
        all(torch.equal(a[name], b[name]) for name in fitted.shapes if fitted.shapes[name]),
        found,
    )


def _shuffled(tensors: Tensors, seed: int) -> dict[str, torch.Tensor]:
    """The values of each tensor in random order: as large as they were, and nothing else."""
    rng = generator(seed, "doctor, by chance")
    return {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=rng)].view(tensor.shape)
        for name, tensor in tensors.items()
    }


def _products(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """⟨x, y⟩, ‖x‖², ‖y‖², ‖x − y‖²."""
    return [(x * y).sum().item(), *(t.square().sum().item() for t in (x, y, x - y))]


def _cosine(products: list[float]) -> float:
    return ratio(products[0], (products[1] * products[2]) ** 0.5)


def ratio(x: float, y: float) -> float:
    return x / y if y else (math.nan if not x else math.inf)
