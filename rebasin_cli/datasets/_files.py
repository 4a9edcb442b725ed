"""Publishers' files: where they are looked for, how they are downloaded, how they are read without trust."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import logging
import os
import pickle
import urllib.request
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, ResourceError

TIMEOUT = 5  # seconds without a sign of life
LARGEST = 1 << 30  # bytes; the largest archive has 170 MB

log = logging.getLogger("rebasin")


class NotDownloaded(Exception):
    """No url gave the file; the message says why."""


def places(root: Path | None, folders: Sequence[str]) -> list[Path]:
    """The folders to look in, best first: in `root`, or where downloads are kept. Raises DataError."""
    if root is not None and not root.is_dir():
        raise DataError(f"{root}: no such folder", hint="--data-root is the folder of all data sets.")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rebasin"
    return [(root or cache) / folder for folder in folders]


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
    reasons = []
    for url in urls:
        log.info("downloading %s", url)
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                content = answer.read(LARGEST)
        except (OSError, http.client.HTTPException) as cause:
            reasons.append(f"{url}: {getattr(cause, 'reason', None) or cause}")
            continue
        if hashlib.md5(content, usedforsecurity=False).hexdigest() == md5:
            return content
        reasons.append(f"{url}: its checksum is not the publisher's")
    raise NotDownloaded("; ".join(reasons))


def write_atomically(target: Path, content: bytes) -> None:
    """All of it or nothing. Raises ResourceError."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except OSError as cause:
        with suppress(OSError):
            beside.unlink()
        raise ResourceError(f"{target} cannot be written: {cause}") from cause


_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path) -> np.ndarray:
    """An idx file, gzipped or not. Raises DataError."""
    try:
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as cause:
        raise DataError(f"{path} cannot be read: {cause}") from cause
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _IDX_TYPES:
        raise DataError(f"{path} is not an idx file")
    kind, rank = np.dtype(_IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * rank
    shape = np.frombuffer(content[4:start], ">u4").tolist() if len(content) >= start else [0]
    expected = start + kind.itemsize * int(np.prod(shape, dtype=object))
    if len(content) != expected:
        raise DataError(f"{path} is broken: {len(content)} bytes, but its header promises {expected}")
    return np.frombuffer(content, kind, offset=start).reshape(shape)


class _ArraysOnly(pickle.Unpickler):
    """Finds what rebuilds numpy arrays, and nothing else; nothing is imported by name."""

    FOUND = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): lambda text, _: text.encode("latin1"),  # Python 3 spells bytes so
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.FOUND:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is refused")
        return self.FOUND[module, name]


def read_pickle(path: Path) -> dict[Any, Any]:
    """A pickled dictionary of arrays, lists, text and numbers; anything else is refused. Raises DataError."""
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except Exception as cause:  # a broken pickle may raise nearly anything
        raise DataError(f"{path} is not a plain pickle of arrays: {cause}") from cause
    if not isinstance(content, dict):
        raise DataError(f"{path} holds {type(content).__name__}; expected a dictionary")
    return content
