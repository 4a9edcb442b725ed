"""Do units of two models that stand at one place belong together? A permutation test, exact.

Training does not know the order of hidden units. So the units of a network that has nothing to do with A lie
in any order of its spec's group as likely as in the one that it has, and a statistic of A and B is one of
many that are alike. Fine-tuned, pruned, rounded, partly merged copies keep their order. What an architecture
gives all its networks alike (the mean over units, a diagonal, a table that is the same in both, an order
that an exporter sorts units by) is no evidence, and is taken out.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ...runtime.seeds import generator
from ...spec.atoms import Atom, atoms
from ...spec.spec import Block
from ...symmetry import permutation
from ...types import Permutations
from .sampled import Sample

FLAT = 1e-5  # deviations below this, of a tensor's own size, are rounding
SORTED = 0.9  # rank correlation of a unit's size and its place, in both models
MANY = 700.0  # the exponent of what is as good as infinite
FEW = 8  # units, of which no order tells that it was sorted


@dataclass(frozen=True)
class InPlace:
    """What the test found. `statistic` is Σ of the tensors' cosines, of a unit's own deviations.

    There are `orders` of the units, in which B could be. `z` is the distance from what orders by chance give,
    in standard deviations: in `closed` form, or by the draws. `p` is (1 + draws that reach it) / (1 + draws);
    NaN, as z, where `tensors` is empty. `same` are equal in both bit for bit. `held` says of each word that
    was held in place why. `left_out` says of tensors why.
    """

    statistic: float
    z: float
    p: float
    draws: int
    closed: bool
    tensors: tuple[str, ...]
    cosines: tuple[float, ...]
    same: tuple[str, ...]
    held: Mapping[str, str]
    left_out: Mapping[str, str]
    orders: float = 1.0


@dataclass(frozen=True)
class Part:
    """A part of a tensor in both models, (c, n₁, n₂ …): `words` permute all axes but the first.

    Along these it is centred; the first has all positions that stay.
    """

    tensor: str
    words: tuple[str, ...]
    x: Tensor
    y: Tensor
    spread: Tensor | None = None  # y not centred, where a view is mostly zeros that are no tensor's

    @cached_property
    def entries(self) -> _Entries | None:
        return None if self.spread is None else _Entries.of(self.spread)


@dataclass(frozen=True)
class _Entries:
    """The entries of a spread view that are not 0: `values` at `places` of each axis.

    Against what is centred, its inner product is that of the view centred, in whatever order.
    """

    values: Tensor
    places: tuple[Tensor, ...]

    @classmethod
    def of(cls, view: Tensor) -> _Entries:
        places = view.nonzero(as_tuple=True)
        return cls(view[places], places)

    def inner(self, x: Tensor, perms: Sequence[Tensor]) -> float:
        """⟨x, these in the order `perms` of all axes but the first⟩: each entry where it goes."""
        first, *others = self.places
        at = first
        for place, perm in zip(others, perms, strict=True):
            at = at * len(perm) + perm.argsort()[place]
        return float(torch.dot(x.flatten()[at], self.values))


def in_place(found: Sample, *, draws: int = 999, seed: int = 0) -> InPlace:
    """Draw orders of the spec's own group, and count how many bring B as near to A as it is.

    What both have alike, bit for bit, is evidence where it is most of them; else it is left out, and its
    words stay, since a table or an initialisation that is always the same gives units their places.
    """
    own = [atom for atom in atoms(found.fitted) if atom.tensor in found.matrices]
    alike = [name for name in found.matrices if torch.equal(found.a[name], found.b[name])]
    same = tuple(name for name in alike if _telling(found, name))
    held = _sorted(found)
    left: dict[str, str] = {}
    if 2 * len(same) <= len(found.matrices) - len(alike) + len(same):
        left |= {name: "equal in both, bit for bit: as a table would be" for name in same}
        for atom in own:
            if atom.tensor in same:
                tables = {word: f"{atom.tensor} is equal in both" for word in atom.words if word is not None}
                held = tables | held
    held = _with_inner(held, found.fitted.within)
    within = {
        word: Block(None, block.count, block.size) if block.word in held else block
        for word, block in found.fitted.within.items()
        if word not in held
    }
    parts, more = _parts(found, [a for a in own if a.tensor not in left], held, within)
    left |= more
    words = {word: size for word, size in found.fitted.words.items() if word not in held}
    names = tuple(dict.fromkeys(part.tensor for part in parts))
    if not parts:
        nothing = (math.nan,) * 3
        return InPlace(*nothing, 0, False, (), (), same, held, left)
    cosines = tuple(sum(_inner(p.x, p.y) for p in parts if p.tensor == name) for name in names)
    merged = _merged(parts)
    drawn = by_draws(merged, words, within, draws, seed)
    statistic = by_order(merged, permutation.identity(words))
    variance = closed_variance(merged, within)
    mean, deviation = (0.0, math.sqrt(variance)) if variance is not None else _moments(drawn)
    # Orders that exchange equal units reach the same number but for the last bits
    reached = len(drawn) - int((drawn < statistic - 1e-6 * len(names)).sum())  # also what is no number
    z = (statistic - mean) / deviation if deviation else math.nan
    p = (1 + reached) / (1 + len(drawn))
    count = _orders(merged, words, within)
    return InPlace(statistic, z, p, len(drawn), variance is not None, names, cosines, same, held, left, count)


def _orders(parts: Sequence[Part], words: Mapping[str, int], within: Mapping[str, Block]) -> float:
    """How many orders of units there are; infinite where that is no number."""
    log = 0.0
    for word in dict.fromkeys(word for part in parts for word in part.words):
        block = within.get(word)
        log += math.lgamma(words[word] + 1) if block is None else block.count * math.lgamma(block.size + 1)
    return math.exp(log) if log < MANY else math.inf


def _telling(found: Sample, name: str) -> bool:
    """Whether a tensor of A has more than what is alike for all units."""
    return any(
        (x - _mean_over(x, atom)).norm() > FLAT * x.norm()
        for atom in atoms(found.fitted)
        if atom.tensor == name
        for x in [atom.view(found.a[name])]
    )


def _mean_over(x: Tensor, atom: Atom) -> Tensor:
    dims = [dim for dim, word in enumerate(atom.words) if word is not None]
    return x.mean(dims, keepdim=True) if dims else x


def _with_inner(held: Mapping[str, str], within: Mapping[str, Block]) -> dict[str, str]:
    """With what a starred word that is held lies within: units that stay in their heads hold the heads."""
    more = {
        block.word: held[word] for word, block in within.items() if word in held and block.word is not None
    }
    return {**more, **held}


def _sorted(found: Sample) -> dict[str, str]:
    """The words whose units lie sorted by some size in both models: an exporter gave them their places."""
    held: dict[str, str] = {}
    for atom in atoms(found.fitted):
        for dim, word in enumerate(atom.words):
            if word is None or word in held:
                continue
            block = found.fitted.within.get(word)
            keys = [_keys(atom.view(model[atom.tensor]), dim) for model in (found.a, found.b)]
            for (what, x), (_, y) in zip(*keys, strict=True):
                ranks = [_sortedness(key, block) for key in (x, y)]
                if min(ranks) >= SORTED or max(ranks) <= -SORTED:
                    held[word] = f"units lie sorted in both, by {what} of {atom.tensor}"
                    break
    return held


def _keys(x: Tensor, dim: int) -> list[tuple[str, Tensor]]:
    rows = x.movedim(dim, 0).flatten(1) if x.ndim > 1 else x[:, None]
    keys = [("the sum", rows.sum(1)), ("the norm", rows.norm(dim=1)), ("the size", rows.abs().sum(1))]
    return keys if x.ndim > 1 else keys[:2]


def _sortedness(key: Tensor, block: Block | None) -> float:
    """Rank correlation of a size and the place; of units within blocks the mean over blocks."""
    rows = key.reshape(1, -1) if block is None else key.reshape(block.count, block.size)
    n = rows.shape[1]
    if n < FEW or (rows.amax(1) == rows.amin(1)).any():
        return 0.0
    ranks = rows.argsort(dim=1, stable=True).argsort(dim=1).double()
    place = torch.arange(n).double()
    return float((1 - 6 * (ranks - place).square().sum(1) / (n * (n * n - 1))).mean())


def _parts(
    found: Sample, own: Sequence[Atom], held: Mapping[str, str], within: Mapping[str, Block]
) -> tuple[list[Part], dict[str, str]]:
    """Both models tensor by tensor, centred and of norm 1; and what has nothing of a unit's own."""
    parts: list[Part] = []
    left: dict[str, str] = {}
    known: dict[tuple[object, ...], list[tuple[str, list[Part]]]] = defaultdict(list)
    for name, group in itertools.groupby(own, key=lambda atom: atom.tensor):
        mine = [p for atom in group if (p := _part(found, atom, held, within)) is not None]
        size = [
            math.sqrt(sum(_inner(v, v) for v in each)) for each in ([p.x for p in mine], [p.y for p in mine])
        ]
        raw = [float(model[name].norm()) for model in (found.a, found.b)]
        if not mine:
            left[name] = "its units are held in place"
            continue
        if any(s <= FLAT * r for s, r in zip(size, raw, strict=True)):
            left[name] = "alike for all units"
            continue
        mine = [
            replace(
                p, x=p.x / size[0], y=p.y / size[1], spread=None if p.spread is None else p.spread / size[1]
            )
            for p in mine
        ]
        sort = tuple((p.words, tuple(p.x.shape)) for p in mine)
        tied = next((other for other, its in known[sort] if _equal(mine, its)), None)
        if tied is not None:
            left[name] = f"the same as {tied}"
            continue
        known[sort].append((name, mine))
        parts += mine
    return parts, left


