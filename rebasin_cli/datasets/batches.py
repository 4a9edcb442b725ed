"""Batches that somebody else makes: checked while they are read, moved, counted."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, UsageError
from ..registry import user_code

ENDLESS = 10_000_000  # samples, after which a loader that does not tell its length is taken to have no end


@dataclass(frozen=True)
class LoaderData:
    """One split of a user's own loader; its batches are used as they are, in their own order.

    Has the methods of `Data`. `subset` takes the first samples, since drawing would read everything,
    after `skip` others.
    """

    name: str
    split: str
    batches: Iterable[Any]
    limit: int | None = None
    normalization: None = None
    vocabulary: None = None
    classes: int | None = None
    batch_size: int | None = None
    skip: int = 0
    _count: list[int] = field(default_factory=list, repr=False, compare=False)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        left, passed, seen = self.limit, self.skip, 0
        for inputs, targets in checked(self.batches):
            size = size_of(targets)
            seen += size
            if left is None and seen > ENDLESS and not hasattr(self.batches, "__len__"):
                raise DataError(
                    f"{self.name} ({self.split}) yields more than {ENDLESS:,} samples, with no end in sight",
                    hint="Take the first ones with --limit N; a loader that has a length (len) is read whole",
                )
            if passed:
                over, passed = min(passed, size), max(passed - size, 0)
                if not (size := size - over):
                    continue
                inputs, targets = tail(inputs, over), tail(targets, over)
            if left is not None and size >= left:
                yield head(inputs, left), head(targets, left)
                return
            left = None if left is None else left - size
            yield inputs, targets

    @property
    def samples(self) -> int:
        """Counted by reading every batch once."""
        if not self._count:
            self._count.append(sum(size_of(targets) for _, targets in self))
        return self._count[0]

    def subset(self, limit: int, seed: int = 0, *, skip: int = 0) -> LoaderData:
        if limit < 1:
            raise UsageError(f"a limit of {limit} samples leaves nothing", hint="Give 1 or more.")
        there = limit if self.limit is None else min(limit, max(self.limit - skip, 0))
        return replace(self, limit=there, skip=self.skip + skip, _count=[])

    def with_batch_size(self, batch_size: int) -> LoaderData:
        return self

    def mixed(self, seed: int) -> LoaderData:
        """The loader's own order, as in `shuffled`."""
        return self

    def shuffled(self, rng: torch.Generator, *, augment: bool = False) -> Iterator[tuple[Any, Any]]:
        """The loader's own order: whether and how it shuffles is its business."""
        return iter(self)

    def example(self, size: int = 2) -> Any:
        inputs, _ = next(iter(self))
        return head(inputs, size)


def open_loader(name: str, loader: Callable[[str], Any], split: str) -> LoaderData:
    """Call a user's `loader(split)`. Raises DataError if it fails or if its result can be read only once."""
    if not callable(loader):
        raise DataError(f"{name} is {describe(loader)}; expected a function loader(split)", hint=_asked())
    wrong, certain = _taken(loader)
    if certain:
        raise DataError(f"{name} takes a truth value; expected a function loader(split)", hint=_asked(wrong))
    with user_code(f"{name} failed on {split!r}", DataError, hint=wrong and _asked(wrong)):
        batches = loader(split)
        once = iter(batches) is batches
    if once:
        raise DataError(
            f"{name} returns {describe(batches)}, which can be read only once",
            hint="Return a list, a DataLoader or an object whose __iter__ begins anew.",
        )
    if isinstance(batches, Mapping) or _loaders(batches):
        raise DataError(
            f"{name} returns {describe(batches)} for {split!r}; expected the batches of this split",
            hint=_asked("yours returns several splits at once"),
        )
    return LoaderData(name, split, batches)


def _taken(loader: Callable[..., Any]) -> tuple[str, bool]:
    """How a function's arguments are other than one split's name, "" where they may be that.

    And whether it would go wrong without failing: both names of a split are true.
    """
    try:
        signature = inspect.signature(loader)
    except (TypeError, ValueError):  # it does not say
        return "", False
    try:
        first = next(iter(signature.bind("test").arguments), "")
    except TypeError:
        return f"yours takes {signature}", False
    kind = signature.parameters[first]
    wrong = f"yours takes {signature}, and gets it as its {first}"
    named = first in ("train", "is_train", "training") and kind.annotation is kind.empty is kind.default
    if isinstance(kind.default, bool) or kind.annotation in (bool, "bool") or named:
        return wrong, True
    number = kind.default is not kind.empty and not isinstance(kind.default, str | None)
    sized = any(word in first.lower() for word in ("batch", "size", "root", "dir", "path", "num"))
    return wrong if number or sized else "", False


def _loaders(batches: Any) -> bool:
    """Whether what stands for batches is a few loaders, as a pair for training and testing."""
    return (
        isinstance(batches, (tuple, list))
        and bool(batches)
        and all(hasattr(one, "__iter__") and not isinstance(one, _BATCH) for one in batches)
    )


_BATCH = (tuple, list, Mapping, Tensor, np.ndarray, str)


def _asked(wrong: str = "") -> str:
    """What a loader is called with, and how to make one of what is there."""
    said = f'It is called with the split\'s name, "train" or "test"{f"; {wrong}" if wrong else ""}. '
    return said + "Write one around it: def loader(split), which returns the batches of that split"


