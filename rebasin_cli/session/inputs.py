"""The files that a command reads, as far as its options name them: none of these is ever written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..checkpoints import torch_writing as provenance_beside
from ..checkpoints.digests import files_below
from ..checkpoints.locate import locate, read_index
from ..datasets.downloads import all_data
from ..errors import CheckpointError
from ..registry import references
from ..runtime.files import Inputs
from ..spec import library
from .method_options import start_file
from .subjects import Subjects


def inputs_of(paths: Sequence[Path], asked: Subjects, more: Iterable[Path | None] = ()) -> Inputs:
    """Models with their shards, the spec with what it includes, a search's start, data and code; and `more`.

    Of data sets that have names, their files below the folder of all data. Not in it: what the user's own
    code opens.
    """
    files = [file for model in paths for file in of_model(model)]
    files += [*of_spec(asked.loading.spec), *of_code(asked), *of_data(asked.data.data_root)]
    texts = [asked.data.data, asked.data.held_out]
    named = [found for text in texts if text and (found := references.named_in(text)) is not None]
    return Inputs(
        files=(*files, *(path for path in named if not os.path.isdir(path))),
        models=tuple(model for model in paths if os.path.isdir(model)),
        data=tuple(path for path in named if os.path.isdir(path)),
    ).and_files([start_file(asked.search), *more])


def of_model(model: Path) -> list[Path]:
    """A model's file with what lies beside it, the shards of an index, and all files of a folder."""
    try:
        kind, file = locate(model)
        shards = read_index(file).values() if kind == "sharded" else ()
    except (CheckpointError, OSError):  # told where it is opened
        return [model]
    beside = files_below(model) if os.path.isdir(model) else []
    if kind == "torch" and os.path.lexists(about := provenance_beside.of(file)):
        beside = [*beside, about]
    return [*beside, file, *(file.parent / shard for shard in sorted(set(shards)))]


def of_spec(named: str | None) -> list[Path]:
    """The files of a spec that is named as one: `spec.yaml`."""
    if named is None or not (named.endswith((".yaml", ".yml")) or "/" in named):
        return []
    return library.files_of(Path(named))


def of_data(root: Path | None) -> list[Path]:
    """The files of data sets that have names: below this folder, or where they are looked for without one."""
    return references.of_data_sets(root or all_data())


def of_code(asked: Subjects) -> list[Path]:
    """The user's own code: `net.py:factory`, `loader.py:load`."""
    texts = [asked.network.net, asked.data.loss, *asked.data.metric, asked.data.data, asked.data.held_out]
    return [file for text in texts if text for file in references.files_of(text)]
