"""Data sets by name, by file, or as a user's own loader; one file a data set.

A data set module has

    NORMALIZATION: Normalization | None                     # what its bare name means; None for text
    CLASSES: int | None                                     # None: counted from the targets
    SHAPE: tuple[int, ...]                                  # optional: of one image
    PIXELS: Normalization                                   # optional: `dataset`, those of its pixels
    def load(split: str, root: Path | None) -> Samples      # split is "train" or "test"
    def augment(inputs, generator) -> inputs                # optional; training batches, before normalising

A module with `load_from(argument, split)` in place of `load` is written `name:ARGUMENT`, as in `npz:FILE`.
Everything a model is trained or measured on leaves here as an iterable of `(inputs, targets)` batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, UsageError
from ..registry import Registry, import_reference, is_reference, references, unnamed, user_code
from ..registry.surroundings import from_home
from ..runtime.seeds import generator
from .batches import Keyed, Once
from .loaders import LoaderData, open_loader
from .normalization import UNIT, USUAL, Normalization, measured
from .rotation import rotated
from .samples import MOST_CLASSES, SPLITS, Samples, check
from .windows import spelled

__all__ = [
    "Data",
    "LoaderData",
    "Normalization",
    "Once",
    "SPLITS",
    "Samples",
    "UNIT",
    "USUAL",
    "form",
    "normalizations",
    "once",
    "open_data",
    "own_normalization",
    "registry",
]

registry = Registry("datasets", "data set")

LOADER = "Expected a function loader(split) that returns batches of inputs and targets"


@dataclass(frozen=True)
class Data:
    """One split, ready to iterate as often as you like, in the same order every time.

    Yields (float32 inputs, int64 targets); of text both are int64, and a window is one sample. The last
    batch may be smaller; a single sample left over joins the batch before it, since BatchNorm cannot be
    trained or reset on one. `rotate`: degrees by which images are turned where they come `shuffled`.
    """

    name: str
    split: str
    source: Samples
    normalization: Normalization | None
    classes: int
    batch_size: int = 500
    augmentation: Callable[[Tensor, torch.Generator], Tensor] | None = None
    mixing: int | None = None
    vocabulary: str | None = None
    rotate: float | None = None

    @property
    def samples(self) -> int:
        return len(self.source)

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._sizes())

    def _sizes(self) -> list[int]:
        """Of the batches."""
        whole, left = divmod(self.samples, self.batch_size)
        if left == 1 and whole:
            return [self.batch_size] * (whole - 1) + [self.batch_size + 1]
        return [self.batch_size] * whole + [left] * bool(left)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        if self.mixing is not None:
            yield from self.shuffled(generator(self.mixing, "order of samples"))
            return
        sizes = self._sizes()
        for inputs, targets in zip(
            self.source.inputs.split(sizes), self.source.targets.split(sizes), strict=True
        ):
            yield self._given(inputs), targets

    def _given(self, inputs: Tensor) -> Tensor:
        """As a network gets them."""
        return inputs if self.normalization is None else self.normalization.apply(inputs)

    def subset(self, limit: int, seed: int = 0, *, skip: int = 0) -> Data:
        """`limit` samples drawn without replacement, in their original order; all if there are fewer.

        The first `skip` that are drawn are passed over: they are another subset's, of the same seed.
        """
        if limit < 1:
            raise UsageError(f"a limit of {limit} samples leaves nothing", hint="Give 1 or more.")
        if limit >= self.samples and not skip:
            return self
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(seed))
        chosen = order[skip : skip + limit].sort().values
        return replace(self, source=self.source.at(chosen))

    def with_batch_size(self, batch_size: int) -> Data:
        return replace(self, batch_size=_positive(batch_size))

    def mixed(self, seed: int) -> Data:
        """The same samples in an order drawn from the seed: data sets may be sorted by class."""
        return replace(self, mixing=seed)

    def shuffled(self, rng: torch.Generator, *, augment: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch in random order, augmented where asked and where the data set says how."""
        order = torch.randperm(self.samples, generator=rng)
        for chosen in order.split(self._sizes()):
            some = self.source.at(chosen)
            inputs = some.inputs
            if augment and self.augmentation is not None:
                inputs = self.augmentation(inputs, rng)
            if self.rotate:
                inputs = rotated(inputs, self.rotate, rng)
            yield self._given(inputs), some.targets

    def example(self, size: int = 2) -> Tensor:
        """The first inputs, as a network gets them."""
        return self._given(self.source.inputs[:size])


