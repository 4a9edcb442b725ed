"""How far `align` of large files scales with processes: from parts measured here, and where that ends.

    python benchmarks/scaling.py [--gigabytes 100] [--network 1.25] [--sweeps 4] [--plot FILE.png]

Measured are rates of one thread, in processor seconds: of reading with and without what is looked at and
digested, products, assignments of strangers' matrices (with an exponent, over three sizes), writing, and sums
over two processes on this machine. `--network` says how many GB a second go in and out of a machine. Two
models of Llama's shapes in bfloat16 that are strangers: a search of so many sweeps, each of which makes the
matrix of every word. What a process does is what the program shares:

    looked at    both files whole, for values that are no numbers and for digests: a process each
    read         what is this one's of both models, once
    products     of this one's tensors
    sums         of every word's matrix (n, n), by a ring of processes
    assigned     of words that do not touch each its own; one that touches all is solved while others wait
    written      shards of the aligned model
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import llama
import numpy as np
import torch
from _rows import heading, row

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.safetensors_format import SafetensorsFile
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.symmetry import assignment

RANKS = (1, 2, 4, 8, 16, 32, 64)
PARTS = ("start", "looked at", "read", "products", "sums", "assigned", "written")
START = 4.0  # seconds of imports, which each process has
LARGE = {"width": 8192, "feed": 28672, "keys": 1024, "queries": 8192}  # a Llama of 70 billion has 80 layers
SIZES = (1024, 2048, 4096)


@dataclass(frozen=True)
class Rates:
    """Processor seconds of one thread: a GB, 10¹² multiplications, 1,000 units assigned, with their power."""

    looked: float
    read: float
    product: float
    unit: float
    power: float
    written: float

    def assigned(self, units: int) -> float:
        return self.unit * (units / 1000) ** self.power


def timed(task: Callable[[], object]) -> float:
    """The least of two runs, processor seconds."""
    found = []
    for _ in range(2):
        began = time.process_time()
        task()
        found.append(time.process_time() - began)
    return min(found)


def measured(folder: Path) -> Rates:
    path, out = folder / "a.safetensors", folder / "out.safetensors"
    shapes = {f"tensors.{k}": (4096, 4096) for k in range(8)}
    one = torch.randn(4096, 4096, generator=generator(0, "scaling")).bfloat16()
    plan = dict.fromkeys(shapes, torch.bfloat16)
    write_safetensors(path, LazyTensors(shapes, plan, lambda name: one.roll(int(name[8:]), 0)))
    size = path.stat().st_size / 1e9
    file = SafetensorsFile(path)

    def read() -> None:
        for name in file.entries:
            file.tensor(name)

    tensors = {name: open_checkpoint(path)[name] for name in shapes}
    written = timed(lambda: write_safetensors(out, tensors, force=True))
    a, b = (torch.randn(4096, 1024, generator=generator(k, "scaling")).bfloat16() for k in range(2))
    sums = torch.zeros(4096, 4096)
    product = timed(lambda: sums.addmm_(a.float(), b.float().T))
    solved = [
        timed(lambda n=n: assignment.solve(_strangers(n))) - timed(lambda n=n: _strangers(n)) for n in SIZES
    ]
    power, unit = np.polyfit(np.log(np.array(SIZES) / 1000), np.log(solved), 1)
    return Rates(
        looked=timed(lambda: open_checkpoint(path).look()) / size,
        read=timed(read) / size,
        product=product / (4096 * 4096 * 1024 / 1e12),
        unit=float(np.exp(unit)),
        power=float(power),
        written=written / size,
    )


def _strangers(units: int) -> torch.Tensor:
    """Products of two random matrices: of strangers, nobody prefers anybody by much."""
    a, b = (torch.randn(units, units, generator=generator(k, "scaling strangers")) for k in range(2))
    return a @ b.T


def _summing(rank: int, port: int, told: multiprocessing.Queue) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    matrix, small = torch.ones(4096, 4096), torch.ones(1)
    times = []
    for tensor, count in ((matrix, 3), (small, 20)):
        torch.distributed.all_reduce(tensor)
        began = time.perf_counter(), time.process_time()
        for _ in range(count):
            torch.distributed.all_reduce(tensor)
        times.append(((time.perf_counter() - began[0]) / count, (time.process_time() - began[1]) / count))
    if rank == 0:
        told.put(times)
    torch.distributed.destroy_process_group()


def summed() -> tuple[float, float]:
    """GB of a matrix that two processes here sum a second, of processor time; seconds of a number's sum."""
    told: multiprocessing.Queue = multiprocessing.get_context("spawn").Queue()
    port = 20_000 + os.getpid() % 20_000
    torch.multiprocessing.spawn(_summing, (port, told), nprocs=2)
    (_, large), (small, _) = told.get()
    return 4 * 4096**2 / 1e9 / large, small


