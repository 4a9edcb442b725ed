"""Hostile pickles: none of their code is run, none hangs or fills memory; weights beside them are read."""

import builtins
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from rebasin_cli.checkpoints import inert
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.errors import CheckpointError

from ..cli.conftest import rebasin
from . import _pickles as p

PATIENCE = 5  # seconds for one of them


@pytest.fixture
def imports(monkeypatch):
    """What this package, and what reads pickles for it, import while a file is read.

    What PyTorch and pytest import of their own parts is left out; the sweep below lists that, too.
    """
    asked, own = [], builtins.__import__
    open_checkpoint(p.put(p.Path("first.pt"), b"N"))  # what is imported once, by whoever reads

    def noticed(name, *rest):
        whose = (rest[0] if rest and rest[0] else {}).get("__name__", "")
        if whose.partition(".")[0] in ("rebasin_cli", "pickle", "_pickle", "pickletools", "importlib", ""):
            asked.append(name)
        return own(name, *rest)

    monkeypatch.setattr(builtins, "__import__", noticed)
    return asked


def tried(name, opcodes, expected, form="zip"):
    """Read weights beside these opcodes: as expected, in time, and nothing was run."""
    path, start = p.put(p.Path("hostile.pt"), opcodes, form), time.monotonic()
    try:
        found = open_checkpoint(path)
        ended = "read"
        own = "w" if "w" in found else "model.w"  # joined with a tensor that lies beside
        assert torch.equal(found[own], p.WEIGHTS["w"]) and set(found) <= {own, "x"}, name
        assert all(len(note) < 5_000 for note in found.notes), name
    except CheckpointError as error:
        ended = "refused"
        assert len(str(error)) < 5_000 and "hostile.pt" in error.message, name
    assert ended == expected, f"{name} ({form}) was {ended}"
    assert not os.path.exists(p.RAN), f"{name} was run"
    assert time.monotonic() - start < PATIENCE, f"{name} took {time.monotonic() - start:.1f} s"


def test_the_weights_beside_are_read_in_both_formats():
    for form in ("zip", "old"):
        tried("nothing", b"N", "read", form)


def test_what_would_be_called_is_not_however_it_is_asked_for(imports):
    """And nothing is imported that a file names."""
    calls = p.calls()
    assert len(calls) > 500
    for k, (name, (opcodes, expected)) in enumerate(calls.items()):
        tried(name, opcodes, expected, ("zip", "old")[k % 2])
    assert set(imports) <= {"torch"}, imports


def test_what_cannot_be_true_is_refused_and_what_is_odd_is_harmless(imports):
    for form in ("zip", "old"):
        for name, (opcodes, expected) in p.broken().items():
            expected = expected if name != "a module of old" or form == "old" else "refused"
            tried(name, opcodes, expected, form)
    assert set(imports) <= {"torch"}, imports


def test_the_pickles_would_run_if_they_were_unpickled(tmp_path):
    """Else all of the above would be worth nothing."""
    import pickle

    for name in (
        "os.mkdir: reduce",
        "builtins.exec: inst",
        "tests.corpus._pickles.ran: obj",
        "os.system: by the stack",
    ):
        pickle.loads(b"\x80\x04" + p.calls()[name][0] + b".")
        assert os.path.exists(p.RAN), name
        os.rmdir(p.RAN) if os.path.isdir(p.RAN) else os.unlink(p.RAN)


@pytest.mark.sweep
def test_growth_nesting_and_collisions_are_bounded(monkeypatch):
    monkeypatch.setattr(inert, "SPARE", 1 << 20)  # so that it ends the sooner
    for k, (name, (opcodes, expected)) in enumerate(p.bombs(8_000).items()):
        tried(name, opcodes, expected, ("zip", "old")[k % 2])


def test_integers_that_cannot_be_shown_are_no_traceback():
    """Python refuses to write out more than 4,300 digits."""
    for key, code in ((p.number(1 << 79_999), 0), (p.number(-1 << 79_999), 0), (p.number(1 << 2000), 0)):
        whole = p.mapping(p.text("model"), p.mapping(p.text("w"), p.tensor()), key, p.mapping(key, key))
        outcome = rebasin("inspect", p.holding(p.Path("odd.pt"), b"\x80\x04" + whole + b"."))
        assert outcome.code == code and "Traceback" not in outcome.err, outcome.err
        outcome = rebasin(
            "inspect", p.holding(p.Path("odd.pt"), b"\x80\x04" + p.mapping(key, p.tensor()) + b".")
        )
        assert outcome.code == 3 and "Traceback" not in outcome.err, outcome.err


def test_messages_about_hostile_files_are_clean():
    """Names of classes come from outside: no escapes, no forged lines, no end of them."""
    for name in ("a class of an escape", "a class of a megabyte", "a class of half a surrogate"):
        opcodes, _ = p.broken()[name]
        outcome = rebasin("inspect", p.put(p.Path("odd.pt"), opcodes))
        assert outcome.code == 0 and "not read" in outcome.out, outcome.err
        assert all(c == "\n" or c.isprintable() for c in outcome.out + outcome.err)
        assert len(outcome.out) < 5_000 and "\n::" not in outcome.out
        outcome = rebasin("inspect", p.holding(p.Path("odd.pt"), b"\x80\x04" + opcodes + b"."))
        assert outcome.code == 3 and "would run code" in outcome.err
        assert all(c == "\n" or c.isprintable() for c in outcome.err) and len(outcome.err) < 10_000


@pytest.mark.sweep
def test_100_000_objects_take_bounded_time_and_memory(tmp_path):
    """In a process of its own, where Python lists every import, every call of the system and every file.

    As many as it takes for what grows with the square to take minutes: 12,500 keys of one hash.
    """
    signal.alarm(0)
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=580,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    print(done.stdout)


CHILD = """
import resource, sys, time
from pathlib import Path
import tests.corpus._pickles as p
from rebasin_cli.checkpoints import inert
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.errors import CheckpointError

open_checkpoint(p.put(Path("first.pt"), b"N"))
events, on = [], False

def hook(event, arguments):
    limits = ("/proc/self/cgroup", "/proc/meminfo", "/sys/fs/cgroup/")  # how much memory there may be
    own = event == "open" and (type(arguments[0]) is int or str(arguments[0]).endswith("hostile.pt"))
    own = own or (event == "open" and str(arguments[0]).startswith(limits) and arguments[1] == "r")
    kinds = "import exec compile os subprocess open socket ctypes pickle shutil".split()
    if on and not own and event.split(".")[0] in kinds:
        events.append((event, str(arguments)[:100]))

sys.addaudithook(hook)
bombs = p.bombs(100_000)
tables = {**p.calls(), **p.broken(), **bombs}
alternating = {name: k % 2 for k, name in enumerate(bombs)}  # both forms hold the same pickle
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
slowest = []
for which, form in enumerate(("zip", "old")):
    for name, (opcodes, expected) in tables.items():
        if alternating.get(name, which) != which:
            continue
        path, start, on = p.put(Path("hostile.pt"), opcodes, form), time.process_time(), True
        try:
            open_checkpoint(path)
        except CheckpointError:
            pass
        finally:
            on = False
        slowest.append((time.process_time() - start, form, name))
        assert not Path(p.RAN).exists(), name
slowest.sort()
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
print(len(slowest), "files;", "slowest:", slowest[-3:], f"; {grown:.2f} GB")
assert not events, events[:20]
assert slowest[-1][0] < 6 and grown < 0.6, (slowest[-5:], grown)
"""
