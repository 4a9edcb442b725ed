"""The second model with group elements multiplied in, and the pair that it makes with the reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch

from ...spec.atoms import Atom
from ...spec.groups import MATRICES
from ...spec.notation import Word, leaves_of, words_of
from ...spec.spec import FittedSpec
from ...symmetry import acting, permutation
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from ...types import Tensors
from .blocks import wide
from .pair import Pair


class Whole(Pair):
    """A pair of whose words some are compared as they are: no mean is taken off their units."""

    def __init__(self, *args: Any, whole: Collection[str], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._whole = frozenset(whole)

    def _has_offset(self, atom: Atom, dim: int) -> bool:
        return atom.words[dim] not in self._whole and super()._has_offset(atom, dim)


class Baked:
    """`pair` compares the reference with the model as `element` made it: elements of the words in `whole`.

    Both models are in canonical form. Tensors that a rotated word only orders are constant there, and no
    evidence. Where some word takes matrices, all others count alike: their inner products are divided by both
    models' norms, since how large a tensor is says little behind a norm, and the small ones (embeddings,
    positions) say most of a stream. `shares` are other factors, by tensor.
    """

    def __init__(
        self,
        reference: Tensors,
        model: Tensors,
        fitted: FittedSpec,
        whole: Collection[str],
        shares: Mapping[str, float] | None = None,
        **how: Any,
    ):
        self.fitted = fitted
        dtype = wide([reference, model], list(fitted.tensors))
        self.tensors: dict[str, torch.Tensor] = {}
        shared: dict[str, torch.Tensor] = {}
        alike = shares is None and counted_alike(fitted)
        for name in fitted.tensors:  # each is read once: it may be made when it is asked for
            a, b = reference[name], _own(model[name], dtype)
            share = share_of(a, b) if alike else (shares or {}).get(name)
            self.tensors[name], shared[name] = b, a if share is None else _own(a, dtype) * share
        seen = replace(fitted, statistics=fitted.statistics | constant(fitted))
        self.pair = Whole(shared, self.tensors, seen, whole=whole, **how)
        self.element = acts.identity(fitted)
        self.places = {
            word: [n for n, axes in fitted.tensors.items() if any(word in words_of(a) for a in axes)]
            for word in fitted.words
        }

    def bake(self, perms: Mapping[str, torch.Tensor], maps: Mapping[str, torch.Tensor]) -> None:
        """Let an element of some words act; the others stay."""
        still = permutation.identity(self.fitted.words)
        done = Elements(permutation.carried(still | dict(perms), self.fitted.within), dict(maps))
        both = acts.maps_of(done)
        for name in sorted({name for word in (*perms, *maps) for name in self.places[word]}):
            axes = self.fitted.tensors[name]
            moved = permutation.permute(self.tensors[name], axes, done.permutations, self.fitted.within)
            self.tensors[name].copy_(acting.act(moved, axes, self.fitted, both))
        self.element = acts.compose(self.element, done, self.fitted)
        self.pair.refresh()

    def kept(self, words: Collection[str]) -> tuple[dict[str, torch.Tensor], Elements]:
        """What `restore` needs to undo an element of these words."""
        names = {name for word in words for name in self.places[word]}
        return {name: self.tensors[name].clone() for name in names}, self.element

    def restore(self, kept: tuple[dict[str, torch.Tensor], Elements]) -> None:
        for name, tensor in kept[0].items():
            self.tensors[name].copy_(tensor)
        self.element = kept[1]
        self.pair.refresh()


def counted_alike(fitted: FittedSpec) -> bool:
    """Whether every tensor counts as much as any other, however large it is: some word takes matrices."""
    return any(kind in MATRICES for kind in fitted.groups.values())


def share_of(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """1 / (‖A‖·‖B‖), 0 where either is 0; None for integers, which are never evidence of a map."""
    if not a.is_floating_point():
        return None
    norms = float(a.double().norm() * b.double().norm())
    return 1 / norms if norms > 0 else 0.0


def _own(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy to write to; integers stay what they are."""
    return tensor.detach().cpu().to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def constant(fitted: FittedSpec) -> frozenset[str]:
    """Tensors that a rotated word only orders: in canonical form they hold equal numbers."""
    return frozenset(
        name
        for name, axes in fitted.tensors.items()
        for axis in axes
        for leaf in leaves_of(axis)
        if isinstance(leaf, Word) and leaf.side == "|" and fitted.groups.get(leaf.name) in MATRICES
    )
