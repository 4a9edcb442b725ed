"""A model whose permutations are mixtures, and the steps that mix further permutations in.

Frank-Wolfe moves from a mixture S of permutations towards one permutation V: S becomes (1−α)·S + α·V. So no
tensor is ever multiplied by S: what it is under V, axis by axis, is gathered and mixed in. For that each is
kept with every subset of its axes mixed; with two permuted axes that is S₁θ, θS₂ᵀ and S₁θS₂ᵀ, beside θ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import torch

from ...spec.atoms import Atom
from ...spec.spec import FittedSpec
from ...types import Permutations, Tensors
from .blocks import Blocks
from .pace import Pace


class Mixed(Blocks):
    """One model, its units mixed; at first each stays where it is.

    In float64: every step depends on all before it, and a model should be matched alike whatever it is
    stored in. A subset of an atom's axes is a number whose bit d stands for axis d. To be used while one
    of the models of the search is `computing()`.
    """

    def __init__(self, model: Tensors, fitted: FittedSpec, *, device: str = "cpu"):
        super().__init__(model, model, fitted, device=device)
        self.dtype = torch.float64
        self.whole = {
            atom: sum(1 << d for d, word in enumerate(atom.words) if word is not None) for atom in self.atoms
        }
        self._parts: dict[Atom, dict[int, torch.Tensor]] = {}
        for atom in self.atoms:
            given = self._wide(self._views(atom)[0])
            self._parts[atom] = dict.fromkeys(_within(self.whole[atom]), given)
        self._seen.clear()  # these copies are enough
        self._there.clear()

    def axes(self, atom: Atom) -> int:
        """How many axes are permuted."""
        return self.whole[atom].bit_count()

    def mixed(self, atom: Atom) -> torch.Tensor:
        """The tensor with all its axes mixed."""
        return self._parts[atom][self.whole[atom]]

    def add_gradient(
        self, out: Mapping[str, torch.Tensor], atom: Atom, others: torch.Tensor, pace: Pace
    ) -> None:
        """⟨others, mixed⟩ derived by each word's mixture (n, n), added to `out`."""
        for d, word in enumerate(atom.words):
            if word is not None:
                mine = self._parts[atom][self.whole[atom] & ~(1 << d)]
                pace.add_product(out[word], *self._matrices(others, mine, d))

    def segment(self, atom: Atom, towards: Permutations) -> list[torch.Tensor]:
        """The tensor on the way is Σ over e = 0 … k of (1−α)^(k−e) · α^e times the e-th of these."""
        return self._terms(atom, self.whole[atom], towards)

    def step(self, towards: Permutations, alpha: float) -> None:
        """Mix in a permutation with the share `alpha`."""
        for atom, parts in self._parts.items():
            for subset in sorted(parts, key=lambda s: (-s.bit_count(), s))[
                :-1
            ]:  # the larger need the smaller
                if alpha == 1:
                    parts[subset] = self._moved(atom, subset, subset, towards)
                    continue
                terms = self._terms(atom, subset, towards)
                last = len(terms) - 1
                shares = [(1 - alpha) ** (last - e) * alpha**e for e in range(last + 1)]
                shared = (term * share for term, share in zip(terms, shares, strict=True))
                parts[subset] = reduce(torch.add, shared)

    def _terms(self, atom: Atom, subset: int, towards: Permutations) -> list[torch.Tensor]:
        """By how many of the axes in `subset` are permuted, while the rest of it stays mixed."""
        terms: dict[int, torch.Tensor] = {}
        for moved in _within(subset):
            term, e = self._moved(atom, subset, moved, towards), moved.bit_count()
            terms[e] = terms[e] + term if e in terms else term
        return [terms[e] for e in sorted(terms)]

    def _moved(self, atom: Atom, subset: int, moved: int, towards: Permutations) -> torch.Tensor:
        term = self._parts[atom][subset & ~moved]
        for d, word in enumerate(atom.words):
            if word is not None and moved >> d & 1:
                term = self._take(term, d, towards[word])
        return term


def _within(whole: int) -> Iterator[int]:
    """All subsets, the empty one first."""
    subset = 0
    while True:
        yield subset
        if subset == whole:
            return
        subset = (subset - whole) & whole
