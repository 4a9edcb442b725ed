"""Files of elsewhere: pinned, fetched once, and only when asked."""

import hashlib
import io
import urllib.error
from pathlib import Path
from types import SimpleNamespace

import pytest

from rebasin_cli.commands.recipes.downloads import Fetcher
from rebasin_cli.errors import CheckpointError, UsageError

CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ADDRESS, HUB = "https://host/a.safetensors?x=1", "hf:org/name@" + "ab" * 20


@pytest.fixture
def fetcher(tmp_path):
    """A fetcher of a web and a hub that are not there, and what was asked of them."""

    def fetcher(*, allowed=True, content=CONTENT):
        asked = []

        def opened(address):
            asked.append(address)
            if isinstance(content, Exception):
                raise content
            return io.BytesIO(content)

        def download(repo, file=None, *, revision, local_dir, allow_patterns=()):
            asked.append((repo, file, revision))
            Path(local_dir).mkdir(parents=True, exist_ok=True)
            (Path(local_dir) / (file or "model.safetensors")).write_bytes(CONTENT)

        hub = SimpleNamespace(hf_hub_download=download, snapshot_download=download)
        made = Fetcher(tmp_path / "d", asked.append, allowed=allowed, opened=opened, hub=hub)
        return made, asked

    return fetcher


def test_a_web_file_is_fetched_once(fetcher):
    fetch, asked = fetcher()
    assert fetch(ADDRESS, DIGEST).read_bytes() == CONTENT and fetch(ADDRESS, DIGEST).name == "a.safetensors"
    assert asked == ["fetching https://host/a.safetensors?***", ADDRESS]
    again, asked = fetcher(allowed=False)
    assert again(ADDRESS, DIGEST).read_bytes() == CONTENT and asked == []


def test_a_file_that_was_changed_on_the_way_is_refused_and_not_kept(fetcher, tmp_path):
    fetch, _ = fetcher(content=b"others")
    with pytest.raises(CheckpointError, match="not the file that is pinned"):
        fetch(ADDRESS, DIGEST)
    assert [path for path in (tmp_path / "d").rglob("*") if path.is_file()] == []


def test_a_kept_file_that_was_changed_is_fetched_anew(fetcher):
    fetch, asked = fetcher()
    fetch(ADDRESS, DIGEST).write_bytes(b"other")
    assert fetch(ADDRESS, DIGEST).read_bytes() == CONTENT and asked.count(ADDRESS) == 2


@pytest.mark.parametrize("damage", ["change", "add", "remove"])
def test_a_kept_folder_of_the_hub_that_was_changed_is_fetched_anew(fetcher, damage):
    fetch, asked = fetcher()
    folder = fetch(HUB, None)
    if damage == "change":
        (folder / "model.safetensors").write_bytes(b"weighty"[: len(CONTENT)])
    elif damage == "add":
        (folder / "config.json").write_text("{}")
    else:
        (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="was changed since it was fetched"):
        fetcher(allowed=False)[0](HUB, None)
    assert (fetch(HUB, None) / "model.safetensors").read_bytes() == CONTENT
    assert [path.name for path in folder.iterdir()] in (
        ["model.safetensors", ".complete"],
        [".complete", "model.safetensors"],
    )
    assert asked.count(("org/name", None, "ab" * 20)) == 2


def test_what_is_not_here_is_told_in_one_line(recipe, fetcher):
    fetch, _ = fetcher(allowed=False)
    _, problems = recipe(f"steps: [{{align: {{models: [a.safetensors, '{HUB}']}}}}]", fetch=fetch)
    assert problems == [
        f"line 1: steps[1].align.models[2]: {HUB} is not on this machine; --download allows to fetch it"
    ]


