"""Proofs that a permutation stays the best one when more of the tensors is looked at, without their products.

What tensors add for units i and j is ⟨a, b⟩ = (‖a‖² + ‖b‖² − ‖a − b‖²) / 2 ≤ (‖a‖² + ‖b‖²) / 2: a number
a row plus a number a column, which added to the duals leave every other pair as unattractive as it was.
For the pair (i, perm[i]) they are too large by ‖a − b‖² / 2. Where that is less than the margin by which
row i prefers its column, every row still does. So a few columns can be multiplied in place of all.

Near copies are proven so in a pass over the tensors; models trained apart are not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...spec.atoms import Atom
from ...types import Permutations
from .pair import Pair

DOUBT = 1e-6  # of ‖A‖·‖B‖ over the word's tensors: more than all round-off in the matrix and here


def margins_left(
    pair: Pair, word: str, margins: torch.Tensor, added: Sequence[Atom], permutations: Permutations
) -> torch.Tensor:
    """The least margins (n,) of a part of the word's matrix and `added` together; see `proven`.

    `margins` are those of the part's solution, and `permutations` has that solution's for the word. Columns
    that are in both count twice, which only makes the margins smaller.
    """
    squares = torch.zeros(pair.words[word], dtype=torch.float64)
    for atom in (atom for atom in added if atom in pair.mine):
        squares += pair.distances(atom, permutations)[atom.words.index(word)]
    return margins - pair.ranks.sum(squares) / 2


def proven(pair: Pair, word: str, margins: torch.Tensor) -> bool:
    """Whether margins like these prove a permutation the only best one; False says nothing."""
    return bool((margins > DOUBT * pair.scale(word)).all())
