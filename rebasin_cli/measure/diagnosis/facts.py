"""What was measured, fact by fact, each in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...averages.kinship import Kinship
from ...averages.parts import running_statistics
from ...runtime.text import many
from ...spec.notation import words_of
from ...spec.spec import FittedSpec
from ...types import Tensors
from .weights import COPY, RELATED, Weights, ratio

VERDICTS = {
    "identical": "There is nothing to merge.",
    "average": "Do not re-basin: they already share a basin. Average them directly.",
    "related": "They are kin that drifted apart, or were aligned before: measure them both ways.",
    "relabelled": "B is A, or nearly, with its units in another order: align them.",
    "align": "Align them.",
    "align-and-repair": "Align them; the merge may need a repair.",
    "doubtful": "Aligning helps, but expect a merge that is clearly worse than either: measure first.",
    "nothing-in-common": "A matching finds no more than it finds by chance: train them (longer) first.",
}

BY_TENSORS = {  # where no spec tells what is a unit
    "identical": "There is nothing to merge.",
    "relabelled": "B is A with its units in another order: every tensor holds the same values.",
    "kin": "They are kin: average them directly, as they are.",
    "strangers": "They are strangers: align them first, for a plain average of them is no model.",
    "undecided": "Kin or strangers: their tensors alone do not tell. With their network more can be said.",
}

# The thresholds lie between cases that were tried: MLPs with three hidden layers on MNIST and on digits.
# Cosine of the weight matrices of A and B as they are (also RELATED, in weights.py). Two seeds: −0.01 … 0.04
# (0.07 for 16 units a layer). Fine-tuned copies: 0.97 and more; copies with noise as large as the weights:
# 0.71. Trained apart from one initialisation: 0.98 (gently) … 0.48, and where it is lower the midpoint is no
# longer as good as the ends.
TOGETHER = 0.7
IN_PLACE = 0.95  # of units: fine-tunes keep all, at 0.93 an alignment gained a point, two seeds keep 0–0.06
SURE = 0.001  # p of where units stand (`kin.orders`)
# Cosine once matched, over the largest that is expected by chance. Random initialisations: 0.78–0.89.
CHANCE = 1.0
# Correlation of matched units, the mean of all layers, and what merging by weight matching cost (accuracy):
# 0.71, 0.68, 0.67 → 1, 5, 0 points; 0.62, 0.56 → 1, 3 points, less with repair; 0.39 and less → 16 points and
# more. TinyTen and ResNet20 on CIFAR-10: 0.38 → 20 points, 0.15 → 43, after a reset.
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


def of_weights(weights: Weights, fitted: FittedSpec) -> Iterator[Fact]:
    """What the weights alone say of two models: how alike they are, as they are and matched."""
    cosine, standing = weights.cosine, weights.standing
    related = cosine >= RELATED if standing is None else standing.p <= SURE
    test = "" if standing is None else f" (p = {standing.p:.2g}, z {standing.z:.1f}: `rebasin kin`)"
    kind = (
        "they share an ancestor, or were aligned"
        if related
        else "as of independent seeds, or of units in another order"
    )
    yield Fact("cosine", cosine, f"As they are, their weights have cosine {cosine:.3f}: {kind}{test}.")
    if weights.left_out:
        yield Fact(
            "left_out",
            len(weights.left_out),
            f"{len(weights.left_out)} tensors are left out of that: all models of this kind have them alike, "
            "or both have the same.",
        )
    yield Fact("distance", weights.distance, f"They are {weights.distance:.2f} ‖A‖ apart.")
    yield Fact(
        "in_place",
        weights.in_place,
        f"A weight matching leaves {weights.in_place:.1%} of the units where they are.",
    )
    gain = ratio(weights.aligned_cosine, weights.chance)
    yield Fact(
        "aligned_cosine",
        weights.aligned_cosine,
        f"Matched, the weights have cosine {weights.aligned_cosine:.3f} and are "
        f"{weights.aligned_distance:.2f} ‖A‖ apart.",
    )
    yield Fact(
        "over_chance",
        gain,
        f"That is {gain:.2f} times the most that a matching finds by chance ({weights.chance:.3f}).",
        warns=gain < CHANCE,
    )
    row = max(weights.tensors, key=lambda row: _far(row["norm_ratio"]), default=None)
    if row is not None:
        norms = row["norm_ratio"]
        yield Fact(
            "norm_ratio",
            norms,
            f"‖A‖/‖B‖ is farthest from 1 in {row['tensor']}: {norms:.2f}.",
            warns=_far(norms) > NORMS,
        )
    if word := narrowest(fitted):
        size = fitted.words[word]
        yield Fact(
            "width",
            size,
            f'The narrowest layer, "{word}", has {size} units'
            + (": models of little width are a known failure (Git Re-Basin, A.1)." if size < NARROW else "."),
            warns=size < NARROW,
        )
    if deep := _depthwise(fitted):
        yield Fact(
            "depthwise",
            len(deep),
            f"{many(len(deep), 'depthwise convolution')}: "
            "each unit has few weights of its own to be matched by.",
            warns=True,
        )
    if fitted.statistics:
        yield Fact(
            "running_statistics",
            len(fitted.statistics),
            STATISTICS.format(len(fitted.statistics)),
            warns=True,
        )


def of_kinship(found: Kinship, a: Tensors) -> Iterator[Fact]:
    """The same of tensors alone."""
    yield Fact("cosine", found.cosine, found.why)
    if found.same:
        yield Fact("equal", found.same, f"{found.same} weight matrices are equal in both, bit for bit.")
    row = max(found.tensors, key=lambda row: _far(row["norm_ratio"]), default=None)
    if row is not None:
        norms = row["norm_ratio"]
        says = f"‖A‖/‖B‖ is farthest from 1 in {row['tensor']}: {norms:.2f}."
        yield Fact("norm_ratio", norms, says, warns=_far(norms) > NORMS)
    if count := len(running_statistics(a)) // 2:
        yield Fact("running_statistics", count, STATISTICS.format(count), warns=True)


STATISTICS = (
    "{} tensors are running statistics (BatchNorm): an average of them describes no model, so a merge needs "
    "data to measure them anew."
)


def _depthwise(fitted: FittedSpec) -> list[str]:
    """Convolutions of one input a unit. The first one has that of an image in grey: it is none of them."""
    _, *deeper = [name for name in fitted.tensors if len(fitted.shapes[name]) > 2] or [""]
    return [
        name
        for name in deeper
        if fitted.shapes[name][1] == 1 and fitted.shapes[name][0] > 1 and words_of(fitted.tensors[name][0])
    ]


def _far(x: float) -> float:
    """How far a ratio is from 1, upwards; tensors of zeros in both are no news."""
    return 1.0 if math.isnan(x) else max(x, ratio(1, x))


def of_activations(rows: Sequence[Mapping[str, Any]], fitted: FittedSpec) -> Iterator[Fact]:
    alike = mean_correlation(rows)
    yield Fact(
        "correlation",
        alike,
        f"On data, units matched by weights correlate by {alike:.2f}, the mean over layers.",
        warns=alike < UNLIKE,
    )
    for way, what in (("naive", "as they are"), ("aligned", "aligned")):
        row = most_faded(rows, way)
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
            f"Matched weights have cosine {weights.aligned_cosine:.3f}, and up to {weights.chance:.3f} by "
            "chance: so it is before training, and early in it (Git Re-Basin, section 5)."
        )
    alike, reset, reasons = mean_correlation(rows), bool(fitted.statistics), []
    kept = most_faded(rows, "aligned")["midpoint"]["aligned"] if rows else math.nan
    if (narrow := narrowest(fitted)) and fitted.words[narrow] < NARROW:
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
            "activations' spread. Whether a repair that gives it back helps is measured: --repair auto."
        )
    if not rows:
        return "align", "How much a merge would lose, weights alone do not tell."
    return (
        "align",
        f"Matched units correlate by {alike:.2f}: merges of such pairs lost 0 to 5 points of accuracy.",
    )


def mean_correlation(rows: Sequence[Mapping[str, Any]]) -> float:
    """The mean correlation of matched units, over all layers; NaN where none was seen."""
    seen = [row["after"]["mean"] for row in rows if not math.isnan(row["after"]["mean"])]
    return sum(seen) / len(seen) if seen else math.nan


def most_faded(rows: Sequence[Mapping[str, Any]], way: str) -> Mapping[str, Any]:
    """The row whose midpoint has faded most."""
    return min(rows, key=lambda row: (math.isnan(row["midpoint"][way]), row["midpoint"][way]))


def narrowest(fitted: FittedSpec) -> str | None:
    """The word of fewest units; how many heads there are says nothing, their units are words too."""
    heads = {block.word for block in fitted.within.values()}
    return min(
        (word for word in fitted.words if word not in heads), key=fitted.words.__getitem__, default=None
    )
