"""Fashion-MNIST: 70,000 pictures of clothes, 28×28 grey, 10 classes; by default dataset 0.286/0.353.

Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747; idx files as distributed. They bear MNIST's file names,
so they are looked for in folders of their own only.
"""

from __future__ import annotations

from pathlib import Path

from .. import Normalization, Samples
from ._idx import load_idx

NORMALIZATION = Normalization((0.2860,), (0.3530,))
CLASSES = 10
SHAPE, PIXELS = (1, 28, 28), NORMALIZATION

FOLDERS = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw")
MIRRORS = ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",)
MD5 = {
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}


def load(split: str, root: Path | None) -> Samples:
    return load_idx("Fashion-MNIST", split, root, folders=FOLDERS, mirrors=MIRRORS, md5=MD5)
