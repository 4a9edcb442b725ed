"""A loader of a user's own: what it gives, called with a split's name, as a data set."""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from ..errors import DataError, UsageError
from ..registry import user_code
from ..runtime.seeds import seeded
from .batches import (
    SHOWN,
    Kept,
    Keyed,
    Same,
    as_tensors,
    checked,
    describe,
    drawn,
    head,
    part_of,
    size_of,
    steady,
)

log = logging.getLogger("rebasin")
ENDLESS = 10_000_000  # samples, after which a loader that does not tell its length is taken to have no end
LOOKED_AT = 64  # items, to tell samples from batches
MANY = 100_000  # of such a loader, after which it is said how many were read, and at twice as many again


@dataclass(frozen=True)
class LoaderData:
    """One split of a user's own loader; its batches are used as they are, in their own order.

    Those of one that shuffles, or draws, are `Kept`: two readings are of the same samples.

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
    keyed: Keyed = Keyed()
    how: str = ""  # it was called and read
    single: Dataset[Any] | None = None  # where it gave samples in place of batches
    _count: list[int] = field(default_factory=list, repr=False, compare=False)
    _said: list[int] = field(default_factory=lambda: [min(MANY, ENDLESS)], repr=False, compare=False)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._within(self.batches)

    def _within(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """A reading: the samples of these batches after `skip` others, as far as the limit."""
        left, passed, seen = self.limit, self.skip, 0
        for inputs, targets in checked(batches, self.keyed):
            size = size_of(targets, inputs)
            seen += size
            if left is None and seen > self._said[-1] and not hasattr(self._source, "__len__"):
                self._tell(seen)
            if passed:
                over, passed = min(passed, size), max(passed - size, 0)
                if not (size := size - over):
                    continue
                inputs, targets = part_of((inputs, targets), over, over + size)
            if left is not None and size >= left:
                yield part_of((inputs, targets), 0, left)
                return
            left = None if left is None else left - size
            yield inputs, targets

    def _tell(self, seen: int) -> None:
        """How many samples were read of a loader without a length; raises DataError where it has no end."""
        if seen > ENDLESS:
            raise DataError(
                f"{self.name} ({self.split}) yields more than {ENDLESS:,} samples, with no end in sight",
                hint="Take the first ones with --limit N; a loader that has a length (len) is read whole",
            )
        log.info(
            "%s (%s): %s samples read so far; --limit N takes the first", self.name, self.split, f"{seen:,}"
        )
        self._said.append(min(2 * seen, ENDLESS))

    @property
    def _source(self) -> Iterable[Any]:
        """What the user's loader gave."""
        return self.batches.source if isinstance(self.batches, (Kept, Same)) else self.batches

    @property
    def samples(self) -> int:
        """Counted by reading every batch once."""
        if not self._count:
            self._count.append(sum(size_of(targets, inputs) for inputs, targets in self))
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
        """The loader's own order: whether and how it shuffles is its business, but for the seed.

        Nothing is compared, so it may give others each time. Where not all are wanted, the same are read each
        time, as far as a seed decides it. Single samples are mixed anew.
        """
        if self.limit is None and not self.skip:
            source, seed = self._source, int(torch.randint(2**31, (), generator=rng))
            if self.single is not None and isinstance(source, DataLoader):
                source = _mixed(self.single, source.batch_size or 1, seed)
            return self._within(drawn(source, seed))
        return self._within(self.batches if isinstance(self.batches, Kept) else drawn(self._source))

    def example(self, size: int = 2) -> Any:
        inputs, _ = next(iter(self))
        return head(inputs, size)

    @property
    def key(self) -> str | None:
        """The key of the targets, where its first batch is a dictionary."""
        with user_code("the data failed at batch 0", DataError):
            first = next(iter(self.batches), None)
        return self.keyed.of(first) if isinstance(first, Mapping) else None


