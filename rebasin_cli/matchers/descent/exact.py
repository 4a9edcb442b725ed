"""The best of all permutations, where there are few enough to look at every one.

The objective is a sum of tables, one for each set of words that tensors carry together, with an entry for
every combination of their permutations. Words that share no tensor depend on the others only: for each
combination of the others, each has its own best permutation. Only the others' combinations are gone through.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, permutations, product

import numpy as np
import torch

from ...errors import CheckpointError
from ...spec.atoms import Atom
from .blocks import SLAB
from .pair import Pair

Words = tuple[str, ...]


def enumerate_all(pair: Pair, limit: int = 1_000_000) -> dict[str, torch.Tensor] | None:
    """Permutations for which no others have a larger objective, or None with `limit` combinations or more.

    Of equally good ones, up to the rounding of float64, the lexicographically first by the words' names: so
    the identity where nothing is better. None as well for a tensor that so many words permute that its
    table of products is above 16 · `limit`, and for starred words, whose orders depend on others'. Use it
    inside `with pair.computing():`. Raises CheckpointError for NaN and infinities.
    """
    if pair.within:
        return None
    sizes = {word: pair.words[word] for word in sorted(pair.words) if pair.words[word] > 1}
    if not fewer(sizes.values(), limit):
        return None
    groups: dict[Words, list[Atom]] = {}
    for atom in pair.atoms:
        if key := tuple(word for word in atom.words if word in sizes):
            groups.setdefault(key, []).append(atom)
    if any(math.prod(sizes[word] ** 2 for word in key) > 16 * limit for key in groups):
        return None
    choices = {word: torch.from_numpy(_choices(size)) for word, size in sizes.items()}
    tables = [_table(pair, key, chosen, choices) for key, chosen in sorted(groups.items())]
    free = independent(sizes, {word: pair.neighbours[word] for word in sizes})
    rest = [word for word in sizes if word not in free]
    total = torch.zeros([len(choices[word]) for word in rest], dtype=torch.float64)
    for words, table in tables:
        if not {*words} & free:
            total += _spread(table, words, rest)
    values = {}
    for word in sorted(free):
        around = [w for w in rest if w in pair.neighbours[word]]
        own = [(words, table) for words, table in tables if word in words]
        shape = [len(choices[w]) for w in (*around, word)]
        values[word] = torch.zeros(shape, dtype=torch.float64)
        for words, table in own:
            values[word] += _spread(table, words, [*around, word])
        total += _spread(values[word].amax(dim=-1), around, rest)
    # what all sums together may be off by: a product's roundings, of ‖A‖·‖B‖
    doubt = math.fsum(
        (pair.columns(pair.single[word] + pair.double[word], word) + 8) * 2.0**-52 * pair.scale(word)
        for word in sizes
    )
    doubt = doubt if math.isfinite(doubt) else 0.0  # norms of huge weights overflow before products do
    place = np.unravel_index(_first(total.flatten(), doubt), total.shape)
    at = {word: int(number) for word, number in zip(rest, place, strict=True)}
    for word, value in values.items():
        here = value[tuple(at[w] for w in rest if w in pair.neighbours[word])]
        at[word] = _first(here, doubt)
    found = {word: choices[word][at[word]].clone() for word in sizes}
    return {word: found.get(word, torch.arange(size)) for word, size in pair.words.items()}


def fewer(sizes: Iterable[int], limit: int) -> bool:
    """Whether Π n! is below `limit`; no number much larger is computed."""
    count = 1
    for size in sizes:
        for factor in range(2, size + 1):
            count *= factor
            if count >= limit:
                return False
    return count < limit


def independent(sizes: Mapping[str, int], neighbours: Mapping[str, Collection[str]]) -> frozenset[str]:
    """Of the words in `neighbours`, those that are no neighbours of each other and have most permutations."""

    def weight(words: Iterable[str]) -> float:
        return math.fsum(math.lgamma(sizes[word] + 1) for word in sorted(words))

    def best(left: frozenset[str]) -> frozenset[str]:
        degree = {word: len(left & {*neighbours[word]}) for word in sorted(left)}
        if not any(degree.values()):
            return left
        word = max(degree, key=degree.__getitem__)
        return max(best(left - {word}), best(left - {word, *neighbours[word]}) | {word}, key=weight)

    return best(frozenset(neighbours))


def _choices(size: int) -> np.ndarray:
    """All permutations (n!, n) int64, in lexicographic order."""
    numbers = chain.from_iterable(permutations(range(size)))
    return np.fromiter(numbers, np.int64, math.factorial(size) * size).reshape(-1, size)


def _table(
    pair: Pair, key: Words, chosen: Sequence[Atom], choices: Mapping[str, torch.Tensor]
) -> tuple[Words, torch.Tensor]:
    """The distinct words of `key`, and Σ ⟨A, πB⟩ of the atoms that carry it: an axis of n! for each word."""
    own = [atom for atom in chosen if atom in pair.mine]
    side = math.prod(pair.words[word] for word in key)
    parts = pair.run(lambda atom: _products(pair, atom), own)
    table = pair.ranks.sum(sum(parts, torch.zeros(side, side, dtype=torch.float64)))
    if not table.isfinite().all():
        raise CheckpointError(
            "the weights hold NaN or infinite values, or such that their products are",
            hint="Check both models' weights",
        )
    table = table.reshape([pair.words[word] for word in key * 2])
    left, words = list(key), tuple(dict.fromkeys(key))
    for word in words:
        size, dims = pair.words[word], [d for d, here in enumerate(left) if here == word]
        count = len(dims)
        table = table.movedim((*dims, *(len(left) + d for d in dims)), tuple(range(2 * count)))
        others = table.shape[2 * count :]  # what is left of A's axes, of B's, and words that are done
        table = table.reshape(size**count, size**count, -1)
        done = torch.zeros(len(choices[word]), table.shape[2], dtype=torch.float64)
        for row, units in enumerate(product(range(size), repeat=count)):  # unit of A, unit of B: row, column
            column = sum(choices[word][:, u] * size**k for k, u in enumerate(reversed(units)))
            done += table[row].index_select(0, column)
        table = done.reshape(-1, *others).movedim(0, -1)
        left = [here for here in left if here != word]
    return words, table


def _products(pair: Pair, atom: Atom) -> torch.Tensor:
    """⟨entry of A, entry of B⟩ over the axes that stay, for all pairs of entries along the others."""
    dims = [d for d, word in enumerate(atom.words) if word is not None and pair.words[word] > 1]
    still = [d for d in range(len(atom.words)) if d not in dims]
    side = math.prod(pair.shapes[atom][d] for d in dims)
    a, b = (view.cpu().permute(*dims, *still).reshape(side, -1) for view in pair._views(atom))
    steps = (p.split(max(1, SLAB // side), dim=1) for p in (a, b))
    products = (x.double() @ y.double().T for x, y in zip(*steps, strict=True))
    return sum(products, torch.zeros(side, side, dtype=torch.float64))


def _spread(table: torch.Tensor, words: Sequence[str], onto: Sequence[str]) -> torch.Tensor:
    """The table with its axes in the order of `onto`, and axes of 1 for words it does not have."""
    order = [words.index(word) for word in onto if word in words]
    sizes = [table.shape[words.index(word)] if word in words else 1 for word in onto]
    return table.permute(order).reshape(sizes)


def _first(values: torch.Tensor, doubt: float) -> int:
    """Where the first of the largest is."""
    return int((values >= values.max() - doubt).to(torch.uint8).argmax())
