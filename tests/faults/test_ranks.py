"""Processes that share a command: one that fails ends all, with one message, and nothing half-written."""

import os
import socket

import pytest

from tests import processes
from tests.cli.conftest import fresh, rebasin

from .ranks import COMMANDS, FAULTS, tried

FEW = [("average to shards", fault) for fault in FAULTS] + [("eval", "rank 1 is killed")]


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


def started(folder, log, *ranks):
    """Processes by their numbers and command lines, all of one run of two: exit codes, and what they told."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    forked = [
        processes.rebasin(*line, log=f"{log}.{k}", folder=folder, RANK=str(rank), **place)
        for k, (rank, line) in enumerate(ranks)
    ]
    try:
        return [each.wait(60) for each in forked], [each.err for each in forked]
    finally:
        for each in forked:
            each.kill()
            each.wait()


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_command_line_that_one_rank_cannot_read_is_told_to_the_other(folder, tmp_path, wrong):
    line = COMMANDS["average"][1]
    lines = [(rank, (*line, *["--bogus"] * (rank == wrong))) for rank in range(2)]
    codes, told = started(folder, tmp_path / "log", *lines)
    assert codes == [2, 2]
    assert f"stopped, because rank {wrong} failed: its command line cannot be read" in told[1 - wrong]


def test_two_runs_that_meet_at_one_port(folder, tmp_path):
    line = COMMANDS["average"][1]
    codes, told = started(folder, tmp_path / "log", (0, line), (1, line), (1, line))
    assert codes[0] == 0 and sorted(codes) == [0, 0, 5]
    assert "rank 1 of another run has come to the place where this one meets" in told[codes.index(5)]
