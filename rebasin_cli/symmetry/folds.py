"""What can be folded away of tensors, as values: `inference.groups.folds` reads it off a graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace


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
            found |= {reader.weight, reader.bias or reader.weight}
        return frozenset(found)

    def of(self, names: Collection[str]) -> Folds:
        """The same of files that have one name of each tied tensor: no mean is taken of another name."""
        return replace(self, means=tuple(pair for pair in self.means if pair[0] in names))

    def problems(self, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        """What keeps these folds from being those of tensors of these shapes."""
        found = [f"{name}  is no tensor of the model" for name in sorted(self.tensors - shapes.keys())]
        if found:
            return found
        for norm in self.norms:
            vectors = [name for name in (norm.weight, norm.bias) if name]
            sizes = {shapes[name] for name in vectors}
            if len(sizes) != 1 or len(next(iter(sizes))) != 1:
                found.append(f"{' and '.join(vectors) or 'a norm'}  should be vectors of one size")
                continue
            if norm.free and norm.weight and not norm.bias:
                found.append(f"{norm.weight}  has no bias to be free")
            (size,) = sizes.pop()
            takes = bool(norm.bias) and not norm.free
            found += filter(None, (_reads(reader, size, shapes, takes) for reader in norm.readers))
        for value in self.values:
            if (wrong := _lies(value.part, shapes)) or value.size < 1 or value.times < 1:
                found.append(wrong or f"{value.part.tensor}  has blocks of no size")
            elif value.part.length % value.size:
                found.append(
                    f"{value.part.tensor}  {value.part.length} entries are no blocks of {value.size}"
                )
            elif wrong := _reads(value.reader, value.part.length * value.times, shapes, True):
                found.append(wrong)
        found += filter(None, (_lies(part, shapes) for part in self.keys))
        found += [f"{name}  has no axis {k}" for name, k in self.means if not 0 <= k < len(shapes[name])]
        return found

    @property
    def free(self) -> frozenset[str]:
        """Biases of norms that stay and turn."""
        return frozenset(norm.bias for norm in self.norms if norm.free and norm.bias)

    @property
    def unfolded(self) -> dict[str, str]:
        """Gains and biases that stay, and why."""
        return dict(self.left)


NONE = Folds()


def _lies(part: Part, shapes: Mapping[str, tuple[int, ...]]) -> str:
    shape = shapes[part.tensor]
    if len(shape) == 1 and 0 <= part.start and 0 < part.length and part.start + part.length <= shape[0]:
        return ""
    return f"{part.tensor}  {list(shape)} has no {part.length} entries from {part.start} on"


def _reads(reader: Reader, size: int, shapes: Mapping[str, tuple[int, ...]], takes: bool) -> str:
    """What keeps a layer from reading so many units, and from taking their bias, if it `takes` one."""
    shape, axis = shapes[reader.weight], reader.axis
    if not 0 <= axis < len(shape) or shape[axis] != size:
        return f"{reader.weight}  {list(shape)} does not read {size} units along axis {axis}"
    if takes and (reader.bias is None or shapes[reader.bias] != shape[:axis] + shape[axis + 1 :]):
        return f"{reader.weight}  has no bias that can take up what it reads"
    return ""
