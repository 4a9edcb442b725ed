"""What MNIST and the sets in its layout share: four idx files, gzipped or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ...errors import DataError
from .. import Samples
from ..downloads import NotDownloaded, download, missing, places, read_idx, write_atomically

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def load_idx(
    title: str,
    split: str,
    root: Path | None,
    *,
    folders: Sequence[str],
    mirrors: Sequence[str],
    md5: Mapping[str, str],
) -> Samples:
    """Images (N, 1, H, W) and labels of one split; downloaded where they are missing. Raises DataError."""
    looked = places(root, folders)
    images, labels = (read_idx(_find(title, name, split, looked, mirrors, md5)) for name in FILES[split])
    whole = labels.dtype.kind in "iu" and labels.ndim == 1
    if images.ndim != 3 or images.dtype != "u1" or not whole or len(images) != len(labels):
        raise DataError(
            f"{title} ({split}): images {images.dtype} {images.shape} and labels {labels.shape} do not fit",
            hint="Expected bytes (N, height, width) and whole numbers (N,).",
        )
    return Samples(torch.tensor(images)[:, None], torch.from_numpy(labels.astype(np.int64)))


def _find(
    title: str,
    name: str,
    split: str,
    looked: Sequence[Path],
    mirrors: Sequence[str],
    md5: Mapping[str, str],
) -> Path:
    for path in (folder / file for folder in looked for file in (f"{name}.gz", name)):
        if path.is_file():
            return path
    try:
        content = download([f"{mirror}/{name}.gz" for mirror in mirrors], md5[name])
    except NotDownloaded as cause:
        raise missing(title, looked, [f"{file}.gz" for file in FILES[split]], cause) from cause
    target = looked[0] / f"{name}.gz"
    write_atomically(target, content)
    return target
