"""The installed version, as `pyproject.toml` says it."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    try:
        return importlib.metadata.version("rebasin-cli")
    except importlib.metadata.PackageNotFoundError:  # run from a folder that was never installed
        return "unknown"