def checked(batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """The batches that hold samples, one at least; what the loader does wrong is a DataError."""
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
            pair = _pair(batch, number)
            empty = _nothing(pair[1])
        if not empty:
            found = True
            yield pair
    if not found:
        raise DataError("the data holds no samples", hint="Is the loader a generator that was read before?")


class Once:
    """Batches that were made and looked at once, and stay in memory: the same tensors each time."""

    def __init__(self, batches: Iterable[Any]):
        self._batches = batches
        self._made: list[tuple[Any, Any]] | None = None

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        if self._made is None:
            self._made = list(checked(self._batches))
        return iter(self._made)


class First:
    """The first `most` samples of re-iterable batches."""

    def __init__(self, batches: Iterable[Any], most: int):
        self.batches, self.most = batches, most

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        left = self.most
        for inputs, targets in checked(self.batches):
            size = size_of(targets)
            yield (inputs, targets) if size <= left else (head(inputs, left), head(targets, left))
            left -= size
            if left <= 0:
                return


_END = object()


def _pair(batch: Any, number: int) -> tuple[Any, Any]:
    """Inputs and targets as tensors, numpy's arrays and lists of numbers too. Raises DataError."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise DataError(f"batch {number} of the data is {describe(batch)}", hint=_pairs(batch))
    inputs, targets = (_as_tensors(part, f"batch {number} of the data") for part in batch)
    targets = map_tensors(_widened, targets)
    for tensor in tensors_in(inputs):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise DataError(f"batch {number} of the data has NaN or infinite inputs")
    if isinstance(inputs, Tensor) and isinstance(targets, Tensor) and inputs.ndim and targets.ndim:
        if len(inputs) != len(targets) and (not len(inputs) or len(targets) % len(inputs)):
            raise DataError(  # several targets a sample, such as tokens, may lie in a row
                f"batch {number} of the data has {len(inputs)} inputs and {len(targets)} targets"
            )
    return inputs, targets


TARGETS = ("labels", "label", "targets", "target", "y")  # what batches call them


def _pairs(batch: Any) -> str:
    """How to make a pair of this batch."""
    expected = "Expected a pair (inputs, targets)"
    if isinstance(batch, (tuple, list)) and len(batch) > 2:
        return f"{expected}: several inputs as a tuple or a dictionary of their own, ((a, b), targets)."
    if not isinstance(batch, Mapping):
        return f"{expected}."
    last = next((key for key in TARGETS if key in batch), None)
    inputs = [key for key in batch if key != last]
    keys = ", ".join(map(repr, inputs[:8]))
    targets = "batch[KEY OF THE TARGETS]" if last is None else f"batch[{last!r}]"
    if last is not None and len(inputs) == 1:
        return f"{expected}: yield batch[{keys}], {targets}."
    return (
        f"{expected}: yield {{key: batch[key] for key in ({keys},)}}, {targets}; or only a tensor as inputs."
    )


def _as_tensors(value: Any, where: str) -> Any:
    """The same with tensors for arrays and for lists of numbers; a list of those stays one of several."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biuf":
            raise DataError(f"{where} has an array of type {value.dtype}", hint="Expected numbers.")
        native = value.dtype.newbyteorder("=")
        if native.kind == "f" and native.itemsize > 8:
            native = np.dtype(np.float64)
        return torch.from_numpy(np.array(value, native))  # a copy: it may be read-only, or run backwards
    if isinstance(value, Mapping):
        return {key: _as_tensors(item, where) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        if value and _numbers(value):
            return torch.as_tensor(value)  # what is ragged raises, and is told as the data's failure
        return tuple(_as_tensors(item, where) for item in value)
    return value


def _numbers(value: Any) -> bool:
    """Whether all that a list holds, and the lists in it hold, are Python's numbers."""
    if isinstance(value, (tuple, list)):
        return all(map(_numbers, value))
    return isinstance(value, (bool, int, float))


def _widened(tensor: Tensor) -> Tensor:
    """Whole numbers as int64, as losses want class numbers."""
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.long() if whole else tensor


def _nothing(targets: Any) -> bool:
    """Whether a batch has no samples, as `size_of` counts them."""
    tensor = next(tensors_in(targets), None)
    return tensor is not None and tensor.ndim > 0 and not len(tensor)


def size_of(targets: Any) -> int:
    """The number of samples in a batch, by its targets. Raises DataError."""
    tensor = next(tensors_in(targets), None)
    if tensor is None or tensor.ndim == 0:
        raise DataError(f"targets are {describe(targets)}; expected a tensor, one entry a sample")
    return len(tensor)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """`function` on every tensor in tuples, lists and mappings; the rest as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map_tensors(function, item) for item in value)
    return value


def head(value: Any, size: int) -> Any:
    """The first samples of everything in a batch."""
    return part_of(value, 0, size)


def part_of(value: Any, start: int, stop: int) -> Any:
    """Some samples, in a row, of everything in a batch."""
    return map_tensors(lambda tensor: tensor[start:stop] if tensor.ndim else tensor, value)


def tail(value: Any, start: int) -> Any:
    """The samples from number `start` on of everything in a batch."""
    return map_tensors(lambda tensor: tensor[start:] if tensor.ndim else tensor, value)


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


SHOWN = 8  # entries of a dictionary in a message


def describe(value: Any) -> str:
    """What something is, for messages: "float32 (8, 10)", "tuple of 2: …", "Dataset"."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        items = ", ".join(f"{key}: {describe(item)}" for key, item in list(value.items())[:SHOWN])
        return f"{{{items}{', …' if len(value) > SHOWN else ''}}}"
    if isinstance(value, (tuple, list)):
        items = ", ".join(describe(item) for item in value[:4])
        return f"{type(value).__name__} of {len(value)}" + (f": {items}" if items else "")
    return type(value).__name__
