"""A command line that should fail: run in this process, with one message and nothing left behind.

Of each table's rows, `make test` runs every twelfth, the first one included; `make test-all` runs the others.
"""

import itertools
import signal
from collections import defaultdict

import pytest
import torch

from tests.cli.conftest import contents, fresh, rebasin


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("REBASIN_DEBUG", "REBASIN_DATA", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no data set of this machine's user


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    rows = defaultdict(itertools.count)
    for item in items:
        if "corpus" in item.path.parts and hasattr(item, "callspec"):
            table = item.path, item.originalname
            if not any(item.iter_markers("sweep")) and next(rows[table]) % 12:
                item.add_marker(pytest.mark.sweep)


PATIENCE = 20  # seconds: a command that hangs is a failure


@pytest.fixture(autouse=True)
def in_time():
    def hangs(number, frame):
        pytest.fail(f"this takes longer than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def ends(tmp_path):
    """Run a command line; it ends with `code`, its message holds the words, the folder stays as it was."""

    def ends(code, *arguments, says=()):
        before = contents(tmp_path)
        outcome = rebasin(*arguments)
        told = f"exit code {outcome.code}, stdout {outcome.out!r}, stderr:\n{outcome.err}"
        assert outcome.code == code, told
        assert "Traceback" not in outcome.err and "\n  File " not in outcome.err, told
        for words in [says] if isinstance(says, str) else says:
            assert words in outcome.err, told
        if code:
            assert outcome.out == "" and outcome.err.count("rebasin: ") == 1, told
            assert contents(tmp_path) == before, told
        return outcome

    return ends


@pytest.fixture(scope="session")
def _two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return [
        fresh(folder / f"{n}.safetensors", seed=k, width=6, depth=1).read_bytes() for k, n in enumerate("ab")
    ]


@pytest.fixture
def two(_two, tmp_path):
    """`a.safetensors` and `b.safetensors` in the working folder: MLPs of 64, 6 and 10 units."""
    for name, content in zip("ab", _two, strict=True):
        (tmp_path / f"{name}.safetensors").write_bytes(content)
    return ["a.safetensors", "b.safetensors"]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
