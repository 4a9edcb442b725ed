"""Kill commands at every file operation and at random moments, and let their disks fail: what survives.

    python benchmarks/faults.py [CASE …] [--every N] [--interrupts N] [--disks N] [--moments N]
                               [--at-once]
    python benchmarks/faults.py --ranks     # two processes that share a command, one of which fails

Kills before, in the middle of and after each N-th file operation, and at N moments; Ctrl-C after each N-th;
the disk is full, failing or read-only from each N-th operation on. 1 is all of them, 0 none; --at-once adds
ten jobs at once.

A run survives where nothing half-written stands under a final name and the next run leaves what an
undisturbed one does, byte for byte; where a search was kept, that run is one with --resume. Ten at once:
jobs into one folder, into one output, and with one recipe and cache. Prints rows for results.md; Linux only.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.cli.conftest import fresh, rebasin  # noqa: E402
from tests.faults import ranks  # noqa: E402
from tests.faults.cases import CASES, inputs, known, problem_after, problem_after_seconds  # noqa: E402
from tests.faults.crashing import FAULTS, HALF, INTERRUPT, KILL_AFTER, KILL_BEFORE, Fault  # noqa: E402
from tests.faults.together import into_one_cache, into_one_folder, into_one_output  # noqa: E402

TOGETHER = {"one folder": into_one_folder, "one output": into_one_output, "one cache": into_one_cache}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    for name, default in (("every", 1), ("interrupts", 1), ("disks", 1), ("moments", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--at-once", action="store_true")
    parser.add_argument("--ranks", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.ranks:
        of_ranks()
        return
    began, today = time.monotonic(), datetime.date.today().isoformat()
    all_tried = all_lost = 0
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        made = inputs(Path(scratch) / "inputs")
        print("| date | command | operations | kills | Ctrl-C | disks | tried | survived | lost |")
        print("|---|---|---|---|---|---|---|---|---|")

        def row(name: str, *counts: object) -> None:
            nonlocal all_tried, all_lost
            *faults, tried, lost = counts
            cells = (today, name, *faults, f"{tried:,}", f"{tried - lost:,}", f"{lost:,}")
            print("|", " | ".join(map(str, cells)), "|", flush=True)
            all_tried, all_lost = all_tried + tried, all_lost + lost

        for name in asked.cases or CASES:
            case, place = CASES[name], Path(scratch) / name
            whole, lost = known(case, made, place), 0
            draws = random.Random(name)
            kills: list[Fault | float] = [
                *every(whole.operations, asked.every, (KILL_BEFORE, KILL_AFTER, HALF)),
                *(draws.uniform(0, whole.seconds) for _ in range(asked.moments)),
            ]
            interrupts = every(whole.operations, asked.interrupts, [INTERRUPT])
            disks = every(whole.operations, asked.disks, FAULTS, lasting=True)
            tried = [*kills, *interrupts, *disks]
            for fault in tried:
                try_ = problem_after if isinstance(fault, Fault) else problem_after_seconds
                if problem := try_(case, whole, fault):
                    print(f"{name}, {fault}: {problem}", file=sys.stderr, flush=True)
                    lost += 1
            row(name, whole.operations, *map(len, (kills, interrupts, disks, tried)), lost)
            shutil.rmtree(place)
        for name, body in TOGETHER.items() if asked.at_once else ():
            problems = body(made, Path(scratch) / name)
            print(*problems, sep="\n", file=sys.stderr, end="\n" * bool(problems))
            row(f"ten jobs at once, {name}", "", "", "", "", 10, min(10, len(problems)))
        os.chdir("/")
    lost_of = f"tried {all_tried:,}, survived {all_tried - all_lost:,}, lost {all_lost:,}"
    print(f"\n{lost_of}, {time.monotonic() - began:.0f} s")


def of_ranks() -> None:
    """Every shared command by every fault of one of its two ranks: a row a fault."""
    print("| date | what happens | commands | ended as told, nothing left | lost |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        os.chdir(made)
        for k, name in enumerate("ab"):
            fresh(made / f"{name}.safetensors", seed=k, width=12, depth=3)
        rebasin("align", "a.safetensors", "b.safetensors", "-o", "p.safetensors", "--no-prove")
        for name, fault in ranks.FAULTS.items():
            lost = 0
            for number, (command, (place, line)) in enumerate(ranks.COMMANDS.items()):
                shutil.copytree(made, work := Path(scratch) / f"{name} {number}")
                problem, told = ranks.tried(line, place, fault, work, Path(scratch) / "log")
                if problem:
                    print(f"{command}, {name}: {problem}", *told, sep="\n", file=sys.stderr, flush=True)
                lost += bool(problem)
            count = len(ranks.COMMANDS)
            print(f"| {datetime.date.today()} | {name} | {count} | {count - lost} | {lost} |", flush=True)
        os.chdir("/")


def every(operations: int, step: int, ways: Iterable[str], *, lasting: bool = False) -> list[Fault]:
    numbers = range(1, operations + 1, step) if step else ()
    return [Fault(at, how, lasting) for how in ways for at in numbers]


if __name__ == "__main__":
    main()
