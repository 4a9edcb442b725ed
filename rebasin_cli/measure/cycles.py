"""Whether permutations that were found pair by pair fit together.

Going from model k to j, from there to i, and back to k should leave every unit where it was. Where each pair
is matched by itself nothing sees to that; methods that match all models to a reference, to their mean or
through a universe are consistent by construction, and have nothing to measure.

Crisostomi et al. 2024, arXiv:2405.17897, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch

from ..symmetry import permutation
from ..types import Permutations


@dataclass(frozen=True)
class Cycles:
    """The share of units that do not come back, 0–1: of every word, of all units, and of single triplets.

    `by_triplet` holds the overall share of (1,2,3), (1,2,4) … in order.
    """

    by_word: dict[str, float]
    overall: float
    by_triplet: tuple[float, ...]


def inconsistency(pairs: Mapping[tuple[int, int], Permutations]) -> Cycles | None:
    """`pairs` has for every i < j the permutations that bring model j into the order of model i.

    None for fewer than three models. The way back is the inverse, so the direction of a cycle is all one.
    """
    models = sorted({model for pair in pairs for model in pair})
    triplets = list(combinations(models, 3))
    if not triplets:
        return None
    words = {word: len(perm) for word, perm in next(iter(pairs.values())).items()}
    lost = {triplet: _lost(pairs, *triplet) for triplet in triplets}
    units = sum(words.values())
    return Cycles(
        {
            word: sum(of[word] for of in lost.values()) / (size * len(triplets))
            for word, size in words.items()
        },
        sum(sum(of.values()) for of in lost.values()) / (units * len(triplets)),
        tuple(sum(of.values()) / units for of in lost.values()),
    )


def _lost(pairs: Mapping[tuple[int, int], Permutations], i: int, j: int, k: int) -> dict[str, int]:
    """How many units of each word end elsewhere: k brought to j and on to i, against k brought to i."""
    round_about = permutation.compose(pairs[j, k], pairs[i, j])
    return {word: int(torch.count_nonzero(perm != pairs[i, k][word])) for word, perm in round_about.items()}
