"""The files that a session's result was made of, and the statement that names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...checkpoints.checkpoint import open_checkpoint
from ...registry import references
from ...session import inputs
from ...session.method_options import start_file
from ...session.session import Session
from . import attestation as attesting
from .outputs import Output, write_files


def attested(
    session: Session, output: Output, done: dict[str, Any], *, copied: Path | None = None
) -> dict[str, Any]:
    """What a command did, and the statement on it where one is asked for: written last, of what is there."""
    if output.attest is None or output.dry_run:
        return done
    index = (name for name in done["written"] if name.endswith(".index.json"))
    made = open_checkpoint(Path(next(index, done["written"][0]))).metadata
    content = attesting.statement(
        [Path(name) for name in done["written"]],
        parents(session, output, copied),
        asked=attesting.of_metadata(made, keys=attesting.ASKED),
        resolved=attesting.of_metadata(made, keys=attesting.RESOLVED),
    )
    write_files([(output.attest, attesting.text(content))], force=output.force)
    return done | {"written": [*done["written"], str(output.attest)]}


def parents(session: Session, output: Output, source: Path | None = None) -> list[Path]:
    """Models, permutations, the spec, code and data that were named as files, and what was copied from.

    Not in it: folders of data, files of a named data set, and what the user's own code imports or opens.
    """
    models = [*session.paths, *([source] if source else [])]
    found = [file for model in models for file in ([model] if model.is_dir() else inputs.of_model(model))]
    copied = models[-1 if source else 0]
    found += [(copied if copied.is_dir() else copied.parent) / name for name in output.copies]
    found += [path for path in (session.perm, start_file(session.asked.search)) if path is not None]
    found += inputs.of_spec(session.asked.loading.spec) + inputs.of_code(session.asked)
    if (
        session.asked.network.net is None
        and session.asked.network.trust_code
        and session.has_open("symmetries")
    ):
        found += references.files_of(session.fitted.spec.net or "")
    data = references.named_in(session.asked.data.data or "")
    return [*found, *([data] if data is not None and data.is_file() else [])]
