"""CIFAR-10: 60,000 images, 32×32, 10 classes; by default dataset 0.4914,0.4822,0.4465/0.247,0.2435,0.2616.

Krizhevsky 2009; the publisher's binary files or Python pickles (read without running code in them).
"""

from __future__ import annotations

from pathlib import Path

from .. import Normalization, Samples
from ._cifar import Layout, crop_and_flip, load_cifar

NORMALIZATION = Normalization((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CLASSES = 10
SHAPE, PIXELS = (3, 32, 32), NORMALIZATION

LAYOUT = Layout(
    title="CIFAR-10",
    binary_folder="cifar-10-batches-bin",
    binary={"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    label_bytes=1,
    pickle_folder="cifar-10-batches-py",
    pickles={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    label_key=b"labels",
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)

augment = crop_and_flip


def load(split: str, root: Path | None) -> Samples:
    return load_cifar(LAYOUT, split, root)
