"""How long threads that share a layer wait for one another: forward passes, alone and beside a busy program.

    python benchmarks/spinning.py [--runs 3]

An MLP 3×512 on batches of 500, on all threads, in a process each: with GCC's OpenMP as it is, as the
command has it (`runtime.thread_waits`), with threads that sleep at once, and on one thread. Alternated,
without anything beside it and beside a program that keeps one processor busy, in a session of its own as
other users' are.
Medians of microseconds a sample on the wall, and the ratio to OpenMP as it is. Linux only.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import defaultdict
from contextlib import contextmanager

from _rows import environment, heading, median, row

from rebasin_cli.runtime.thread_waits import SAID, SPINS

WAYS = {
    "as it is": {},
    "as the command has it": {"GOMP_SPINCOUNT": str(SPINS)},
    "asleep at once": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = "while True: pass"
PROGRAM = """
import time, torch
from rebasin_cli import nets
net = nets.build("mlp", input_shape=(1, 28, 28), classes=10, width=512).eval()
images = torch.rand(500, 1, 28, 28)
with torch.inference_mode():
    for _ in range(5):
        net(images)
    count, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < 2:
        net(images)
        count += 1
print(taken / count / len(images) * 1e6)
"""


@contextmanager
def beside(busy: bool):
    """Another program, if there is to be one."""
    other = subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True) if busy else None
    try:
        yield
    finally:
        if other is not None:
            other.kill()
            other.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    own = {name: value for name, value in os.environ.items() if name not in SAID}
    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    for busy in (False, True):
        for _ in range(asked.runs):
            for name, way in WAYS.items():
                with beside(busy):
                    words = [sys.executable, "-c", PROGRAM]
                    done = subprocess.run(words, capture_output=True, text=True, check=True, env=own | way)
                found[name, busy].append(float(done.stdout))
    print(environment(), flush=True)
    heading("threads wait", "alone, µs", "ratio", "beside a busy program, µs", "ratio")
    for name in WAYS:
        cells = []
        for busy in (False, True):
            first, here = (median(found[which, busy]) for which in ("as it is", name))
            cells += [f"{here:.1f}", f"{here / first:.2f}"]
        row(name, *cells)


if __name__ == "__main__":
    main()
