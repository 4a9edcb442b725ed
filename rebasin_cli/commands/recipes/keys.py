"""The name under which a CI server keeps what a recipe has made."""

from __future__ import annotations

import platform
import sys
from typing import Any

from ...checkpoints import digests
from ..verbs.attestation import versions
from .recipe import Recipe
from .records import digest_of

DIGITS = 16


def of(recipe: Recipe) -> str:
    """`ASKED-INPUTS`, two times 16 digits of 0-9a-f, of which the first alone finds the nearest of before.

    ASKED is of all command lines, of the versions of rebasin, Python and the libraries that compute, and of
    the kind of machine; INPUTS of the content of all files that steps read and that none of them makes, and
    of gates, by which nothing is measured. It only says where to look: what is found there is believed record
    by record, by its own digests. Folders of data do not count, since their times are new on every machine.
    CheckpointError for a file that is gone.
    """
    made = {path.absolute() for step in recipe.steps for path in step.files}
    asked = {
        "versions": {**versions(), "python": sys.version_info[:2]},
        "machine": [platform.system(), platform.machine()],
        "lines": [step.measuring().line() for step in recipe.steps],
    }
    gates = [step.gates for step in recipe.steps if step.gates]
    read = dict.fromkeys(path for step in recipe.steps for path in step.reads)
    inputs = {
        str(path): digests.of_path(path) for path in read if path.absolute() not in made and path.exists()
    }
    return f"{_digits(asked)}-{_digits([gates, inputs])}"


def _digits(facts: Any) -> str:
    return digest_of(facts)[:DIGITS]