def _equal(one: Sequence[Part], other: Sequence[Part]) -> bool:
    return all(torch.equal(p.x, q.x) and torch.equal(p.y, q.y) for p, q in zip(one, other, strict=True))


def _part(found: Sample, atom: Atom, held: Mapping[str, str], within: Mapping[str, Block]) -> Part | None:
    """One atom of both; None where all its axes stay."""
    words = [None if word in held else word for word in atom.words]
    moving = sorted((dim for dim, word in enumerate(words) if word is not None), key=lambda d: str(words[d]))
    if not moving:
        return None
    both = []
    for model in (found.a, found.b):
        x = atom.view(model[atom.tensor])
        order = [*(dim for dim in range(x.ndim) if dim not in moving), *moving]
        x = x.permute(order)
        both.append(x.reshape(-1, *x.shape[x.ndim - len(moving) :]))
    spread = both[1] if 2 * found.b[atom.tensor].numel() < both[1].numel() else None
    x, y = (_centred(each, [str(words[dim]) for dim in moving], within) for each in both)
    names = tuple(str(words[dim]) for dim in moving)
    if x.ndim == 3 and x.shape[1] == x.shape[2] and names[0] != names[1]:
        x = _without_diagonal(x)
    return Part(atom.tensor, names, x, y, spread)


