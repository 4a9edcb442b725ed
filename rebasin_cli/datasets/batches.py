"""Batches that somebody else makes: checked while they are read, moved, counted."""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from ..registry import user_code
from ..runtime.seeds import seeded

TARGETS = ("labels", "label", "targets", "target", "y")  # what batches call them
SHOWN = 8  # entries of a dictionary in a message
MOST = 8 << 30  # bytes of batches that are kept, where a loader gives others each time
OWN = "rebasin_cli."  # modules whose batches come in one order
DEPTH = 3  # containers within containers there, which may hold themselves


@dataclass(frozen=True)
class Keyed:
    """How a dictionary is a batch: the targets lie under `key`, or under one of `TARGETS`.

    All else are inputs, by name; one input alone needs none. `inside`: the targets stay among the inputs, for
    a network that computes its own loss.
    """

    key: str | None = None
    inside: bool = False

    def of(self, batch: Mapping[str, Any]) -> str | None:
        """The key of the targets in a batch; None where there are none."""
        return self.key if self.key is not None else next((name for name in TARGETS if name in batch), None)

    def parted(self, batch: Mapping[str, Any], number: int) -> tuple[Any, Any]:
        """Inputs and targets. Raises DataError where there are no such targets, or nothing else."""
        key = self.of(batch)
        if key is not None and key not in batch:
            raise DataError(
                f"batch {number} of the data has no {key!r}: it has {', '.join(map(repr, [*batch][:SHOWN]))}",
                hint="Name the key of the targets with --targets",
            )
        inputs = {name: value for name, value in batch.items() if name != key}
        if not inputs:
            raise DataError(f"batch {number} of the data has nothing but its targets, {key!r}")
        targets = None if key is None else batch[key]
        if self.inside:
            return dict(batch), targets
        return (inputs if len(inputs) > 1 else next(iter(inputs.values()))), targets


def checked(batches: Iterable[Any], keyed: Keyed | None = None) -> Iterator[tuple[Any, Any]]:
    """The batches that hold samples, one at least; what the loader does wrong is a DataError.

    `keyed` says where the targets are in batches that are dictionaries.
    """
    if isinstance(batches, Once):
        yield from batches
        return
    with user_code("the data failed at batch 0", DataError):
        iterator = iter(batches)
    found = False
    for number in itertools.count():
        with user_code(f"the data failed at batch {number}", DataError):
            if (batch := next(iterator, _END)) is _END:
                break
            pair = _pair(batch, number, keyed or Keyed())
            empty = _counted(*pair) == 0
        if not empty:
            found = True
            yield pair
    if not found:
        raise DataError("the data holds no samples", hint="Is the loader a generator that was read before?")


class Same:
    """Batches that are read from their source each time, and must be those of the first reading.

    Each reading is seeded alike. Raises DataError at a batch that is another one.
    """

    def __init__(self, batches: Iterable[Any]):
        self.source = batches
        self._seen: list[int] = []
        self._over = False  # the last batch was seen

    def __iter__(self) -> Iterator[Any]:
        number = 0
        for number, batch in enumerate(drawn(self.source), 1):
            batch = as_tensors(batch, f"batch {number - 1} of the data")
            if number > len(self._seen) and not self._over:
                self._seen.append(_digest(batch))
            elif [_digest(batch)] != self._seen[number - 1 : number]:
                raise _other(number - 1)
            yield batch
        if number < len(self._seen):
            raise _other(number)
        self._over = True


def drawn(batches: Iterable[Any], seed: int = 0) -> Iterator[Any]:
    """A reading of a loader, whose own randomness is seeded batch by batch."""
    rest: Iterator[Any] | None = None
    for number in itertools.count():
        with seeded(seed + number, "a batch of a loader"):
            rest = iter(batches) if rest is None else rest
            batch = next(rest, _END)
        if batch is _END:
            return
        yield batch


def _digest(batch: Any) -> int:
    found = 0
    for tensor in tensors_in(batch):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found = zlib.crc32(f"{tensor.dtype} {[*tensor.shape]}".encode(), found)
        found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
    return found


def _other(number: int) -> DataError:
    return DataError(
        f"batch {number} of the data is another one than when the data were first read",
        hint="Models are compared on the same samples: let the loader give the same batches each time, "
        "such as DataLoader(…, shuffle=False) or a list",
    )


