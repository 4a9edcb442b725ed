"""Every test runs commands in a folder of its own, and none takes long: a command that hangs is a failure."""

import signal

import pytest

from ..cli.conftest import in_an_empty_folder  # noqa: F401 (a fixture)

PATIENCE = 20  # seconds


@pytest.fixture(autouse=True)
def in_time():
    def hangs(number, frame):
        pytest.fail(f"this takes longer than {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