def seconds(rates: Rates, layers: int, ranks: int, sweeps: int, network: float) -> dict[str, float]:
    """Of each part, of the process that has most."""
    shapes = llama.shapes(layers, **LARGE)
    numbers = sum(torch.Size(shape).numel() for shape in shapes.values())
    size = 2 * numbers / 1e9  # of one file, bfloat16
    width, feed, keys = LARGE["width"], LARGE["feed"], LARGE["keys"] // 64
    heads = 2 * (LARGE["queries"] + LARGE["keys"]) * width  # of attention, which words of keys are on
    a_layer = 3 * width * feed * (feed + width) + heads * (width + keys)
    products = layers * a_layer + 2 * llama.VOCABULARY * width**2
    largest = max(width * feed * (feed + width), llama.VOCABULARY * width**2)
    matrices = 4 * (width**2 + layers * (feed**2 + keys**2)) / 1e9
    turns = -(-layers // ranks)
    return {
        "start": START,
        "looked at": rates.looked * size * (2 if ranks == 1 else 1),
        "read": rates.read * 2 * size / ranks,
        "products": sweeps * rates.product * max(products / ranks, largest) / 1e12,
        "sums": sweeps * matrices * 2 * (ranks - 1) / ranks / network,
        "assigned": sweeps * (rates.assigned(width) + turns * (rates.assigned(feed) + rates.assigned(keys))),
        "written": rates.written * size / ranks,
    }


def draw(path: Path, found: dict[int, dict[str, float]], title: str) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    ranks = [*found]
    for part, style in zip(PARTS[1:], ("s-", "v-", "o-", "D-", "^-", "x-"), strict=True):
        axis.loglog(ranks, [max(found[k][part], 1e-2) / 60 for k in ranks], style, label=part, linewidth=1)
    whole = [sum(found[k].values()) / 60 for k in ranks]
    axis.loglog(ranks, whole, "k-", linewidth=2, label="all")
    axis.loglog(ranks, [whole[0] / k for k in ranks], "k:", label="all, shared evenly")
    axis.set_xticks(ranks, [str(k) for k in ranks])
    axis.minorticks_off()
    axis.set_xlabel("processes, of one thread each")
    axis.set_ylabel("minutes")
    axis.set_ylim(bottom=whole[-1] / 1000)
    axis.set_title(title)
    axis.legend(frameon=False, ncols=2, fontsize="small")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=100, help="of each model, as near as layers allow")
    parser.add_argument("--network", type=float, default=1.25, help="GB a second between machines")
    parser.add_argument("--sweeps", type=int, default=4)
    parser.add_argument("--plot", type=Path, metavar="PNG")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rates = measured(Path(folder))
    gigabytes, small = summed()
    heading("part", "measured here, one thread")
    row("looked at, and digested", f"{rates.looked:.2f} s a GB")
    row("read", f"{rates.read:.2f} s a GB")
    row("products", f"{rates.product:.1f} s for 10^12")
    row("assigned", f"{rates.unit:.2f} s for 1,000 units, power {rates.power:.2f}")
    row("written, and digested", f"{rates.written:.2f} s a GB")
    row("summed by two processes", f"{gigabytes:.2f} GB a processor second, {1e3 * small:.2f} ms a number")
    layer, none = (sum(map(np.prod, llama.shapes(layers, **LARGE).values())) for layers in (1, 0))
    layers = max(1, round((arguments.gigabytes * 1e9 / 2 - none) / (layer - none)))
    found = {
        ranks: seconds(rates, layers, ranks, arguments.sweeps, min(arguments.network, gigabytes))
        for ranks in RANKS
    }
    size = 2 * (none + layers * (layer - none)) / 1e9
    title = (
        f"align of 2 × {size:.0f} GB, {layers} layers of width {LARGE['width']}, {arguments.sweeps} sweeps"
    )
    print(f"\n{title}: minutes, from these rates and {arguments.network} GB a second between machines\n")
    heading("processes", *PARTS, "all", "times as fast", "most is")
    for ranks, parts in found.items():
        whole = sum(parts.values())
        figures = [f"{each / 60:.1f}" for each in (*parts.values(), whole)]
        faster = sum(found[1].values()) / whole
        row(str(ranks), *figures, f"{faster:.1f}", max(parts, key=lambda part: parts[part]))
    if arguments.plot:
        draw(arguments.plot, found, title)


if __name__ == "__main__":
    main()
