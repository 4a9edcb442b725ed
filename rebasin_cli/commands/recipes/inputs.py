"""The files that a recipe names: paths, globs, folders, and files of elsewhere with a pinned revision.

runs/a.safetensors                              a file, or a folder of shards
runs/step*.safetensors                          a glob, in the natural order of its numbers
{path: a.pt, sha256: 9f86…}                     a file that must be this very one
hf:org/name@COMMIT:model.safetensors            from the Hugging Face hub; without a file, all of it
{url: "https://…/a.safetensors", sha256: …}     from the web, only with its digest
"""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ...checkpoints.digests import of_path
from ...errors import RebasinError
from ...spec.naming import natural
from .files import opened
from .limits import Limits
from .reading import Problems, Value, public

ELSEWHERE = re.compile(r"(hf|https?):")
_HUB = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>[^:@/]+)(?::(?P<file>.+))?")
_COMMIT, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
Fetch = Callable[[str, str | None], Path]


@dataclass(frozen=True)
class Files:
    """What a name stands for; `downloads` are the addresses of what came from elsewhere, with digests.

    `pins` are the digests that files must have when they are read.
    """

    paths: tuple[Path, ...] = ()
    downloads: tuple[Mapping[str, str], ...] = ()
    pins: Mapping[Path, str] = field(default_factory=dict)


def find(
    value: Value,
    problems: Problems,
    fetch: Fetch | None,
    *,
    known: Iterable[str] = (),
    limits: Limits | None = None,
) -> Files:
    """The files that a value means; what is wrong goes to `problems`. `known` names may have been meant.

    `limits` are those of a recipe of a stranger's.
    """
    if value.is_list:
        parts = [find(item, problems, fetch, known=known, limits=limits) for item in value.value]
        return Files(
            tuple(path for part in parts for path in part.paths),
            tuple(download for part in parts for download in part.downloads),
        )
    if value.is_map:
        return _pinned(value, problems, fetch, limits)
    if not isinstance(value.value, str) or not value.value:
        problems.add(value, "expected a path, a glob, or a name under `inputs:`")
        return Files()
    if ELSEWHERE.match(value.value):
        return _elsewhere(value.value, None, value, problems, fetch)
    return Files(tuple(_local(value, problems, known, limits)))


def _pinned(value: Value, problems: Problems, fetch: Fetch | None, limits: Limits | None) -> Files:
    keys = set(value.value)
    given = {key: item.value for key, item in value.items()}
    if not (keys <= {"path", "sha256"} or keys <= {"url", "sha256"}) or not keys & {"path", "url"}:
        problems.add(value, "expected path: and sha256:, or url: and sha256:")
        return Files()
    digest = given.get("sha256")
    if digest is not None and not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
        problems.add(value, "sha256 is 64 digits of 0-9a-f")
        return Files()
    if "url" in given:
        return _elsewhere(str(given["url"]), digest, value, problems, fetch)
    found = _local(value.value["path"], problems, (), limits)
    if digest is not None and found:
        if len(found) > 1:
            problems.add(value, f"a pin is for one file, and {given['path']} are {len(found)}")
            return Files()
        if (seen := of_path(found[0])) != digest:
            problems.add(value, f"{given['path']} has the digest {seen}, and not the one that is pinned")
            return Files()
    return Files(tuple(found), pins={path: str(digest) for path in found} if digest else {})


def _local(value: Value, problems: Problems, known: Iterable[str], limits: Limits | None) -> list[Path]:
    text = value.value
    if not isinstance(text, str) or not text or "\0" in text:
        problems.add(value, "expected the name of a file")
        return []
    if limits is not None and (why := limits.wrong_file(value)) is not None:
        problems.add(value, why)
        return []
    found = _there(value, problems, known)
    parts = (part for path in found for part in opened(path))
    if limits is not None and not value.own and (why := limits.leads_out(parts)) is not None:
        problems.add(value, why)
        return []
    return found


def _there(value: Value, problems: Problems, known: Iterable[str]) -> list[Path]:
    text, path = value.value, Path(value.value)
    if os.path.exists(path):  # unlike the path's own, not to fail for a name that no file can have
        return [path]
    if glob.has_magic(text):
        found = sorted(glob.glob(text, recursive=True), key=natural)
        found = [name for name in found if not Path(name).name.endswith(".perm.safetensors")]
        if not found:
            problems.add(value, f"no file is called like {text}")
        return [Path(name) for name in found]
    here = [*known, *(str(path.parent / other.name) for other in _siblings(path))]
    near = difflib.get_close_matches(text, here, n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    problems.add(value, f"{text}: no such file{hint}")
    return []


def _siblings(path: Path) -> list[Path]:
    try:
        return list(path.parent.iterdir())
    except OSError:
        return []


def _elsewhere(
    address: str, digest: str | None, value: Value, problems: Problems, fetch: Fetch | None
) -> Files:
    if (problem := _not_pinned(address, digest)) is not None:
        problems.add(value, problem)
    elif fetch is None:
        problems.add(value, f"{public(address)} is not on this machine; --download allows to fetch it")
    else:
        try:
            path = fetch(address, digest)
            seen = of_path(path) if path.exists() else ""  # it is only expected there
            return Files((path,), ({"uri": public(address), "sha256": seen},))
        except RebasinError as error:
            problems.add(value, "; ".join(line.strip() for line in error.lines()))
    return Files()


def _not_pinned(address: str, digest: str | None) -> str | None:
    """Why nobody could tell later what this was; None where it is pinned."""
    if address.startswith("http:"):
        return "http: is not safe from changes on the way; use https: with its sha256"
    if address.startswith("https:"):
        return None if digest else "a file from the web needs its digest: {url: …, sha256: …}"
    found = _HUB.fullmatch(address)
    if found is None:
        return "expected hf:org/name@COMMIT or hf:org/name@COMMIT:file.safetensors"
    if not _COMMIT.fullmatch(found["revision"]):
        return (
            f"{found['revision']} may mean another model tomorrow; name the commit, 40 digits of 0-9a-f, as "
            "`git ls-remote` or the model's page tells it"
        )
    return None


def hub_parts(address: str) -> tuple[str, str, str | None]:
    """Repository, commit and file (None: all of it) of an hf: address that is pinned."""
    if (found := _HUB.fullmatch(address)) is None:
        raise LookupError(f"{address} is no address of the hub that is pinned")
    return found["repo"], found["revision"], found["file"]
