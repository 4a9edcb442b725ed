"""Your own arrays: `npz:FILE` with x_train, y_train, x_test and y_test; by default unit.

The pairs may also be named train_inputs and train_targets, or train_images and train_labels. Inputs are
bytes 0…255 or floats 0–1 of shape (N, features), (N, H, W), (N, H, W, C) or (N, C, H, W); targets are class
numbers (N,). Pickled arrays are refused.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from ...errors import DataError, RebasinError
from ...registry.user_code import told
from ...runtime import files
from .. import UNIT, Samples
from ..downloads import check_unpacked

NORMALIZATION = UNIT
CLASSES = None

PAIRS = (("x_{}", "y_{}"), ("{}_inputs", "{}_targets"), ("{}_images", "{}_labels"))


def load_from(argument: str, split: str) -> Samples:
    path = Path(argument)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        with files.opened(path) as file:
            if not zipfile.is_zipfile(file):
                raise DataError(f"{path} is no .npz file; expected one with x_{split} and y_{split}")
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)
            _check_sizes(path, arrays.zip.infolist())
            inputs, targets = _pick(path, arrays, split)
    except (RebasinError, KeyboardInterrupt):
        raise
    except Exception as cause:  # a broken archive may raise nearly anything
        raise DataError(f"{path} cannot be read: {told(cause)}") from cause
    for name, array in (("inputs", inputs), ("targets", targets)):
        if not isinstance(array, np.ndarray):
            raise DataError(f"{path}: the {name} are no array")
    return Samples(_inputs(path, inputs), _targets(path, targets))


def _pick(path: Path, arrays: np.lib.npyio.NpzFile, split: str) -> tuple[np.ndarray, np.ndarray]:
    for pair in PAIRS:
        x, y = (name.format(split) for name in pair)
        if x in arrays and y in arrays:
            return arrays[x], arrays[y]
    raise DataError(
        f"{path} has no {split} split",
        problems=[f"found {', '.join(sorted(arrays)) or 'nothing'}"],
        hint=f"Expected {' or '.join(' and '.join(n.format(split) for n in pair) for pair in PAIRS)}.",
    )


def _check_sizes(path: Path, members: Iterable[zipfile.ZipInfo]) -> None:
    for member in members:
        check_unpacked(path, member.compress_size, member.file_size)


def _inputs(path: Path, array: np.ndarray) -> torch.Tensor:
    if array.ndim < 2:
        raise DataError(f"{path}: inputs have the shape {array.shape}; expected (N, …)")
    if array.dtype != np.uint8 and array.dtype.kind != "f":
        raise DataError(f"{path}: inputs are {array.dtype}; expected uint8 0…255 or floats 0–1")
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
        array = array.transpose(0, 3, 1, 2)
    with np.errstate(over="ignore"):  # what becomes infinite is refused with all that is
        array = np.ascontiguousarray(array, np.uint8 if array.dtype == np.uint8 else np.float32)
    return torch.from_numpy(array)


def _targets(path: Path, array: np.ndarray) -> torch.Tensor:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise DataError(f"{path}: targets are {array.dtype} {array.shape}; expected whole numbers (N,)")
    return torch.from_numpy(array.astype(np.int64))
