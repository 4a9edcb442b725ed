"""Where weights come from, as an in-toto statement: their digests, those of their parents, and what was done.

The predicate is SLSA provenance v1 (https://slsa.dev/spec/v1.0/provenance), which registries and policy
engines read. It is signed by nobody here: sign it where the job runs (`cosign attest-blob`, GitHub's
attestations). The same files, options and versions give the same bytes: it holds no times.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...version import version

STATEMENT, PREDICATE = "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1"
BUILD, BUILDER = "urn:rebasin:command:v1", "urn:rebasin:cli"
COMPUTE = ("torch", "numpy", "scipy")
# What the metadata of an output says: what the user asked for, and what it was resolved to.
ASKED = ("command", "method", "options", "seed")
RESOLVED = ("spec", "spec_sha256", "proof", "outputs", "inputs")


def statement(
    subjects: Iterable[Path],
    parents: Iterable[Path],
    *,
    asked: Mapping[str, Any],
    resolved: Mapping[str, Any],
) -> dict[str, Any]:
    """A statement that `subjects` were made of `parents`; a folder counts with every file in it."""
    return statement_of(_listed(subjects), _listed(parents), asked=asked, resolved=resolved)


def statement_of(
    subjects: Mapping[str, str],
    parents: Mapping[str, str],
    *,
    asked: Mapping[str, Any],
    resolved: Mapping[str, Any],
) -> dict[str, Any]:
    """The same of files by their digests."""
    return {
        "_type": STATEMENT,
        "subject": _described(subjects),
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD,
                "externalParameters": dict(asked),
                "internalParameters": dict(resolved),
                "resolvedDependencies": _described(parents),
            },
            "runDetails": {"builder": {"id": BUILDER, "version": dict(versions())}},
        },
    }


@functools.cache
def versions() -> Mapping[str, str]:
    """Of rebasin, and of the libraries that compute, as they are in this process."""
    return {"rebasin": version()} | {name: importlib.metadata.version(name) for name in COMPUTE}


def _listed(paths: Iterable[Path]) -> dict[str, str]:
    files = [file for path in paths for file in (digests.files_below(path) if path.is_dir() else [path])]
    return {file.as_posix(): digests.of_file(file) for file in dict.fromkeys(files)}


def _described(files: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "digest": {"sha256": digest}} for name, digest in files.items()]


def of_metadata(metadata: Mapping[str, str], *, keys: Sequence[str]) -> dict[str, Any]:
    """What the metadata of an output records under these keys, JSON as values."""
    found = {key: metadata.get(f"rebasin.{key}") for key in keys}
    return {
        key: json.loads(text) if key in ("options", "inputs", "seed") else text
        for key, text in found.items()
        if text is not None
    }


def text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"
