"""What belongs to a file that a step names: shards of an index, what lies beside it, files of a report."""

from __future__ import annotations

import json
from pathlib import Path

from ...registry import Registry
from ...registry.options import constant


def index(path: Path) -> Path:
    return path.with_name(f"{path.name}.index.json")


def is_sharded(path: Path) -> bool:
    return not path.exists() and index(path).exists()


def opened(path: Path) -> list[Path]:
    """A file, and the shards that it is an index of."""
    if not path.name.endswith(".index.json"):
        return [path]
    try:
        shards = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        return [path, *(path.with_name(name) for name in sorted(set(shards)) if "/" not in name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [path]  # its command says what is wrong with it


def beside(path: Path) -> list[Path]:
    """The files that --copy-files takes from the folder of a model; a folder counts with all of its own."""
    globs = constant("rebasin_cli.commands.job.folders", "BESIDE")
    files = [] if path.is_dir() or not path.parent.is_dir() else sorted(path.parent.iterdir())
    return [file for file in files if file.is_file() and any(map(file.match, globs))]


def report_files(command: str, folder: Path) -> dict[str, Path]:
    """The files of a report folder; `report` is the one for programs."""
    if command == "compare":
        names = constant("rebasin_cli.analysis.formats", "FILENAMES")
    else:
        formats = Registry("reports", "report format")
        names = {name: formats.constant(name, "FILENAME") for name in formats.names()}
    files = {f"report.{name}": folder / file for name, file in names.items() if file}
    return {"report": files["report.json"], **files}
