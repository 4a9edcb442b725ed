"""What was measured, fact by fact, each in a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...averages.kinship import Kinship
from ...runtime.text import many
from ...spec.notation import words_of
from ...spec.spec import FittedSpec
from ...types import Tensors
from .judging import (
    CHANCE,
    DEAD,
    FADED,
    NARROW,
    NORMS,
    RELATED,
    UNLIKE,
    mean_correlation,
    most_faded,
    narrowest,
)
from .weights import Weights, ratio


@dataclass(frozen=True)
class Fact:
    """One measurement and what it says, in a sentence. `warns`: it speaks against merging, or wants care."""

    name: str
    value: float | int
    says: str
    warns: bool = False


def of_weights(weights: Weights, fitted: FittedSpec) -> Iterator[Fact]:
    """What the weights alone say of two models: how alike they are, as they are and matched."""
    cosine, related = weights.cosine, weights.cosine >= RELATED
    kind = (
        "they share an ancestor, or were aligned"
        if related
        else "as of independent seeds, or of units in another order"
    )
    yield Fact("cosine", cosine, f"As they are, their weights have cosine {cosine:.3f}: {kind}.")
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
        f"That is {gain:.2f} times what the same weights reach when shuffled ({weights.chance:.3f}).",
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
    if count := sum(name.endswith("running_var") for name in a):
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
