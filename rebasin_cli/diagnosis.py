"""What to expect of merging two models, before hours are spent: facts measured, one verdict.

Weights tell whether the models share an ancestor, whether one is the other with its units in another order,
and whether a weight matching finds more in common than it finds by chance. On data, activations tell how well
matched units agree and how much the activations of the midpoint fade. Thresholds are at the top, with the
cases that they lie between.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import signatures
from .api import resolve_spec
from .errors import NetworkError, SpecError
from .matchers import Problem, am, wm
from .merging import interpolate
from .observing import Moments
from .permutation import permuted
from .randomness import generator
from .repair.channels import Moments as Spread
from .spec.notation import words_of
from .spec.spec import FittedSpec, Spec

Tensors = Mapping[str, torch.Tensor]

VERDICTS = {
    "identical": "There is nothing to merge.",
    "average": "Do not re-basin: they already share a basin. Average them directly.",
    "related": "They are kin that drifted apart, or were aligned before: measure them both ways.",
    "relabelled": "B is A, or nearly, with its units in another order: align them.",
    "align": "Align them.",
    "align-and-repair": "Align them, and repair the merge.",
    "doubtful": "Aligning helps, but expect a merge that is clearly worse than either: measure first.",
    "nothing-in-common": "A matching finds no more than it finds by chance: train them (longer) first.",
}

# The thresholds lie between cases that were tried: MLPs with three hidden layers on MNIST and on digits.
# Cosine of the weight matrices of A and B as they are. Two seeds: −0.01 … 0.04 (0.07 for 16 units a layer).
# Fine-tuned copies: 0.97 and more; copies with noise as large as the weights: 0.71. Trained apart from one
# initialisation: 0.98 (gently) … 0.48, and where it is lower the midpoint is no longer as good as the ends.
RELATED, TOGETHER = 0.2, 0.7
IN_PLACE = 0.95  # of units: fine-tunes keep all, at 0.93 an alignment gained a point, two seeds keep 0–0.06
COPY = 0.9  # cosine once matched: 0.995 for a shuffled copy with 10 % noise, 0.33–0.48 for two seeds
EXACT = 1e-6  # distance once matched, of ‖A‖: the rounding of float32
# Cosine once matched, over the same for shuffled values. Random initialisations, and some steps of training:
# 0.99–1.02. Trained on digits: 1.48 and more, on MNIST: 3.3.
CHANCE = 1.2
# Correlation of matched units, the mean of all layers, and what merging by weight matching cost (accuracy):
# 0.71, 0.67 → 1 point, 0; 0.62, 0.56 → 1, 3 points, less with repair; 0.39 and less → 16 points and more.
ALIKE, UNLIKE = 0.65, 0.45
# Standard deviation of the midpoint over its endpoints', aligned, the lowest layer: two seeds 0.72–0.83, of
# which those below 0.75 gained most by repair; barely trained ones 0.36–0.48.
FADED, GONE = 0.76, 0.6
# ResNet20 on CIFAR-10, permuted and reset, loses some 25 points at 16 units (its first stage), 9 at 32, 3 at
# 64 (Jordan et al. 2023); a 3 × 16 MLP on digits lost 27.
NARROW = 64
NORMS = 1.5  # ‖A‖/‖B‖ of a matrix, or its inverse: seeds of one recipe agree to some percent
DEAD = 0.25  # of a layer's units


@dataclass(frozen=True)
class Fact:
    """One measurement and what it says, in a sentence. `warns`: it speaks against merging, or wants care."""

    name: str
    value: float | int
    says: str
    warns: bool = False


@dataclass(frozen=True)
class Diagnosis:
    """A verdict, one of `VERDICTS`, and what follows from it, with the reason.

    `tensors` has a row a weight matrix: "cosine" as they are, "aligned_cosine" after a weight matching, and
    "norm_ratio" ‖A‖/‖B‖. `words` has a row a word: "units" and, where the network was run, what
    `signatures.signature` gives, "dead_a" and "dead_b", and "midpoint": the standard deviation of the
    midpoint's units over the mean of the endpoints', "naive" and "aligned". `unseen` says what could not be
    looked at. `exact`: a relabelling up to rounding.
    """

    verdict: str
    advice: str
    facts: tuple[Fact, ...]
    tensors: tuple[dict[str, Any], ...]
    words: tuple[dict[str, Any], ...]
    unseen: tuple[str, ...] = ()
    exact: bool = False


def doctor(
    a: Tensors,
    b: Tensors,
    spec: str | Spec | FittedSpec | None = None,
    *,
    network: nn.Module | None = None,
    data: Iterable[Any] | None = None,
    limit: int = 2_560,
    output: str | int | None = None,
    seed: int = 0,
    device: str = "cpu",
) -> Diagnosis:
    """Look at two models and say what merging them would need. Advice: nothing is written or merged.

    Two quick weight matchings, and where `network` and `data` are given one pass of four networks over
    `limit` samples. What the network does not show is named in `unseen`. Raises SpecError, CheckpointError,
    DataError.
    """
    fitted = resolve_spec(spec, [a, b])
    weights = weigh(a, b, fitted, seed=seed)
    rows, unseen = None, ()
    if network is not None and data is not None:
        try:
            rows = look(
                a, b, weights.permutations, fitted, network, data, limit=limit, output=output, device=device
            )
        except (NetworkError, SpecError) as error:  # what weights say is worth saying all the same
            unseen = (f"activations: {error.message}", *error.problems)
    else:
        lacking = [what for what, it in (("the network", network), ("data", data)) if it is None]
        unseen = (f"activations: {' and '.join(lacking)} {'are' if len(lacking) > 1 else 'is'} missing",)
    verdict, why = judge(weights, rows or (), fitted)
    found = (*_of_weights(weights, fitted), *(_of_activations(rows, fitted) if rows else ()))
    facts = tuple(fact for fact in found if math.isfinite(fact.value))
    return Diagnosis(
        verdict,
        f"{VERDICTS[verdict]} {why}".rstrip(),
        facts,
        weights.tensors,
        rows or tuple({"word": word, "units": size} for word, size in fitted.words.items()),
        unseen,
        exact=weights.aligned_distance < EXACT,
    )


def judge(weights: Weights, rows: Sequence[Mapping[str, Any]], fitted: FittedSpec) -> tuple[str, str]:
    """The verdict, and the reason in a sentence."""
    if weights.identical:
        return "identical", "Every tensor holds the same values."
    if math.isnan(weights.aligned_cosine):
        return "nothing-in-common", "All weight matrices of one of them are zero."
    if weights.cosine >= TOGETHER and weights.in_place >= IN_PLACE:
        return "average", (
            f"A weight matching leaves {weights.in_place:.0%} of the units where they are: a permutation has "
            "nothing to undo, and could only do harm."
        )
    if weights.aligned_cosine >= COPY:
        return "relabelled", f"Matched, their weights have cosine {weights.aligned_cosine:.3f}."
    if weights.cosine >= RELATED:
        return "related", (
            f"As they are, their weights have cosine {weights.cosine:.2f}, and a weight matching leaves "
            f"{weights.in_place:.0%} of the units in place: it need not be the better start."
        )
    if weights.aligned_cosine < CHANCE * weights.chance:
        return "nothing-in-common", (
            f"Matched weights have cosine {weights.aligned_cosine:.3f}, shuffled ones {weights.chance:.3f}: "
            "so it is before training, and early in it (Git Re-Basin, section 5)."
        )
    alike, reset, reasons = _mean(rows), bool(fitted.statistics), []
    kept = _least(rows, "aligned")["midpoint"]["aligned"] if rows else math.nan
    if (narrow := _narrowest(fitted)) and fitted.words[narrow] < NARROW:
        reasons.append(f"layers of {fitted.words[narrow]} units are narrow")
    if alike < UNLIKE:
        reasons.append(f"matched units correlate by {alike:.2f} only")
    if kept < GONE and not reset:
        reasons.append(f"the aligned midpoint keeps {kept:.0%} of the activations' spread")
    if reasons:
        return "doubtful", f"Because {' and '.join(reasons)}."
    if reset:
        return "align-and-repair", "Their running statistics have to be measured anew on data (reset)."
    if alike < ALIKE or kept < FADED:
        return "align-and-repair", (
            f"Matched units correlate by {alike:.2f}, and the aligned midpoint keeps {kept:.0%} of the "
            "activations' spread: repair gives it back."
        )
    if not rows:
        return "align", "How much a merge would lose, weights alone do not tell."
    return "align", f"Matched units correlate by {alike:.2f}: a merge should lose little or nothing."


def _mean(rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean correlation of matched units, over all layers; NaN where none was seen."""
    seen = [row["after"]["mean"] for row in rows if not math.isnan(row["after"]["mean"])]
    return sum(seen) / len(seen) if seen else math.nan


