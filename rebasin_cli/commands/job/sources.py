"""The files that a job's result was made of, and the statement that names them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ...checkpoints.checkpoint import open_checkpoint
from ...checkpoints.locate import locate, read_index
from ...errors import UsageError
from ...permutations.permutation import beside
from . import attesting
from .averaging import Average
from .job import Job
from .method_options import start_file
from .outputs import Output, write_files


def attested(
    job: Job, output: Output, done: dict[str, Any], *, mean: Average | None = None
) -> dict[str, Any]:
    """What a command did, and the statement on it where one is asked for: written last, of what is there."""
    if output.attest is None or output.dry_run:
        return done
    index = (name for name in done["written"] if name.endswith(".index.json"))
    made = open_checkpoint(Path(next(index, done["written"][0]))).metadata
    content = attesting.statement(
        [Path(name) for name in done["written"]],
        of(job, output, mean),
        asked=attesting.of_metadata(made, keys=attesting.ASKED),
        resolved=attesting.of_metadata(made, keys=attesting.RESOLVED),
    )
    write_files([(output.attest, attesting.text(content))], force=output.force)
    return done | {"written": [*done["written"], str(output.attest)]}


def check_apart(job: Job, output: Output, mean: Average | None = None) -> None:
    """Raise UsageError where weights would take the place of a permutation, a spec or code that is read, or
    where a statement is asked for on what takes the place of its own sources.
    """
    check_not_among([*_permutations(job), *_named(job)], [output.path])
    if output.attest is None:
        return
    made = [output.path, output.attest, *([beside(output.path)] if job.command == "align" else [])]
    copied = [mean.copy_from] if mean and mean.copy_from else []
    for source in (*job.paths, *copied, *_permutations(job), *_named(job)):
        if any(path.resolve().is_relative_to(source.resolve()) for path in made):
            raise UsageError(
                f"--attest: {source} would be replaced, and its digest could not be told any more",
                hint="Name another file with --out, and another one for the statement",
            )


def check_spared(job: Job, written: Iterable[Path], more: Iterable[Path] = ()) -> None:
    """Raise UsageError where a report, or a curve, would take the place of what the command reads.

    Only a model may take a model's place. `more` is read beside what the job names. Raises CheckpointError
    for models that are not there.
    """
    read = [file for model in (*job.paths, *more) for file in _weights(model)]
    check_not_among([*read, *_permutations(job), *_named(job)], written)


def check_not_among(read: Iterable[Path], written: Iterable[Path]) -> None:
    """Raise UsageError where one of the files that are written is one of those that are read."""
    known = {file.resolve() for file in read if os.path.exists(file)}  # False of odd names, too
    for path in written:
        if path.resolve() in known:
            raise UsageError(
                f"{path} is read by this very command, and would be replaced",
                hint="Name another file: --force is for what an earlier run wrote",
            )


def _weights(model: Path) -> list[Path]:
    """The files that a model lies in."""
    kind, file = locate(model)
    shards = read_index(file).values() if kind == "sharded" else ()
    return [file, *(file.parent / shard for shard in set(shards))]


def of(job: Job, output: Output, mean: Average | None = None) -> list[Path]:
    """Models, permutations, the spec, code and data that were named as files, and what was copied from.

    Not in it: folders of data, files of a named data set, and what the user's own code imports or opens.
    """
    source = mean.copy_from if mean else None
    models = [*job.paths, *([source] if source else [])]
    found = [file for model in models for file in _with_shards(model)]
    copied = models[-1 if source else 0]
    found += [(copied if copied.is_dir() else copied.parent) / name for name in output.copies]
    return [*found, *_permutations(job), *_named(job)]


def _permutations(job: Job) -> list[Path]:
    return [path for path in (job.perm, start_file(job.asked.search)) if path is not None]


def _with_shards(model: Path) -> list[Path]:
    """A model's file or folder, with the shards of an index."""
    kind, index = locate(model)
    if kind != "sharded" or model.is_dir():
        return [model]
    return [model, *(index.parent / shard for shard in sorted(set(read_index(index).values())))]


def _named(job: Job) -> Iterator[Path]:
    """Files in what may also be a name: `spec.yaml`, `net.py:factory`, `npz:digits.npz`."""
    asked = job.asked
    spec = asked.loading.spec or ""
    if spec.endswith((".yaml", ".yml")) or "/" in spec:
        yield Path(spec)
    code = [asked.network.net, asked.data.loss, asked.data.metric, asked.data.data]
    if asked.network.net is None and asked.network.trust_code and "fitted" in vars(job):
        code.append(job.fitted.spec.net)
    for text in code:
        for part in ((text or "").rpartition(":")[0], (text or "").partition(":")[2]):
            if part and Path(part).is_file():
                yield Path(part)
                break
