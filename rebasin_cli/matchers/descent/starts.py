"""Where a descent begins: at random, after a kick, or where permutations alone end."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...spec.spec import FittedSpec
from ...symmetry import elements as acts
from ...symmetry import index_maps, permutation
from ...symmetry.elements import Elements
from ...types import Permutations, Tensors
from .baked import Baked
from .pair import Pair

KICK = 0.1  # the share of every word's units that a kick of many models moves
NEAR = 0.95  # of what no objective exceeds: one that leaves nothing to search for

Orders = Callable[[tuple[Tensors, ...], FittedSpec], Permutations]


def drawn(fitted: FittedSpec, rng: torch.Generator) -> Elements:
    """A random element that leaves a canonical form's balances as they are."""
    return acts.random(fitted, rng, balanced=True)


def ordered(pair: Pair, orders: Orders) -> Elements:
    """What a search for permutations finds of a pair, as an element of its words' groups."""
    if not isinstance(pair, Baked):
        raise LookupError("all words are only ordered")
    fitted = pair.fitted
    given = {name: pair.given[name] for name in fitted.tensors}
    found = orders((pair.reference, given), fitted.ordered)
    perms = {word: found.get(word, torch.arange(size)) for word, size in fitted.words.items()}
    maps: dict[str, torch.Tensor] = {}
    for word in fitted.groups:
        group = fitted.group(word)
        if not group.matrix or not group.permutes:
            continue
        block, perm = fitted.within.get(word), perms[word]
        if block is None:
            maps[word] = torch.eye(len(perm), dtype=torch.float64)[perm]
            perms[word] = torch.arange(len(perm))
        else:
            outer, inner = index_maps.split(perm, block)
            maps[word] = torch.eye(block.size, dtype=torch.float64)[inner]
            perms[word] = index_maps.join(outer, torch.arange(block.size).expand(block.count, -1))
    for word, block in fitted.within.items():
        if word not in found and block.word is not None:  # turned in heads that move
            perms[word] = index_maps.join(perms[block.word], torch.arange(block.size).expand(block.count, -1))
    return Elements(perms, maps)


def kicked(
    permutations: Permutations,
    rng: torch.Generator,
    within: index_maps.Within = index_maps.PLAIN,
    *,
    share: float = KICK,
) -> dict[str, torch.Tensor]:
    """A share of every word's units, drawn at random, in another order; blocks take their units along."""
    moved = dict(permutations)
    for word in sorted(permutations.keys() - within.keys()):
        perm = permutations[word].clone()
        some = torch.randperm(len(perm), generator=rng)[: round(share * len(perm))]
        perm[some] = perm[some.roll(1)]
        moved[word] = perm
    return permutation.carried(moved, within)


def jolted(element: Elements, fitted: FittedSpec, rng: torch.Generator) -> Elements:
    """An element after a kick of all words that have an order; maps go with their units."""
    still, within = permutation.identity(fitted.words), fitted.within
    free = {w: p for w, p in still.items() if w in within or fitted.group(w).ordered}
    return acts.compose(element, Elements(still | kicked(free, rng, within)), fitted)
