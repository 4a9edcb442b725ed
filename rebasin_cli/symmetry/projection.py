"""The element of a group that is nearest to a matrix of inner products: one step of matching, for any group.

Matching makes for each word the matrix C = Σ X_A X_Bᵀ and takes the element g with the largest ⟨g, C⟩. Only
this step knows the group: an assignment, one of absolute values, or a singular value decomposition. Scales
and invertible maps are balanced away before (`canonical`), so that only an order or a rotation is left of
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..spec.groups import MATRICES, PLANES, SIGNED
from ..spec.spec import Block
from . import assignment, index_maps
from .elements import around_ones, numbers_of, turning


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
    n = len(similarity)
    if kind in MATRICES:
        if block is None:
            map_, values = rotation(similarity[None], kind)
            return Projected(torch.arange(n), map_[0], float(values[0]))
        own = blocks_of(similarity, block).diagonal(dim1=0, dim2=1).movedim(-1, 0)
        map_, values = rotation(own, kind)
        return Projected(torch.arange(n), map_, float(values.sum()))
    signed = kind in SIGNED
    worth = similarity.abs() if signed else similarity
    perm = assignment.solve(worth if order is None else worth + order.double().cpu()).perm
    chosen = similarity[torch.arange(n), perm]
    signs = torch.where(chosen < 0, -1.0, 1.0).double() if signed else None
    value = float((chosen.abs() if signed else chosen).sum())
    if order is not None:
        value += assignment.total(order.double().cpu(), perm)
    return Projected(perm, signs, value)


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
        if kinds.get(word) in MATRICES:
            maps, worth = rotation(pairs, kinds[word])
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


def rotation(similarity: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest rotations (m, n, n) to as many matrices, and what each is worth (m,): its nuclear norm.

    With "O1" those that keep the vector of ones: the nearest one of what is orthogonal to it. Of planes each
    has the angle of its 2 × 2 block, which is worth that number's size.
    """
    if kind in PLANES:
        numbers = numbers_of(similarity, kind)
        worth = numbers.abs()
        angles = torch.where(worth > 0, numbers / worth.clamp_min(1e-300), 1.0)
        return turning(angles, kind), worth.sum(-1)
    if kind != "O1":
        u, values, v = torch.linalg.svd(similarity)
        return u @ v, values.sum(-1)
    n = similarity.shape[-1]
    basis = around_ones(n)
    inner, worth = rotation(basis.T @ similarity @ basis, "O")
    return basis @ inner @ basis.T + 1 / n, worth + similarity.sum((-1, -2)) / n
