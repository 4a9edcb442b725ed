"""The element of a group that is nearest to a matrix of inner products: one step of matching, for any group.

Matching makes for each word the matrix C = Σ X_A X_Bᵀ and takes the element g with the largest ⟨g, C⟩. What
a pair of units is worth, and which matrix is nearest, the group says; the order is an assignment. Scales
and invertible maps are balanced away before (`canonical`), so that only an order or a rotation is left of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..groups import PERMUTATION, find
from ..spec.spec import Block
from . import assignment, index_maps


@dataclass(frozen=True)
class Projected:
    """The nearest element: its order, its map (None: only an order), and `value`, what ⟨g, C⟩ is."""

    perm: torch.Tensor
    map: torch.Tensor | None
    value: float


def project(
    similarity: torch.Tensor, kind: str, *, block: Block | None = None, order: torch.Tensor | None = None
) -> Projected:
    """The element of a word's group with the largest inner product with `similarity` (n, n).

    `order` (n, n) is a similarity of tensors that only take the element's order. A starred word's `block`
    says what it lies within, whose blocks then stay where they are; `heads` moves them, too.
    """
    similarity = similarity.double().cpu()
    group, still = find(kind), torch.arange(len(similarity))
    if group.matrix:
        own = similarity[None]
        if block is not None:
            own = blocks_of(similarity, block).diagonal(dim1=0, dim2=1).movedim(-1, 0)
        map_, values = group.nearest(own)
        whole = map_ if block is not None or map_ is None else map_[0]
        return Projected(still, whole, float(values.sum()))
    perm, order = still, None if order is None else order.double().cpu()
    if group.permutes:
        worth = group.nearest(similarity)[1]
        perm = assignment.solve(worth if order is None else worth + order).perm
    map_, values = group.nearest(similarity[still, perm])
    value = float(values.sum()) + (0.0 if order is None else assignment.total(order, perm))
    return Projected(perm, map_, value)


def heads(
    similarities: Mapping[str, torch.Tensor],
    kinds: Mapping[str, str],
    within: Mapping[str, Block],
    outer: torch.Tensor | None = None,
    *,
    still: bool = False,
) -> tuple[torch.Tensor, dict[str, torch.Tensor], float]:
    """The best order (H,) of heads with a rotation in each, for all starred words within one word together.

    A pair of heads is worth what its best rotations make of it: the sum of its words' nuclear norms, and of
    their best orders for words that only permute. `outer` (H, H) is a similarity of the heads themselves,
    which are not moved where they are to stay `still`. The second are maps (H, D, D), or orders (n,) as
    `permutations` joins them; the last is the value.
    """
    values: list[torch.Tensor] = [] if outer is None else [outer.double().cpu()]
    best: dict[str, torch.Tensor] = {}
    for word, similarity in similarities.items():
        block = within[word]
        pairs = blocks_of(similarity.double().cpu(), block).reshape(-1, block.size, block.size)
        maps, worth = None, pairs
        if (group := find(kinds.get(word, PERMUTATION))).matrix:
            maps, worth = group.nearest(pairs)
        if maps is not None:
            best[word] = maps.view(block.count, block.count, block.size, block.size)
        else:
            orders = [assignment.solve(pair).perm for pair in pairs]
            worth = torch.tensor([assignment.total(p, o) for p, o in zip(pairs, orders, strict=True)])
            best[word] = torch.stack(orders).view(block.count, block.count, block.size)
        values.append(worth.double().view(block.count, block.count))
    whole = values[0]
    for more in values[1:]:
        whole = whole + more
    rows = torch.arange(len(whole))
    perm = rows if still else assignment.solve(whole).perm
    chosen = {}
    for word, each in best.items():
        chosen[word] = each[rows, perm] if each.ndim == 4 else index_maps.join(perm, each[rows, perm])
    return perm, chosen, float(whole[rows, perm].sum())


def blocks_of(similarity: torch.Tensor, block: Block) -> torch.Tensor:
    """(n, n) → (H, H, D, D): reference block × model block × units of either."""
    h, d = block.count, block.size
    return similarity.reshape(h, d, h, d).transpose(1, 2)
