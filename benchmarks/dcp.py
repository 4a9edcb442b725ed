"""Reading folders of torch.distributed.checkpoint, beside the same in safetensors, and dcp.load.

    python benchmarks/dcp.py --megabytes 500 --ranks 2 --rounds 3

The folder is written by as many processes (gloo), rows of every tensor on each. Each way reads every tensor
once, in a process of its own, by turns. Seconds are the processor's, of one thread, the least of the rounds;
memory is what the peak lies above that before reading, in millions of bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from datetime import date
from pathlib import Path

import torch

WIDTH = 2048  # of a matrix in bfloat16, 8.4 MB; each fourth is four times as high


def shapes(megabytes):
    left, number = megabytes * 1_000_000, 0
    while left > 0:
        rows = WIDTH * (4 if number % 4 == 3 else 1)
        yield f"layers.{number}.weight", (rows, WIDTH)
        yield f"layers.{number}.bias", (rows,)
        left -= rows * (WIDTH + 1) * 2
        number += 1


def write(rank, world, port, folder, megabytes):
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    state = {}
    for number, (name, shape) in enumerate(shapes(megabytes)):
        rng = torch.Generator().manual_seed(number * world + rank)
        own = torch.randn((shape[0] // world, *shape[1:]), generator=rng).bfloat16()
        state[name] = DTensor.from_local(own, mesh, [Shard(0)])
    dcp.save({"model": state}, checkpoint_id=folder)
    dist.destroy_process_group()


def rebasin(path):
    from rebasin_cli.checkpoints.checkpoint import open_checkpoint

    def read():
        found = open_checkpoint(path)
        for name in found:
            found[name]

    return read


def by_torch(path):
    import torch.distributed.checkpoint as dcp

    meta = dcp.FileSystemReader(path).read_metadata().state_dict_metadata

    def read():
        state = {name: torch.empty(its.size, dtype=its.properties.dtype) for name, its in meta.items()}
        dcp.load(state, checkpoint_id=path, no_dist=True)

    return read


def by_torch_singly(path):
    import torch.distributed.checkpoint as dcp

    meta = dcp.FileSystemReader(path).read_metadata().state_dict_metadata

    def read():
        for name, its in meta.items():
            state = {name: torch.empty(its.size, dtype=its.properties.dtype)}
            dcp.load(state, checkpoint_id=path, no_dist=True)

    return read


WAYS = {"safetensors": rebasin, "dcp": rebasin, "dcp.load": by_torch, "dcp.load, singly": by_torch_singly}


def one(way, path):
    """One way in this process: processor seconds, and the memory that it took."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    read = WAYS[way](path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    start = resource.getrusage(resource.RUSAGE_SELF)
    wall = time.monotonic()
    read()
    end = resource.getrusage(resource.RUSAGE_SELF)
    seconds = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    print(json.dumps([seconds, (peak() - before) / 1e6, time.monotonic() - wall]))


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2)
    asked = parser.parse_args()
    if asked.one:
        return one(*asked.one)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.multiprocessing.spawn(
            write, (asked.ranks, port, str(run), asked.megabytes), nprocs=asked.ranks, join=True
        )
        from rebasin_cli.checkpoints.checkpoint import open_checkpoint
        from rebasin_cli.checkpoints.writer import write_safetensors

        found, same = open_checkpoint(run), Path(folder) / "same.safetensors"
        write_safetensors(same, found)
        assert found.digest() == open_checkpoint(same).digest()
        taken = {way: [] for way in WAYS}
        for _ in range(asked.rounds):
            for way in WAYS:
                path = same if way == "safetensors" else run
                line = [sys.executable, __file__, "--one", way, str(path)]
                done = subprocess.run(line, capture_output=True, text=True, check=True)
                taken[way].append(json.loads(done.stdout.splitlines()[-1]))
        total = sum(math.prod(shape) * 2 for _, shape in shapes(asked.megabytes)) / 1e6
        largest = max(math.prod(shape) * 2 for _, shape in shapes(asked.megabytes)) / 1e6
        print(f"{total:,.0f} MB of {len(found)} tensors, the largest {largest:.1f} MB, {asked.ranks} ranks")
        base = min(seconds for seconds, _, _ in taken["safetensors"])
        print("| date | way | processor s | speed | memory, MB |\n|---|---|---|---|---|")
        for way, rounds in taken.items():
            seconds, memory = (min(column) for column in list(zip(*rounds, strict=True))[:2])
            print(f"| {date.today()} | {way} | {seconds:.2f} | {base / seconds:.2f} | {memory:.0f} |")
    return None


if __name__ == "__main__":
    main()
