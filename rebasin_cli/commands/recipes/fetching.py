"""Files of elsewhere, brought here once: from the Hugging Face hub by commit, from the web by digest."""

from __future__ import annotations

import hashlib
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...checkpoints import digests
from ...errors import CheckpointError, ResourceError, UsageError
from .inputs import hub_parts

WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.model", "*.txt")
SECONDS = 60.0  # without a byte
CHUNK = 1 << 20


class Fetcher:
    """Keeps what it fetched in `folder`, by address, and takes it from there the next time.

    Without `allowed`, only what is there already is given. `opened` opens a web address, `hub` is the module
    huggingface_hub; both can be replaced in tests.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        *,
        allowed: bool,
        opened: Callable[[str], Any] | None = None,
        hub: Any = None,
    ):
        self.folder, self.say, self.allowed = folder, say, allowed
        self.opened, self.hub = opened or _open, hub

    def __call__(self, address: str, digest: str | None) -> Path:
        """The file or folder that was at this address.

        Raises UsageError where it may not be fetched, CheckpointError where it is not what was pinned or
        cannot be reached.
        """
        place = self.folder / hashlib.sha256(address.encode()).hexdigest()[:16]
        if address.startswith("hf:"):
            return self._of_hub(address, place)
        path = place / (Path(address.partition("?")[0]).name or "file")
        if path.exists() and digests.of_file(path) == digest:
            return path
        self._ask(address)
        return self._of_web(address, digest, path)

    def _ask(self, address: str) -> None:
        if not self.allowed:
            raise UsageError(f"{address} is not on this machine", hint="--download allows to fetch it")
        self.say(f"fetching {address}")

    def _of_hub(self, address: str, place: Path) -> Path:
        repo, revision, file = hub_parts(address)
        done = place / ".complete"
        if not done.exists():
            self._ask(address)
            hub = self.hub or _hub()
            try:
                if file:
                    hub.hf_hub_download(repo, file, revision=revision, local_dir=place)
                else:
                    hub.snapshot_download(
                        repo, revision=revision, local_dir=place, allow_patterns=list(WEIGHTS)
                    )
                done.touch()
            except Exception as error:  # of a package of others: whatever it raises
                reason = " ".join(str(error).split())[:300]
                raise CheckpointError(f"{address} could not be fetched: {reason}") from error
        found = place / file if file else place
        if not found.exists():
            raise CheckpointError(f"{address}: there is no {file} in what was fetched")
        return found

    def _of_web(self, address: str, digest: str | None, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary, seen = path.with_name(f".{path.name}.{os.getpid()}.tmp"), hashlib.sha256()
        try:
            with self.opened(address) as source, open(temporary, "wb") as file:
                while chunk := source.read(CHUNK):
                    seen.update(chunk)
                    file.write(chunk)
            if seen.hexdigest() != digest:
                raise CheckpointError(
                    f"{address} is not the file that is pinned: its sha256 is {seen.hexdigest()}",
                    hint="It was changed, or the digest in the recipe is of another file",
                )
            os.replace(temporary, path)
        except (urllib.error.URLError, ValueError) as error:
            raise CheckpointError(f"{address} could not be fetched: {error}") from None
        except OSError as error:
            raise ResourceError(f"{path} cannot be written: {error.strerror or error}") from None
        finally:
            temporary.unlink(missing_ok=True)
        return path


class _OnlySecure(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it leads on to {newurl}, which is not https:")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _open(address: str) -> Any:
    return urllib.request.build_opener(_OnlySecure).open(address, timeout=SECONDS)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UsageError(
            "hf: addresses need the package huggingface_hub", hint="pip install 'rebasin-cli[hub]'"
        ) from None
    return huggingface_hub
