"""What a torch file cannot say of itself, in a small JSON file beside it: NAME.pth.rebasin.json.

It holds the metadata that a safetensors file would have, and a digest of the weights' file by which it is
known whether it still is the one.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import RebasinError
from ..runtime import files
from .torch_writing import listing

SUFFIX = ".rebasin.json"
OTHER = "lies beside other weights than it was written with, and is not used"


def of(path: Path) -> Path:
    return path.with_name(f"{path.name}{SUFFIX}")


def encoded(records: str, metadata: Mapping[str, str]) -> bytes:
    """`records` are `listing`'s of the weights' file."""
    content = {"records": records, "metadata": dict(sorted(metadata.items()))}
    return (json.dumps(content, indent=2, sort_keys=True) + "\n").encode()


def read(path: Path) -> tuple[dict[str, str], str]:
    """The metadata of a torch file, and why that which is there is not used; neither where none is."""
    try:
        content = json.loads(files.text(of(path), str(of(path))))
        records, metadata = content["records"], content["metadata"]
        if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
            return {}, ""
        same = records == listing(path)
    except (RebasinError, OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return {}, ""
    except (zipfile.BadZipFile, NotImplementedError):
        return {}, f"{of(path).name} {OTHER}"
    return (metadata, "") if same else ({}, f"{of(path).name} {OTHER}")
