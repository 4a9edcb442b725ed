"""Peak memory of `rebasin align` above a process that has imported the same packages.

    python benchmarks/memory.py [NET …]        # of `rebasin align`
    python benchmarks/memory.py --many         # of `rebasin merge --method ste-mm`, against its plan

The bound: both checkpoints, the largest similarity matrix in float64, and 150 MB; without the proof, which
has its own (a float64 copy of the network). B is A with its units permuted, so the search does all its
work and ends soon. Prints the ratio of what was used to the bound; Linux only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from _rows import as_command

from rebasin_cli import nets
from rebasin_cli.checkpoints.writing import write_safetensors
from rebasin_cli.matchers import ste_mm
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec import library
from rebasin_cli.symmetry import permutation

ALLOWANCE = 150e6
NETS = {"mlp": (1, 28, 28), "resnet50": (3, 224, 224), "vgg16": (3, 224, 224)}
PEAK = "print(open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"  # kB


def peak(code: str) -> int:
    """Peak resident bytes of a new process that runs `code`; what `ru_maxrss` says includes its parent's."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{PEAK}"], capture_output=True, text=True, check=True
    )
    return int(done.stdout.split()[-1]) * 1024


def pair(folder: Path, name: str) -> tuple[Path, Path, int]:
    """Two checkpoints of a net, and the number of units in its largest permutation."""
    torch.manual_seed(0)
    tensors = nets.build(name, input_shape=NETS[name], classes=1000).state_dict()
    fitted = library.find({key: tuple(tensor.shape) for key, tensor in tensors.items()})
    planted = permutation.random(fitted.words, generator(1, "benchmark"))
    a, b = folder / f"{name}_a.safetensors", folder / f"{name}_b.safetensors"
    write_safetensors(a, tensors)
    write_safetensors(b, permutation.permuted(tensors, fitted, planted))
    return a, b, max(fitted.words.values())


def main(names: list[str]) -> None:
    imported = peak("import rebasin_cli.commands.align, rebasin_cli.cli.align, rebasin_cli.matchers.wm")
    print(f"a process with the same packages: {imported / 1e6:.0f} MB")
    print(f"{'net':<10} {'checkpoints':>12} {'similarity':>11} {'bound':>9} {'used':>9}  used/bound")
    for name in names or NETS:
        with tempfile.TemporaryDirectory() as folder:
            a, b, units = pair(Path(folder), name)
            arguments = ["align", str(a), str(b), "-o", f"{folder}/out.safetensors", "--no-prove", "-q"]
            used = peak(as_command(arguments)) - imported
            both = a.stat().st_size + b.stat().st_size
            bound = both + 8 * units**2 + ALLOWANCE
            row = (both, 8 * units**2, bound, used)
            print(
                f"{name:<10} " + " ".join(f"{size / 1e6:>9.0f} MB" for size in row) + f"  {used / bound:.2f}"
            )


def many() -> None:
    """What ste-mm uses beyond the same with two small models, against the parts that its plan names."""
    print(f"{'models':<10} {'planned':>12} {'used':>9}  used/planned")
    with tempfile.TemporaryDirectory() as folder:
        small = used_by(Path(folder), 2, width=16)
        for count in (2, 5, 10):
            used = used_by(Path(folder), count, width=MANY) - small
            row = 4 * sum(p.numel() for p in _mlp(MANY).parameters())
            planned = (
                sum(ste_mm.memory(count, row // 4, ste_mm.Options()).values()) + count * row
            )  # the files
            print(f"{count:<10} {planned / 1e6:>9.0f} MB {used / 1e6:>6.0f} MB  {used / planned:.2f}")


MANY = 1536  # units a layer


def _mlp(width: int) -> torch.nn.Module:
    return nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=width)


def used_by(folder: Path, count: int, width: int) -> int:
    """Peak bytes of merging so many random models by ste-mm, two steps on the digits."""
    paths = []
    for seed in range(count):
        torch.manual_seed(seed)
        paths.append(folder / f"{width}_{seed}.safetensors")
        if not paths[-1].exists():
            write_safetensors(paths[-1], _mlp(width).state_dict())
    arguments = ["merge", *map(str, paths), "--method", "ste-mm", "--data", "digits", "--epochs", "1"]
    arguments += ["--limit", "200", "--batch-size", "100", "--init", "identity", "--repair", "none"]
    arguments += ["--no-prove", "-q", "--force", "-o", str(folder / "out.safetensors")]
    return peak(as_command(arguments))


if __name__ == "__main__":
    many() if "--many" in sys.argv[1:] else main(sys.argv[1:])
