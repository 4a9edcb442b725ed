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
from ...spec.patterns import natural
from .files import opened
from .limits import Limits
from .reader import Problems, Value, public

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


@dataclass
class Finder:
    """Finds the files that values mean; what is wrong goes to `problems`. `fetch` brings those of elsewhere.

    `limits` are those of a recipe of a stranger's.
    """

    problems: Problems
    fetch: Fetch | None = None
    limits: Limits | None = None

    def find(self, value: Value, known: Iterable[str] = ()) -> Files:
        """The files that a value means; `known` names may have been meant."""
        if value.is_list:
            parts = [self.find(item, known) for item in value.value]
            return Files(
                tuple(path for part in parts for path in part.paths),
                tuple(download for part in parts for download in part.downloads),
            )
        if value.is_map:
            return self._pinned(value)
        if not isinstance(value.value, str) or not value.value:
            return self._nothing(value, "expected a path, a glob, or a name under `inputs:`")
        if ELSEWHERE.match(value.value):
            return self._elsewhere(value.value, None, value)
        return Files(tuple(self._local(value, known)))

    def _nothing(self, value: Value, why: str) -> Files:
        self.problems.add(value, why)
        return Files()

    def _pinned(self, value: Value) -> Files:
        keys = set(value.value)
        given = {key: item.value for key, item in value.items()}
        if not (keys <= {"path", "sha256"} or keys <= {"url", "sha256"}) or not keys & {"path", "url"}:
            return self._nothing(value, "expected path: and sha256:, or url: and sha256:")
        digest = given.get("sha256")
        if digest is not None and not (isinstance(digest, str) and _SHA256.fullmatch(digest)):
            return self._nothing(value, "sha256 is 64 digits of 0-9a-f")
        if "url" in given:
            return self._elsewhere(str(given["url"]), digest, value)
        found = self._local(value.value["path"])
        if digest is not None and found:
            if len(found) > 1:
                return self._nothing(value, f"a pin is for one file, and {given['path']} are {len(found)}")
            if (seen := of_path(found[0])) != digest:
                told = f"{given['path']} has the digest {seen}, and not the one that is pinned"
                return self._nothing(value, told)
        return Files(tuple(found), pins={path: str(digest) for path in found} if digest else {})

    def _local(self, value: Value, known: Iterable[str] = ()) -> list[Path]:
        text, limits = value.value, self.limits
        why, found = None, list[Path]()
        if not isinstance(text, str) or not text or "\0" in text:
            why = "expected the name of a file"
        elif limits is None or (why := limits.wrong_file(value)) is None:
            found = self._there(value, known)
            if limits is not None and not value.own:
                why = limits.leads_out(part for path in found for part in opened(path))
        if why is not None:
            self.problems.add(value, why)
        return found if why is None else []

    def _there(self, value: Value, known: Iterable[str]) -> list[Path]:
        text, path = value.value, Path(value.value)
        if os.path.exists(path):  # unlike the path's own, not to fail for a name that no file can have
            return [path]
        if glob.has_magic(text):
            found = sorted(glob.glob(text, recursive=True), key=natural)
            found = [name for name in found if not Path(name).name.endswith(".perm.safetensors")]
            if not found:
                self.problems.add(value, f"no file is called like {text}")
            return [Path(name) for name in found]
        here = [*known, *(str(path.parent / other.name) for other in _siblings(path))]
        near = difflib.get_close_matches(text, here, n=1, cutoff=0.6)
        hint = f"; did you mean {near[0]}?" if near else ""
        self.problems.add(value, f"{text}: no such file{hint}")
        return []

    def _elsewhere(self, address: str, digest: str | None, value: Value) -> Files:
        if (problem := _not_pinned(address, digest)) is not None:
            return self._nothing(value, problem)
        if self.fetch is None:
            told = f"{public(address)} is not on this machine; --download allows to fetch it"
            return self._nothing(value, told)
        try:
            path = self.fetch(address, digest)
            seen = of_path(path) if path.exists() else ""  # it is only expected there
            return Files((path,), ({"uri": public(address), "sha256": seen},))
        except RebasinError as error:
            return self._nothing(value, "; ".join(line.strip() for line in error.lines()))


def _siblings(path: Path) -> list[Path]:
    try:
        return list(path.parent.iterdir())
    except OSError:
        return []


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