class Kept:
    """Batches as they came when they were first read, as far as somebody asked for them, kept in memory.

    Randomness, such as that of a DataLoader that shuffles, is seeded. Raises DataError where they
    need more than `most` bytes.
    """

    def __init__(self, batches: Iterable[Any], most: float = MOST):
        self.source, self.left = batches, most
        self._made: list[Any] = []
        self._rest: Iterator[Any] | None = None
        self._over = False

    def __iter__(self) -> Iterator[Any]:
        for number in itertools.count():
            if number == len(self._made) and not self._over:
                self._read(number)
            if number == len(self._made):
                return
            yield self._made[number]

    def _read(self, number: int) -> None:
        try:
            self._rest = self._begun() if self._rest is None else self._rest
            batch = next(self._rest, _END)
            self._over = batch is _END
            if self._over:
                return
            batch = as_tensors(batch, f"batch {number} of the data")
        except BaseException:  # read anew, and whole, by whoever tries again
            self._rest, self._made = None, []
            raise
        batch = map_tensors(torch.Tensor.clone, batch)  # a loader may write the next one into the same memory
        self.left -= sum(tensor.nbytes for tensor in tensors_in(batch))
        if self.left < 0:
            raise DataError(
                "the data are other ones each time they are read, and too many to be kept",
                hint="Take the first ones with --limit N, or let the loader give the same batches each time, "
                "such as DataLoader(…, shuffle=False)",
            )
        self._made.append(batch)

    def _begun(self) -> Iterator[Any]:
        return drawn(self.source)


class Once(Kept):
    """Batches that were looked at once, and stay in memory: the same tensors each time."""

    def __init__(self, batches: Iterable[Any]):
        super().__init__(batches, math.inf)

    def _begun(self) -> Iterator[Any]:
        return checked(self.source)


def steady(batches: Iterable[Any]) -> Iterable[Any]:
    """Batches that are the same at each reading, or refused: what rebasin reads itself, and lists, as it is.

    A loader of somebody else's is kept as it came first (`Kept`) where a second reading, drawn otherwise,
    begins with another batch; else it is read again and held against the first reading (`Same`).
    """
    if isinstance(batches, (list, tuple)) or type(batches).__module__.startswith(OWN):
        return batches
    kept = Kept(batches)
    try:
        first = next(iter(kept), None)
        again = as_tensors(next(drawn(batches, 1), None), "")
    except Exception:  # whoever reads it tells what is wrong
        return batches
    one, other = list(tensors_in(first)), list(tensors_in(again))
    same = len(one) == len(other) and all(map(torch.equal, one, other))
    return Same(batches) if same else kept


class First:
    """The first `most` samples of re-iterable batches."""

    def __init__(self, batches: Iterable[Any], most: int):
        self.batches, self.most = batches, most

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        left = self.most
        for inputs, targets in checked(self.batches):
            size = size_of(targets, inputs)
            yield (inputs, targets) if size <= left else part_of((inputs, targets), 0, left)
            left -= size
            if left <= 0:
                return


_END = object()


def _pair(batch: Any, number: int, keyed: Keyed) -> tuple[Any, Any]:
    """Inputs and targets as tensors, numpy's arrays and lists of numbers too. Raises DataError.

    Lists among targets stay lists.
    """
    if isinstance(batch, Mapping):
        batch = keyed.parted(batch, number)
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise DataError(f"batch {number} of the data is {describe(batch)}", hint=_pairs(batch))
    inputs, targets = (as_tensors(part, f"batch {number} of the data") for part in batch)
    inputs, targets = _with_tuples(inputs), map_tensors(_widened, targets)
    for tensor in tensors_in(inputs):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DataError(f"batch {number} of the data has NaN or infinite inputs")
    if isinstance(inputs, Tensor) and isinstance(targets, Tensor) and inputs.ndim and targets.ndim:
        if len(inputs) != len(targets) and (not len(inputs) or len(targets) % len(inputs)):
            raise DataError(  # several targets a sample, such as tokens, may lie in a row
                f"batch {number} of the data has {len(inputs)} inputs and {len(targets)} targets"
            )
    return inputs, targets