KEPT = 256 << 20  # bytes of a split that are held as the network gets them


def once(batches: Any) -> Any:
    """A split that is read many times, with its batches made once, where that takes no great memory.

    A loader's batches may be others each time, and stay as they are.
    """
    if not isinstance(batches, Data) or 4 * batches.source.inputs.numel() > KEPT:
        return batches
    return Once(batches)


def open_data(
    reference: str,
    split: str,
    *,
    root: Path | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 500,
    normalize: str | None = None,
    vocabulary: str | None = None,
    targets: str | None = None,
) -> Data | LoaderData:
    """One split of a data set by reference.

    A built-in name, `imagefolder:DIR`, `npz:FILE`, `text:FILE`, an entry point, or a user's own loader
    `file.py:loader` or `package.module:loader`: a function from the split's name to a re-iterable of batches,
    or what `batches.open_loader` takes else; they are used as they are, of dictionaries the targets lie under
    the key `targets`. `root` falls back to the environment's REBASIN_DATA. `limit` draws a subset with
    `seed`. Text is numbered by its own characters, unless a model's `vocabulary` is given; to anything else
    that means nothing.
    Raises UsageError for an unknown name, DataError for files that are missing or broken.
    """
    if split not in SPLITS and not is_reference(reference):  # a loader of one's own may have others
        raise UsageError(f"unknown split {split!r}", hint="Choose train or test.")
    module, samples = _load(reference, split, references.data_folder(root))
    if module is None:
        loader = import_reference(reference, error=DataError)
        if normalize is not None:
            raise UsageError(f"{reference} yields its own batches; --normalize cannot change them")
        data: Data | LoaderData = open_loader(reference, loader, split, Keyed(targets), _positive(batch_size))
    else:
        known = samples.vocabulary
        check(samples, f"{reference} ({split})", len(known) if known else module.CLASSES or MOST_CLASSES)
        default = module.NORMALIZATION
        if default is None and normalize is not None:
            raise UsageError(f"{reference} is text, which nothing normalises", hint="Leave out --normalize.")
        if known and vocabulary is not None:
            samples = spelled(samples, vocabulary, f"{reference} ({split})")
        data = Data(
            reference,
            split,
            samples,
            default if normalize is None else _normalization(normalize, module, reference, samples),
            len(samples.vocabulary) if known else module.CLASSES or int(samples.targets.max()) + 1,
            _positive(batch_size),
            getattr(module, "augment", None),
            vocabulary=samples.vocabulary,
        )
        data.example(1)  # a normalization that does not fit speaks before the first epoch
    return data if limit is None else data.subset(limit, seed)


def find(reference: str, root: Path | None = None) -> None:
    """Raise what `open_data` raises where this names nothing: no samples are read, and none downloaded."""
    module, path = _module(reference), Path(reference.partition(":")[2].partition("?")[0])
    if module is None:
        import_reference(reference, error=DataError)
    elif not hasattr(module, "load_from"):
        from .downloads import places  # heavy

        root = references.data_folder(root)
        places(None if root is None else from_home(root), ())
    elif not path.exists():
        raise DataError(f"{path}: no such file or folder", hint=f"{reference} names it")


