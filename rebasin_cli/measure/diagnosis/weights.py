"""What weights alone tell of two models: as they are, matched, and beside what is matched by chance."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ...averages.kinship import same
from ...averages.means import interpolate
from ...checkpoints.tensors import Plan, plan_of
from ...errors import SpecError
from ...matchers import Problem, am, wm
from ...matchers.activations.moments import Moments
from ...matchers.activations.observation import observed
from ...matchers.portfolio.listed import apart
from ...repair.moments import Moments as Spread
from ...repair.moments import part
from ...spec.spec import FittedSpec
from ...symmetry.permutation import identity, permuted
from ...types import Permutations, Tensors
from .. import signatures
from ..kin import orders, sampled
from ..kin.orders import InPlace
from ..matrices import LOOKED, Compared, Products, compare

RELATED = 0.2  # cosine
STANDING = 1 << 19  # values of a model: by them a cosine of 0.005 is told from chance
EXACT = 1e-6  # distance once matched, of ‖A‖: the rounding of float32
COPY = 0.9  # cosine once matched: 0.995 for a shuffled copy with 10 % noise, 0.33–0.48 for two seeds


@dataclass(frozen=True)
class Weights:
    """What weights alone show; distances (of ‖A‖) are over the matrices.

    Cosines are of what is a unit's own: of the deviations from the mean over all units, of the matrices that
    tell something. `left_out` do not, although they are matrices. `standing` is the test of where units stand
    (`kin.orders`), None where nothing can be compared.
    """

    tensors: tuple[dict[str, Any], ...]
    cosine: float
    distance: float
    aligned_cosine: float
    aligned_distance: float
    chance: float
    in_place: float
    identical: bool
    permutations: Permutations
    left_out: tuple[str, ...] = ()
    standing: InPlace | None = None


def weigh(
    a: Tensors, b: Tensors, fitted: FittedSpec, *, seed: int = 0, begin_alike: Collection[str] = ()
) -> Weights:
    """Compare weights as they are and matched; those of strangers, also with what is found by chance.

    `begin_alike` are tensors that any two networks begin with alike, where that is known.
    """
    plan = plan_of(a)
    evidence = [
        name
        for name in fitted.tensors
        if name not in fitted.statistics and plan[name][0].is_floating_point and 0 not in plan[name][1]
    ]
    # Vectors lie: norms' scales are all near 1, and biases near 0, in networks that have nothing in common
    names = [name for name in evidence if len(plan[name][1]) > 1] or evidence
    identical = all(torch.equal(a[name], b[name]) for name in fitted.shapes if fitted.shapes[name])
    found: Permutations = identity(fitted.words)  # of what is equal, nothing is better
    if not identical:
        found = wm.match(Problem(fitted, (a, b), seed), wm.Options(effort="fast")).permutations[0]
    ways = b, permuted(b, fitted, found)  # as it is, and matched
    compared = {name: compare(name, a, ways, fitted.tensors[name], looked=LOOKED) for name in names}
    size, distance, matched = _distances(compared)
    if matched < EXACT * size:  # which a part cannot tell
        part = [name for name in names if compared[name].share < 1 and not same(a, ways[1], name)]
        compared |= {name: compare(name, a, ways, fitted.tensors[name]) for name in part}
        size, distance, matched = _distances(compared)
    telling = _telling(compared, begin_alike)
    rows = tuple(_row(name, its, name in telling) for name, its in compared.items())
    cosine, aligned = (_cosine(_summed(its.own[k] for its in telling.values())) for k in (0, 1))
    units = sum(fitted.words.values())
    stay = sum(int((perm == torch.arange(len(perm))).sum()) for perm in found.values())
    strangers = cosine < RELATED and aligned < COPY and not identical
    return Weights(
        rows,
        cosine,
        ratio(distance, size),
        aligned,
        ratio(matched, size),
        _by_chance(telling, plan, fitted) if strangers else math.nan,
        stay / units if units else 1.0,
        identical,
        found,
        tuple(name for name in names if name not in telling),
        _standing(a, b, fitted, begin_alike, seed),
    )


def _distances(compared: Mapping[str, Compared]) -> tuple[float, float, float]:
    """‖A‖, and how far B is from it as it is, and matched."""
    parts = [(its.whole[0][1], *its.apart) for its in compared.values()]
    size, distance, matched = (math.sqrt(sum(part[k] for part in parts)) for k in range(3))
    return size, distance, matched


def _by_chance(telling: Mapping[str, Compared], plan: Plan, fitted: FittedSpec) -> float:
    """The largest cosine that is expected of any matching where A and B have nothing in common.

    The cosine of one order is then a normal variable, whose variance is known; the largest of so many is at
    most √(2 ln M) standard deviations, M orders in all, and searches came to 0.78–0.89 of it
    (`benchmarks/chance.py`). No search is made: of random energies, Derrida 1981 (Phys. Rev. B 24, 2613).
    """
    norms = [(*its.own[0][1:3], math.prod(plan[name][1])) for name, its in telling.items()]
    variance = sum(x * y / size for x, y, size in norms)
    both = sum(x for x, _, _ in norms) * sum(y for _, y, _ in norms)
    return ratio(math.sqrt(2 * math.log(10) * fitted.log10_symmetries() * variance), math.sqrt(both))


def _standing(
    a: Tensors, b: Tensors, fitted: FittedSpec, begin_alike: Collection[str], seed: int
) -> InPlace | None:
    """Do units that stand at one place belong together? None where nothing can be compared."""
    try:
        found = sampled.sample(a, b, fitted, STANDING)
    except SpecError:
        return None
    rest = tuple(name for name in found.matrices if name not in begin_alike)
    place = orders.in_place(replace(found, matrices=rest or found.matrices), seed=seed)
    return place if place.tensors else None


def _telling(compared: Mapping[str, Compared], begin_alike: Collection[str]) -> dict[str, Compared]:
    """The matrices that tell kin from strangers: all but those that all models of this kind have alike.

    These are flat, with nothing of a unit's own; or known to begin alike; or equal in both, bit for bit.
    Where most begin alike, the factory loads weights or draws the same ones, and where most are equal, these
    are kin with a new head: then they tell something. All of them where nothing is left.
    """
    own = [name for name, its in compared.items() if not its.flat]
    for few in ({*begin_alike}, {name for name in own if compared[name].equal}):
        rest = [name for name in own if name not in few]
        own = rest if 2 * len(rest) >= len(own) else own
    return {name: compared[name] for name in own or compared}


def _summed(each: Iterable[Products]) -> Products:
    rows = [*each]
    inner, first, second = (sum(its[k] for its in rows) for k in range(3))
    return inner, first, second


def _row(name: str, its: Compared, telling: bool) -> dict[str, Any]:
    naive, aligned = map(_cosine, its.own if telling else its.whole)
    _, ours, theirs = its.whole[0]
    return {
        "tensor": name,
        "cosine": naive,
        "aligned_cosine": aligned,
        "norm_ratio": ratio(ours**0.5, theirs**0.5),
    }


def _cosine(products: Products) -> float:
    return ratio(products[0], (products[1] * products[2]) ** 0.5)


def ratio(x: float, y: float) -> float:
    return x / y if y else (math.nan if not x else math.inf)


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
            spread.add(part(units, 0))

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
