"""What tests cost in processor seconds, those of the processes that they start included.

On a busy machine the clock says how long one waited; processor seconds say what a test takes. Under xdist
each worker hands its own over when it ends.
"""

import os
import time
from collections import Counter

import pytest


def seconds():
    """Processor seconds of this process, and of those that it started, once they were waited for."""
    return sum(os.times()[:4])


class Processor:
    """A plugin of pytest: one line at the end, and the rooms and tests that cost most, `shown` of each."""

    def __init__(self, shown):
        self.shown, self.began = shown, time.monotonic()
        self.tests = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        began = seconds()
        try:
            return (yield)
        finally:
            self.tests[item.nodeid] += seconds() - began

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor"] = dict(self.tests)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.tests.update(getattr(node, "workeroutput", {}).get("processor", {}))

    def pytest_terminal_summary(self, terminalreporter):
        rooms = Counter()
        for name, spent in self.tests.items():
            rooms[room(name)] += spent
        for title, spent in (("rooms", rooms), ("tests", self.tests)):
            if self.shown:
                terminalreporter.section(f"the {title} that take most, in processor seconds", sep="=")
            for name, own in spent.most_common(self.shown):
                terminalreporter.line(f"{own:8.2f}  {name}")
        wall = time.monotonic() - self.began
        terminalreporter.line(f"{wall:.0f} s, {seconds():.0f} processor seconds, {len(self.tests)} tests")


def room(name):
    """The folder of `tests/` that a test stands in, or its file."""
    return "/".join(name.partition("::")[0].split("/")[:2])
