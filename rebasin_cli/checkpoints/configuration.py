"""`config.json`, as it lies beside the weights of a model: what its publisher says of the network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..runtime import files

CONFIG = "config.json"
LARGEST = 1 << 24  # bytes of a configuration
HEADS = ("head", "rotary", "multi_query", "new_decoder_architecture", "parallel_attn", "group")  # in keys
DEEPEST = 4  # parts within parts of a configuration
Config = dict[str, Any]


def read(content: bytes) -> Config | None:
    """The configuration; None where it is none."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def heads(config: Config | None, within: str = "") -> dict[str, Any]:
    """What a configuration says of heads, by its keys: no shape of a tensor tells these.

    Their number, their share that positions turn, and whether they lie side by side or in groups.
    """
    found: dict[str, Any] = {}
    for key, value in (config or {}).items():
        if isinstance(value, dict) and within.count(".") < DEEPEST:
            found |= heads(value, f"{within}{key}.")
        elif (
            any(part in key for part in HEADS)
            and "dropout" not in key
            and isinstance(value, int | float | list)
        ):
            found[f"{within}{key}"] = value
    return found


def beside(model: Path) -> Config | None:
    """The configuration in a model's folder, if there is one."""
    path = (model if model.is_dir() else model.parent) / CONFIG
    try:
        return read(files.content(path, LARGEST))
    except OSError:
        return None
