"""Publishers' files: where they are looked for, how they are downloaded, how they are read without trust."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import logging
import math
import os
import urllib.request
import zlib
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np

from ..checkpoints import destination, writer
from ..checkpoints.inert import Reader, kind
from ..checkpoints.pickled import KNOWN, array
from ..errors import DataError, ResourceError, UsageError
from ..registry import references
from ..registry.user_code import told
from ..runtime import files

TIMEOUT = 5  # seconds without a sign of life
LARGEST = 1 << 30  # bytes; the largest archive has 170 MB
SPARSE = 100  # times smaller than what it unpacks to: no pictures are
# Where the files of data sets with names lie below the folder of all data: a recipe's steps depend on them.
LAID_OUT = (
    "mnist/*",
    "MNIST/raw/*",
    "*-ubyte*",
    "fashion-mnist/*",
    "fashion_mnist/*",
    "FashionMNIST/raw/*",
    "cifar-10-*/*",
    "cifar-100-*/*",
    "cifar-*.tar.gz",
)
DEEPEST = 8  # axes of an array

log = logging.getLogger("rebasin")


class NotDownloaded(Exception):
    """No url gave the file; the message says why."""


def places(root: Path | None, folders: Sequence[str]) -> list[Path]:
    """The folders to look in, best first: in `root`, or where downloads are kept. Raises DataError."""
    if root is not None and not root.is_dir():
        raise DataError(f"{root}: no such folder", hint="--data-root is the folder of all data sets.")
    return [(root or all_data()) / folder for folder in folders]


def all_data() -> Path:
    """The folder of all data where none is named: REBASIN_DATA, or where downloads are kept."""
    return references.data_folder() or files.user_cache()


def missing(title: str, folders: Sequence[Path], names: Sequence[str], reason: object) -> DataError:
    """The error for files that are not there: where was looked, what is expected, what to do."""
    looked = []
    for folder in folders:
        absent = [name for name in names if not (folder / name).is_file()]
        some = f", where only {', '.join(absent)} is missing" if 0 < len(absent) < len(names) else ""
        looked.append(f"looked in {folder}{some}")
    return DataError(
        f"{title} is not here, and could not be downloaded ({reason})",
        problems=[*looked, f"expected {', '.join(names)}"],
        hint="Put the publisher's files into one of these folders, or name the folder above them with "
        "--data-root or REBASIN_DATA.",
    )


def download(urls: Sequence[str], md5: str) -> bytes:
    """One file from the first url that answers with the publisher's checksum. Raises NotDownloaded."""
    if not references.may_download():
        raise NotDownloaded("with --untrusted nothing is fetched without --download")
    reasons = []
    for url in urls:
        log.info("downloading %s", url)
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                content: bytes = answer.read(LARGEST)
        except (OSError, http.client.HTTPException) as cause:
            reasons.append(f"{url}: {getattr(cause, 'reason', None) or cause}")
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content
        reasons.append(f"{url}: its checksum is not the publisher's")
    raise NotDownloaded("; ".join(reasons))


def write_atomically(target: Path, content: bytes) -> None:
    """All of it or nothing. Raises ResourceError."""
    destination.make_folder(target.parent)
    try:
        writer.write_text_atomic(target, content, force=True)
    except UsageError as cause:  # the user did not choose this name
        raise ResourceError(f"{target} cannot be written: {cause.message}") from cause


_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """An idx file, gzipped or not, read no further than its header says. Raises DataError."""
    try:
        with files.opened(path) as raw:
            packed, size = raw.peek(2)[:2] == b"\x1f\x8b", os.fstat(raw.fileno()).st_size
            with gzip.open(raw) if packed else raw as file:
                return _read_idx(path, file, size, packed=packed)
    except (OSError, EOFError, zlib.error) as cause:
        raise DataError(f"{path} cannot be read: {cause}") from cause


def _read_idx(path: Path, file: gzip.GzipFile | io.BufferedReader, size: int, *, packed: bool) -> np.ndarray:
    head = file.read(4)
    if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
        raise DataError(f"{path} is not an idx file")
    kind, rank = np.dtype(_IDX_TYPES[head[2]]), head[3]
    if not 0 < rank <= DEEPEST:
        raise DataError(f"{path} is broken: its header promises {rank} axes")
    shape = np.frombuffer(file.read(4 * rank).ljust(4 * rank, b"\0"), ">u4").tolist()
    start, length = 4 + 4 * rank, kind.itemsize * math.prod(shape)
    if packed:
        check_unpacked(path, size, length)
    elif size != start + length:
        raise DataError(f"{path} is broken: {size} bytes, but its header promises {start + length}")
    content = file.read(length + 1)  # one more, to see whether that is all
    if len(content) != length:
        more = "more than that" if len(content) > length else f"only {start + len(content)}"
        raise DataError(f"{path} is broken: its header promises {start + length} bytes, and there are {more}")
    return np.frombuffer(content, kind).reshape(shape)


def check_unpacked(path: Path, packed: int, unpacked: int) -> None:
    """Raise DataError for a small file that says it unpacks to more than memory should be filled with."""
    if unpacked > LARGEST and unpacked > SPARSE * packed:
        raise DataError(
            f"{path} has {packed:,} bytes and would unpack to {unpacked:,}",
            hint="If that is right, unpack it first: what is not compressed is read as it is.",
        )


# What a pickled array names; a plain array is made of it without them.
ARRAYS = {f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")}
ARRAYS |= {f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")}
CLASSES = {"numpy.ndarray", "numpy.dtype"}


def read_pickle(path: Path) -> dict[Any, Any]:
    """A pickled dictionary of arrays, lists, text and numbers, read as data; anything else is refused.

    Arrays come as tensors; of what is no plain array is left what the pickle says of it. Raises DataError.
    """
    try:
        packed = files.content(path, LARGEST)
        reader = Reader(KNOWN, None, size=len(packed))
        content = reader.load(io.BytesIO(packed))
        if asked := [name for name in reader.unknown if name not in ARRAYS | CLASSES]:
            raise UnpicklingError(f"it asks for {asked[0]}, which is refused")
        if not isinstance(content, dict):
            raise DataError(f"{path} holds {kind(content)}; expected a dictionary")
        if odd := [value for value in content.values() if kind(value) in CLASSES]:
            raise UnpicklingError(f"it makes {kind(odd[0])} without values")
        made = {key: array(reader, value) for key, value in content.items()}
    except DataError:
        raise
    except Exception as cause:  # a broken pickle may raise nearly anything
        raise DataError(f"{path} is not a plain pickle of arrays: {told(cause)}") from cause
    return {key: value if made[key] is None else made[key] for key, value in content.items()}
