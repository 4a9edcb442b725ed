"""Following weights where words have groups: orders and signs move as ever, what is learned stays still."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...spec.spec import FittedSpec
from ...symmetry import acting
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from ...symmetry.projection import project
from ...types import Tensors
from ..descent.pair import Pair
from .projection import Projection

DOUBT = 1e-6  # of what a word's similarity could be worth: a step that gains less is rounding


class Ordered(Projection):
    """`names` are words that are ordered alone; of those with signs `signs` says how the model stands.

    Heads with matrices in them stay in the order that they start in, and so do words with signs that stand
    on two axes of one tensor.
    """

    def __init__(self, moving: Tensors, standing: Tensors, fitted: FittedSpec, *, device: str = "cpu"):
        super().__init__(moving, standing, fitted, device=device)
        turned = {word for word in fitted.groups if fitted.group(word).matrix}
        signed = _signed(fitted)
        twice = {word for word in signed if self.pair.double[word]}
        self.names = [name for name in self.names if not (turned | twice) & {*self.members[name]}]
        self.signs = {word: torch.ones(fitted.words[word], dtype=torch.float64) for word in signed - twice}

    def _paired(self, moving: Tensors, standing: Tensors, fitted: FittedSpec, device: str) -> Pair:
        return Pair(moving, standing, fitted, whole=_signed(fitted), device=device)

    @property
    def element(self) -> Elements:
        """Orders and signs together."""
        return Elements(dict(self.permutations), dict(self.signs))

    def place_signs(self, signs: dict[str, torch.Tensor]) -> None:
        """Stand with these signs; the orders stay."""
        for word, now in signs.items():
            self._flip(word, now * self.signs[word])

    def solve(self, names: Sequence[str]) -> int:
        moved = super().solve([name for name in names if name not in self.signs])
        for word in names:
            if word in self.signs:
                moved += self._with_signs(word)
        return moved

    def _with_signs(self, word: str) -> int:
        """The best order and signs of one word, all others held; how many units moved."""
        self.pair.refresh()
        self.solves += 1
        similarity = self._similarity(word).double().cpu()
        found = project(similarity, self.fitted.groups[word])
        if found.value - float(similarity.trace()) <= DOUBT * abs(found.value):
            return 0
        self._move({word: found.perm})
        self.signs[word] = self.signs[word][found.perm]
        signs = torch.ones(len(found.perm)) if found.map is None else found.map
        self._flip(word, signs)
        still = torch.arange(len(found.perm))
        return int(((found.perm != still) | (signs < 0)).sum())

    def _flip(self, word: str, by: torch.Tensor) -> None:
        """Multiply the word's units by 1 and −1, in the tensors that carry them, and in the account."""
        self.signs[word] = self.signs[word] * by
        maps = acts.maps_of(Elements({}, {word: by}))
        for name in self._carrying[word]:
            tensor = self.standing[name]
            tensor.copy_(acting.act(tensor, self.fitted.tensors[name], self.fitted, maps))


def _signed(fitted: FittedSpec) -> set[str]:
    return {w for w in fitted.groups if fitted.group(w).more and not fitted.group(w).matrix}
