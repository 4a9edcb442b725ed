"""CIFAR-100: 60,000 images, 32×32, 100 classes; by default dataset 0.5071,0.4865,0.4409/0.2673,0.2564,0.2762.

Krizhevsky 2009, its fine labels; the publisher's binary files or Python pickles (read without running code in
them).
"""

from __future__ import annotations

from pathlib import Path

from .. import Normalization, Samples
from ._cifar import Layout, crop_and_flip, load_cifar

NORMALIZATION = Normalization((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
CLASSES = 100
SHAPE, PIXELS = (3, 32, 32), NORMALIZATION

LAYOUT = Layout(
    title="CIFAR-100",
    binary_folder="cifar-100-binary",
    binary={"train": ("train.bin",), "test": ("test.bin",)},
    label_bytes=2,
    pickle_folder="cifar-100-python",
    pickles={"train": ("train",), "test": ("test",)},
    label_key=b"fine_labels",
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
)

augment = crop_and_flip


def load(split: str, root: Path | None) -> Samples:
    return load_cifar(LAYOUT, split, root)