def test_a_pin_is_for_one_file(recipe):
    text = "inputs: {x: {path: '%s', sha256: '%s'}}\nsteps: [{merge: {models: [x, a.safetensors]}}]"
    _, problems = recipe(text % ("step*.safetensors", DIGEST))
    assert "line 1: inputs.x: a pin is for one file, and step*.safetensors are 2" in problems
    one, problems = recipe(text % ("step1*.safetensors", hashlib.sha256(b"step10").hexdigest()))
    names = [path.name for path in one.steps[0].reads]
    assert problems == [] and names == ["step10.safetensors", "a.safetensors"]


def test_a_name_that_no_file_can_have_is_no_file(recipe):
    _, problems = recipe(f"inputs: {{x: {'a' * 5000}}}\nsteps: [{{merge: {{models: [x]}}}}]")
    assert "no such file" in problems[0]


def test_nothing_is_fetched_unasked(fetcher):
    fetch, asked = fetcher(allowed=False)
    for address in (ADDRESS, HUB):
        with pytest.raises(UsageError, match="is not on this machine"):
            fetch(address, DIGEST)
    assert asked == []


def test_a_host_that_does_not_answer_is_told(fetcher):
    fetch, _ = fetcher(content=urllib.error.URLError("timed out"))
    with pytest.raises(CheckpointError, match="could not be fetched: .*timed out"):
        fetch(ADDRESS, DIGEST)


def test_the_hub_is_asked_for_the_commit(fetcher):
    fetch, asked = fetcher()
    assert (fetch(HUB, None) / "model.safetensors").read_bytes() == CONTENT
    assert fetch(HUB + ":x.safetensors", None).read_bytes() == CONTENT
    fetch(HUB, None)
    commit = "ab" * 20
    assert [one for one in asked if isinstance(one, tuple)] == [
        ("org/name", None, commit),
        ("org/name", "x.safetensors", commit),
    ]


def test_a_hub_that_fails_leaves_nothing_that_counts(fetcher):
    fetch, _ = fetcher()

    def fails(*args, **kwargs):
        raise RuntimeError("401 Client\nError")

    fetch.hub.snapshot_download, whole = fails, fetch.hub.snapshot_download
    with pytest.raises(CheckpointError, match="could not be fetched: 401 Client Error"):
        fetch(HUB, None)
    fetch.hub.snapshot_download = whole
    assert fetch(HUB, None).is_dir()


def test_a_recipe_records_what_was_fetched(recipe, fetcher):
    fetch, _ = fetcher()
    text = f"inputs: {{x: {{url: '{ADDRESS}', sha256: '{DIGEST}'}}}}\n"
    made, problems = recipe(text + "steps: [{align: {models: [a.safetensors, x]}}]", fetch=fetch)
    assert problems == [] and made.downloads == ({"uri": "https://host/a.safetensors?***", "sha256": DIGEST},)


def test_an_address_in_a_step_is_recorded_too(recipe, fetcher):
    fetch, _ = fetcher()
    made, problems = recipe(
        f"steps: [{{align: {{models: [a.safetensors, '{HUB}:x.safetensors']}}}}]", fetch=fetch
    )
    assert problems == [] and made.downloads == ({"uri": f"{HUB}:x.safetensors", "sha256": DIGEST},)


def test_what_is_expected_is_not_fetched_and_lies_where_it_will(recipe, fetcher):
    fetch, asked = fetcher()
    for address in (ADDRESS, HUB, f"{HUB}:x.safetensors"):
        place = fetch.expected(address, DIGEST)
        assert asked == [] and fetch.missing == [place]
        assert fetch(address, DIGEST) == place
        asked.clear(), fetch.missing.clear()
        assert fetch.expected(address, DIGEST) == place and fetch.missing == []
    with pytest.raises(UsageError, match="is not on this machine"):
        fetcher(allowed=False)[0].expected(f"{HUB}:y.safetensors", None)


def test_a_redirect_to_an_open_connection_is_refused():
    from rebasin_cli.commands.recipes.downloads import _OnlySecure

    with pytest.raises(urllib.error.URLError, match="not https"):
        _OnlySecure().redirect_request(None, None, 302, "", {}, "http://host/a")
