"""Processor seconds of commands that train, in one process and in several that share their steps.

    python benchmarks/together.py [--processes 1 2] [--only "train, mlp"]      # needs REBASIN_DATA

Processes on this machine, each on one thread. Processor seconds are those of the process that had most, some
three of them imports; "less imports" takes off those of a plan of `align`. The last column is what the
command tells of what was learned: equal up to rounding.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _rows import environment, heading, row
from averages import together

MLP = ["mlp", "--data", "mnist", "--width", "512", "--epochs", "1"]
CONVOLUTIONS = ["resnet20", "--data", "cifar10", "--limit", "2560", "--epochs", "1", "--precision", "float32"]
PAIR = ["1.safetensors", "2.safetensors"]
MNIST = ["--data", "mnist", "--no-prove"]
OF_MLPS = [*PAIR, *MNIST]
COMMANDS = {
    "train, mlp": ["train", *MLP, "-o", "t.safetensors"],
    "train, resnet20": ["train", *CONVOLUTIONS, "-o", "r.safetensors"],
    "align, ste": ["align", *OF_MLPS, "--method", "ste", "--epochs", "1", "-o", "s.safetensors"],
    "merge of 3, ste-mm": [
        *["merge", *PAIR, "3.safetensors", *MNIST, "--method", "ste-mm", "--epochs", "1", "--repair", "none"],
        *["-o", "m.safetensors"],
    ],
    "align, pam": ["align", *OF_MLPS, "--method", "pam", "--epochs", "1", "-o", "p.safetensors"],
    "curve": ["curve", *OF_MLPS, "--epochs", "1", "-o", "c.curve.safetensors"],
    "merge, distill": ["merge", *OF_MLPS, "--method", "wm", "--repair", "distill", "-o", "d.safetensors"],
}


def figure(told: dict[str, Any]) -> str:
    """What was learned, of what a command says."""
    if "test_accuracy" in told:
        return f"accuracy {told['test_accuracy']:.4f}"
    if "curve" in told:
        return f"loss {told['curve']['loss']:.5f}"
    return f"objective {told['match']['objective_after']:.5f}"


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    asked.add_argument("--only")
    arguments = asked.parse_args()
    print(environment(), flush=True)
    heading("command", "processes", "processor s", "less imports", "peak MB", "learned")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in "123":
            line = ["train", *MLP, "--limit", "6000", "--seed", seed, "-o", f"{seed}.safetensors", "-q"]
            subprocess.run([sys.executable, "-m", "rebasin_cli", *line], cwd=folder, check=True, stdout=-3)
        bare, _ = together(folder, 1, ["align", *PAIR, "--dry-run", "-q"])
        for what, line in COMMANDS.items():
            if arguments.only in (None, what):
                for count in arguments.processes:
                    seconds, peak = together(
                        folder, count, [*line, "--force", "--json", "-q"], folder / "told"
                    )
                    told = json.loads((folder / "told").read_text())
                    own = f"{seconds - bare:.1f}"
                    row(what, count, f"{seconds:.1f}", own, f"{peak / 1e6:,.0f}", figure(told))


if __name__ == "__main__":
    main()