def _least(rows: Sequence[Mapping[str, Any]], way: str) -> Mapping[str, Any]:
    """The row whose midpoint has faded most."""
    return min(rows, key=lambda row: (math.isnan(row["midpoint"][way]), row["midpoint"][way]))


def _narrowest(fitted: FittedSpec) -> str | None:
    """The word of fewest units; how many heads there are says nothing, their units are words too."""
    heads = {block.word for block in fitted.within.values()}
    return min((word for word in fitted.words if word not in heads), key=fitted.words.get, default=None)


# ---------------------------------------------------------------------------------------------- in words


def _of_weights(weights: Weights, fitted: FittedSpec) -> Iterator[Fact]:
    cosine, related = weights.cosine, weights.cosine >= RELATED
    kind = (
        "they share an ancestor, or were aligned"
        if related
        else "as of independent seeds, or of units in another order"
    )
    yield Fact("cosine", cosine, f"As they are, their weights have cosine {cosine:.3f}: {kind}.")
    yield Fact("distance", weights.distance, f"They are {weights.distance:.2f} ‖A‖ apart.")
    yield Fact(
        "in_place",
        weights.in_place,
        f"A weight matching leaves {weights.in_place:.1%} of the units where they are.",
    )
    gain = _ratio(weights.aligned_cosine, weights.chance)
    yield Fact(
        "aligned_cosine",
        weights.aligned_cosine,
        f"Matched, the weights have cosine {weights.aligned_cosine:.3f} and are "
        f"{weights.aligned_distance:.2f} ‖A‖ apart.",
    )
    yield Fact(
        "over_chance",
        gain,
        f"That is {gain:.2f} times what the same weights reach when shuffled ({weights.chance:.3f}).",
        warns=gain < CHANCE,
    )
    row = max(weights.tensors, key=lambda row: _far(row["norm_ratio"]), default=None)
    if row is not None:
        ratio = row["norm_ratio"]
        yield Fact(
            "norm_ratio",
            ratio,
            f"‖A‖/‖B‖ is farthest from 1 in {row['tensor']}: {ratio:.2f}.",
            warns=_far(ratio) > NORMS,
        )
    if word := _narrowest(fitted):
        size = fitted.words[word]
        yield Fact(
            "width",
            size,
            f'The narrowest layer, "{word}", has {size} units'
            + (": models of little width are a known failure (Git Re-Basin, A.1)." if size < NARROW else "."),
            warns=size < NARROW,
        )
    if deep := [name for name in fitted.tensors if _depthwise(name, fitted)]:
        yield Fact(
            "depthwise",
            len(deep),
            f"{len(deep)} convolutions are depthwise: few permutations move much, and ConvNeXt, which is "
            "made of them, is a known failure (Git Re-Basin, A.1).",
            warns=True,
        )
    if fitted.statistics:
        yield Fact(
            "running_statistics",
            len(fitted.statistics),
            f"{len(fitted.statistics)} tensors are running statistics (BatchNorm): an average of them "
            "describes no model, so a merge needs data to measure them anew.",
            warns=True,
        )


