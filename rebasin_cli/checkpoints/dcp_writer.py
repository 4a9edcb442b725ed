"""A folder of torch.distributed.checkpoint (DCP), by torch's own writer: one tensor in memory at a time.

torch plans by tensors without values and asks for each when it writes it. What it would name anew in every
folder is the digest of the content here, so the same tensors give the same bytes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..errors import CheckpointError
from .pieces import METADATA
from .stages import Staging


class _Kept:
    """A file that its stage closes, not the writer."""

    def __init__(self, file: BinaryIO):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        pass


def _behind(cause: BaseException) -> BaseException:
    """What ended the writing: torch's archives fail once more when they are left."""
    link: BaseException | None = cause
    while link is not None and isinstance(link, RuntimeError):
        link = link.__context__
    return link or cause


def write(
    folder: Path,
    stage: Staging,
    plan: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    made: Callable[[str], Tensor],
    identity: Callable[[], str],
) -> list[Path]:
    """Write the tensors of `plan` in the order of their names into a stage; the files, metadata last.

    `made(name)` gives the values, of the dtype and shape that the plan has; `identity` is asked when all are
    written, for a text that tells this content from others. Raises CheckpointError where torch writes the
    metadata before the tensors.
    """
    # two processor seconds, where it is asked for
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
    from torch.distributed.checkpoint.metadata import StorageMeta
    from torch.distributed.checkpoint.state_dict_saver import save

    files: list[Path] = []

    class Files(FileSystem):
        @contextmanager
        def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
            final = folder / Path(path).name.removesuffix(".tmp")
            files.append(final)
            with stage.open(final) as file:
                yield _Kept(file)

        def rename(self, path: Any, new_path: Any) -> None: ...

        def mkdir(self, path: Any) -> None: ...

        def rm_file(self, path: Any) -> None: ...

        def exists(self, path: Any) -> bool:
            return False

    class Writer(FileSystemWriter):
        def storage_meta(self) -> StorageMeta:
            return StorageMeta(save_id=identity())

    class Planner(DefaultSavePlanner):
        def resolve_data(self, write_item: Any) -> Tensor:
            return made(write_item.index.fqn)

    writer = Writer(folder)
    writer.fs = Files()
    empty = {
        name: torch.empty(shape, dtype=dtype, device="meta") for name, (dtype, shape) in sorted(plan.items())
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process
        try:
            save(empty, storage_writer=writer, planner=Planner(), no_dist=True)
        except CheckpointException as wrapped:  # around errors, and a Ctrl-C, of this one rank
            raise _behind(next(cause for cause, _ in wrapped.failures.values())) from None
    if files[-1:] != [folder / METADATA]:  # whose text tells the content, is asked for before all is written
        raise CheckpointError(
            f"torch {torch.__version__} wrote {', '.join(file.name for file in files) or 'nothing'}, "
            f"expected {METADATA} last",
            hint="Write another form: leave --out-format out",
        )
    return files
