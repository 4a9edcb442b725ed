"""The table of speed: an earlier version, this one and peers on the same work, in one run.

    python benchmarks/speed.py --work DIR --before CHECKOUT [--ste-mm FOLDER] [--mlp A B] [--large]
                               [--rows NAME,…] [--pairs A:B …] [--runs 5]

Processor seconds of one thread, medians; all of a row take turns. CHECKOUT is built as this one is.

A search's seconds are the least of as many calls as take .3 seconds, a seed a run. It is beside Algorithm 1
in float32 that leaves out what nothing changed for, and of mlps beside STE-MM's program with its own
solver: github.com/e5-a/STE-MM in FOLDER, its lap_uv/src/main.cpp compiled to srcs/lap_uv.so (-O3
-march=native -std=c++17 -shared -fPIC; the headers of pybind11 come with torch). "least above" is how far
wm's objective is above theirs, with the seed where that is least. Commands are whole processes, imports
included, on fresh random networks (`waiting.py`) unless --mlp names two; those that measure need
REBASIN_DATA. Searches of many models and of wide layers are one call each. --large adds models of 2.2 GB
and 526 MB, and width 8192. What is missing is said, and its rows are left out.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import waiting
from _many_names import commands
from _rows import begin, cases, heading, median, parser, row
from waiting import HALF, LARGE, Row, counted, made, plain_loops, points_of, seconds
from weight_matching import in_turns

HERE = Path(__file__).resolve().parents[1]
SEARCHES = "resnet20 1x,resnet20 4x,vgg16,resnet50,mlp 3x1024,mlp 3x512,trained"
ROWS = f"{SEARCHES},list,spec,inspect,align,merge,verify,doctor,barrier,wm"
WIDE = """
import sys, time, torch
from rebasin_cli import nets
from rebasin_cli.matchers import Problem, wm
from rebasin_cli.spec import library
models = []
for seed in (0, 1):
    torch.manual_seed(seed)
    net = nets.build("mlp", input_shape=(1, 28, 28), classes=10, width=int(sys.argv[1]), depth=3)
    models.append(net.state_dict())
fitted = library.find({name: tuple(tensor.shape) for name, tensor in models[0].items()})
wall, own = time.perf_counter(), time.process_time()
wm.match(Problem(fitted, tuple(models)))
print(time.perf_counter() - wall, time.process_time() - own)
"""
MANY = """
import sys, time, torch
from rebasin_cli import nets
from rebasin_cli.matchers import Problem, merge_many
from rebasin_cli.spec import library
models = []
for seed in range(int(sys.argv[1])):
    torch.manual_seed(seed)
    net = nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=int(sys.argv[2]))
    models.append(net.state_dict())
