"""What a forward pass costs where freed memory is given back, and where it is kept, as the command keeps it.

    python benchmarks/freed.py [--runs 3]

TinyTen without norms, images of 32×32 that lie channels last, one thread; a process each, alternated. Medians
of microseconds of the processor a sample, and page faults a batch. Linux with glibc only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict

from _rows import environment, heading, median, row

from rebasin_cli.runtime.memory import TUNING

BATCHES = (16, 32, 64, 128, 256)
PASSES = 10  # of each batch, after one that is not counted
PROGRAM = """
import json, resource, statistics, sys, time
import torch
from rebasin_cli import nets
from rebasin_cli.runtime.memory import keep_freed
if sys.argv[1] == "kept":
    assert keep_freed(), "this C library keeps nothing"
torch.set_num_threads(1)
net = nets.build("tinyten", input_shape=(3, 32, 32), classes=10, norm="none").eval()
net = net.to(memory_format=torch.channels_last)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
found = {}
with torch.inference_mode():
    for size in map(int, sys.argv[3:]):
        images = torch.rand(size, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        net(images)
        before, taken = faults(), []
        for _ in range(int(sys.argv[2])):
            began = time.process_time()
            net(images)
            taken.append(time.process_time() - began)
        found[size] = statistics.median(taken) / size * 1e6, (faults() - before) / int(sys.argv[2])
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    own = {name: value for name, value in os.environ.items() if not name.startswith(TUNING)}
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for _ in range(asked.runs):
        for how in ("given back", "kept"):
            words = [sys.executable, "-c", PROGRAM, how, str(PASSES), *map(str, BATCHES)]
            done = subprocess.run(words, capture_output=True, text=True, check=True, env=own)
            for size, figures in json.loads(done.stdout).items():
                found[how, size].append(figures)
    print(environment(), flush=True)
    heading("images", "given back, µs", "kept, µs", "ratio", "faults a batch, given back", "kept")
    for size in map(str, BATCHES):
        (back, back_faults), (kept, kept_faults) = (
            [median(column) for column in zip(*found[how, size], strict=True)]
            for how in ("given back", "kept")
        )
        row(
            size,
            f"{back:.0f}",
            f"{kept:.0f}",
            f"{kept / back:.2f}",
            f"{back_faults:,.0f}",
            f"{kept_faults:,.0f}",
        )


if __name__ == "__main__":
    main()
