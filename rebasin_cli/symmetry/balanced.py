"""Balance: of a product through scaled or invertible units, both sides alike; by elements of their groups.

Of a word of GL the two sides X and Q, whose product XᵀQ is all that the network sees, become g·X and g⁻ᵀ·Q
with equal Gram matrices; g is symmetric and positive, so that what is balanced stays as it is. Of a scaled
word each unit's weights going in and coming out get the same norm, and of rotary pairs each pair's; words in
a row are balanced in turns, until all are. What is left to match after that is an order and a rotation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..spec.notation import Axis, words_of
from ..spec.spec import FittedSpec
from ..types import Tensors
from .action import act, views
from .elements import Elements, identity, maps_of

ENOUGH, ROUNDS = 1e-13, 300
SINGULAR = "the product of its two sides is singular: a direction of its units does nothing"
ONE_SIDED = "only one side of its product is there"


def balance(tensors: Tensors, fitted: FittedSpec) -> tuple[Elements, dict[str, str]]:
    """The element that balances a model, and why words that could not be balanced stay as they are.

    Words that share a tensor are balanced together, and only their tensors are held meanwhile.
    """
    scaled = [word for word in fitted.groups if fitted.group(word).balances]
    places = {word: [n for n, axes in fitted.tensors.items() if _carries(axes, word)] for word in scaled}
    maps: dict[str, torch.Tensor] = {}
    left: dict[str, str] = {}
    for words in _together(places):
        _balance(tensors, fitted, {word: places[word] for word in words}, maps, left)
    found = {word: maps[word] for word in scaled if word in maps}
    return Elements(identity(fitted).permutations, found), {
        word: left[word] for word in scaled if word in left
    }


def _together(places: Mapping[str, list[str]]) -> list[list[str]]:
    """The words that share tensors, also by others between them; in their order."""
    parts: list[tuple[list[str], set[str]]] = []
    for word, names in places.items():
        near = [part for part in parts if not part[1].isdisjoint(names)]
        parts = [part for part in parts if part[1].isdisjoint(names)]
        words = {word}.union(*(part[0] for part in near))
        parts.append(([w for w in places if w in words], {*names}.union(*(part[1] for part in near))))
    return [words for words, _ in parts]


def _balance(
    tensors: Tensors,
    fitted: FittedSpec,
    places: Mapping[str, list[str]],
    maps: dict[str, torch.Tensor],
    left: dict[str, str],
) -> None:
    """In turns, until none of these words moves; adds to `maps` and `left`."""
    names = dict.fromkeys(name for its in places.values() for name in its)
    work = {name: tensors[name].detach().cpu().double() for name in names}
    for _ in range(ROUNDS):
        moved = 0.0
        for word in [w for w in places if w not in left]:
            sides = _sides(work, places[word], fitted, word)
            if not sides[0] or not sides[1]:
                left[word] = ONE_SIDED
                continue
            found = fitted.group(word).balance(*(torch.cat(side, -1) for side in sides))
            if found is None:
                left[word] = SINGULAR
                continue
            one = torch.eye(found.shape[-1], dtype=torch.float64) if found.ndim > 1 else 1.0
            moved = max(moved, float((found - one).abs().max()))
            own = maps_of(Elements({}, {word: found}))
            for name in places[word]:
                work[name] = act(work[name], fitted.tensors[name], fitted, own)
            before = maps.get(word)
            maps[word] = found if before is None else found * before if found.ndim == 1 else found @ before
        if moved < ENOUGH:
            break


Views = list[torch.Tensor]


def _carries(axes: tuple[Axis, ...], word: str) -> bool:
    return any(word in words_of(axis) for axis in axes)


def _sides(work: Tensors, names: list[str], fitted: FittedSpec, word: str) -> tuple[Views, Views]:
    sides: tuple[Views, Views] = ([], [])
    for name in names:
        if name not in fitted.statistics:
            for side, view in views(work[name], fitted.tensors[name], fitted, word):
                if side != "|":
                    sides[side == "~"].append(view)
    return sides