def _depthwise(name: str, fitted: FittedSpec) -> bool:
    shape = fitted.shapes[name]
    return len(shape) > 2 and shape[1] == 1 and shape[0] > 1 and bool(words_of(fitted.tensors[name][0]))


def _far(ratio: float) -> float:
    """How far from 1, upwards; tensors of zeros in both are no news."""
    return 1.0 if math.isnan(ratio) else max(ratio, _ratio(1, ratio))


def _of_activations(rows: Sequence[Mapping[str, Any]], fitted: FittedSpec) -> Iterator[Fact]:
    alike = _mean(rows)
    yield Fact(
        "correlation",
        alike,
        f"On data, units matched by weights correlate by {alike:.2f}, the mean over layers.",
        warns=alike < UNLIKE,
    )
    for way, what in (("naive", "as they are"), ("aligned", "aligned")):
        row = _least(rows, way)
        kept = row["midpoint"][way]
        unmended = ", before its statistics are reset" if fitted.statistics else ""
        yield Fact(
            f"midpoint_{way}",
            kept,
            f"Midway between them {what}{unmended}, activations keep {kept:.0%} of their standard "
            f'deviation in "{row["word"]}", the least of all layers.',
            warns=way == "aligned" and kept < FADED,
        )
    total, units = sum(row["dead"] for row in rows), 2 * sum(row["units"] for row in rows)
    row = max(rows, key=lambda row: row["dead"] / row["units"])
    share = row["dead"] / row["units"] / 2
    yield Fact(
        "dead",
        total / units,
        f"{total / units:.1%} of the units of both never change on the data"
        + (f', {share:.0%} in "{row["word"]}"' if total else "")
        + ("; what they are matched to means nothing." if total else "."),
        warns=share > DEAD,
    )


# -------------------------------------------------------------------------------------------- measuring


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
                "norm_ratio": _ratio(naive[1] ** 0.5, naive[2] ** 0.5),
            }
        )
    units = sum(fitted.words.values())
    stay = sum(int((perm == torch.arange(len(perm))).sum()) for perm in found.values())
    return Weights(
        tuple(rows),
        _cosine(totals["naive"]),
        _ratio(totals["naive"][3] ** 0.5, totals["naive"][1] ** 0.5),
        _cosine(totals["aligned"]),
        _ratio(totals["aligned"][3] ** 0.5, totals["aligned"][1] ** 0.5),
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
    return _ratio(products[0], (products[1] * products[2]) ** 0.5)


def _ratio(x: float, y: float) -> float:
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
    device: str = "cpu",
) -> tuple[dict[str, Any], ...]:
    """The rows of `Diagnosis.words`: one pass of A, B, and the midpoints of A with B and with B permuted."""
    middles = [
        dict(interpolate(a, other, 0.5, keep=fitted.ignored))
        for other in (b, permuted(b, fitted, permutations))
    ]
    problem = Problem(fitted, (a, b, *middles), network=network, data=data, output=output, device=device)
    *_, (_, sums) = am.observed(problem, am.Options(limit=limit), sides=["post"], none=_Four.none)
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
        ratios.append(_ratio(four.others[which].std.mean().item(), ends))
    return sum(ratios) / len(ratios)
