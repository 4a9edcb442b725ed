"""Your own text, character by character: `text:FILE`, any UTF-8 file.

A sample is a window of 64 characters (`text:FILE?window=128` for others), its targets the same one character
further on; windows lie side by side. The last tenth of the file is the test split. The vocabulary, all
characters of the file, is recorded in what is trained.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...errors import DataError, UsageError
from ...runtime import files
from ...runtime.memory import check_memory
from .. import Samples
from ..windows import BYTES, WINDOW, windows

NORMALIZATION = None
CLASSES = None

LONGEST = 1 << 16
LARGEST = 1 << 36  # bytes; before that memory is full


def load_from(argument: str, split: str) -> Samples:
    path, window = _parse(argument)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        check_memory(f"{path} takes", BYTES * path.stat().st_size)
        text = files.content(path, LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        raise DataError(
            f"{path} is not UTF-8: byte {cause.start:,} is 0x{cause.object[cause.start]:02x}",
            hint=f"Convert it first: iconv -f LATIN1 -t UTF-8 {path.name}",
        ) from cause
    except OSError as cause:
        raise DataError(f"{path} cannot be read: {cause}") from cause
    return windows(text, split, str(path), window)


def _parse(argument: str) -> tuple[Path, int]:
    text, question, option = argument.partition("?")
    if not question:
        return Path(text), WINDOW
    if not (found := re.fullmatch(r"window=([0-9]{1,9})", option)):
        raise UsageError(f"unknown option {option!r} of text", hint="Write ?window=128.")
    if not 1 <= (window := int(found[1])) <= LONGEST:
        raise UsageError(f"{option!r} of text: expected 1 to {LONGEST} characters")
    return Path(text), window
