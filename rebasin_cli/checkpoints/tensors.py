"""Named tensors, wherever they come from: read whole, by rows or in chunks. Nothing here opens a file.

Every function takes a mapping from names to tensors. One that also has `shapes` and `dtypes` (a
`Checkpoint`, a `LazyTensors`) is asked for a tensor only when its values are needed, one at a time.
"""

from __future__ import annotations

import math
import threading
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import UsageError
from ..types import Lazy, Tensors, is_lazy

Values = Tensor | np.ndarray
Model = Mapping[str, Values] | Sequence[Values]
Plan = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
CHUNK = 1 << 22  # bytes worked on at once: small enough for the allocator to give them back


def in_memory(tensor: Tensor) -> list[int]:
    """The axes as they lie in memory, outermost first."""
    return sorted(range(tensor.ndim), key=tensor.stride, reverse=True)


class LazyTensors(Mapping[str, Tensor]):
    """Tensors that are computed when asked for: `shapes` and `dtypes` are known, `get(name)` makes one.

    `rows(name, start, stop)`, where given, makes a part of the first axis without making the whole.

    >>> doubled = LazyTensors({"w": (2,)}, {"w": torch.float32}, lambda name: 2 * torch.ones(2))
    >>> doubled["w"]
    tensor([2., 2.])
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        dtypes: Mapping[str, torch.dtype],
        get: Callable[[str], Tensor],
        rows: Callable[[str, int, int], Tensor] | None = None,
    ):
        self.shapes, self.dtypes, self._get, self._rows = dict(shapes), dict(dtypes), get, rows
        self._whole: tuple[str, Tensor] | None = None  # the tensor that `rows` is asked for in parts

    @classmethod
    def of(cls, plan: Plan, make: Callable[[str, Callable[[Tensors], Tensor]], Tensor]) -> LazyTensors:
        """Tensors with these dtypes and shapes, each whole or a part of its first axis, as it is asked for.

        `make(name, take)` makes one of what `take(model)` gives: as much of the model's tensor of this name.
        """

        def part(name: str, start: int, stop: int) -> Tensor:
            return make(name, lambda model: rows(model, name, start, stop))

        shapes = {name: shape for name, (_, shape) in plan.items()}
        dtypes = {name: dtype for name, (dtype, _) in plan.items()}
        return cls(shapes, dtypes, lambda name: make(name, lambda model: model[name]), part)

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        if self._rows is not None:
            return self._rows(name, start, stop)
        if self._whole is None or self._whole[0] != name:  # made once, not again for every part
            self._whole = None
            self._whole = name, self[name]
        return self._whole[1][start:stop]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __contains__(self, name: object) -> bool:
        return name in self.shapes  # the inherited one would compute the tensor


class Room:
    """How many bytes of tensors may be kept, of all models together that `held` is given it for."""

    def __init__(self, size: float = math.inf):
        self._left, self._lock = size, threading.Lock()

    def takes(self, size: int) -> bool:
        """Whether so many bytes more may be kept; they are, then."""
        with self._lock:
            fits = size <= self._left
            self._left -= size * fits
        return fits


class _Held(LazyTensors):
    """A checkpoint's tensors, each read once, as far as there is room; others whenever they are asked for.

    Those that come first stay. A search goes round over all tensors: of what was used last nothing would
    ever be there when it is asked for again. Beyond that the last one is at hand, for who asks twice.
    """

    def __init__(self, model: Lazy, source: Tensors, room: Room):
        self._kept: dict[str, Tensor] = {}
        self._last: tuple[str, Tensor] | None = None
        super().__init__(model.shapes, model.dtypes, self._read)
        self.model, self.source, self.room = model, source, room

    def _read(self, name: str) -> Tensor:
        if (kept := self._kept.get(name)) is not None:
            return kept
        if (last := self._last) is not None and last[0] == name:
            return last[1]
        self._last = None  # its memory is free for the next
        if self._fits(name):
            return self._kept.setdefault(name, self.model[name])
        tensor = self.model[name]
        self._last = name, tensor  # by now it may be another thread's
        return tensor

    def _fits(self, name: str) -> bool:
        return self.room.takes(math.prod(self.shapes[name]) * self.dtypes[name].itemsize)

    def ahead(self, name: str) -> None:
        """Read what will be kept."""
        if name not in self._kept and self._fits(name):
            self._kept[name] = self.model[name]


def held(model: Tensors, *, computed: bool = False, room: Room | None = None) -> Tensors:
    """The same model; what reads a tensor from a file whenever it is asked for reads it once.

    So does, if `computed`, what makes it whenever it is asked for. As much is kept as there is `room` for;
    None for all.
    """
    reads = hasattr(model, "read_rows") or (computed and isinstance(model, LazyTensors))
    known = model
    return _Held(known, model, room or Room()) if reads and is_lazy(known) else model


def read_ahead(model: Tensors, name: str) -> None:
    """Have a tensor read now, of a model that `held` made, if it will be kept."""
    if isinstance(model, _Held):
        model.ahead(name)


def is_held(model: Tensors) -> bool:
    """Whether the model is one that `held` made, and keeps tensors that were asked for."""
    return isinstance(model, _Held)


def source_of(model: Tensors) -> Tensors:
    """What `held` holds; the model itself where nothing is held."""
    return model.source if isinstance(model, _Held) else model


def room_of(model: Tensors) -> Room | None:
    """What `held` was given for a model; None for one that it did not make."""
    return model.room if isinstance(model, _Held) else None


def plan_of(tensors: Tensors) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of every tensor, without reading values where the mapping knows them."""
    if is_lazy(tensors):
        return {name: (tensors.dtypes[name], tuple(tensors.shapes[name])) for name in tensors}
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def rows(tensors: Tensors, name: str, start: int, stop: int) -> Tensor:
    """Part of one tensor's first axis, made without the rest where the mapping knows how."""
    own: Callable[[str, int, int], Tensor] | None = getattr(tensors, "rows", None)
    return tensors[name][start:stop] if own is None else own(name, start, stop)


