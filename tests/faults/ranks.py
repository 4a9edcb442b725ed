"""Two processes that share a command, and what goes wrong with one of them in the middle of its work."""

from __future__ import annotations

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from tests import processes

SIZE = 2
WRITING = "rebasin_cli.checkpoints.tensor_writer.write_tensor"
READING = "rebasin_cli.symmetry.fingerprints._sums"
MEASURING = "rebasin_cli.networks.evaluation._part"
LEARNING = "rebasin_cli.learning.shares.Shared.backward"
MATCHING = "rebasin_cli.matchers.straight_through.projection.Projection._changes"
STATES = (".search.safetensors", ".training.pt")  # what a command goes on from
DIGITS = ("--data", "digits", "--limit", "40", "--batch-size", "7", "--skip-checks")
PAIR = ("a.safetensors", "b.safetensors")
STEPS = ("--data", "digits", "--batch-size", "100", "--epochs", "1", "--no-prove")
COMMANDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "average": (WRITING, ("average", *PAIR, "-o", "out.safetensors", "--repair", "none")),
    "average to shards": (
        WRITING,
        ("average", *PAIR, "-o", "out.safetensors", "--repair", "none", "--out-shard-size", "2kB"),
    ),
    "merge --perm": (
        WRITING,
        ("merge", *PAIR, "--perm", "p.perm.safetensors", "-o", "out.safetensors", "--no-prove"),
    ),
    "apply": (WRITING, ("apply", "p.perm.safetensors", "b.safetensors", "-o", "out.safetensors")),
    "barrier": (
        MEASURING,
        ("barrier", *PAIR, *DIGITS, "--method", "none", "--points", "3", "--report", "out", "--no-prove"),
    ),
    "compare": (
        MEASURING,
        ("compare", *PAIR, *DIGITS, "--method", "none", "--points", "1", "--report", "out", "--no-prove"),
    ),
    "verify": (READING, ("verify", "b.safetensors", "p.safetensors", "-o", "out.perm.safetensors")),
    "eval": (MEASURING, ("eval", "a.safetensors", *DIGITS)),
    "train": (LEARNING, ("train", "mlp", "--data", "digits", "--epochs", "1", "-o", "out.safetensors")),
    "align by steps": (LEARNING, ("align", *PAIR, *STEPS, "--method", "ste", "-o", "out.safetensors")),
    "curve": (LEARNING, ("curve", *PAIR, *STEPS, "-o", "out.curve.safetensors")),
}


def _killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)


def _interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def _full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class Fault:
    """What these ranks do in the middle of their work, and the exit codes that all may end with."""

    ranks: tuple[int, ...]
    act: Callable[[], None]
    codes: tuple[set[int], ...]  # of the ranks, in their order


FAULTS: Mapping[str, Fault] = {
    "rank 0 is killed": Fault((0,), _killed, ({-9}, {5})),
    "rank 1 is killed": Fault((1,), _killed, ({5}, {-9})),
    "rank 1 hangs": Fault((1,), lambda: time.sleep(600), ({5}, {-9})),
    "the disk is full on rank 1": Fault((1,), _full, ({5}, {5})),
    "SIGTERM to rank 1": Fault((1,), _terminated, ({5}, {5})),
    "Ctrl-C to all": Fault((0, 1), _interrupted, ({130, 5}, {130, 5})),  # who is quicker tells the other
}


def tried(line: tuple[str, ...], place: str, fault: Fault, folder: Path, log: Path) -> tuple[str, list[str]]:
    """What is wrong with how such a command ended, "" if nothing; and what both told."""
    before = {*os.listdir(folder)}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def body(rank: int) -> Callable[[], None]:
        def run() -> None:
            from rebasin_cli.__main__ import main

            def act(*given: object, **more: object) -> None:
                fault.act()

            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(SIZE)}
            os.environ |= {"RANK": str(rank), "REBASIN_TIMEOUT": "4s"}
            if rank in fault.ranks:
                mock.patch(place, act).start()
            main(list(line))

        return run

    ranks = [processes.fork(body(rank), f"{log}.{rank}", folder) for rank in range(SIZE)]
    hangs = fault is FAULTS["rank 1 hangs"]
    try:
        codes = [rank.wait(40) for rank in (ranks[:1] if hangs else ranks)]
    except Exception as late:  # one that waits for ever
        return f"no end: {late}", [rank.err for rank in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
    told = [rank.err for rank in ranks]
    left = sorted({*os.listdir(folder)} - before)
    if final := [name for name in left if not (name.startswith(".rebasin-") or name.endswith(STATES))]:
        return f"left {', '.join(final)}", told
    for rank, code in enumerate(codes):
        if code not in fault.codes[rank]:
            return f"rank {rank} ended with {code}, not with {fault.codes[rank]}", told
    if any("Traceback" in text for text in told):
        return "a traceback", told
    return "", told
