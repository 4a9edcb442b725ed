"""Your own images: `imagefolder:DIR` with DIR/train/CLASS/*.png and DIR/test/CLASS/*.png (or val).

Classes are the folders of `train` in alphabetical order. All images get the size of the first training
image (bilinear), or that of `imagefolder:DIR?size=32` (or `?size=HEIGHTxWIDTH`); grey if that image is
grey, else colour. A split is held in memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from ..errors import DataError, UsageError
from . import UNIT, Samples

NORMALIZATION = UNIT
CLASSES = None

FOLDERS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"))


def load_from(argument: str, split: str) -> Samples:
    folder, size = _parse(argument)
    train, wanted = _split_folder(folder, "train"), _split_folder(folder, split)
    classes = _folders(train)
    unknown = [name for name in _folders(wanted) if name not in classes]
    if not classes or unknown:
        raise DataError(
            f"{wanted}: classes that {train} does not have" if unknown else f"{train} has no class folders",
            problems=unknown,
            hint=f"Expected {folder}/train/CLASS/*.png and {folder}/test/CLASS/*.png.",
        )
    first = next((path for name in classes for path in _images(train / name)), None)
    files = [(path, i) for i, name in enumerate(classes) for path in _images(wanted / name)]
    if first is None or not files:
        raise DataError(f"{wanted if first else train} has no images", hint=f"Read are {_suffixes()}.")
    with _open(first) as image:
        mode = "L" if image.mode in ("1", "L", "LA", "I", "I;16") else "RGB"
        size = size or (image.height, image.width)
    pixels = np.stack([_read(path, mode, size) for path, _ in files])
    inputs = torch.from_numpy(pixels).view(len(files), *size, -1).permute(0, 3, 1, 2).contiguous()
    return Samples(inputs, torch.tensor([label for _, label in files]))


def _parse(argument: str) -> tuple[Path, tuple[int, int] | None]:
    text, question, option = argument.partition("?")
    if not question:
        return Path(text), None
    found = re.fullmatch(r"size=(\d+)(?:x(\d+))?", option)
    if not found or not int(found[1]) or found[2] and not int(found[2]):
        raise UsageError(f"unknown option {option!r} of imagefolder", hint="Write ?size=32 or ?size=32x48.")
    return Path(text), (int(found[1]), int(found[2] or found[1]))


def _split_folder(folder: Path, split: str) -> Path:
    for name in FOLDERS[split]:
        if (folder / name).is_dir():
            return folder / name
    raise DataError(f"{folder} has no folder {' or '.join(FOLDERS[split])}")


def _folders(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.glob("[!.]*") if path.suffix.lower() in SUFFIXES)


def _suffixes() -> str:
    return ", ".join(sorted(SUFFIXES))


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except (OSError, ValueError) as cause:
        raise DataError(f"{path} is not an image: {cause}") from cause


def _read(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    with _open(path) as image:
        try:
            converted = image.convert(mode)
        except (OSError, ValueError, SyntaxError) as cause:
            raise DataError(f"{path} is broken: {cause}") from cause
    height, width = size
    if converted.size != (width, height):
        converted = converted.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(converted)
