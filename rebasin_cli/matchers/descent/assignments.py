"""The assignments of a descent: solved from where the last one of the same word ended, or proven to stay."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ...runtime.ranks import Ranks
from ...symmetry import assignment
from ...symmetry.assignment import Solution
from ...types import Permutations
from .pair import Pair
from .proof import margins_left, proven
from .similarity import Basis, Similarities

THREADED = 1000  # units, below which an assignment takes less than waking a thread


class Assignments:
    """What is remembered of each word's last assignment, and how many were solved."""

    def __init__(self, pair: Pair, similarities: Similarities):
        self.pair, self.similarities, self.solves = pair, similarities, 0
        self.solutions: dict[str, Solution] = {}
        self.margins: dict[str, torch.Tensor] = {}  # by how much each row prefers its column
        self.bases: dict[str, Basis] = {}  # in a matrix of this

    def solved(self, words: Sequence[str], matrices: Iterable[torch.Tensor]) -> list[Solution]:
        """Each word's assignment, from where its last one ended; with several ranks each solves its share."""
        ranks, sizes = self.pair.ranks, [self.pair.words[word] for word in words]
        mine = range(ranks.rank, len(words), ranks.size)

        def solve(k: int, matrix: torch.Tensor) -> Solution | None:
            return assignment.solve(matrix, start=self.solutions.get(words[k])) if k in mine else None

        long = min((sizes[k] for k in mine), default=0) >= THREADED
        solutions = self.pair.solved(solve, matrices, long=long)
        if ranks.size > 1:
            solutions = [
                _shared(ranks, solution, size, k % ranks.size)
                for k, (solution, size) in enumerate(zip(solutions, sizes, strict=True))
            ]
        self.solutions |= zip(words, solutions, strict=True)
        self.margins |= {word: self.solutions[word].margins for word in words}
        made = self.similarities.bases
        self.bases |= {word: made[word] for word in words if word in made}
        self.solves += len(words)
        return solutions

    def forget(self, words: Iterable[str]) -> None:
        """No proof of these words holds any more; their duals are still a start."""
        words = list(words)
        self.similarities.forget(words)
        for word in words:
            self.bases.pop(word, None)

    def proven(self, word: str, current: Permutations) -> bool:
        """Whether the last solution is known to be still the best: its matrix would only have grown."""
        pair, solution, basis = self.pair, self.solutions.get(word), self.bases.get(word)
        if pair.double[word] or solution is None or basis is None:
            return False
        if not torch.equal(solution.perm, current[word]) or not basis.holds(current):
            return False
        margins, present = self.margins[word], {*basis.atoms}
        if not proven(pair, word, margins):
            return False
        added = [atom for atom in pair.single[word] if atom not in present]
        return proven(pair, word, margins_left(pair, word, margins, added, current))


def _shared(ranks: Ranks, solution: Solution | None, size: int, source: int) -> Solution:
    """The solution that the rank `source` found, on all ranks."""
    parts = torch.zeros(4, size, dtype=torch.float64)
    if solution is not None:
        parts = torch.stack([solution.perm.double(), solution.rows, solution.columns, solution.margins])
    parts = ranks.broadcast(parts, source=source)
    return Solution(parts[0].long(), parts[1:].numpy())
