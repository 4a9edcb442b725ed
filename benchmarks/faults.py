"""Kill commands at every file operation, and let their disks fail: how many runs survive it.

    python benchmarks/faults.py [CASE …] [--every N]      # each N-th operation; 1 is all of them

A run survives where nothing half-written stands under a final name and the next run leaves what an
undisturbed one does, byte for byte; where a search was kept, that run is one with --resume. Ten at once:
jobs into one folder, and into one output. Prints rows for results.md; Linux only.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.cases import CASES, TRAINED, inputs, known, problem_after  # noqa: E402
from tests.faults.crashing import FAULTS, HALF, KILL_AFTER, KILL_BEFORE, Fault  # noqa: E402
from tests.faults.together import into_one_folder, into_one_output  # noqa: E402

WAYS = [(how, False) for how in (KILL_BEFORE, KILL_AFTER, HALF)] + [(how, True) for how in FAULTS]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}, train")
    parser.add_argument("--every", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    every = CASES | {"train": TRAINED}
    chosen = {name: every[name] for name in asked.cases or every}
    tried = survived = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        made = inputs(Path(scratch) / "inputs")
        print("| command | operations | tried | survived | lost |\n|---|---|---|---|---|")
        for name, case in chosen.items():
            whole, here, good = known(case, made, Path(scratch) / name), 0, 0
            for how, lasting in WAYS:
                for at in range(1, whole.operations + 1, asked.every):
                    folder = Path(scratch) / f"{name} {how} {at}"
                    problem = problem_after(case, whole, folder, Fault(at, how, lasting))
                    here, good = here + 1, good + (problem is None)
                    if problem:
                        print(f"{name}, {how} operation {at}: {problem}", file=sys.stderr)
                    shutil.rmtree(folder)
            print(f"| {name} | {whole.operations} | {here} | {good} | {here - good} |", flush=True)
            tried, survived = tried + here, survived + good
        for name, body in (("one folder", into_one_folder), ("one output", into_one_output)):
            problems = body(made, Path(scratch) / name)
            print(f"| ten jobs into {name} | | 10 | {10 - len(problems)} | {len(problems)} |")
            tried, survived = tried + 10, survived + 10 - len(problems)
        os.chdir("/")
    print(f"\ntried {tried}, survived {survived}, lost {tried - survived}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
