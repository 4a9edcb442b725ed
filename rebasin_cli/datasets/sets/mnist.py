"""MNIST: 70,000 handwritten digits, 28×28 grey, 10 classes; by default unit (0–1); dataset 0.1307/0.3081.

LeCun, Cortes and Burges; idx files as distributed. Divided by 255 by default, as Git Re-Basin does.
"""

from __future__ import annotations

from pathlib import Path

from .. import UNIT, Normalization, Samples
from ._idx import load_idx

NORMALIZATION = UNIT
CLASSES = 10
SHAPE, PIXELS = (1, 28, 28), Normalization((0.1307,), (0.3081,))

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
)
MD5 = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}


def load(split: str, root: Path | None) -> Samples:
    return load_idx("MNIST", split, root, folders=("mnist", "MNIST/raw", ""), mirrors=MIRRORS, md5=MD5)
