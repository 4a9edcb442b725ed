"""Your own images: `imagefolder:DIR` with DIR/train/CLASS/*.png and DIR/test/CLASS/*.png; by default unit.

`val` may stand for `test`. Classes are the folders of `train` in alphabetical order. All images get the size
of the first training image (bilinear), or that of `imagefolder:DIR?size=32` (or `?size=HEIGHTxWIDTH`); grey
if that image is grey, else colour. A split is held in memory.

Tiny ImageNet is read as it is published: DIR/train/CLASS/images/*, DIR/val/images/* with their classes in
DIR/val/val_annotations.txt, DIR/wnids.txt with all classes; in colour.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from ...errors import DataError, RebasinError, UsageError
from ...registry.user_code import told
from ...runtime import files
from ...runtime.memory import check_memory
from .. import UNIT, Samples

NORMALIZATION = UNIT
CLASSES = None

FOLDERS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}
ANNOTATIONS = "val_annotations.txt"
SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm", ".tif", ".tiff"))
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")  # others may start programs (EPS)
LARGEST = 1 << 14  # pixels on a side


def load_from(argument: str, split: str) -> Samples:
    folder, size = _parse(argument)
    if (folder / "val" / ANNOTATIONS).is_file():
        first, labelled = _tiny(folder, split)
        return _held(first, labelled, size, "RGB", folder / split)
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
    labelled = [(path, i) for i, name in enumerate(classes) for path in _images(wanted / name)]
    return _held(first, labelled, size, None, wanted if first else train)


def _held(
    first: Path | None,
    labelled: Sequence[tuple[Path, int]],
    size: tuple[int, int] | None,
    mode: str | None,
    where: Path,
) -> Samples:
    """These images with their classes, of the size of the first, and grey as that is, where nobody says."""
    if first is None or not labelled:
        raise DataError(f"{where} has no images", hint=f"Read are {', '.join(sorted(SUFFIXES))}.")
    with _opened(first) as image:
        mode = mode or ("L" if image.mode in ("1", "L", "LA", "I", "I;16") else "RGB")
        size = size or (image.height, image.width)
    shape = (len(labelled), *size, 1 if mode == "L" else 3)
    check_memory(f"{where}: {len(labelled)} images of {size[0]}×{size[1]} take", 2 * math.prod(shape))
    pixels = np.empty(shape, np.uint8)
    for k, (path, _) in enumerate(labelled):
        pixels[k] = _read(path, mode, size).reshape(shape[1:])
    inputs = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
    return Samples(inputs, torch.tensor([label for _, label in labelled]))


def _tiny(folder: Path, split: str) -> tuple[Path | None, list[tuple[Path, int]]]:
    """Tiny ImageNet: its first training image, and the images of a split with their classes.

    Raises DataError with every line of the annotations that is none, or whose image is not there.
    """
    train, val = folder / "train", folder / "val"
    classes = _folders(train) if train.is_dir() else []
    if (listed := folder / "wnids.txt").is_file():
        named = {name for line in _lines(listed) if (name := line.strip())}
        if wrong := sorted(named.symmetric_difference(classes)):
            raise DataError(
                f"{train} has other classes than {listed}",
                problems=[f"{name}  only in {listed.name if name in named else 'train'}" for name in wrong],
                hint="Unpack the whole archive again.",
            )
    if not classes:
        raise DataError(f"{train} has no class folders", hint=f"Expected {train}/CLASS/images/*.JPEG.")
    if split == "train":
        shown = [(path, i) for i, name in enumerate(classes) for path in _images(train / name / "images")]
        return next((path for path, _ in shown), None), shown
    first = next((path for name in classes for path in _images(train / name / "images")), None)
    there = {path.name: path for path in _images(val / "images")}
    labels = {name: i for i, name in enumerate(classes)}
    found: dict[str, int] = {}
    problems = []
    for number, line in enumerate(_lines(val / ANNOTATIONS), start=1):
        if not line.strip():
            continue
        name, label = (*line.rstrip("\r").split("\t"), "")[:2]
        faults = {
            "no image of that name": name not in there,
            f"{label or 'no class'}: train has no such class": label not in labels,
            "named twice": name in found,
        }
        if why := next((why for why, is_so in faults.items() if is_so), ""):
            problems.append(f"line {number}  {name}  {why}")
        else:
            found[name] = labels[label]
    problems += [f"{name}  has no line" for name in there if name not in found and not problems]
    if problems:
        raise DataError(
            f"{val / ANNOTATIONS} does not fit the images",
            problems=problems,
            hint="Unpack the archive again.",
        )
    return first, [(there[name], label) for name, label in sorted(found.items())]


def _lines(path: Path) -> list[str]:
    return files.text(path, f"{path}", error=DataError).split("\n")


def _parse(argument: str) -> tuple[Path, tuple[int, int] | None]:
    text, question, option = argument.partition("?")
    if not question:
        return Path(text), None
    found = re.fullmatch(r"size=([0-9]{1,9})(?:x([0-9]{1,9}))?", option)
    if not found:
        raise UsageError(f"unknown option {option!r} of imagefolder", hint="Write ?size=32 or ?size=32x48.")
    size = int(found[1]), int(found[2] or found[1])
    if not all(1 <= pixels <= LARGEST for pixels in size):
        raise UsageError(f"{option!r} of imagefolder: expected 1 to {LARGEST} pixels")
    return Path(text), size


def _split_folder(folder: Path, split: str) -> Path:
    for name in FOLDERS[split]:
        if (folder / name).is_dir():
            return folder / name
    raise DataError(f"{folder} has no folder {' or '.join(FOLDERS[split])}")


def _folders(folder: Path) -> Sequence[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _images(folder: Path) -> Sequence[Path]:
    found = sorted(path for path in folder.glob("[!.]*") if path.suffix.lower() in SUFFIXES)
    if odd := [path for path in found if not path.is_file()]:  # reading a pipe would wait for ever
        raise DataError(
            f"{folder} holds what is no file, and has an image's name",
            problems=[f"{path.name}  {'' if path.exists() else 'is a link to nothing'}" for path in odd],
        )
    return found


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """An image of one of the kinds above, whatever its name says. Raises DataError for what is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with files.opened(path) as file, Image.open(file, formats=FORMATS) as image:
                yield image
    except (MemoryError, RebasinError):
        raise
    except UnidentifiedImageError as cause:
        raise DataError(f"{path} is not an image: expected {', '.join(FORMATS)}") from cause
    except Exception as cause:  # a broken image may raise nearly anything
        raise DataError(f"{path} is broken: {told(cause)}") from cause


def _read(path: Path, mode: str, size: tuple[int, int]) -> np.ndarray:
    height, width = size
    with _opened(path) as image:
        converted = image.convert(mode)
        if converted.size != (width, height):
            converted = converted.resize((width, height), Image.Resampling.BILINEAR)
        return np.asarray(converted)
