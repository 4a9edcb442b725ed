"""How threads wait: as the user says, and else briefly; the command sees to it before it does anything."""

import os

import pytest

from rebasin_cli import __main__ as program
from rebasin_cli.runtime import thread_waits


@pytest.fixture
def unsaid(monkeypatch):
    for name in thread_waits.SAID:
        monkeypatch.setenv(name, "")  # as it was is what it is afterwards
        monkeypatch.delenv(name)


def test_a_command_has_its_threads_wait_briefly(unsaid, monkeypatch):
    seen = []
    monkeypatch.setattr(program, "_run", lambda arguments: seen.append(os.environ.get(thread_waits.SAID[0])))
    monkeypatch.setattr("rebasin_cli.runtime.memory.keep_freed", lambda: False)
    program.main([])
    assert seen == [str(thread_waits.SPINS)]


@pytest.mark.parametrize("name", thread_waits.SAID)
def test_what_the_user_says_of_waiting_counts(unsaid, monkeypatch, name):
    monkeypatch.setenv(name, "7")
    thread_waits.wait_briefly()
    assert {each: os.environ.get(each) for each in thread_waits.SAID if each in os.environ} == {name: "7"}
