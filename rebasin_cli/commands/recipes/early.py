"""A `rebasin run` that cannot even begin, since a package is broken: nothing of an earlier one passes for it.

Only what every Python has is needed here, and in what this imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...runtime.files import Inputs
from .aside import Aside
from .cache import of_run
from .remembered import Remembered


def forget(arguments: Sequence[str]) -> None:
    """Remove the documents of the recipes that are named, and put aside what they made.

    Records beside a stranger's recipe may be of his making, and are not believed here, either.
    """
    words = [part for word in arguments for part in word.split("=", 1)]
    places = [words[k + 1] for k, word in enumerate(words[:-1]) if word == "--cache"]
    folder = Path(places[-1] if places else ".rebasin")
    with of_run(folder, lambda text: None, stranger="--untrusted" in words) as cache:
        for path in map(Path, words):
            remembered = Remembered(cache, path, ())
            for left in remembered.every(recipe=True):
                remembered.remove_documents(left)
                Aside(cache, Inputs((path,))).put(left.made)
