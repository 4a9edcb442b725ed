"""Proofs that a permutation stays the best one when more of the tensors is looked at, without their products.

What tensors add for units i and j is ⟨a, b⟩ = (‖a‖² + ‖b‖² − ‖a − b‖²) / 2 ≤ (‖a‖² + ‖b‖²) / 2: a number
a row plus a number a column, which added to the duals leave every other pair as unattractive as it was.
For the pair (i, perm[i]) they are too large by ‖a − b‖² / 2. Where that is less than the margin by which
row i prefers its column, every row still does.

Near copies are proven so in a pass over the tensors; models trained apart are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..assignment import Solution
from ..permutation import Permutations
from ..spec.atoms import Atom
from ._pair import Pair
from ._values import summed_squares

DOUBT = 1e-6  # of ‖A‖·‖B‖ over the word's tensors: more than all round-off in the matrix and here


def still_best(
    pair: Pair, word: str, solution: Solution, added: Sequence[Atom], permutations: Permutations
) -> bool:
    """Whether the solution of a part of the word's matrix is the only best one of that and `added` together.

    True is a proof; False says nothing. `permutations` has the solution's own for the word.
    """
    left = solution.margins - DOUBT * pair.scale(word)
    if (left <= 0).any():
        return False
    norms = [pair._norms(atom) for atom in added if atom in pair.mine]
    a, b = (math.sqrt(pair.ranks.sum_float(sum(norm[k] ** 2 for norm in norms))) for k in (0, 1))
    if not added or a * b == 0:
        return True  # there is nothing to be better at
    squares = torch.zeros(pair.words[word], dtype=torch.float64)
    for atom in (atom for atom in added if atom in pair.mine):
        squares += _distances(pair, atom, atom.words.index(word), permutations, b / a)
    return bool((pair.ranks.sum(squares) / 2 < left).all())


def _distances(pair: Pair, atom: Atom, dim: int, permutations: Permutations, ratio: float) -> torch.Tensor:
    """‖√ratio · a − b / √ratio‖² (n,) for every unit along `dim`, with B's where the permutations put them.

    Any ratio keeps the product; B's norm over A's makes the distances of models of different scales small.
    """
    a, _ = pair._views(atom)
    squares = torch.zeros(a.shape[dim], dtype=torch.float64)
    for start, length in pair._steps(a, 0):
        part = pair._wide(pair._placed(atom, permutations, start, length))
        apart = (part * ratio**-0.5).sub_(pair._wide(a.narrow(0, start, length)), alpha=ratio**0.5)
        units = slice(start, start + length) if dim == 0 else slice(None)
        squares[units] += summed_squares(apart, dim)
    return squares
