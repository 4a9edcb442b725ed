"""What a user waits for: whole commands from the shell, beside `import torch` and plain loops.

    python benchmarks/waiting.py --work DIR [--mlp A B] [--cnn A B] [--large] [--against PYTHON] [--runs 5]
                                 [--only NAME] [--files] [--passes NAME …] [--many]

Every run is a process. Programs alternate, so that what else the machine does touches all of them; a row
is the median of its wall and of its processor seconds, since wall times of a shared machine say little, and
of the same on one thread, where there are more; of
`align` also the seconds of the search as it tells them, with the reading of both models.
Models are fresh random networks unless files are named (an MLP 3×512 for MNIST, a small CNN with BatchNorm
for CIFAR-10); rows that measure need REBASIN_DATA. `--against` is the interpreter of another version.
Modules are compiled before the first run, as those of an installed package are, also where the environment
forbids to write bytecode (PYTHONDONTWRITEBYTECODE): it goes to the folder of `--work`. `--large` adds two
models of 2.2 GB each. `--many` runs commands on very many small tensors, lines and steps, and nothing else.

The plain loop of a report interpolates both models at as many points, repairs as many of these (statistics
reset, or of an mlp the channels of one layer after the other), and measures loss and accuracy on the same
samples, in inference mode and batches of the size that is fastest here, images channels last and norms folded
into convolutions. It reads what the report reads, and draws nothing. `--passes mlp` (or `cnn`) prints that
report beside its fastest loop and nothing else: processor seconds of one thread, in turn, with the points and
repairs that the report says it had, and the seconds of its pictures, drawn once more. "memory kept": the C
library is told to keep what is freed, as the command tells it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

import torch
from _many_names import commands

from rebasin_cli import nets
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.runtime.memory import BLOCK, RETAINED
from rebasin_cli.runtime.seeds import generator, seeded
from rebasin_cli.spec import library
from rebasin_cli.symmetry import permutation

FRESH = {  # file: (net, input, classes, width, norm)
    "mlp": ("mlp", (1, 28, 28), 10, 512, None),
    "cnn": ("tinyten", (3, 32, 32), 10, 1, "batch"),
    "vgg11": ("vgg11", (3, 32, 32), 10, 1, None),
    "vgg16": ("vgg16", (3, 32, 32), 10, 1, None),
    "resnet50": ("resnet50", (3, 224, 224), 1000, 1, None),
    "resnet20x16": ("resnet20", (3, 32, 32), 10, 16, None),
}
LARGE = {"resnet20x45": ("resnet20", (3, 32, 32), 10, 45, None)}
HALF = {"vgg16, ImageNet": ("vgg16", (3, 224, 224), 1000, 1, None)}  # of a gigabyte
SEARCHED = re.compile(r"^times .*match ([0-9.]+) s", re.MULTILINE)
PLAIN = """
import copy, sys, torch
from torch.fx.experimental.optimization import fuse
from torch.nn import functional as F
from rebasin_cli import nets, networks, open_checkpoint
from rebasin_cli.datasets import open_data
a, b, name, data, points, repairs, train, test, batch = sys.argv[1:5] + [int(n) for n in sys.argv[5:]]
models = [dict(open_checkpoint(file)) for file in (a, b)]
net = nets.registry.get(name).from_shapes({key: tensor.shape for key, tensor in models[0].items()})
networks.load(net, models[0]).eval()
normed = any(hasattr(module, "running_mean") for module in net.modules())

def read(split, limit, size):
    part = open_data(data, split, limit=limit)
    inputs, targets = part.normalization.apply(part.source.inputs), part.source.targets
    last = {"memory_format": torch.channels_last} if inputs.ndim == 4 and size == batch else {}
    return list(zip((x.contiguous(**last) for x in inputs.split(size)), targets.split(size)))

def between(share):
    for key, own in net.state_dict().items():
        if own.is_floating_point():
            torch.lerp(models[0][key], models[1][key], share, out=own)

def reset():
    for module in net.modules():
        module.training = hasattr(module, "running_mean")
    for x, _ in some:
        net(x)
    net.eval()

def moments(share):  # of every layer in a row, with what came before corrected: REPAIR
    values, found = [x.flatten(1) for x, _ in some], []
    for place, layer in enumerate(net.layers):
        values = [layer(x) for x in values]
        std, mean = torch.std_mean(torch.cat(values), 0, correction=0)
        found.append((std, mean))
        if share is not None:
            wanted = [torch.lerp(one, other, share) for one, other in zip(*(end[place] for end in ends))]
            scale = torch.where(std > 0, wanted[0] / std, 1.0)
            layer.weight.mul_(scale[:, None])
            layer.bias.sub_(mean).mul_(scale).add_(wanted[1])
            values = [(x - mean) * scale + wanted[1] for x in values]
        values = [torch.relu_(x) for x in values]
    return found

