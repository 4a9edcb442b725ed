"""Plain averages: seconds and peak memory of `rebasin merge --method none`, against what a script would do.

    python benchmarks/averages.py [--sizes 256 1024] [--models 2 8] [--dtype float32] [--work DIR]
    python benchmarks/averages.py --processes 1 2 [--sizes 1024]   # shared by processes, beside one

Models of random values in layers of 16 MiB. "cat" reads all inputs and writes one of them back (`dd`, fsync
included): what no averaging can beat by much. "torch" loads every model whole with `torch.load` (safetensors'
own reader where it is installed loads as much), adds and saves with `torch.save`. Each in a process of its
own, alternated, files in the page cache; seconds include the start of Python. Peak memory is VmHWM beyond
that of a process with the same imports. Linux only.

With --processes: two models in shards, averaged, and one of them written anew, by so many processes on this
machine, each on one thread. Processor seconds are those of the process that had most, peak memory is that of
the largest process: imports and all. The bytes that were written are held against those of one process.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from _rows import as_command, environment, heading, row

from rebasin_cli.checkpoints.digests import of_file
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.runtime.seeds import generator

LAYER = (2048, 2048)
PEAK = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"  # kB


def model(seed: int, mebibytes: int, dtype: torch.dtype) -> LazyTensors:
    """So many layers of random values, made when they are written."""
    count = max(1, (mebibytes << 20) // (LAYER[0] * LAYER[1] * dtype.itemsize))
    names = [f"layers.{k}.weight" for k in range(count)]

    def made(name: str) -> torch.Tensor:
        return torch.randn(LAYER, generator=generator(seed, name)).to(dtype)

    return LazyTensors(dict.fromkeys(names, LAYER), dict.fromkeys(names, dtype), made)


def ran(code: str) -> tuple[float, int]:
    """Seconds and peak bytes of a new process that runs `code`."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{PEAK}"], capture_output=True, text=True, check=True
    )
    return time.perf_counter() - began, int(done.stdout.split()[-1]) * 1024


def rebasin(paths: list[Path], out: Path) -> str:
    arguments = ["merge", *map(str, paths), "--method", "none", "-q", "--force", "-o", str(out)]
    return as_command(arguments)


def by_hand(paths: list[Path], out: Path) -> str:
    files = [str(path.with_suffix(".pt")) for path in paths]
    return f"""
import torch
models = [torch.load(path, weights_only=True) for path in {files!r}]
mean = {{name: sum(model[name].float() for model in models) / len(models) for name in models[0]}}
torch.save({{name: t.to(models[0][name].dtype) for name, t in mean.items()}}, {str(out)!r})
"""


def cat(paths: list[Path], out: Path) -> float:
    """Seconds to read every file and to write one of them, to the disk."""
    began = time.perf_counter()
    for path in paths[1:]:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", "status=none"], check=True)
    subprocess.run(["dd", f"if={paths[0]}", f"of={out}", "bs=4M", "status=none", "conv=fsync"], check=True)
    return time.perf_counter() - began


def shared(folder: Path, size: int, processes: list[int]) -> None:
    """Rows of `average`, of two models and of one, by each number of processes."""
    for seed in range(2):
        (folder / "ab"[seed]).mkdir()
        path = folder / "ab"[seed] / "model.safetensors"
        write_safetensors(path, model(seed, size, torch.bfloat16), shard_size=(size << 20) // 8)
    for what, models in {"average of 2": ["a", "b"], "written anew": ["a"]}.items():
        first: dict[str, str] = {}
        for count in processes:
            line = ["average", *models, "-o", "out/", "--force", "-q", "--repair", "none"]
            seconds, peak = together(folder, count, line)
            found = {path.name: of_file(path) for path in sorted((folder / "out").iterdir())}
            first = first or found
            equal = "equal" if found == first else "OTHER"
            row(what, size, count, f"{seconds:.1f}", f"{peak / 1e6:,.0f}", equal)


def together(folder: Path, count: int, line: list[str], out: Path | None = None) -> tuple[float, int]:
    """Most processor seconds and peak bytes of a process; what the first one tells goes to `out`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    place |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "rebasin_cli", *line]
    with open(out or os.devnull, "w") as first, open(os.devnull, "w") as others:
        started = [
            subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **place, "RANK": str(rank)},
                stdout=others if rank else first,
            )
            for rank in range(count)
        ]
        ended = [os.wait4(each.pid, 0) for each in started]
    if any(status for _, status, _ in ended):
        raise SystemExit(f"{line}: {[status for _, status, _ in ended]}")
    used = [usage for *_, usage in ended]
    return max(one.ru_utime + one.ru_stime for one in used), max(one.ru_maxrss for one in used) * 1024


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--sizes", nargs="+", type=int, default=[256, 1024], help="MiB a model")
    asked.add_argument("--models", nargs="+", type=int, default=[2, 8])
    asked.add_argument("--dtype", nargs="+", default=["float32"])
    asked.add_argument("--runs", type=int, default=3)
    asked.add_argument("--work", type=Path, help="a folder for the models; a temporary one if left out")
    asked.add_argument("--processes", nargs="+", type=int, help="so many, in place of all else")
    arguments = asked.parse_args()
    print(environment(), flush=True)
    if arguments.processes:
        heading("command", "MiB each", "processes", "processor s", "peak MB", "bytes")
        for size in arguments.sizes:
            with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
                shared(Path(folder), size, arguments.processes)
        return
    base = ran("import rebasin_cli.cli.perform, rebasin_cli.commands.merge")[1]
    bare = ran("import torch")[1]
    heading("dtype", "models", "MiB each", "cat, s", "torch, s", "rebasin, s", "torch, MB", "rebasin, MB")
    for name in arguments.dtype:
        for size in arguments.sizes:
            for count in arguments.models:
                with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
                    measure(Path(folder), getattr(torch, name), size, count, arguments.runs, base, bare)


def measure(folder: Path, dtype: torch.dtype, size: int, count: int, runs: int, base: int, bare: int) -> None:
    """One row: the median seconds, the largest memory."""
    paths = []
    for seed in range(count):
        paths.append(folder / f"{seed}.safetensors")
        made = model(seed, size, dtype)
        write_safetensors(paths[-1], made)
        torch.save(dict(made), paths[-1].with_suffix(".pt"))
    seconds: dict[str, list[float]] = {"cat": [], "torch": [], "rebasin": []}
    peaks = {"torch": 0, "rebasin": 0}
    for _ in range(runs):
        seconds["cat"].append(cat(paths, folder / "cat"))
        codes = {
            "torch": by_hand(paths, folder / "t.pt"),
            "rebasin": rebasin(paths, folder / "r.safetensors"),
        }
        for name, code in codes.items():
            os.sync()
            taken, peak = ran(code)
            seconds[name].append(taken)
            peaks[name] = max(peaks[name], peak)
    times = [f"{statistics.median(values):.2f}" for values in seconds.values()]
    used = (f"{(peaks['torch'] - bare) / 1e6:,.0f}", f"{(peaks['rebasin'] - base) / 1e6:,.0f}")
    row(str(dtype).removeprefix("torch."), count, size, *times, *used)


if __name__ == "__main__":
    main()
