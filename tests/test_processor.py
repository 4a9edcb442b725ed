"""What the tests of a run cost: of every process that took part, by rooms and by tests."""

import subprocess
import sys
from types import SimpleNamespace

from . import processor

BUSY = "import time\nwhile time.process_time() < 0.15: pass"


def told(plugin):
    lines = []
    screen = SimpleNamespace(line=lines.append, section=lambda title, sep: lines.append(title))
    plugin.pytest_terminal_summary(screen)
    return lines


def run(plugin, name, outcome):
    """A test of this name, which does `outcome`."""
    steps = plugin.pytest_runtest_protocol(SimpleNamespace(nodeid=name))
    next(steps)
    try:
        outcome()
        steps.send("done")
    except StopIteration as ended:
        return ended.value


def test_what_a_test_takes_is_counted_with_the_processes_that_it_starts():
    plugin = processor.Processor(shown=2)
    name = "tests/cli/test_a.py::test_one"
    assert run(plugin, name, lambda: subprocess.run([sys.executable, "-S", "-c", BUSY], check=True)) == "done"
    assert run(plugin, "tests/test_b.py::test_two", lambda: None) == "done"
    assert plugin.tests[name] >= 0.1 > plugin.tests["tests/test_b.py::test_two"]


def test_workers_hand_theirs_over_and_rooms_come_before_tests():
    worker, main = processor.Processor(shown=2), processor.Processor(shown=2)
    worker.tests |= {"tests/cli/test_a.py::one": 2.0, "tests/cli/test_b.py::two[x::y]": 3.0}
    out = {}
    worker.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace(workeroutput=out)))
    main.tests["tests/test_c.py::three"] = 4.0
    main.pytest_sessionfinish(SimpleNamespace(config=SimpleNamespace()))  # it is no worker
    for node in (SimpleNamespace(workeroutput=out), SimpleNamespace()):  # one that died has nothing to say
        main.pytest_testnodedown(node)
    rooms, first, second, tests, third, fourth, last = told(main)
    assert "rooms" in rooms and (first.split(), second.split()) == (
        ["5.00", "tests/cli"],
        ["4.00", "tests/test_c.py"],
    )
    assert "tests" in tests and third.endswith("::three") and fourth.endswith("::two[x::y]")
    assert last.endswith("processor seconds, 3 tests")
    main.shown = 0
    assert len(told(main)) == 1