some = read("train", 2560, 256)
with torch.inference_mode():
    splits = [read("train", train, batch), read("test", test, batch)]
    ends = []
    for share in () if normed or not repairs else (0.0, 1.0):
        between(share)
        ends.append(moments(None))
    for point in range(points):
        between(point / points)
        if point < repairs:
            reset() if normed else moments(point / points)
        run = (fuse(copy.deepcopy(net)) if normed else net).to(
            **{"memory_format": torch.channels_last} if splits[0][0][0].ndim == 4 else {})
        for x, y in (pair for split in splits for pair in split):
            out = run(x)
            F.cross_entropy(out.double(), y, reduction="sum").item(), (out.argmax(1) == y).sum().item()
"""
PICTURES = """
import sys, time
from pathlib import Path
from rebasin_cli.reports import registry
from rebasin_cli.reports.formats import json
report = json.load(Path(sys.argv[1]).read_text())
pictures = [registry.get(name) for name in ("html", "png")]
wall, own = time.perf_counter(), time.process_time()
for each in pictures:
    each.render(report)
print(time.perf_counter() - wall, time.process_time() - own)
"""
FILES = """
import sys
from safetensors.torch import load_file, save_file
a, b = map(load_file, sys.argv[1:3])
save_file({name: tensor + 0 for name, tensor in b.items()}, sys.argv[3])
"""
PROOF = """
import sys, time
from pathlib import Path
from rebasin_cli import networks, open_checkpoint
from rebasin_cli.inference import prove as proving
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec import library
shapes = open_checkpoint(Path(sys.argv[1])).shapes
fitted = library.find(shapes)
network = networks.resolve(None, fitted.spec, fitted.shapes, trust_code=False).float()
inputs = networks.example_inputs(network, generator(0, "prove inputs"))
proving.prove(network, fitted, inputs)  # what is imported on first use
wall, own = time.perf_counter(), time.process_time()
proving.prove(network, fitted, inputs)
print(time.perf_counter() - wall, time.process_time() - own)
"""
NET = """
from rebasin_cli import nets
def factory():
    return nets.build("mlp", input_shape=(1, 28, 28), classes=10, width=512)
"""  # a user's own, for all that is known of it
STEPS = """
import os, sys, time
wall, out = time.perf_counter(), os.fdopen(os.dup(1), "w")
from rebasin_cli.__main__ import main, prepare
prepare()  # torch is imported before the command begins
from rebasin_cli.matchers.straight_through.search import Run
loss, own, steps = Run.loss, 0.0, int(sys.argv[1])
def counted(self, *batch):
    global wall, own, steps
    if steps == 0:
        print(time.perf_counter() - wall, time.process_time() - own, file=out, flush=True)
        os._exit(0)
    wall, own, steps = time.perf_counter(), time.process_time(), steps - 1
    return loss(self, *batch)
