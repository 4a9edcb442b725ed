"""The permutations that bring one model nearest to weights which move a little at every step.

The model stands permuted as it was last found, so what is solved is by how much its units have to move from
there: mostly not at all. Each assignment starts from the last one's duals (Ito et al. 2025, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from .. import assignment, permutation
from ..assignment import Solution
from ..permutation import Permutations, permute
from ..spec.notation import words_of
from ..spec.spec import FittedSpec
from . import _wreath
from ._pair import Pair

Tensors = Mapping[str, torch.Tensor]


class Projection:
    """One model, standing in memory of its own (`standing`, changed in place), and the weights it follows.

    `moving` are those weights, changed by others. `names` are the words that can be solved, of coupled ones
    the first; solving all of them once is one sweep of weight matching. `permutations` say how the model
    stands.
    """

    def __init__(self, moving: Tensors, standing: Tensors, fitted: FittedSpec, *, device: str = "cpu"):
        self.fitted, self.standing = fitted, standing
        self.pair = Pair(moving, standing, fitted, device=device)
        self.pair.settle_offsets()  # the same ones for a search that was interrupted
        self.permutations = permutation.identity(fitted.words)
        self.solves = 0
        self._still = permutation.identity(fitted.words)
        self._groups = _wreath.groups(fitted.within)
        coupled = {word for group in self._groups.values() for word in group.words}
        self.members = {word: (word,) for word in fitted.words if word not in coupled}
        self.members |= {name: group.words for name, group in self._groups.items()}
        self.names = sorted(
            name for name, words in self.members.items() if any(fitted.words[word] > 1 for word in words)
        )
        self._starts: dict[str, Solution] = {}
        self._carrying = {
            word: [name for name in _once(standing) if word in _words(fitted, name)] for word in fitted.words
        }

    def work(self, name: str) -> int:
        """Multiplications that the similarity of a word takes."""
        pair = self.pair
        parts = (
            (pair.words[w], pair.columns(pair.single[w] + pair.double[w], w)) for w in self.members[name]
        )
        return sum(units**2 * columns for units, columns in parts)

    def place(self, permutations: Permutations) -> None:
        """Stand so: from however it stands now."""
        back = permutation.invert(self.permutations)
        self._move(permutation.compose(back, permutations))

    def solve(self, name: str) -> int:
        """Best permutations of a word, or of a group, with all others held; how many units moved."""
        self.pair.refresh()
        self.solves += 1
        changes = self._together(name) if name in self._groups else self._alone(name)
        moved = sum(int((changes[word] != self._still[word]).sum()) for word in changes)
        if moved:
            self._move(changes)
        return moved

    def _alone(self, word: str) -> dict[str, torch.Tensor]:
        pair = self.pair
        similarity = pair.matrix(word, {}, chosen=pair.single[word])
        if pair.double[word]:  # the gradient of a quadratic form: taken only if the objective rises
            pair.matrix(word, {}, chosen=pair.double[word], out=similarity)
        solution = assignment.solve(similarity, start=self._starts.get(word))
        changes = {word: solution.perm}
        if pair.double[word] and not _wreath.gain(pair, {word: self._still[word]}, changes) > 0:
            return {word: self._still[word]}
        columns = solution.columns[solution.perm]  # as the units will stand
        self._starts[word] = replace(solution, perm=self._still[word], columns=columns)
        return changes

    def _together(self, name: str) -> dict[str, torch.Tensor]:
        pair, group = self.pair, self._groups[name]
        here = {word: self._still[word] for word in group.words}
        changes, gain = _wreath.step(pair, pair, group, here)
        if _wreath.quadratic(pair, group):
            gain = _wreath.gain(pair, here, changes)
        return changes if gain > 0 else here

    def _move(self, changes: Permutations) -> None:
        """Let units change places: in the tensors that carry them, and in the account."""
        whole = {**self._still, **changes}
        touched = dict.fromkeys(name for word in changes for name in self._carrying[word])
        for name in touched:
            axes, tensor = self.fitted.tensors[name], self.standing[name]
            tensor.copy_(permute(tensor, axes, whole, self.fitted.within))
        self.permutations = permutation.compose(self.permutations, whole)


def _once(tensors: Tensors) -> list[str]:
    """Names without those that share another one's memory."""
    seen: dict[tuple[int, int], str] = {}
    for name, tensor in tensors.items():
        seen.setdefault((tensor.data_ptr(), tensor.numel()), name)
    return list(seen.values())


def _words(fitted: FittedSpec, name: str) -> set[str]:
    return {word for axis in fitted.tensors.get(name, ()) for word in words_of(axis)}