def _centred(x: Tensor, words: Sequence[str], within: Mapping[str, Block]) -> Tensor:
    for dim, word in enumerate(words, start=1):
        block = within.get(word)
        if block is None or block.word is not None:
            x = x - x.mean(dim, keepdim=True)
        else:  # the blocks stay
            split = x.unflatten(dim, (block.count, block.size))
            x = (split - split.mean(dim + 1, keepdim=True)).flatten(dim, dim + 1)
    return x


def _without_diagonal(x: Tensor) -> Tensor:
    """Centred matrices (c, n, n) without the identity, which some networks begin with: of A alone.

    B may then lie in any order as before.
    """
    n = x.shape[1]
    if n < 2:
        return x
    trace = x.diagonal(dim1=1, dim2=2).sum(1) / (n - 1)
    return x - trace[:, None, None] * (torch.eye(n) - 1 / n)


def _inner(x: Tensor, y: Tensor) -> float:
    return float(torch.dot(x.flatten(), y.flatten()))


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Parts that the same words permute as one."""
    groups: dict[tuple[str, ...], list[Part]] = defaultdict(list)
    for part in parts:
        groups[part.words].append(part)
    return [
        Part(
            "",
            words,
            torch.cat([p.x for p in its]),
            torch.cat([p.y for p in its]),
            None
            if any(p.spread is None for p in its)
            else torch.cat([p.spread for p in its if p.spread is not None]),
        )
        for words, its in groups.items()
    ]


def by_order(parts: Sequence[Part], permutations: Permutations) -> float:
    """The statistic with B's units in this order."""
    total = 0.0
    for part in parts:
        if (entries := part.entries) is not None:
            total += entries.inner(part.x, [permutations[word] for word in part.words])
            continue
        y = part.y
        for dim, word in enumerate(part.words, start=1):
            y = y.index_select(dim, permutations[word])
        total += _inner(part.x, y)
    return total


