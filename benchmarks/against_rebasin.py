"""Weight matching against the package `rebasin` of PyPI (0.0.47), on the same weights: time and objective.

    python -m venv OTHER && OTHER/bin/pip install rebasin==0.0.47
    python benchmarks/against_rebasin.py --python OTHER/bin/python [--rows NAME,…] [--runs 3] [--pairs A:B …]

The package runs in its own environment, its search (PermutationCoordinateDescent) timed alone; tracing the
networks and applying the permutations are columns of their own. wm is timed as the library runs it, without
applying. Both use the same number of threads, one after the other. The objective is Σ ⟨A, πB⟩ of our spec,
of the weights that each comes to with seed 0. "outputs": what the package changed the outputs of B by,
relative to the largest. What takes more than 50 seconds runs once; --limit ends a row.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from _rows import Case, alternated, begin, cases, change, heading, median, parser, row

from rebasin_cli.matchers import wm

HERE = Path(__file__).resolve().parent
ROWS = "mlp 3x512,mlp 3x1024,resnet20 1x,resnet20 4x,vgg16,trained"  # what it can do within the limit


def installed(python: str) -> str:
    """Which version that Python has; empty where there is none."""
    code = "from importlib.metadata import version; import rebasin; print(version('rebasin'))"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def other(case: Case, python: str, runs: int, limit: float) -> tuple[dict[str, float], float] | None:
    """What it printed, and the objective of its weights; None where it was too slow or failed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name, tensors in (("a.pt", case.a), ("b.pt", case.b)):
            torch.save(dict(tensors), folder / name)
        command = [python, str(HERE / "_other_rebasin.py"), str(folder), case.fitted.spec.net, str(runs)]
        environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
        environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
        try:
            done = subprocess.run(
                command, env=environment, timeout=limit, stdout=subprocess.PIPE, text=True, check=True
            )
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            print(f"{case.name}: no result of the package: {type(error).__name__}", flush=True)
            return None
        return json.loads(done.stdout.splitlines()[-1]), case.objective(torch.load(folder / "moved.pt"))


def compare(case: Case, python: str, runs: int, limit: float) -> None:
    ours = alternated({"wm": lambda seed: wm.match(case.problem(seed)).permutations[0]}, runs)["wm"]
    fast, high = median(seconds for seconds, _ in ours), case.reached(ours[0][1])
    found = other(case, python, runs, limit)
    if found is None:
        row(case.name, "", "", f"> {limit:.0f}", "", f"{fast:.3f}", f"> {limit / fast:.0f}", "", "")
        return
    theirs, low = found
    seconds = (f"{theirs[name]:.2f}" for name in ("traced", "searched", "applied"))
    ratio = f"{theirs['searched'] / fast:.0f}"
    row(
        *(case.name, theirs["runs"], *seconds, f"{fast:.3f}", ratio),
        *(change(high, low), f"{theirs['changed']:.0e}"),
    )


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--python", default="", help="of an environment where rebasin 0.0.47 is installed")
    found.add_argument("--limit", type=float, default=300, help="seconds for all runs of a row together")
    arguments = begin(found, ROWS)
    which = installed(arguments.python)
    if not which:
        print("skipped: give --python of an environment with rebasin 0.0.47 (pip install rebasin==0.0.47)")
        return
    print(f"rebasin {which}\n")
    heading(
        *("row", "its runs", "its tracing, s", "its search, s", "its applying, s", "wm, s"),
        *("ratio of searches", "wm objective", "outputs"),
    )
    for case in cases(arguments):
        compare(case, arguments.python, arguments.runs, arguments.limit)


if __name__ == "__main__":
    main()
