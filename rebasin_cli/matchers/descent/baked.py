"""The second model with group elements multiplied in, and the pair that it makes with the reference."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch

from ...runtime.ranks import ALONE, Ranks
from ...spec.notation import words_of
from ...spec.spec import FittedSpec
from ...symmetry import action, permutation
from ...symmetry import elements as acts
from ...symmetry.elements import Elements
from ...symmetry.form import constant
from ...types import Permutations, Tensors
from . import turned
from .blocks import wide
from .pair import Pair

Kept = tuple[dict[str, torch.Tensor], Elements]


def paired(
    reference: Tensors,
    model: Tensors,
    fitted: FittedSpec,
    shares: Mapping[str, float | None] | None = None,
    *,
    device: str = "cpu",
    ranks: Ranks = ALONE,
) -> Pair:
    """The pair of two models, in canonical form where words have groups; `shares` as in `Baked`."""
    if fitted.groups:
        return Baked(reference, model, fitted, shares, device=device)
    return Pair(reference, model, fitted, device=device, ranks=ranks)


class Baked(Pair):
    """The reference, and the model as `baked` made it: an element of the words in `turned`.

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
        shares: Mapping[str, float | None] | None = None,
        whole: Collection[str] = (),
        *,
        device: str = "cpu",
    ):
        dtype = wide([reference, model], list(fitted.tensors))
        self.given, self.tensors = model, dict[str, torch.Tensor]()
        shared: dict[str, torch.Tensor] = {}
        alike = shares is None and counted_alike(fitted)
        for name in fitted.tensors:  # each is read once: it may be made when it is asked for
            a, b = reference[name], _own(model[name], dtype, device)
            share = share_of(a, b) if alike else (shares or {}).get(name)
            self.tensors[name], shared[name] = b, a if share is None else _own(a, dtype, device) * share
        seen = replace(fitted, statistics=fitted.statistics | constant(fitted))
        self.turning = turned.groups(fitted)
        self.turned = {word for group in self.turning.values() for word in group.words}
        super().__init__(shared, self.tensors, seen, whole={*self.turned, *whole}, device=device)
        self.fitted, self.baked = fitted, acts.identity(fitted)
        self.places = {
            word: [n for n, axes in fitted.tensors.items() if any(word in words_of(a) for a in axes)]
            for word in fitted.words
        }

    def element(self, current: Permutations) -> Elements:
        perms = {w: self.baked.permutations[w] if w in self.turned else p for w, p in current.items()}
        return Elements(perms, dict(self.baked.maps))

    def stand(self, element: Elements) -> dict[str, torch.Tensor]:
        still = permutation.identity(self.fitted.words)
        current = {w: still[w] if w in self.turned else perm for w, perm in element.permutations.items()}
        if same(element, self.element(current)):
            return current
        if self.baked.maps or not permutation.is_identity(self.baked.permutations):
            for name, tensor in self.tensors.items():
                tensor.copy_(self.given[name])
            self.baked = acts.identity(self.fitted)
        own = {word: perm for word, perm in element.permutations.items() if word in self.turned}
        self.bake(own, element.maps)
        return current

    def bake(self, perms: Mapping[str, torch.Tensor], maps: Mapping[str, torch.Tensor]) -> None:
        """Let an element of some words act; the others stay."""
        still = permutation.identity(self.fitted.words)
        done = Elements(permutation.carried(still | dict(perms), self.fitted.within), dict(maps))
        both = acts.maps_of(done)
        for name in sorted({name for word in (*perms, *maps) for name in self.places[word]}):
            axes = self.fitted.tensors[name]
            moved = permutation.permute(self.tensors[name], axes, done.permutations, self.fitted.within)
            self.tensors[name].copy_(action.act(moved, axes, self.fitted, both))
        self.baked = acts.compose(self.baked, done, self.fitted)
        self.refresh()

    def kept(self, words: Collection[str]) -> Kept:
        """What `restore` needs to undo an element of these words."""
        names = {name for word in words for name in self.places[word]}
        return {name: self.tensors[name].clone() for name in names}, self.baked

    def restore(self, kept: Kept) -> None:
        for name, tensor in kept[0].items():
            self.tensors[name].copy_(tensor)
        self.baked = kept[1]
        self.refresh()


def same(one: Elements, other: Elements) -> bool:
    return one.maps.keys() == other.maps.keys() and all(
        torch.equal(mine[word], theirs[word])
        for mine, theirs in ((one.permutations, other.permutations), (one.maps, other.maps))
        for word in mine
    )


def counted_alike(fitted: FittedSpec) -> bool:
    """Whether every tensor counts as much as any other, however large it is: some word takes matrices."""
    return any(fitted.group(word).matrix for word in fitted.groups)


def share_of(a: torch.Tensor, b: torch.Tensor) -> float | None:
    """1 / (‖A‖·‖B‖), 0 where either is 0; None for integers, which are never evidence of a map."""
    if not a.is_floating_point():
        return None
    norms = float(a.double().norm() * b.double().norm())
    return 1 / norms if norms > 0 else 0.0


def _own(tensor: torch.Tensor, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A copy to write to; integers stay what they are."""
    return tensor.detach().to(device, dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
