"""Alice: Alice's Adventures in Wonderland, 148,260 characters, 70 different ones; shipped with rebasin.

Lewis Carroll, 1865, in the public domain: the text of its twelve chapters, without the title page. Windows
of 64 characters lie side by side; the test split is the last tenth, from within chapter XI on. It is prose of
one author and little of it: what is learned here is spelling, and a small network overfits in minutes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

from .. import Samples
from ..windows import windows

NORMALIZATION = None
CLASSES = None


def load(split: str, root: Path | None) -> Samples:
    """From inside the package; `root` is not asked."""
    packed = Path(__file__).with_name("alice.txt.gz").read_bytes()
    return windows(gzip.decompress(packed).decode("utf-8"), split, "alice")