def open_loader(
    name: str, loader: Any, split: str, keyed: Keyed = LoaderData.keyed, batch_size: int = 500
) -> LoaderData:
    """What a user's loader yields of one split: `loader(split)` as a rule.

    A function without arguments may give a dictionary of splits; and what can be iterated over as it is, such
    as a DataLoader, is taken for every split. In place of batches each may give a `Dataset`: its samples come
    mixed, `batch_size` at a time. Raises DataError if it fails or if its result can be read only once.
    """

    def opened(batches: Any, how: str) -> LoaderData:
        """One split; kept as it was read first, where the loader gives other batches each time."""
        if (single := _single(batches)) is None and _alone(batches, keyed):
            if isinstance(batches, IterableDataset):
                batches, how = DataLoader(batches, batch_size), f"{how}; a Dataset, {batch_size} at a time"
            elif isinstance(batches, (tuple, list, DataLoader)) or not hasattr(batches, "__getitem__"):
                raise DataError(
                    f"{name} yields single samples for {split!r}, each with one number as its target; "
                    "expected batches",
                    hint="Let it give torch.utils.data.DataLoader(samples, batch_size=32), or targets (1,) "
                    "where a batch is one sample",
                )
            else:
                single = _Rows(batches)
        if single is not None:
            batches, how = (
                _mixed(single, batch_size, 0),
                f"{how}; a Dataset, mixed, in batches of {batch_size}",
            )
        same = steady(batches)
        told = [how, "read once and kept, as it gives other batches each time" * isinstance(same, Kept)]
        return LoaderData(name, split, same, keyed=keyed, how="; ".join(filter(None, told)), single=single)

    if isinstance(loader, Mapping):
        return opened(_of_splits(name, loader, split), "a dictionary of splits")
    is_read = _single(loader) is not None or hasattr(loader, "__iter__") and not isinstance(loader, str)
    if is_read and not callable(loader):
        if _once(loader):
            raise _read_once(name, loader)
        return opened(loader, "taken as it is, the same for every split")
    if not callable(loader):
        raise DataError(f"{name} is {describe(loader)}; expected a function loader(split)", hint=_asked())
    if _takes_nothing(loader):
        with user_code(f"{name} failed", DataError), seeded(0, "a loader"):
            found = loader()
        if isinstance(found, Mapping):
            how = "called without arguments, a dictionary of splits"
            return opened(_of_splits(name, found, split), how)
        raise DataError(
            f"{name} takes no arguments, and gives {describe(found)}",
            hint='Let it give {"train": …, "test": …}, or take the split\'s name: def loader(split)',
        )
    wrong, certain = _taken(loader)
    if certain:
        raise DataError(f"{name} takes a truth value; expected a function loader(split)", hint=_asked(wrong))
    with user_code(f"{name} failed on {split!r}", DataError, hint=wrong and _asked(wrong)):
        with seeded(0, "a loader"):
            batches = loader(split)
            once = _once(batches)
    if once:
        raise _read_once(name, batches)
    if isinstance(batches, Mapping) or _loaders(batches):
        raise DataError(
            f"{name} returns {describe(batches)} for {split!r}; expected the batches of this split",
            hint=_asked("yours returns several splits at once"),
        )
    return opened(batches, "called with the name of a split")


def _single(batches: Any) -> Dataset[Any] | None:
    """PyTorch's own set of single samples, by number; None of all else, which gives batches.

    What has an iterator of its own, as an IterableDataset has, is read by that.
    """
    by_number = isinstance(batches, Dataset) and not hasattr(batches, "__iter__")
    return batches if by_number and hasattr(batches, "__len__") else None


class _Rows(Dataset[Any]):
    """Samples by number that are no `Dataset` of PyTorch's, as Hugging Face's are: with tensors."""

    def __init__(self, rows: Any):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return as_tensors(self.rows[number], f"sample {number} of the data")


def _alone(batches: Any, keyed: Keyed) -> bool:
    """Whether what is read are single samples: their targets are one number each, and not all the same.

    What can only be gone through is not looked at, since it may give others each time.
    """
    found = set()
    try:
        with seeded(0, "a batch of a loader"):
            for item in _items(batches):
                targets = (keyed.parted(item, 0) if isinstance(item, Mapping) else item)[1]
                each = as_tensors(targets, "")
                each = each.item() if isinstance(each, Tensor) and not each.ndim else each
                if not isinstance(each, (bool, int, float)):
                    return False
                found.add(each)
    except Exception:  # whoever reads it tells what is wrong
        return False
    return len(found) > 1


def _items(batches: Any) -> Iterator[Any]:
    """The first few."""
    if isinstance(batches, (tuple, list, IterableDataset)) or getattr(batches, "batch_size", 0) is None:
        return itertools.islice(batches, LOOKED_AT)
    return (batches[k] for k in range(min(len(batches), LOOKED_AT)))


def _mixed(single: Dataset[Any], batch_size: int, seed: int) -> DataLoader[Any]:
    """Batches in an order by a seed, so that the first ones are no worse than any others."""
    rng = torch.Generator().manual_seed(seed)
    with user_code("the length of the data", DataError):
        count = len(single)  # type: ignore[arg-type]
    order = torch.randperm(count, generator=rng).tolist()
    return DataLoader(single, batch_size, sampler=order)


def _once(batches: Any) -> bool:
    """Whether it can be read only once. Raises TypeError for what cannot be read."""
    return _single(batches) is None and iter(batches) is batches


def _read_once(name: str, batches: Any) -> DataError:
    return DataError(
        f"{name} returns {describe(batches)}, which can be read only once",
        hint="Return a list, a DataLoader or an object whose __iter__ begins anew.",
    )


def _takes_nothing(loader: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments alone."""
    try:
        return not inspect.signature(loader).parameters
    except (TypeError, ValueError):  # it does not say
        return False


def _of_splits(name: str, splits: Mapping[str, Any], split: str) -> Any:
    """The batches of one of them. Raises DataError where there are none of this split."""
    if split not in splits:
        raise DataError(
            f"{name} gives the splits {', '.join(map(repr, list(splits)[:SHOWN]))}, and no {split!r}",
            hint="Call its splits train and test",
        )
    if _once(splits[split]):
        raise _read_once(name, splits[split])
    return splits[split]


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
