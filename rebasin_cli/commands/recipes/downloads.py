"""Files of elsewhere, brought here once: from the Hugging Face hub by commit, from the web by digest."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...errors import CheckpointError, ResourceError, UsageError
from ...runtime import files
from .inputs import hub_parts
from .reader import public, told

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.model", "*.txt")
SEAL = ".complete"  # in a folder of the hub's files: their digests, written last
SECONDS = 60.0  # without a byte
CHUNK = 1 << 20


class Fetcher:
    """Keeps what it fetched in `folder`, by address, and takes it from there the next time.

    Without `allowed`, only what is there already is given. Secrets that an address names are in
    `environment`; they are put in where it is opened, and in no message. A `stranger`'s recipe gets no login
    of the hub.
    `opened` opens a web address, `hub` is the module huggingface_hub; both can be replaced in tests.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        *,
        allowed: bool,
        stranger: bool = False,
        environment: Mapping[str, str] = os.environ,
        opened: Callable[[str], Any] | None = None,
        hub: Any = None,
    ):
        self.folder, self.say, self.allowed = folder, say, allowed
        self.stranger, self.environment = stranger, environment
        self.opened, self.hub = opened or _open, hub
        self.missing: list[Path] = []  # of those that were expected

    def expected(self, address: str, digest: str | None) -> Path:
        """Where the file or folder will lie, without fetching it. Raises UsageError where it may not be."""
        place = self._place(address, digest)
        path = place / (hub_parts(address)[2] or "") if address.startswith("hf:") else _in(place, address)
        if not path.exists():
            self._check_allowed(address)
            self.missing.append(path)
        return path

    def __call__(self, address: str, digest: str | None) -> Path:
        """The file or folder that was at this address.

        Raises UsageError where it may not be fetched, CheckpointError where it is not what was pinned or
        cannot be reached.
        """
        place = self._place(address, digest)
        if address.startswith("hf:"):
            return self._of_hub(address, place)
        path = _in(place, address)
        if path.exists() and digests.of_file(path) == digest:
            return path
        self._ask(address, changed=path.exists())
        return self._of_web(address, digest, path)

    def _place(self, address: str, digest: str | None) -> Path:
        """By what of the address may be seen: a folder's name tells nothing of a signature, which changes."""
        shown = public(address)
        told = address if shown == address else f"{shown} {digest}"
        return self.folder / hashlib.sha256(told.encode()).hexdigest()[:16]

    def _check_allowed(self, address: str, *, changed: bool = False) -> None:
        if not self.allowed:
            state = "was changed since it was fetched" if changed else "is not on this machine"
            raise UsageError(f"{public(address)} {state}", hint="--download allows to fetch it")

    def _ask(self, address: str, *, changed: bool = False) -> None:
        self._check_allowed(address, changed=changed)
        self.say(f"fetching {public(address)}")

    def _of_hub(self, address: str, place: Path) -> Path:
        repo, revision, file = hub_parts(address)
        sealed = _sealed(place)
        if sealed is None or sealed != _contents(place):
            self._ask(address, changed=sealed is not None)
            hub = self.hub or _hub()
            login = {"token": False} if self.stranger else {}  # else what this machine is logged in as
            try:
                if sealed is not None:  # the hub's client might take it; one that was broken off goes on
                    shutil.rmtree(place)
                if file:
                    hub.hf_hub_download(repo, file, revision=revision, local_dir=place, **login)
                else:
                    hub.snapshot_download(
                        repo, revision=revision, local_dir=place, allow_patterns=list(WEIGHTS), **login
                    )
                place.mkdir(parents=True, exist_ok=True)
                (place / SEAL).write_text(json.dumps(_contents(place), indent=1) + "\n", encoding="utf-8")
            except Exception as error:  # of a package of others: whatever it raises
                reason = public(" ".join(str(error).split()))[:300]
                raise CheckpointError(f"{address} could not be fetched: {reason}") from error
        found = place / file if file else place
        if not found.exists():
            raise CheckpointError(f"{address}: there is no {file} in what was fetched")
        return found

    def _of_web(self, address: str, digest: str | None, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, seen = path.with_name(f".{path.name}.{os.getpid()}.tmp"), hashlib.sha256()
        try:
            with self.opened(told(address, self.environment)) as source, open(temporary, "xb") as file:
                while chunk := source.read(CHUNK):
                    seen.update(chunk)
                    file.write(chunk)
            if seen.hexdigest() != digest:
                raise CheckpointError(
                    f"{public(address)} is not the file that is pinned: its sha256 is {seen.hexdigest()}",
                    hint="It was changed, or the digest in the recipe is of another file",
                )
            os.replace(temporary, path)
        except (urllib.error.URLError, http.client.HTTPException, ValueError) as error:
            reason = _reason(error, secret="@" in address or "${" in address)
            raise CheckpointError(f"{public(address)} could not be fetched: {reason}") from None
        except OSError as error:
            raise ResourceError(f"{path} cannot be written: {error.strerror or error}") from None
        finally:
            temporary.unlink(missing_ok=True)
        return path


def _reason(error: Exception, *, secret: bool) -> str:
    """What failed; only its kind where the message may repeat a `secret` of the address."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}"
    return (
        type(error).__name__ if secret or not isinstance(error, urllib.error.URLError) else public(str(error))
    )


def _in(place: Path, address: str) -> Path:
    return place / (Path(public(address).partition("?")[0]).name or "file")


def _contents(place: Path) -> dict[str, str]:
    """Every file below with its digest; the hub's own notes are hidden and left out."""
    return {path.relative_to(place).as_posix(): digests.of_file(path) for path in digests.files_below(place)}


def _sealed(place: Path) -> Any:
    """What was there when all of it had been fetched; None where it never was."""
    try:
        return json.loads(files.content(place / SEAL))
    except (OSError, ValueError, RecursionError):
        return None


class _OnlySecure(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it leads on to {public(newurl)}, which is not https:")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(address: str) -> Any:
    """The answer; user and password of an address go to its own host, and not where that leads on to."""
    parts = urllib.parse.urlsplit(address)
    login, at, host = parts.netloc.rpartition("@")
    request = urllib.request.Request(urllib.parse.urlunsplit(parts._replace(netloc=host)))
    if at:
        encoded = base64.b64encode(urllib.parse.unquote(login).encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {encoded}")
    return urllib.request.build_opener(_OnlySecure).open(request, timeout=SECONDS)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError(
            "hf: addresses need the package huggingface_hub", hint="pip install 'rebasin-cli[hub]'"
        ) from None
    return huggingface_hub