fitted = library.find({name: tuple(tensor.shape) for name, tensor in models[0].items()})
wall, own = time.perf_counter(), time.process_time()
merge_many.match(Problem(fitted, tuple(models)))
print(time.perf_counter() - wall, time.process_time() - own)
"""
GROWTH = {  # series: (program, sizes, what else it is told, sizes of --large)
    "merge-many, models of width 64": (MANY, (5, 10, 20), ("64",), ()),
    "wm, width of 3 random layers": (WIDE, (1024, 2048, 4096), (), (8192,)),
}


@dataclass(frozen=True)
class Pair:
    """A command and what it is beside: the quickest of some rows."""

    name: str
    ours: Row
    beside: str
    peers: tuple[Row, ...]


def pairs(work: Path, files: dict[str, Sequence[str]], *, large: bool) -> Iterator[Pair]:
    """The commands of the table, the cheap first."""
    out = ("-o", str(work / "out.safetensors"), "--force")
    torch = Row("import torch", ("-c", "import torch"), plain=True)
    looks = {"list specs": ("list", "specs"), "spec show mlp": ("spec", "show", "mlp")}
    looks["inspect an mlp512"] = ("inspect", files["mlp"][0])
    for name, words in looks.items():
        yield Pair(name, Row("", words), "import torch", (torch,))
    for name in ("resnet50", "resnet20x16"):
        alone = Row("", ("-c", waiting.FILES, *files[name], str(work / "out.safetensors")), plain=True)
        yield Pair(
            f"align {name}, with proof", Row("", ("align", *files[name], *out)), "files and torch", (alone,)
        )
    names = {name: words for name, words in commands(work)}
    merged = names["merge --method none, 40,000 names"]
    yield Pair("merge --method none, 40,000 names", Row("", merged), "import torch", (torch,))
    if large:
        (a, b), copy = files["resnet20x45"], work / "copy.safetensors"
        copy.unlink(missing_ok=True)
        os.link(a, copy)
        align = Row("", ("align", a, b, *out))
        yield Pair("verify, an exact copy of 2.2 GB", Row("", ("verify", a, str(copy))), "align", (align,))
        align = Row("", ("align", *files["vgg16, ImageNet"], *out))
        doctor = Row("", ("doctor", *files["vgg16, ImageNet"]))
        yield Pair("doctor, 2 × 526 MB", doctor, "align", (align,))
    if not os.environ.get("REBASIN_DATA"):
        print("REBASIN_DATA is not set: no rows that measure", flush=True)
        return
    merge = ("merge", *files["mlp"], "--data", "mnist", *out)
    wm = Row("", (*merge, "--method", "wm"))
    yield Pair("merge by default of two mlp512", Row("", merge), "the same by wm", (wm,))
    barrier = (
        "barrier",
        *files["mlp"],
        "--data",
        "mnist",
        "--report",
        str(work / "report"),
        "--force",
        "--skip-checks",
    )
    loops = tuple(plain_loops(*files["mlp"], "mlp", "mnist", 60, 11, 5_000, 10_000, 500))
    for how, more in (("wm", ("--method", "wm")), ("default", ())):
        ours = Row("", (*barrier, *more))
        yield Pair(f"barrier by {how} of two mlp512", ours, "its passes, plain", loops)


def searches(arguments: argparse.Namespace, before: Path, peer: Path | None) -> None:
    for case in cases(arguments):
        middle, above = in_turns(case, arguments.runs, arguments.limit, before, peer)
        for who in above:
            shown(
                f"wm {case.name}",
                middle["before"],
                middle["now"],
                who,
                middle[who],
                f"{min(above[who]):+.3%}",
            )


def shown(name: str, old: float, new: float, who: str, its: float, more: str = "") -> None:
    digits = 4 if new < 1 else 2
    row(
        name,
        f"{old:.{digits}f}",
        f"{new:.{digits}f}",
        who,
        f"{its:.{digits}f}",
        f"{its / old:.2f}",
        f"{its / new:.2f}",
        more,
    )


def beside(pair: Pair, work: Path, before: Path, runs: int) -> None:
    """A row of a command before and now, and of the quickest peer."""
    versions = (before, HERE)
    for checkout in versions:  # compiles
        seconds(sys.executable, replace(pair.ours, words=(*pair.ours.words, "--help")), work, 1, checkout)
    taken: list[tuple[float, float, float]] = []
    for _ in range(runs):
        old, new = (seconds(sys.executable, pair.ours, work, 1, checkout)[1] for checkout in versions)
        peers = pair.peers
        if pair.ours.words[0] == "barrier":  # as many points and repairs as the report had
            peers = tuple(counted(peer, *points_of(work / "report" / "report.json")) for peer in peers)
        taken.append((old, new, min(seconds(sys.executable, peer, work, 1, HERE)[1] for peer in peers)))
    old, new, its = map(median, zip(*taken, strict=True))
    shown(pair.name, old, new, pair.beside, its)


def growth(name: str, work: Path, before: Path, runs: int, *, large: bool) -> None:
    """Rows of a series before and now, and the exponents from its first size to its last."""
    program, sizes, more, larger = GROWTH[name]
    found = []
    for size in sizes + (larger if large else ()):
        task = Row("", ("-c", program, str(size), *more), own=True)
        taken = []
        for _ in range(runs):
            taken.append([seconds(sys.executable, task, work, 1, checkout)[1] for checkout in (before, HERE)])
        found.append((size, *map(median, zip(*taken, strict=True))))
        row(f"{name}: {size:,}", *(f"{each:.2f}" for each in found[-1][1:]), *[""] * 5)
    (low, *first), (high, *last) = found[0], found[-1]
    steep = (math.log(b / a) / math.log(high / low) for a, b in zip(first, last, strict=True))
    row(f"{name}: exponent, {low:,} to {high:,}", *(f"{each:.2f}" for each in steep), *[""] * 5)


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--work", type=Path, required=True, help="a folder for models and outputs")
    found.add_argument("--before", type=Path, required=True, metavar="CHECKOUT")
    found.add_argument("--ste-mm", type=Path, metavar="FOLDER", help="where STE-MM's program is")
    found.add_argument("--mlp", nargs=2, metavar=("A", "B"), help="two mlps for MNIST, width 512")
    found.add_argument("--large", action="store_true")
    found.add_argument("--limit", type=float, default=200, help="seconds for one run of the baseline")
    arguments = begin(found, ROWS)
    wanted = arguments.rows.split(",")
    if arguments.ste_mm is not None and not (arguments.ste_mm / "srcs" / "lap_uv.so").is_file():
        sys.exit(f"{arguments.ste_mm} has no srcs/lap_uv.so: see the beginning of this script")
    if arguments.ste_mm is None:
        print("no --ste-mm FOLDER: no rows beside STE-MM", flush=True)
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    names = ["mlp", "resnet50", "resnet20x16", *([*LARGE, *HALF] if arguments.large else [])]
    files = {name: made(work, name) for name in names}
    if arguments.mlp:
        files["mlp"] = list(map(os.path.abspath, arguments.mlp))
    heading("row", "before, s", "now, s", "beside", "its s", "beside / before", "beside / now", "least above")
    searches(arguments, arguments.before, arguments.ste_mm)

    def asked(name: str) -> bool:
        return any(name.startswith(part) for part in wanted)

    for pair in pairs(work, files, large=arguments.large):
        if asked(pair.name):
            beside(pair, work, arguments.before, arguments.runs)
    for name in GROWTH:
        if asked(name):
            growth(name, work, arguments.before, arguments.runs, large=arguments.large)


if __name__ == "__main__":
    main()
