"""Permuting a network's own tensors by a spec, at random, and taking it back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import NotProven
from ..spec.spec import FittedSpec
from ..symmetry import index_maps, permutation
from ..types import Permutations
from . import random_weights
from .distance import difference, differences, own_sizes
from .runs import Runs
from .trials import nudged, sizes_by_rounding

FEW = 5  # units: of more, two words are drawn alike once in 700 times at most


class Changed:
    """How much outputs differ after permuting; what it did is undone before the next time."""

    def __init__(self, runs: Runs, fitted: FittedSpec, batch: Any, before: list[torch.Tensor]) -> None:
        self._runs, self._fitted, self._batch, self._before = runs, fitted, batch, before
        self._done: Permutations | None = None
        self._sizes = own_sizes(before)
        if runs.decides:  # of this batch, and not of one that was run beside it
            runs.outputs(batch)
        self._decided = runs.decided
        self._most: list[float] = []  # by any permutation so far, of every output

    def __call__(self, permutations: Permutations) -> float:
        back = self._done and permutation.invert(self._done)
        _permute(
            self._runs.network,
            self._fitted,
            permutation.compose(back, permutations) if back else permutations,
        )
        self._done = permutations
        return self.difference()

    def difference(self) -> float:
        its = differences(self._before, self._runs.outputs(self._batch), self._sizes)
        self._most = list(map(max, self._most or its, its))
        return max([*its, self._decided.difference(self._runs.decided)])

    def rounding(self) -> float:
        """How much rounding of the inputs alone changes; from now on numbers are as large as it shows.

        Everything is as it was before, and so are the differences of permutations: none is known.
        """
        self.undo()
        self._most = []
        self._sizes = sizes_by_rounding(self._runs, self._batch, self._before)
        most = difference(self._before, self._runs.outputs(nudged(self._batch)), self._sizes)
        return max(most, self._decided.difference(self._runs.decided))

    def outputs(self, names: Sequence[str], allowed: float) -> dict[str, bool]:
        """Whether each output, of these names, has changed by more than what is allowed."""
        return {name: not most <= allowed for name, most in zip(names, self._most, strict=False)}

    def undo(self, *, drawn: bool = True) -> None:
        """Everything as it was; without `drawn` only tensors that the next trial does not draw anew."""
        if self._done is not None:
            _permute(self._runs.network, self._fitted, permutation.invert(self._done), drawn=drawn)
        self._done = None


def draw(fitted: FittedSpec, words: Collection[str], rng: torch.Generator) -> Permutations:
    """Random permutations of these words, the others stay as far as they can.

    None is the identity: of two units it would be drawn every other time. For the same reason no starred
    word has one order in all its blocks.
    """
    within = fitted.within
    drawn = permutation.random({word: fitted.words[word] for word in words}, rng, within=within)
    for word, perm in drawn.items():
        if word not in within:
            drawn[word] = perm.roll(1) if permutation.is_identity({word: perm}) else perm
            continue
        blocks, inner = index_maps.split(perm, within[word])
        alike = torch.equal(inner, inner[:1].expand_as(inner))
        if alike and (len(inner) > 1 or permutation.is_identity({word: perm})):
            inner[0] = inner[0].roll(1)
            drawn[word] = index_maps.join(blocks, inner)
    return permutation.carried(permutation.identity(fitted.words) | drawn, within)


def apart(fitted: FittedSpec) -> list[list[str]]:
    """Words of few units, so that of any two there is a set which has one and not the other.

    What is drawn for them is too often the same: two words of two units are both swapped every time.
    """
    few = sorted(word for word, size in fitted.words.items() if size <= FEW and word not in fitted.within)
    bits = range(len(few).bit_length() if len(few) > 1 else 0)
    return [[word for number, word in enumerate(few, start=1) if number >> bit & 1] for bit in bits]


def _permute(
    network: nn.Module,
    fitted: FittedSpec,
    permutations: Permutations,
    *,
    drawn: bool = True,
) -> None:
    groups = [names for names in _shared(network) if drawn or not random_weights.draws(names[0][1])]
    largest = max((tensor.nbytes for names in groups for _, tensor in names), default=0)
    room = torch.empty(largest, dtype=torch.uint8)
    kept = {name: tensor.clone() for names in groups for name, tensor in names if name in fitted.places}
    lists = permutation.permuted(kept, fitted, permutations)  # from places that are written over
    for names in groups:
        axes = {name: fitted.tensors.get(name, ()) for name, _ in names}
        if len(names) == 1 and names[0][0] not in kept:
            (name, tensor) = names[0]
            own = room[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            value = permutation.permute(tensor, axes[name], permutations, fitted.within, room=own)
            if value is not tensor:
                tensor.copy_(value)
            continue
        moved = [
            lists[name]
            if name in kept
            else permutation.permute(tensor.clone(), axes[name], permutations, fitted.within)
            for name, tensor in names
        ]
        for (_, tensor), value in zip(names, moved, strict=True):
            tensor.copy_(value)
        if not all(torch.equal(tensor, value) for (_, tensor), value in zip(names, moved, strict=True)):
            raise NotProven(
                f"{fitted.spec.source} would tear tied tensors apart",
                problems=[f'{name}  is "{" ".join(map(str, axes[name]))}"' for name in axes],
                hint="They share their values, so give them the same words",
            )


def _shared(network: nn.Module) -> list[list[tuple[str, torch.Tensor]]]:
    """Every tensor with its name, those that share memory together: tied ones are moved once."""
    groups: dict[int, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in network.state_dict().items():
        if tensor.numel():
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append((name, tensor))
    return list(groups.values())
