"""What weights alone tell of two models: as they are, matched, and beside what is matched by chance."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...averages.kinship import FLAT
from ...matchers import Problem, wm
from ...permutations.permutation import permuted
from ...runtime.seeds import generator
from ...spec.notation import words_of
from ...spec.spec import FittedSpec

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Weights:
    """What weights alone show; distances (of ‖A‖) are over the matrices.

    Cosines are of what is a unit's own: of the deviations from the mean over all units, of the matrices that
    tell something. `left_out` do not, although they are matrices.
    """

    tensors: tuple[dict[str, Any], ...]
    cosine: float
    distance: float
    aligned_cosine: float
    aligned_distance: float
    chance: float
    in_place: float
    identical: bool
    permutations: dict[str, torch.Tensor]
    left_out: tuple[str, ...] = ()


def weigh(
    a: Tensors, b: Tensors, fitted: FittedSpec, *, seed: int = 0, begin_alike: Collection[str] = ()
) -> Weights:
    """Compare weights as they are, matched, and with B's values shuffled within each tensor: by chance.

    `begin_alike` are tensors that any two networks begin with alike, where that is known.
    """
    evidence = [
        name
        for name, axes in fitted.tensors.items()
        if name not in fitted.statistics and a[name].is_floating_point() and a[name].numel()
    ]
    # Vectors lie: norms' scales are all near 1, and biases near 0, in networks that have nothing in common
    names = [name for name in evidence if len(fitted.shapes[name]) > 1] or evidence
    telling = _telling(a, b, names, fitted, begin_alike)
    options = wm.Options(effort="fast")
    found = wm.match(Problem(fitted, (a, b), seed), options).permutations[0]
    aligned = permuted(b, fitted, found)
    shuffled = _shuffled(b, seed)
    by_chance = wm.match(Problem(fitted, (a, shuffled), seed), options).permutations[0]
    chance = permuted(shuffled, fitted, by_chance)
    rows, totals = [], {which: [0.0] * 4 for which in ("naive", "aligned", "chance")}
    cosines = {which: [0.0] * 4 for which in totals}
    for name in names:
        own = a[name].double()
        of_units = _deviations(own, name, fitted) if name in telling else own
        row = {}
        for which, model in (("naive", b), ("aligned", aligned), ("chance", chance)):
            other = model[name].double()
            its = _products(own, other)
            totals[which] = [x + y for x, y in zip(totals[which], its, strict=True)]
            if name in telling:
                its = _products(of_units, _deviations(other, name, fitted))
                cosines[which] = [x + y for x, y in zip(cosines[which], its, strict=True)]
            row[which] = _cosine(its)
        rows.append(
            {
                "tensor": name,
                "cosine": row["naive"],
                "aligned_cosine": row["aligned"],
                "norm_ratio": ratio(own.norm().item(), b[name].double().norm().item()),
            }
        )
    units = sum(fitted.words.values())
    stay = sum(int((perm == torch.arange(len(perm))).sum()) for perm in found.values())
    return Weights(
        tuple(rows),
        _cosine(cosines["naive"]),
        ratio(totals["naive"][3] ** 0.5, totals["naive"][1] ** 0.5),
        _cosine(cosines["aligned"]),
        ratio(totals["aligned"][3] ** 0.5, totals["aligned"][1] ** 0.5),
        _cosine(cosines["chance"]),
        stay / units if units else 1.0,
        all(torch.equal(a[name], b[name]) for name in fitted.shapes if fitted.shapes[name]),
        found,
        tuple(name for name in names if name not in telling),
    )


def _telling(
    a: Tensors, b: Tensors, names: Sequence[str], fitted: FittedSpec, begin_alike: Collection[str]
) -> Collection[str]:
    """The matrices that tell kin from strangers: all but those that all models of this kind have alike.

    These are flat, with nothing of a unit's own; or known to begin alike; or equal in both, bit for bit.
    Where most begin alike, the factory loads weights or draws the same ones, and where most are equal, these
    are kin with a new head: then they tell something. All of them where nothing is left.
    """
    own = [name for name in names if not any(_flat(model[name].double(), name, fitted) for model in (a, b))]
    for few in (set(begin_alike), {name for name in own if torch.equal(a[name], b[name])}):
        rest = [name for name in own if name not in few]
        own = rest if 2 * len(rest) >= len(own) else own
    return set(own or names)


def _flat(tensor: torch.Tensor, name: str, fitted: FittedSpec) -> bool:
    return bool(_deviations(tensor, name, fitted).norm() <= FLAT * tensor.norm())


def _deviations(tensor: torch.Tensor, name: str, fitted: FittedSpec) -> torch.Tensor:
    """What is a unit's own: the tensor without its means over the axes that units lie on."""
    for k, axis in enumerate(fitted.tensors[name]):
        if any(True for _ in words_of(axis)):
            tensor = tensor - tensor.mean(k, keepdim=True)
    return tensor


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