def _pairs(batch: Any) -> str:
    """How to make a pair of this batch."""
    expected = "Expected a pair (inputs, targets), or a dictionary"
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        return (
            f"{expected}: several inputs as a tuple or a dictionary of their own, ((a, b), targets); what is "
            "neither, such as a name, left out."
        )
    return (
        f"{expected}; (inputs, None) where there are no targets. Two whole tensors are one batch: [(x, y)]."
    )


def as_tensors(value: Any, where: str) -> Any:
    """The same with tensors for arrays and for lists of numbers; a list of those stays one of several."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biuf":
            raise DataError(f"{where} has an array of type {value.dtype}", hint="Expected numbers.")
        native = value.dtype.newbyteorder("=")
        if native.kind == "f" and native.itemsize > 8:
            native = np.dtype(np.float64)
        return torch.from_numpy(np.array(value, native))  # a copy: it may be read-only, or run backwards
    if isinstance(value, Mapping):
        return {key: as_tensors(item, where) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        if value and _numbers(value):
            return torch.as_tensor(value)  # what is ragged raises, and is told as the data's failure
        return _alike(value, [as_tensors(item, where) for item in value])
    return value


def _with_tuples(value: Any) -> Any:
    """Inputs in a list are several, as in a tuple; a list of targets may have one for each sample."""
    if isinstance(value, Mapping):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _numbers(value: Any) -> bool:
    """Whether all that a list holds, and the lists in it hold, are Python's numbers."""
    if isinstance(value, (tuple, list)):
        return all(map(_numbers, value))
    return isinstance(value, (bool, int, float))


def _widened(tensor: Tensor) -> Tensor:
    """Whole numbers as int64, as losses want class numbers."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.long() if whole else tensor


def size_of(targets: Any, inputs: Any = None) -> int:
    """The number of samples in a batch, by its targets, else by its inputs. Raises DataError.

    A list of targets, such as a dictionary a sample, has one entry for each.
    """
    if (found := _counted(inputs, targets)) is None:
        raise DataError(f"targets are {describe(targets)}; expected a tensor, one entry a sample")
    return found


def _counted(inputs: Any, targets: Any) -> int | None:
    if isinstance(targets, list) and not _batched(targets):
        return len(targets)
    every = itertools.chain(itertools.islice(tensors_in(targets), 1), tensors_in(inputs))
    tensor = next((each for each in every if each.ndim), None)
    return None if tensor is None else len(tensor)


def _batched(values: list[Any]) -> bool:
    """Whether a list holds tensors over the whole batch: not where each is of one sample."""
    sizes = {len(value) if isinstance(value, Tensor) and value.ndim else -1 for value in values}
    return len(sizes) == 1 and -1 not in sizes and sizes != {len(values)}


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`function` on every tensor in tuples, lists and mappings; the rest as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return _alike(value, [map_tensors(function, item) for item in value])
    return value


def _alike(value: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    """The items in a container of the same kind."""
    if isinstance(value, list):
        return items
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)


def head(value: Any, size: int) -> Any:
    """The first samples of everything in a batch."""
    return part_of(value, 0, size)


def part_of(value: Any, start: int, stop: int) -> Any:
    """Some samples, in a row, of everything in a batch; of a list with an entry a sample, those entries."""
    if isinstance(value, Tensor):
        return value[start:stop] if value.ndim else value
    if isinstance(value, Mapping):
        return {key: part_of(item, start, stop) for key, item in value.items()}
    if isinstance(value, list) and not _batched(value):
        return value[start:stop]
    if isinstance(value, (tuple, list)):
        return _alike(value, [part_of(item, start, stop) for item in value])
    return value


def to_device(value: Any, device: str | torch.device) -> Any:
    ahead = torch.device(device).type != "cpu"  # what arrives there is waited for by what reads it
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=ahead), value)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def describe(value: Any, depth: int = DEPTH) -> str:
    """What something is, for messages: "float32 (8, 10)", "tuple of 2: …", "Dataset"."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if not depth and isinstance(value, (Mapping, tuple, list)):
        return "…"
    if isinstance(value, Mapping):
        items = ", ".join(f"{key}: {describe(item, depth - 1)}" for key, item in list(value.items())[:SHOWN])
        return f"{{{items}{', …' if len(value) > SHOWN else ''}}}"
    if isinstance(value, (tuple, list)):
        items = ", ".join(describe(item, depth - 1) for item in value[:4])
        return f"{type(value).__name__} of {len(value)}" + (f": {items}" if items else "")
    return type(value).__name__
