"""Garbage collection while much is made that stays; memory that is freed and kept."""

import gc
import os
import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

from rebasin_cli.errors import ResourceError
from rebasin_cli.graph.tracing import export
from rebasin_cli.runtime import memory
from rebasin_cli.runtime.memory import keep_freed, uncollected


def test_garbage_is_collected_again_afterwards_also_after_an_error():
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_who_collects_none_is_left_alone():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_none_is_collected_while_a_network_is_traced():
    seen = []

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(gc.isenabled())
            return x + 1

    export(Net(), (torch.zeros(1),), {})
    assert seen and not any(seen) and gc.isenabled()


FAULTS = """
import os, resource, torch
from rebasin_cli.runtime.memory import keep_freed

for keep in (lambda: "given", keep_freed):
    if os.fork() == 0:
        said, before = keep(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for size in range(4, 24):  # each larger than all before, which glibc asks the system for
            torch.ones(size << 18)
        print(said, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the switch is glibc's")
def test_memory_that_is_kept_is_not_asked_for_again(monkeypatch):
    """In processes of their own: what a C library keeps is for good. They begin alike."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(memory.TUNING)}
    others[memory.HUGE_PAGES] = "0"  # of which there may be none, or some
    run = [sys.executable, "-c", FAULTS]
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=others)
    _, given, said, kept = done.stdout.split()
    assert said == "True" and int(kept) < int(given) / 2, done.stdout
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert keep_freed() is False  # the user's word counts


@pytest.mark.parametrize("said", [None, "0"])
def test_large_tensors_lie_in_huge_pages_unless_the_user_says_otherwise(monkeypatch, said):
    monkeypatch.setenv(memory.HUGE_PAGES, "0")  # as it was is what it is afterwards
    if said is None:
        monkeypatch.delenv(memory.HUGE_PAGES)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    keep_freed()
    assert os.environ[memory.HUGE_PAGES] == (said or "1")


def test_where_the_c_library_has_no_such_switch_nothing_happens(monkeypatch):
    for name in [name for name in os.environ if name.startswith(memory.TUNING)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
    assert keep_freed() is False


def test_a_command_collects_as_usual_once_it_is_imported_and_never_what_it_was_imported_with(monkeypatch):
    before, frozen = gc.get_threshold(), []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(True))
    try:
        memory.collect()
        assert gc.get_threshold() == before and not frozen  # a process that is not the command's own
        memory.collect_later()
        assert gc.get_threshold()[0] == memory.STARTING and gc.isenabled()
        memory.collect()
        memory.collect()
        assert gc.get_threshold()[0] == memory.COLLECT and frozen == [True]
    finally:
        gc.set_threshold(*before)


GROUPS = {
    "the second version, a job within a slice": (
        "0::/slice/job\n",
        {
            "slice": ("3000", "2000", "file 900\ninactive_file 500"),
            "slice/job": ("max", "9", "inactive_file 0"),
        },
        [(3000, 1500)],
    ),
    "the first version, seen from within a container": (
        "5:cpu:/x\n4:memory:/only/the/host/has/it\n0::/\n",
        {"memory": ("4000", "1000", "inactive_file 7\ntotal_inactive_file 200")},
        [(4000, 800)],
    ),
    "the first version, without a limit": (
        "4:memory:/\n",
        {"memory": ("9223372036854771712", "1000", "total_inactive_file 200")},
        [],
    ),
    "nothing that can be read": ("4:memory:/\n0::/a\nodd\n", {"a": ("many", "1", "inactive_file")}, []),
}


@pytest.mark.parametrize("own, folders, found", GROUPS.values(), ids=GROUPS)
def test_what_a_group_of_processes_may_hold_is_known(tmp_path, own, folders, found):
    (tmp_path / "own").write_text(own)
    for folder, told in folders.items():
        first = folder.startswith("memory")
        names = ("limit_in_bytes", "usage_in_bytes") if first else ("max", "current")
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for name, text in zip((*names, "stat"), told, strict=True):
            (tmp_path / folder / f"memory.{name}").write_text(text + "\n")
    assert [*memory._groups(tmp_path, tmp_path / "own")] == found
    assert not [*memory._groups(tmp_path, tmp_path / "none")]


def test_the_smaller_of_machine_and_group_is_the_limit(monkeypatch):
    whole = memory.limit()
    assert whole is not None and memory.free() <= whole[0]
    monkeypatch.setattr(memory, "_groups", lambda: iter([(5000, 1000), (4000, 3500)]))
    assert memory.limit() == (4000, "this machine's group of processes (cgroup)") and memory.free() == 500
    with pytest.raises(ResourceError, match=r"images take 4,001 bytes .* \(cgroup\) has 4,000"):
        memory.check_memory("images take", 4001)
    memory.check_memory("images take", 4000)
