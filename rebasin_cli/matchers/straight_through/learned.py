"""One model whose elements are learned: numbers without a constraint, and the maps that they stand for.

All numbers are 0 where the model stands at first, which is where every map is the identity. A rotation is
Cayley's map of a skew matrix, (I − S/2)⁻¹ (I + S/2), one product and one solve also where a stream is wide;
an invertible matrix, positive scales, and a complex factor a pair are exponentials. Signs are no numbers:
they go with the order.
"""

from __future__ import annotations

import torch

from ...spec.notation import Axis, Word, leaves_of, words_of
from ...spec.spec import FittedSpec
from ...symmetry import action, permutation
from ...symmetry import elements as acts
from ...symmetry.action import Maps
from ...symmetry.elements import Elements
from ...symmetry.permutation import is_identity
from ...types import Tensors


class Learned:
    """`base` is the model as it stands at first; `numbers` of its words are what an optimizer moves.

    Words of groups that have none stay as they stand, but for their order.
    """

    def __init__(self, base: Tensors, fitted: FittedSpec):
        self.base, self.fitted = base, fitted
        some = next(iter(base.values()))
        self.numbers = {
            word: torch.zeros(shape, dtype=torch.float32, device=some.device, requires_grad=True)
            for word in fitted.groups
            if (shape := self._shape(word)) is not None
        }
        self._made: dict[str, torch.Tensor] = {}
        self.touched = [
            name
            for name, axes in fitted.tensors.items()
            if name in base and any(self._acts_on(leaf) for axis in axes for leaf in leaves_of(axis))
        ]

    def _acts_on(self, leaf: Axis) -> bool:
        return isinstance(leaf, Word) and leaf.name in self.numbers and leaf.side != "|"

    def _shape(self, word: str) -> tuple[int, ...] | None:
        block = self.fitted.within.get(word)
        shape = self.fitted.group(word).learnt(self.fitted.words[word] if block is None else block.size)
        return shape if shape is None or block is None else (block.count, *shape)

    def maps(self, dtype: torch.dtype = torch.float32) -> Maps:
        """Every word's map and its inverse transposed, with a gradient."""
        return {w: self.fitted.group(w).learned(numbers.to(dtype)) for w, numbers in self.numbers.items()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors that the maps act on, as they make them, with a gradient."""
        maps, axes = self.maps(), self.fitted.tensors
        return {n: action.multiplied(self.base[n], axes[n], self.fitted, maps) for n in self.touched}

    def pull(self, gradients: Tensors, then: Elements) -> None:
        """Add to the numbers' gradients those of a loss whose gradients of the model's tensors these are.

        `then` is what acts on the model after the maps: orders and signs, of which inverses are transposes.
        """
        made = self._made or self.tensors()
        self._made = {}
        arrived = self._moved({name: gradients[name] for name in made}, acts.invert(then, self.fitted))
        torch.autograd.backward([*made.values()], [*arrived.values()])

    def write(self, standing: Tensors, then: Elements) -> None:
        """Let the model stand as its maps, and orders and signs after them, make it."""
        self._made = self.tensors()  # with their graph: the next gradients are pulled through it
        for name, tensor in self._moved({n: t.detach() for n, t in self._made.items()}, then).items():
            standing[name].copy_(tensor)

    def _moved(self, tensors: Tensors, by: Elements) -> dict[str, torch.Tensor]:
        maps, within = acts.maps_of(by), self.fitted.within
        moving = {word for word, perm in by.permutations.items() if not is_identity({word: perm})}
        found = dict(tensors)
        for name, tensor in tensors.items():
            axes = self.fitted.tensors[name]
            if not moving.isdisjoint(word for axis in axes for word in words_of(axis)):
                tensor = permutation.permute(tensor, axes, by.permutations, within)
            found[name] = action.act(tensor, axes, self.fitted, maps)
        return found

    @torch.no_grad()
    def element(self, then: Elements) -> Elements:
        """What the numbers and orders and signs after them do, as one element in float64."""
        maps = {word: both[0].cpu() for word, both in self.maps(torch.float64).items()}
        still = acts.identity(self.fitted).permutations
        return acts.compose(Elements(still, maps), then, self.fitted)
