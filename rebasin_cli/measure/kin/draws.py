"""The statistic of many orders at once: drawn evenly from a spec's group, B's units put into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...runtime.seeds import generator
from ...spec.spec import Block
from ...types import Permutations
from .parts import Part

AT_ONCE = 1 << 18  # values, gathered: what a cache holds of them
TABLE = 1 << 11  # units of one word, of which the products of all pairs are made


def by_draws(
    parts: Sequence[Part], words: Mapping[str, int], within: Mapping[str, Block], draws: int, seed: int
) -> Tensor:
    """The statistic of so many orders, each drawn for itself, evenly from the group: (draws,), float64."""
    rng = generator(seed, "kin, orders by chance")
    step = max(1, AT_ONCE // sum(words.values()))
    tables = [(p.words[0], torch.einsum("ci,cj->ij", p.x, p.y)) for p in parts if _tabled(p)]
    others = [part for part in parts if not _tabled(part)]
    found = []
    for start in range(0, draws, step):
        perms = orders(words, within, min(step, draws - start), rng)
        drawn = by_orders(others, perms)
        for word, table in tables:
            at = torch.arange(len(table)) * len(table) + perms[word]
            drawn = drawn + table.flatten()[at].double().sum(1)
        found.append(drawn.expand(len(next(iter(perms.values())))))
    return torch.cat(found)


def _tabled(part: Part) -> bool:
    """Whether the products of all pairs of units tell every order sooner than the units do."""
    return len(part.words) == 1 and len(part.x[0]) <= TABLE


def orders(
    words: Mapping[str, int], within: Mapping[str, Block], count: int, rng: torch.Generator
) -> dict[str, Tensor]:
    """So many orders (count, n) of every word, drawn evenly: as `symmetry.permutation.random` draws one.

    They sort random numbers of 53 bits, of which two are equal about never.
    """

    def drawn(*shape: int) -> Tensor:
        return torch.rand(count, *shape, dtype=torch.float64, generator=rng).argsort(-1)

    found = {word: drawn(words[word]) for word in sorted(words) if word not in within}
    for word in sorted(words.keys() & within.keys()):
        block = within[word]
        outer = torch.arange(block.count) if block.word is None else found[block.word]
        inner = drawn(block.count, block.size)
        found[word] = (outer[..., None] * block.size + inner).flatten(1)
    return found


def by_orders(parts: Sequence[Part], permutations: Permutations) -> Tensor:
    """The statistic with B's units in each of these orders, (count, n) of every word: (count,), float64."""
    inverse: dict[str, Tensor] = {}
    total = torch.zeros(1, dtype=torch.float64)
    for part in parts:
        if part.spread is None:
            drawn = _moved(part, permutations)
        else:
            inverse |= {word: permutations[word].argsort(1) for word in {*part.words} - inverse.keys()}
            drawn = _scattered(part, inverse)
        total = total + drawn.double()
    return total


def _moved(part: Part, permutations: Permutations) -> Tensor:
    """⟨x, y in these orders⟩: of y what goes to each place."""
    x, y = part.x.flatten(1), part.y.flatten(1)
    found = []
    for its in zip(*(permutations[word].split(_step(y.numel())) for word in part.words), strict=True):
        at = torch.zeros(1, 1, dtype=torch.int64)
        for perms in its:
            at = (at[:, :, None] * perms.shape[1] + perms[:, None]).flatten(1)
        moved = y.index_select(1, at.flatten()).view(len(y), *at.shape)
        found.append((moved @ x[:, :, None]).sum((0, 2)))
    return torch.cat(found)


def _scattered(part: Part, inverse: Mapping[str, Tensor]) -> Tensor:
    """The same where most of y is 0: each entry that is not, where it goes."""
    values, places, full = part.entries
    x, strides = part.x.flatten(), part.x.contiguous().stride()
    found = []
    for its in zip(*(inverse[word].split(_step(values.numel())) for word in part.words), strict=True):
        to = [torch.arange(len(part.x))[None], *its]  # where each position of each axis goes
        at = torch.zeros(1, 1, dtype=torch.int64)
        for dim, own in places.items():
            at = at + to[dim][:, own] * strides[dim]
        for dim in full:
            at = (at[:, :, None] + (to[dim] * strides[dim])[:, None]).flatten(1)
        found.append(x.index_select(0, at.flatten()).view(at.shape) @ values.flatten())
    return torch.cat(found)


def _step(size: int) -> int:
    return max(1, AT_ONCE // size)
