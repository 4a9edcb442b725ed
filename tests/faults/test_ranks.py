"""Processes that share a command: one that fails ends all, with one message, and nothing half-written."""

import itertools
import os
import socket
import time

import pytest
from torch.distributed import HashStore, PrefixStore

from rebasin_cli.errors import Lost
from rebasin_cli.runtime import devices, launchers, rendezvous
from rebasin_cli.runtime.processes import joined
from tests import processes
from tests.cli.conftest import fresh, rebasin

from .ranks import COMMANDS, FAULTS, MATCHING, tried

FEW = [("average to shards", fault) for fault in FAULTS]
FEW += [("eval", "rank 1 is killed"), ("train", "rank 1 is killed"), ("align by steps", "Ctrl-C to all")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (work := tmp_path / "work").mkdir()
    monkeypatch.chdir(work)
    for k, name in enumerate("ab"):
        fresh(work / f"{name}.safetensors", seed=k, width=12, depth=3)
    assert rebasin("align", "a.safetensors", "b.safetensors", "-o", "p.safetensors", "--no-prove").code == 0
    return work


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        pytest.param(command, fault, marks=() if (command, fault) in FEW else pytest.mark.sweep)
        for command in COMMANDS
        for fault in FAULTS
    ],
)
def test_a_rank_that_fails_ends_all(folder, tmp_path, command, fault):
    place, line = COMMANDS[command]
    problem, told = tried(line, place, FAULTS[fault], folder, tmp_path / "log")
    assert not problem, told
    if command.startswith("average"):  # whoever writes there next tidies up
        assert rebasin(*line).code == 0
        assert not [name for name in os.listdir(folder) if name.startswith(".rebasin-")]


def test_a_step_whose_other_process_is_killed_is_kept_whole_and_gone_on_with(folder, tmp_path):
    line = COMMANDS["align by steps"][1]
    problem, told = tried(line, MATCHING, FAULTS["rank 1 is killed"], folder, tmp_path / "log")
    assert not problem, told
    assert "interrupted after step 1; the search is kept in out.search.safetensors" in told[0]
    assert rebasin(*line, "--resume").code == 0
    assert rebasin(*line[:-1], "whole.safetensors").code == 0
    whole = (folder / "whole.perm.safetensors").read_bytes()
    assert (folder / "out.perm.safetensors").read_bytes() == whole
    assert not (folder / "out.search.safetensors").exists()


@pytest.fixture
def started(folder, tmp_path, monkeypatch):
    """Start processes by their numbers and command lines, all of one run of two: each once that before waits.

    Exit codes, and what they told.
    """
    monkeypatch.setattr(rendezvous, "SOON", 0.1)  # to say that it waits
    monkeypatch.setattr(devices, "_met", [])  # whatever this process did before
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    forked = []

    def started(*ranks):
        for k, (rank, line) in enumerate(ranks):
            until = time.monotonic() + 100
            while k and "waits at" not in forked[-1].err and time.monotonic() < until:
                time.sleep(0.05)
            log = tmp_path / f"log.{k}"
            forked.append(processes.rebasin(*line, log=log, folder=folder, RANK=str(rank), **place))
        return [each.wait(100) for each in forked], [each.err for each in forked]

    yield started
    for each in forked:
        each.kill()
        each.wait()


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_command_line_that_one_rank_cannot_read_is_told_to_the_other(started, wrong):
    line = COMMANDS["average"][1]
    codes, told = started((1 - wrong, line), (wrong, (*line, "--bogus")))
    assert codes == [2, 2]
    assert f"stopped, because rank {wrong} failed: its command line cannot be read" in told[0]


def test_a_rank_of_another_run_at_the_same_port_is_told(monkeypatch):
    for name, value in {"MASTER_PORT": "29500", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rendezvous, "_runs", itertools.repeat(0))
    store = HashStore()
    PrefixStore(f"rebasin {launchers.place().job} 0", store).add("came 1", 1)
    with pytest.raises(Lost, match="rank 1 of another run has come to the place where this one meets"):
        with joined("cpu", store):
            pytest.fail("it went on with the other run's ranks")