Run.loss = counted
main(sys.argv[2:])
"""  # what comes before the first step, or the last of so many


@dataclass(frozen=True)
class Row:
    """A command line, or a program, by name; `plain` ones need no version of rebasin, `own` ones say their
    seconds, `kept` ones keep freed memory, and one that `fails` is refused."""

    name: str
    words: tuple[str, ...]
    plain: bool = False
    own: bool = False
    kept: bool = False
    fails: bool = False


def rows(work: Path, files: dict[str, Sequence[str]], measured: bool) -> Iterator[Row]:
    """What is run, the cheap first."""
    out = str(work / "out.safetensors")
    yield Row("import torch", ("-c", "import torch"), plain=True)
    for name in ("mlp", "vgg16", "resnet50", "resnet20x16", *(LARGE.keys() & files.keys())):
        align = ("align", *files[name], "-o", out, "--force")
        yield Row(f"align {name}", align)
        yield Row(f"align {name} --no-prove", (*align, "--no-prove"))
        yield Row(f"its files with safetensors alone, {name}", ("-c", FILES, *files[name], out), plain=True)
        yield Row(f"the proof alone, {name}", ("-c", PROOF, files[name][0]), own=True)
    (work / "net.py").write_text(NET)
    own = ("--net", f"{work / 'net.py'}:factory", "--spec", "infer")
    yield Row("align mlp --spec infer", ("align", *files["mlp"], "-o", out, "--force", *own))
    yield Row("list methods", ("list", "methods"))
    if not measured:
        return
    report = ("--report", str(work / "report"), "--force", "--skip-checks")
    yield Row("eval mlp, MNIST", ("eval", files["mlp"][0], "--data", "mnist", "--skip-checks"))
    refit = ("--data", "mnist", "--repair", "refit", "-o", out, "--force")
    yield Row("merge mlp, MNIST, --repair refit", ("merge", *files["mlp"], *refit))
    yield Row("doctor mlp, MNIST", ("doctor", *files["mlp"], "--data", "mnist"))
    barrier = ("barrier", *files["mlp"], "--data", "mnist", *report)
    yield Row("barrier mlp, MNIST", barrier)
    yield Row("barrier mlp, MNIST, wm", (*barrier, "--method", "wm"))
    yield from plain_loops(*files["mlp"], "mlp", "mnist", 60, 11, 5_000, 10_000, 500)
    learnt = ("--method", "ste-mm", "-o", out, "--force", "-q")
    short = ("--data", "mnist", "--epochs", "1", "--limit", "2000")
    yield Row("align mlp, ste-mm, MNIST, --limit 2000", ("align", *files["mlp"], *learnt, *short))
    for steps, name in (("0", "before its first step"), ("2", "its second step")):
        words = ("-c", STEPS, steps, "merge", *files["vgg11"], *learnt, "--data", "cifar10")
        yield Row(f"merge vgg11, ste-mm, CIFAR-10, {name}", words, own=True)
    limited = ("--data", "cifar10", "--limit", "1000", "--method", "am", *report)
    yield Row("barrier cnn, BatchNorm, am, --limit 1000", ("barrier", *files["cnn"], *limited))
    yield from plain_loops(*files["cnn"], "tinyten", "cifar10", 68, 19, 1_000, 1_000, 200)


def plain_loops(*words: object) -> Iterator[Row]:
    program = ("-c", PLAIN, *map(str, words))
    yield Row(f"its passes in a plain loop, {words[2]}", program, plain=True)
    yield Row(f"its passes in a plain loop, {words[2]}, memory kept", program, plain=True, kept=True)


def points_of(report: Path) -> tuple[int, int]:
    """The points that a report measured by passes of its own, and how many of these it repaired.

    Temperatures and ensembles are measured by outputs that are known by then; A, B and B aligned are not.
    """
    rows = json.loads(report.read_text())["data"]["points"]
    inner = {
        name: points - 2 for name, points in rows.items() if not name.endswith((" + temperature", "ensemble"))
    }
    repaired = sum(points for name, points in inner.items() if " + " in name)
    return 2 + sum(inner.values()) + ("aligned" in inner), repaired


def counted(loop: Row, points: int, repaired: int) -> Row:
    """A plain loop with this many points, so many of them repaired."""
    return replace(loop, words=(*loop.words[:6], str(points), str(repaired), *loop.words[8:]))


def made(work: Path, name: str) -> list[str]:
    """Two models: a fresh network, and that network with its units in another order and some noise."""
    paths = [work / f"{name}.{k}.safetensors" for k in "ab"]
    if not all(path.is_file() for path in paths):
        net, shape, classes, width, norm = (FRESH | LARGE | HALF)[name]
        with seeded(0, name):
            module = nets.build(net, input_shape=shape, classes=classes, width=width, norm=norm)
        a = {key: tensor.detach() for key, tensor in module.state_dict().items()}
        fitted = library.find({key: tuple(tensor.shape) for key, tensor in a.items()})
        rng = generator(0, "planted")
        moved = permutation.permuted(a, fitted, permutation.random(fitted.words, rng, within=fitted.within))
        b = {key: _noisy(moved[key], rng) for key in a}
        for path, tensors in zip(paths, (a, b), strict=True):
            write_safetensors(path, tensors, force=True)
    return list(map(str, paths))


def _noisy(tensor: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    if tensor.ndim < 2:
        return tensor
    return tensor + 0.1 * tensor.std() * torch.randn(tensor.shape, generator=rng)


def seconds(
    python: str, row: Row, work: Path, threads: int | None = None, checkout: Path | None = None
) -> tuple[float, ...]:
    """Wall and processor seconds of one run, and those of its search, if it tells them.

    By the package that this Python has, or that of a checkout. Raises CalledProcessError with what it said.
    """
    words = row.words if row.plain or row.own else ("-m", "rebasin_cli", *row.words)
    compiled = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(work / "bytecode")}
    if threads is not None:
        compiled["OMP_NUM_THREADS"] = str(threads)
    if checkout is not None:
        compiled["PYTHONPATH"] = str(checkout.resolve())
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    if row.kept:
        compiled |= {"MALLOC_TRIM_THRESHOLD_": str(RETAINED), "MALLOC_MMAP_THRESHOLD_": str(BLOCK)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    elsewhere = tempfile.gettempdir()  # not where a package lies
    done = subprocess.run([python, *words], check=not row.fails, cwd=elsewhere, env=compiled, **streams)
    if row.own:
        wall, own = map(float, done.stdout.split())
        return wall, own
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, own, *map(float, SEARCHED.findall(done.stdout))


def beside_files(every: dict[str, Row], work: Path, runs: int) -> None:
    """Of each pair of files in turn: what `align --no-prove` takes but for its search, and safetensors."""
    print(
        "| date | files | align less its search | safetensors alone | ratio (≤ 1.3) |\n|---|---|---|---|---|"
    )
    for name in (*FRESH, *LARGE):
        both = [every.get(f"align {name} --no-prove"), every.get(f"its files with safetensors alone, {name}")]
        if None in both:
            continue
        rounds = [[seconds(sys.executable, row, work) for row in both] for _ in range(runs + 1)][1:]
        found = [(align[0] - align[2], plain[0]) for align, plain in rounds]
        ours, plain = (statistics.median(each) for each in zip(*found, strict=True))
        ratio = statistics.median(one / other for one, other in found)
        print(f"| {date.today()} | {name} | {ours:.1f} | {plain:.1f} | {ratio:.2f} |", flush=True)


REPORTS = {
    "mlp": ("barrier mlp, MNIST, wm", "mlp"),
    "cnn": ("barrier cnn, BatchNorm, am, --limit 1000", "tinyten"),
}


def beside_passes(every: dict[str, Row], names: Sequence[str], work: Path, runs: int) -> None:
    """Of each report in turn: its processor seconds on one thread, and those of its passes in a loop."""
    columns = (
        "row",
        "points",
        "repaired",
        "its seconds",
        "fastest plain loop",
        "ratio (≤ 1.15)",
        "pictures, s",
    )
    print(f"| date | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for ours, net in map(REPORTS.__getitem__, names):
        loops = [row for name, row in every.items() if name.startswith(f"its passes in a plain loop, {net}")]
        seconds(sys.executable, Row("", (*every[ours].words, "--dry-run")), work, 1)  # compiles
        drawing = Row("", ("-c", PICTURES, str(work / "report" / "report.json")), own=True)
        found, counts = [], (0, 0)
        for _ in range(runs):
            its = seconds(sys.executable, every[ours], work, 1)[1]
            counts = points_of(work / "report" / "report.json")
            others = min(seconds(sys.executable, counted(row, *counts), work, 1)[1] for row in loops)
            drawn = seconds(sys.executable, drawing, work, 1)[1]
            found.append((its, others, its / others, drawn))
        cells = " | ".join(f"{statistics.median(each):.2f}" for each in zip(*found, strict=True))
        print(f"| {date.today()} | {ours} | {' | '.join(map(str, counts))} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="a folder for models and outputs")
    parser.add_argument("--mlp", nargs=2, metavar=("A", "B"))
    parser.add_argument("--cnn", nargs=2, metavar=("A", "B"))
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--against", metavar="PYTHON", help="another version's interpreter")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="rows whose names hold this")
    parser.add_argument("--files", action="store_true", help="align less its search, against its files alone")
    parser.add_argument("--passes", nargs="+", choices=[*REPORTS], default=())
    parser.add_argument("--many", action="store_true", help="very many tensors, lines and steps")
    options = parser.parse_args()
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    names = [] if options.many else [*FRESH, *(LARGE if options.large else ())]
    files = {name: made(work, name) for name in names}
    for name in ("mlp", "cnn"):
        if given := getattr(options, name):
            files[name] = [os.path.abspath(path) for path in given]
    programs = {"now": (sys.executable, None)}
    if torch.get_num_threads() > 1:
        programs["now, one thread"] = (sys.executable, 1)
    if options.against:
        programs["before"] = (options.against, None)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.processor()}")
    load = f"load at the start {os.getloadavg()[0]:.1f}"
    print(f"{load}; medians of {options.runs}: wall / processor (/ search) seconds")
    if options.many:
        found = list(commands(work))
        every = [Row(name, words, fails=name.endswith("refused")) for name, words in found]
    else:
        every = list(rows(work, files, bool(os.environ.get("REBASIN_DATA"))))
    if options.files:
        beside_files({row.name: row for row in every}, work, options.runs)
        return
    if options.passes:
        beside_passes({row.name: row for row in every}, options.passes, work, options.runs)
        return
    print(f"| date | row | {' | '.join(programs)} |\n|---|---|{'---|' * len(programs)}")
    for row in every:
        if options.only not in row.name:
            continue
        taken: dict[str, list[tuple[float, ...]]] = {name: [] for name in programs}
        columns = {name: how for name, how in programs.items() if not (row.plain and name == "before")}
        for python, threads in columns.values():  # compiles, and is not counted
            seconds(python, row, work, threads)
        for _ in range(options.runs):
            for name, (python, threads) in columns.items():
                taken[name].append(seconds(python, row, work, threads))
        cells = (
            " / ".join(f"{statistics.median(each):.1f}" for each in zip(*its, strict=True))
            for its in taken.values()
        )
        print(f"| {date.today()} | {row.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
