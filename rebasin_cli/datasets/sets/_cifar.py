"""What CIFAR-10 and CIFAR-100 share: both of the publisher's layouts, the download, the augmentation."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ...errors import DataError
from ...runtime import files
from .. import Samples
from ..downloads import LARGEST, NotDownloaded, download, missing, places, read_pickle, write_atomically

PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """The names of one set: folders, and the files of each split in it; the archive and its checksum.

    `label_bytes` stand before each image in the binary files, and the last of them is the label;
    `label_key` is where the pickles have it.
    """

    title: str
    binary_folder: str
    binary: Mapping[str, tuple[str, ...]]
    label_bytes: int
    pickle_folder: str
    pickles: Mapping[str, tuple[str, ...]]
    label_key: bytes
    archive: str
    md5: str


def load_cifar(layout: Layout, split: str, root: Path | None) -> Samples:
    """Images (N, 3, 32, 32) as bytes and their labels; downloaded where missing. Raises DataError."""
    looked = places(root, (layout.binary_folder, layout.pickle_folder, ""))
    for folder in looked:
        for names, read in ((layout.binary[split], _read_binary), (layout.pickles[split], _read_pickled)):
            paths = [folder / name for name in names]
            if all(path.is_file() for path in paths):
                return read(paths, layout)
    try:
        archive = download([f"https://www.cs.toronto.edu/~kriz/{layout.archive}"], layout.md5)
    except NotDownloaded as cause:
        raise missing(layout.title, looked, layout.binary[split], cause) from cause
    unpack(archive, [name for names in layout.binary.values() for name in names], looked[0])
    return _read_binary([looked[0] / name for name in layout.binary[split]], layout)


def unpack(archive: bytes, names: Sequence[str], folder: Path) -> None:
    """Write the files that are asked for, under their own names: no path in the archive is trusted."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            name = member.name.rpartition("/")[2]
            if member.isfile() and name in names and (file := members.extractfile(member)) is not None:
                write_atomically(folder / name, file.read())


def _read_binary(paths: Sequence[Path], layout: Layout) -> Samples:
    """Into one place through one buffer: memory that is touched first takes longer than the files."""
    label, row = layout.label_bytes - 1, layout.label_bytes + PIXELS
    sizes = [path.stat().st_size for path in paths]
    for path, size in zip(paths, sizes, strict=True):
        if not size or size % row:
            raise DataError(f"{path} is broken: {size} bytes; expected a multiple of {row}")
        if size > LARGEST:
            raise DataError(f"{path} has {size:,} bytes, and the publisher's files have at most {LARGEST:,}")
    counts = [size // row for size in sizes]
    images = torch.empty(sum(counts), PIXELS, dtype=torch.uint8)
    labels = torch.empty(len(images), dtype=torch.int64)
    buffer = np.empty(max(sizes), np.uint8)
    parts = zip(paths, sizes, images.split(counts), labels.split(counts), strict=True)
    for path, size, images_of, labels_of in parts:
        try:
            with files.opened(path) as file:
                if file.readinto(buffer[:size].data) < size:
                    raise DataError(f"{path} is broken: it became shorter while it was read")
        except OSError as cause:
            raise DataError(f"{path} cannot be read: {cause.strerror or cause}") from cause
        rows = torch.from_numpy(buffer[:size]).view(-1, row)
        images_of.copy_(rows[:, layout.label_bytes :])
        labels_of.copy_(rows[:, label])
    return Samples(images.view(-1, 3, 32, 32), labels)


def _read_pickled(paths: Sequence[Path], layout: Layout) -> Samples:
    images, labels = (
        np.concatenate(arrays) for arrays in zip(*(_unpickled(path, layout) for path in paths), strict=True)
    )
    return Samples(torch.from_numpy(images).view(-1, 3, 32, 32), torch.from_numpy(labels))


def _unpickled(path: Path, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    content = read_pickle(path)
    images, labels = (content.get(key, content.get(key.decode())) for key in (b"data", layout.label_key))
    pixels = images.numpy() if isinstance(images, Tensor) else np.empty(0)
    good = pixels.dtype == np.uint8 and pixels.shape[1:] == (PIXELS,)
    if not good or not isinstance(labels, list) or len(labels) != len(pixels):
        raise DataError(f"{path}: expected 'data', {PIXELS} bytes an image, and as many labels")
    try:
        if not all(type(label) is int for label in labels):
            raise TypeError
        return pixels, np.array(labels, np.int64)
    except (TypeError, ValueError, OverflowError) as cause:
        raise DataError(f"{path}: its labels are not whole numbers") from cause


def crop_and_flip(inputs: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """A random crop of the zero-padded image, mirrored half of the time; drawn for each image."""
    n, channels, height, width = inputs.shape
    padded = F.pad(inputs, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, n, 1), generator=generator)
    mirrored = torch.randint(2, (n, 1), generator=generator).bool()
    across = torch.arange(width).expand(n, -1)
    rows = top + torch.arange(height)
    columns = left + torch.where(mirrored, across.flip(1), across)
    flat = (rows[:, :, None] * padded.shape[3] + columns[:, None, :]).view(n, 1, -1)
    return padded.flatten(2).gather(2, flat.expand(-1, channels, -1)).view_as(inputs)
