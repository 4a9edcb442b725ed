"""What can be folded away of a network's tensors, as values: `inference.folds` reads it off a graph."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reader:
    """A linear layer that reads units along `axis` of its weight; `bias` None where it has none."""

    weight: str
    bias: str | None
    axis: int = 1


@dataclass(frozen=True)
class Norm:
    """A gain and a bias, either None where there is none, that go into what reads them.

    A bias that is `free` no reader can take up: it stays, over the gain, and turns as what it is added to.
    """

    weight: str | None
    bias: str | None
    readers: tuple[Reader, ...]
    free: bool = False


@dataclass(frozen=True)
class Part:
    """Entries of a vector, from `start` on."""

    tensor: str
    start: int
    length: int


@dataclass(frozen=True)
class ValueBias:
    """Entries of a bias that go through the matrix of `reader`: each block of `size` to `times` blocks."""

    part: Part
    reader: Reader
    size: int
    times: int


@dataclass(frozen=True)
class Folds:
    """All that can be folded, in this order; `left` has (what, why) of the rest."""

    norms: tuple[Norm, ...] = ()
    values: tuple[ValueBias, ...] = ()
    keys: tuple[Part, ...] = ()
    means: tuple[tuple[str, int], ...] = ()  # tensors and the axis whose mean goes
    left: tuple[tuple[str, str], ...] = ()

    @property
    def tensors(self) -> frozenset[str]:
        """All that folding writes to."""
        found = {name for name, _ in self.means} | {part.tensor for part in self.keys}
        found |= {name for norm in self.norms for name in (norm.weight, norm.bias) if name}
        found |= {bias.part.tensor for bias in self.values}
        for reader in [r for norm in self.norms for r in norm.readers] + [v.reader for v in self.values]:
            found |= {name for name in (reader.weight, reader.bias) if name}
        return frozenset(found)

    @property
    def free(self) -> frozenset[str]:
        """Biases of norms that stay and turn."""
        return frozenset(norm.bias for norm in self.norms if norm.free and norm.bias)

    @property
    def unfolded(self) -> dict[str, str]:
        """Gains and biases that stay, and why."""
        return dict(self.left)
