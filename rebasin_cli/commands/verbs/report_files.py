"""The files of a report: where they go, written all or none of them, and read again.

Whether they can be written is asked before any work.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ... import reports
from ...checkpoints import destination, writer
from ...checkpoints.stages import staged
from ...errors import RebasinError, UsageError
from ...registry.operations import of_value
from ...reports import Report, pictures
from ...reports.document import Document
from ...reports.formats import html, markdown
from ...reports.formats import json as json_format
from ...reports.github import StepSummary
from ...runtime import files
from ...runtime.files import NOTHING, Destinations, Inputs, check_distinct
from ...runtime.text import clean
from ...session.listener import SILENT, Listener

LARGEST_REPORT = 1 << 28  # bytes


@dataclass(frozen=True)
class Written:
    """Where a report goes: `files` maps formats to files, and every format of the command into `folder`.

    A `summary` of a CI run's step is added to. `command` is the command line that they name. A dry run writes
    nothing; what can be interrupted goes on with `resume`. `reads` are files that its options were read from.
    """

    folder: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)
    force: bool = False
    command: str = ""
    dry_run: bool = False
    summary: StepSummary | None = None
    resume: bool = False
    reads: Sequence[Path] = ()

    def destinations(self, names: Mapping[str, str] | None = None, inputs: Inputs = NOTHING) -> Destinations:
        """(format, file) for every file asked for; refuses what exists before any work begins.

        `names` are those of the formats in the folder, by default a barrier report's. `inputs` are what the
        command reads.
        """
        if names is None:
            named = {name: reports.registry.get(name).FILENAME for name in reports.registry.names()}
            names = {name: file for name, file in named.items() if file}
        asked = list(self.files.items())
        if self.folder is not None:
            asked += [(name, self.folder / file) for name, file in names.items()]
        inputs = inputs.and_files(self.reads)
        found = check_files(asked, inputs, folder=self.folder, force=self.force)
        if self.summary is not None and not self.dry_run:
            self.summary.check(inputs)
            if self.summary.asked:
                check_distinct([*found, ("step summary", self.summary.path)])
        return found


def written_of(asked: Any, listener: Listener = SILENT, **own: Any) -> Written:
    """Where the report of an operation goes; `own` is what no option of that name says.

    Files of formats are those of `files`, and of options of one format: `html`, `json_file`, `plot`.
    """
    formats = {"png": "plot", "html": "html", "markdown": "markdown", "json": "json_file"}
    named = {name: getattr(asked, option, None) for name, option in formats.items()}
    found = {name: path for name, path in named.items() if path is not None}
    found |= {name: Path(text) for name, text in getattr(asked, "files", {}).items()}
    switches = {name: getattr(asked, name, False) for name in ("force", "dry_run", "resume")}
    folder = getattr(asked, "report", None)
    command = listener.command or shlex.join(["rebasin", *of_value(asked).line(asked)])
    return Written(folder, found, command=command, **{**switches, **own})


def check_files(
    destinations: Destinations, inputs: Inputs, *, folder: Path | None = None, force: bool
) -> Destinations:
    """The same, each file once; refuses what exists or cannot be written by a command that reads `inputs`."""
    if folder is not None:
        destination.check_report_folder(folder)
    check_distinct(destinations)
    for _, path in destinations:
        destination.check_report_folder(path.parent)
        files.check_output(path, inputs)
        if path.parent.exists():
            destination.check_output(path, force=force, text=True, inputs=inputs)
    return list({os.path.realpath(path): (name, path) for name, path in destinations}.values())


def write_reports(report: Report, destinations: Destinations, *, force: bool) -> None:
    """Write every file, or none of those that are new."""
    write_files(
        [(path, reports.registry.get(name).render(report)) for name, path in destinations], force=force
    )


def write_document(
    document: Document, destinations: Destinations, *, force: bool, values: Mapping[str, Any] | None = None
) -> None:
    """A document in every format asked for, as `write_files` does; `values` are what JSON has of it."""
    forms: dict[str, Callable[[Document], str | bytes]] = {
        "png": pictures.png,
        "html": html.page,
        "markdown": markdown.text,
        "json": lambda _: json_format.dump(values or {}),
    }
    write_files([(path, forms[name](document)) for name, path in destinations], force=force)


def write_files(rendered: Sequence[tuple[Path, str | bytes]], *, force: bool) -> None:
    """Every file with its content, or none of those that are new; folders are made.

    Files of one folder appear together, whatever ends the process.
    """
    with removed_on_failure(*(path for path, _ in rendered)):
        for folder in dict.fromkeys(path.parent for path, _ in rendered):
            destination.make_folder(folder)
            with staged(folder) as stage:
                for path, content in rendered:
                    if path.parent == folder:
                        writer.write_text_atomic(path, content, force=force, stage=stage)


@contextmanager
def removed_on_failure(*paths: Path) -> Iterator[None]:
    """Files that appear in the block, and folders for them, are gone again where it fails."""
    parents = {folder for path in paths for folder in path.absolute().parents}
    new = [path for path in (*paths, *sorted(parents, reverse=True)) if not path.exists()]
    try:
        yield
    except BaseException:
        for path in new:
            with suppress(OSError):  # a folder that holds something else stays
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        raise


@dataclass(frozen=True)
class Stored:
    """A report in a file: its `content` as it lies there, the SHA-256 of that, and what it says."""

    content: bytes
    sha256: str
    report: Report


def stored_report(path: Path, option: str = "", *, error: type[RebasinError] = UsageError) -> Stored:
    """The report in a JSON file, as `barrier` wrote it, that was named by `option`, or by itself.

    Raises UsageError where there is no such file, and an `error` for what is no report.
    """
    what = f"{option} {path}".strip()
    if files.is_missing(path):
        raise UsageError(f"{what}: no such file{files.meant(path)}")
    content = files.named(path, what, most=LARGEST_REPORT, error=error)
    try:
        report = reports.registry.get("json").load(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise error(f"{what}: not a JSON report: it is not UTF-8", hint=json_format.NEXT) from None
    except UsageError as wrong:
        raise error(f"{what}: {wrong.message}", problems=wrong.problems, hint=wrong.hint) from None
    if problems := json_format.inconsistent(report):
        hint = "It was changed after it was measured: measure it again"
        raise error(f"{what}: the report contradicts itself", problems=list(map(clean, problems)), hint=hint)
    return Stored(content, hashlib.sha256(content).hexdigest(), report)
