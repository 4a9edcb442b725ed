"""The step of words that take more than an order: an element of their groups, multiplied into the model.

The word's inner products are summed into C, (n, n), reference unit × model unit, and its element is the one
nearest to C; heads are matched together with all the words within them. Scales are settled where a model
is in canonical form, so that a word of them is only ordered.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace

import torch

from ...spec.atoms import Atom
from ...spec.spec import FittedSpec
from ...symmetry import projection
from ...types import Permutations
from . import starred
from .pair import Pair
from .starred import Group


@dataclass(frozen=True)
class Change:
    """An element, word by word, and what the objective gains by it, where the rest stays as it is.

    `perms` are orders, int64 (n,); `maps` as `projection.project` and `projection.heads` give them.
    """

    perms: dict[str, torch.Tensor]
    maps: dict[str, torch.Tensor]
    gain: float


def groups(fitted: FittedSpec) -> dict[str, Group]:
    """All that takes more than an order, each by its first: single words, and heads with all in them."""
    more = {word for word in fitted.groups if fitted.group(word).more}
    coupled = starred.groups(fitted.within)
    inside = {word for group in coupled.values() for word in group.words}
    found = {word: Group(word, ()) for word in fitted.groups if word in more - inside}
    return found | {name: group for name, group in coupled.items() if more & {*group.words}}


def step(
    pair: Pair, fitted: FittedSpec, group: Group, current: Permutations, known: Set[str] | None = None
) -> Change:
    """The best element on the atoms whose other words are `known` (None: all).

    It is multiplied to what `pair` holds already, in the orders of `current`; neither is changed.
    """
    if group.starred:
        return _heads(pair, fitted, group, current, known)
    (word,) = group.words
    atoms = _atoms(pair, word, known)
    ordered = [atom for atom in atoms if any(w == word and atom.ordered(d) for d, w in enumerate(atom.words))]
    whole = pair.matrix(word, current, chosen=[atom for atom in atoms if atom not in ordered]).cpu()
    order = pair.matrix(word, current, chosen=ordered).cpu() if ordered else None
    kind = fitted.groups[word]
    found = projection.project(whole, kind, order=order)
    before = whole.double().trace() + (0 if order is None else order.double().trace())
    perms = {word: found.perm} if fitted.group(word).ordered else {}
    return Change(perms, {} if found.map is None else {word: found.map}, found.value - float(before))


def _heads(
    pair: Pair, fitted: FittedSpec, group: Group, current: Permutations, known: Set[str] | None
) -> Change:
    def matrix(word: str) -> torch.Tensor:
        return pair.matrix(word, current, chosen=_atoms(pair, word, known)).cpu()

    matrices = {word: matrix(word) for word in group.starred}
    outer = matrix(group.outer) if group.outer is not None and pair.single[group.outer] else None
    best = nearest(group, matrices, fitted, outer)
    before = sum(float(m.double().trace()) for m in [*matrices.values(), *([] if outer is None else [outer])])
    return replace(best, gain=best.gain - before)


def nearest(
    group: Group, matrices: Mapping[str, torch.Tensor], fitted: FittedSpec, outer: torch.Tensor | None = None
) -> Change:
    """The element of heads and the words within them nearest to these matrices; its gain is what it is worth.

    `outer` is a similarity of the heads themselves.
    """
    order, found, value = projection.heads(
        matrices, fitted.groups, fitted.within, outer, still=group.outer is None
    )
    perms = {} if group.outer is None else {group.outer: order}
    perms |= {word: each for word, each in found.items() if each.ndim == 1}
    return Change(perms, {word: each for word, each in found.items() if each.ndim > 1}, value)


def _atoms(pair: Pair, word: str, known: Set[str] | None) -> list[Atom]:
    return pair.single[word] + pair.double[word] if known is None else pair.resting_on(word, known)
