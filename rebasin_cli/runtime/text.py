"""Text that came from outside (names of tensors and files, metadata, messages), made fit to be shown.

What is printed or put into a report goes through `clean`, and a line of its own through `line`.
"""

from __future__ import annotations

import os
import re
import traceback
import unicodedata
from collections.abc import Iterable
from typing import Any

LONGEST = 4000  # characters of a line: names may be of any length, and logs are read by people
# What CI systems take for a command: at the beginning of a line (GitHub skips spaces), or anywhere.
_AT_THE_BEGINNING = re.compile(r"^(\s*)::")
_ANYWHERE = re.compile(r"##(?=[a-zA-Z]*\[)")


def clean(value: Any) -> str:
    """`value` as one line of text that no terminal, XML reader or browser takes for a command.

    Control characters, half surrogates (file names that are not UTF-8), direction marks and
    noncharacters become �; line breaks and tabs become spaces.
    """
    text = str(value)
    return text if text.isascii() and text.isprintable() else "".join(map(_safe, text))


def once(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    """The `object_pairs_hook` of json.loads: an object whose names are all different. Raises ValueError."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[Any] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"{key!r} appears twice")
            seen.add(key)
    return found


def many(count: int, what: str) -> str:
    """A count and its noun: "1 sample", "2,000 samples"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def some(names: Iterable[str], most: int) -> str:
    """The first of these names in a line, and how many more there are: "a, b … 3 more"."""
    names = [*names]
    return ", ".join(names[:most]) + f" … {len(names) - most:,} more" * (len(names) > most)


def _safe(char: str) -> str:
    if char in "\t\n\r\v\f\x85\u2028\u2029":
        return " "
    hidden = unicodedata.category(char) in ("Cc", "Cs", "Cf") or ord(char) & 0xFFFE == 0xFFFE
    return "\ufffd" if hidden else char


def cut(value: Any, longest: int = LONGEST) -> str:
    """`value` as text, with its beginning and its end alone where it is longer than that."""
    text = str(value)
    if len(text) <= longest:
        return text
    start, end = longest * 2 // 3, longest // 4
    return f"{text[:start]} … {len(text) - start - end:,} characters … {text[-end:]}"


def line(value: Any, longest: int = LONGEST) -> str:
    """`value` as a line of a terminal or a log: clean, not too long, and no command to a CI system."""
    text = _ANYWHERE.sub("# #", clean(cut(value, longest)))
    return _AT_THE_BEGINNING.sub(r"\1\\::", text)


def in_a_line(error: BaseException) -> str:
    """Type, message and place of an error, without the traceback that a process put into its message.

    What torch hands on of a worker begins with where it was, and ends with what was raised there.
    """
    try:
        said = str(error).strip()
    except Exception:  # of other people's code
        said = ""
    lines = [text.strip() for text in said.splitlines() if text.strip()]
    name, handed_on = type(error).__name__, "Traceback (most recent call last)" in said
    what = lines[-1] if handed_on else f"{name}: {lines[0]}" if lines else name
    places = re.findall(r'File "([^"]+)", line (\d+)', said) if handed_on else []
    if not places:
        places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    where = f", at {os.path.basename(places[-1][0])}:{places[-1][1]}" if places else ""
    return line(what, 500) + where