def by_draws(
    parts: Sequence[Part], words: Mapping[str, int], within: Mapping[str, Block], draws: int, seed: int
) -> Tensor:
    """The statistic of so many orders, drawn evenly from the group: (draws,), float64."""
    rng = generator(seed, "kin, orders by chance")
    # Of one word the products of all pairs of units tell every order
    tables = {p.words[0]: torch.einsum("ci,cj->ij", p.x, p.y) for p in parts if len(p.words) == 1}
    others = [part for part in parts if len(part.words) > 1]
    places = {word: torch.arange(len(table)) for word, table in tables.items()}
    found = torch.empty(draws, dtype=torch.float64)
    for k in range(draws):
        perms = permutation.random(words, rng, within=within)
        own = sum(float(table[places[word], perms[word]].sum()) for word, table in tables.items())
        found[k] = own + by_order(others, perms)
    return found


def _moments(drawn: Tensor) -> tuple[float, float]:
    return float(drawn.mean()), float(drawn.std()) if len(drawn) > 1 else 0.0


@dataclass(frozen=True)
class _Piece:
    """A part in one irreducible space of each axis: `labels` name these, `size` is their dimension."""

    labels: tuple[str, ...]
    x: Tensor
    y: Tensor
    size: int


def closed_variance(parts: Sequence[Part], within: Mapping[str, Block]) -> float | None:
    """The variance of the statistic over the whole group; None where a word acts on two axes of one tensor.

    Deviations from the mean are an irreducible space of the permutations of n units, of dimension n − 1;
    those of units within movable heads are two, of heads and within heads. By Schur's lemma the variance is
    Σ ‖X Yᵀ‖² / dimension, summed over spaces, with all axes that stay side by side: of one word Σ D²/(n−1)
    (Hoeffding 1951), of two Σ ⟨A_c, A_c'⟩⟨B_c, B_c'⟩/((n−1)(m−1)). Different sets of spaces are uncorrelated.
    """
    pieces: dict[tuple[str, ...], list[_Piece]] = defaultdict(list)
    for part in parts:
        bases = [_base(word, within) for word in part.words]
        if len({*bases}) < len(bases):
            return None
        for piece in _pieces(part, within):
            pieces[piece.labels].append(piece)
    total = 0.0
    for its in pieces.values():
        if its[0].size:
            x, y = (torch.cat([getattr(piece, which).flatten(1) for piece in its]).double() for which in "xy")
            if len(x) <= x.shape[1]:
                total += float(((x @ x.T) * (y @ y.T)).sum()) / its[0].size
            else:
                total += float((x.T @ y).square().sum()) / its[0].size
    return total


def _base(word: str, within: Mapping[str, Block]) -> str:
    block = within.get(word)
    return word if block is None or block.word is None else block.word


def _pieces(part: Part, within: Mapping[str, Block]) -> Iterator[_Piece]:
    """The part in all spaces of its axes, these sorted by name."""
    spaces = [_spaces(word, within) for word in part.words]
    for chosen in itertools.product(*spaces):
        x, y, size = part.x, part.y, 1
        for dim, (_, block, which) in enumerate(chosen, start=1):
            x, y = (_projected(v, dim, block, which) for v in (x, y))
            if block is None:
                size *= x.shape[dim] - 1
            else:
                size *= {"heads": block.count - 1, "within": block.count * (block.size - 1)}.get(
                    which, block.size - 1
                )
        labels = [label for label, *_ in chosen]
        order = sorted(range(len(labels)), key=labels.__getitem__)
        x, y = (v.permute(0, *(k + 1 for k in order)) for v in (x, y))
        yield _Piece(tuple(labels[k] for k in order), x, y, size)


def _spaces(word: str, within: Mapping[str, Block]) -> list[tuple[str, Block | None, str]]:
    """Name, blocks and kind of every space of an axis."""
    block = within.get(word)
    if block is None:
        return [(word, None, "")]
    if block.word is None:
        return [(f"{word} in {k}", block, str(k)) for k in range(block.count)]
    return [(block.word, block, "heads"), (f"{word} within", block, "within")]


def _projected(x: Tensor, dim: int, block: Block | None, which: str) -> Tensor:
    if block is None:
        return x
    split: Tensor = x.unflatten(dim, (block.count, block.size))
    mean = split.mean(dim + 1, keepdim=True)
    if which == "heads":
        return mean.squeeze(dim + 1) * math.sqrt(block.size)
    if which == "within":
        return (split - mean).flatten(dim, dim + 1)
    return (split - mean).select(dim, int(which))