def over(first: Tensors, rest: Tensors) -> Tensors:
    """`first` as it is, and of the `rest` what that lacks; each tensor is made when it is asked for."""
    return ChainMap(dict(first), cast(MutableMapping[str, Tensor], rest))  # it writes to its first map alone


def replaced(tensors: Tensors, by: Tensors) -> LazyTensors:
    """`tensors` with some replaced, and what is new at the end; names, order and dtypes stay."""
    plan = plan_of(tensors)
    new = {name: by[name] for name in by if name not in plan}
    wide = next((dtype for dtype, _ in plan.values() if dtype.is_floating_point), torch.float32)
    plan |= {name: (wide, tuple(tensor.shape)) for name, tensor in new.items()}

    def make(name: str, take: Callable[[Tensors], Tensor]) -> Tensor:
        return take(by).to(plan[name][0]) if name in by else take(tensors)

    return LazyTensors.of(plan, make)


def overlaid(tensors: Tensors, by: Tensors) -> LazyTensors:
    """`tensors` with some replaced, which have dtypes of their own; names and their order stay."""
    plan = plan_of(tensors) | plan_of(by)
    return LazyTensors.of(plan, lambda name, take: take(by if name in by else tensors))


def blocks(tensors: Tensors, name: str, size: int = CHUNK) -> Iterator[Tensor]:
    """One tensor in pieces of its first axis, about `size` bytes each where they are made on demand."""
    own = getattr(tensors, "rows", None)
    if own is None or not is_lazy(tensors):
        yield tensors[name]
        return
    shape, dtype = tensors.shapes[name], tensors.dtypes[name]
    bytes_a_row = math.prod(shape[1:]) * dtype.itemsize
    if not shape or shape[0] * bytes_a_row <= size:
        yield tensors[name]
        return
    step = max(1, size // bytes_a_row)
    for start in range(0, shape[0], step):
        yield own(name, start, min(start + step, shape[0]))


SPARSE = "is sparse: save it with .to_dense()"
NESTED = "is nested: its parts have shapes of their own"


def odd(tensor: Tensor) -> str:
    """What keeps a tensor from having plain values, wherever it lies; "" where nothing does."""
    if tensor.is_nested:
        return NESTED
    if tensor.layout is not torch.strided:
        return SPARSE
    return "has no values: it is on the device 'meta'" if tensor.device.type == "meta" else ""


def chunks(tensor: Tensor, size: int = CHUNK) -> Iterator[Tensor]:
    """The values in row-major order as contiguous 1-d tensors on the CPU, at most `size` bytes each.

    A view where the memory allows it, else a copy of one chunk at a time.
    """
    tensor = tensor.detach()
    count = max(1, size // tensor.dtype.itemsize)
    if tensor.numel() <= count:
        yield tensor.contiguous().reshape(-1).cpu()
    elif tensor.is_contiguous():
        for chunk in tensor.reshape(-1).split(count):
            yield chunk.cpu()
    else:
        rows = max(1, count // math.prod(tensor.shape[1:]))
        for part in tensor.split(rows) if rows > 1 else tensor:
            yield from chunks(part, size)


def named(models: Iterable[Model], names: Sequence[str] | None) -> list[Mapping[str, Values]]:
    """The models as mappings: the values of a list get these names, in their order.

    Raises UsageError for a list without names, or with another number of them.
    """
    if isinstance(models, Mapping | Tensor | np.ndarray):
        kind = "mapping" if isinstance(models, Mapping) else type(models).__name__
        raise UsageError(f"the models are one {kind}", hint="Give a list of state dicts: [a, b]")
    found: list[Mapping[str, Values]] = []
    names = None if names is None else [*names]
    for number, model in enumerate(models, start=1):
        if isinstance(model, Mapping) or not isinstance(model, list | tuple):
            if names is not None:
                raise UsageError(
                    f"model {number} is of type {type(model).__name__}, and `names` are for lists of arrays",
                    hint="Leave `names` out for mappings",
                )
            found.append(cast(Mapping[str, Values], model))  # what is none is refused where it is used
            continue
        if names is None:
            raise UsageError(
                f"model {number} is a {type(model).__name__}: nothing says what its {len(model)} values are",
                hint="Name them in their order: names=[*network.state_dict()]",
            )
        if len({*names}) < len(names):
            twice = next(name for name in names if [*names].count(name) > 1)
            raise UsageError(f"two of the names are {twice!r}", hint="Give every value a name of its own")
        if len(model) != len(names):
            raise UsageError(f"model {number} has {len(model)} values, and there are {len(names)} names")
        found.append(dict(zip(names, model, strict=True)))
    return found


def plain(models: Iterable[Mapping[str, Values]]) -> list[Tensors]:
    """The models as tensors, without their gradients' history; arrays share their memory where they can.

    Raises UsageError for what is no mapping to tensors with values: from the meta device, sparse, nested.
    """
    return [_plain(number, model) for number, model in enumerate(named(models, None), start=1)]


def _plain(number: int, model: Any) -> Tensors:
    if not isinstance(model, Mapping):
        raise UsageError(
            f"model {number} is of type {type(model).__name__}, not a mapping of names to tensors",
            hint="Give a state dict: network.state_dict(), or rebasin_cli.open_checkpoint(path)",
        )
    tensors: Tensors = model
    if is_lazy(model):  # read when asked for
        return tensors
    wrong = [f"{name!r}  is no name" for name in model if not isinstance(name, str)]
    made: dict[str, Tensor] = {}
    for name, value in model.items():
        tensor = _tensor(value)
        if isinstance(tensor, Tensor):
            made[name] = tensor
        else:
            wrong.append(f"{name}  {tensor}")
    if wrong:
        raise UsageError(f"model {number} is not a mapping of names to tensors", problems=wrong)
    if unusable := [f"{name}  {why}" for name, tensor in made.items() if (why := odd(tensor))]:
        raise UsageError(
            f"model {number} has tensors without plain values",
            problems=unusable,
            hint="Load its weights first: what is on the meta device is a plan of a model",
        )
    return model if all(value is model[name] for name, value in made.items()) else made


def _tensor(value: Any) -> Tensor | str:
    """The value as a tensor, or what it is instead."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, np.ma.MaskedArray):
        return "is a masked array: some of its values are none"
    if not isinstance(value, np.ndarray | np.generic):
        return f"is of type {type(value).__name__}"
    array = np.asarray(value)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):  # torch takes neither
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError:  # text, objects, and numbers that torch has no type for
        return f"is an array of {array.dtype}"


def as_given(
    tensors: Tensors, like: Mapping[str, Values], *, listed: bool
) -> dict[str, Values] | list[Values]:
    """The tensors as `like` has its own: arrays where it has arrays; `listed` without their names."""
    arrays = all(isinstance(value, np.ndarray | np.generic) for value in like.values())
    made = {name: tensor.numpy() if arrays else tensor for name, tensor in tensors.items()}
    return [*made.values()] if listed else made