def form(name: str, normalize: str | None = None) -> tuple[tuple[int, ...], Normalization] | None:
    """The shape (C, H, W) of one image of a data set by name, and mean and deviation, per channel, of its
    pixels as a network gets them, normalised as `open_data` does; None where the data set does not say.

    No data are read. Raises UsageError for what is no normalization.
    """
    module = registry.get(name) if name in registry.names() else None
    if module is None or not hasattr(module, "SHAPE") or not hasattr(module, "PIXELS"):
        return None
    pixels, default = module.PIXELS, module.NORMALIZATION
    used = default if normalize is None else Normalization.parse(normalize, pixels)
    channels = range(max(len(pixels.mean), len(used.mean)))

    def given(values: tuple[float, ...], channel: int) -> float:
        return values[channel % len(values)]

    mean = tuple((given(pixels.mean, k) - given(used.mean, k)) / given(used.std, k) for k in channels)
    std = tuple(given(pixels.std, k) / given(used.std, k) for k in channels)
    return module.SHAPE, Normalization(mean, std)


def own_normalization(reference: str) -> Normalization | None:
    """What `--normalize dataset` means: mean and deviation of its pixels; None where it says none."""
    name = reference.partition(":")[0]
    return _own(registry.get(name)) if name in registry.names() else None


def normalizations(data: Data) -> dict[str, Normalization]:
    """The usual normalisations of such samples by what `--normalize` calls them, each once; {} for text.

    Floats that do not lie in 0–1 are no pixels, and given as they are ("unit").
    """
    if data.normalization is None:
        return {}
    own, inputs = own_normalization(data.name), data.source.inputs
    if inputs.is_floating_point() and inputs.numel() and (inputs.min() < 0 or inputs.max() > 1):
        return {"unit": UNIT}
    channels = inputs.shape[1] if inputs.ndim > 2 else 1
    known = ({} if own is None else {"dataset": own}) | USUAL
    fit = {name: each for name, each in known.items() if len(each.mean) in (1, channels)}
    return {name: each for k, (name, each) in enumerate(fit.items()) if each not in [*fit.values()][:k]}


def _own(module: Any) -> Normalization | None:
    """As `own_normalization`, of a module: its pixels', or a default that is no mere division by 255."""
    default = module.NORMALIZATION
    return getattr(module, "PIXELS", None if default == UNIT else default)


def _normalization(text: str, module: Any, reference: str, samples: Samples) -> Normalization:
    """What the user wrote. Raises UsageError."""
    own = _own(module)
    if text == "dataset" and own is None:
        raise UsageError(
            f"{reference} does not say its own mean and deviation",
            hint=f"Give those that the model was trained with: --normalize MEAN/STD, or imagenet, half, raw, "
            f"unit. These {len(samples)} samples have {measured(samples.inputs)}",
        )
    return Normalization.parse(text, own)


def _module(reference: str) -> Any:
    """What loads a data set that has a name; None for a loader of the user's own."""
    name, colon, _ = reference.partition(":")
    if colon and name in registry.names() and hasattr(module := registry.get(name), "load_from"):
        return module
    if is_reference(reference):
        return None
    if reference.endswith(".py"):
        raise unnamed(reference, "--data", "loader", LOADER)
    if hasattr(module := registry.get(reference), "load_from"):
        raise UsageError(f"{reference} needs to know where", hint=f"Write {reference}:PATH.")
    return module


def _load(reference: str, split: str, root: Path | None) -> tuple[Any, Any]:
    module = _module(reference)
    if module is None or hasattr(module, "load_from"):
        return module, module and module.load_from(reference.partition(":")[2], split)
    root = None if root is None else from_home(root)
    with user_code(f"{reference} failed on {split!r}", DataError):  # it may be another package's
        return module, module.load(split, root)


def _positive(batch_size: int) -> int:
    if batch_size < 1:
        raise UsageError(f"a batch of {batch_size} samples makes no sense", hint="Give 1 or more.")
    return batch_size
