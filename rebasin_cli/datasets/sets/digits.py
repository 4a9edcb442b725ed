"""Digits: 1,797 handwritten digits, 8×8 grey, 10 classes; by default unit (0–1); dataset 0.3054/0.3761.

Shipped with rebasin: Optical Recognition of Handwritten Digits, E. Alpaydin and C. Kaynak 1998, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49, CC BY 4.0: its test part, as scikit-learn's
`load_digits` has it. Pixels 0…16 are divided by 16, which is to this set what dividing by 255 is to MNIST.

The set has no split of its own. Ours is fixed in `digits.npz`: 36 samples of each class drawn once for
testing (360), the other 1,437 for training; writers are in both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from .. import UNIT, Normalization, Samples

NORMALIZATION = UNIT
CLASSES = 10
SHAPE, PIXELS = (1, 8, 8), Normalization((0.3054,), (0.3761,))


def load(split: str, root: Path | None) -> Samples:
    """From inside the package; `root` is not asked."""
    with np.load(Path(__file__).with_name("digits.npz")) as arrays:
        images, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    return Samples(torch.from_numpy(images)[:, None].float() / 16, torch.from_numpy(labels).long())
