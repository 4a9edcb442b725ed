"""A `rebasin run` that cannot even begin, since a package is broken: nothing of an earlier one passes for it.

Only what every Python has is needed here, and in what this imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...runtime.files import Inputs
from .aside import Aside
from .cache import Cache
from .remembered import Remembered


def forget(arguments: Sequence[str]) -> None:
    """Remove the documents of the recipes that are named, and put aside what they made."""
    words = [part for word in arguments for part in word.split("=", 1)]
    places = [words[k + 1] for k, word in enumerate(words[:-1]) if word == "--cache"]
    cache = Cache(Path(places[-1] if places else ".rebasin"))
    for path in map(Path, words):
        for left in Remembered(cache, path, ()).every(recipe=True):
            for document, digest in left.documents.items():
                Remembered(cache, path, ()).remove(document, digest)
            Aside(cache, Inputs((path,))).put(left.made)
