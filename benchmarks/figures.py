"""Figures of README, docs and results.md, drawn at random, computed anew, and held beside what the text says.

    python benchmarks/figures.py [--draw 40] [--seed 0] [--only TEXT] [--all]     # make figures

`PLACES` says where figures stand that take minutes at most, what computes them, and how near they have to
come: by `relative` of what is claimed or by `absolute`, whichever is more. For every figure a place is drawn,
all alike, and one of its figures; only these places are computed, on one thread. A row a figure; exit code 1
where one is not within its tolerance, or the text is not there, or what was computed has no such line.

What needs `REBASIN_DATA` is left out where it is not set, and named.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
DATE = re.compile(r"\d{4}-\d\d-\d\d")
NUMBER = re.compile(r"(?<![\w.])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?")
SECONDS = re.compile(r"\d+(?:\.\d+)? (?:s|minutes|sweeps)\b")  # others on every machine
DRAW = 40
CLAIM = 7  # cells of a claim


@dataclass(frozen=True)
class Place:
    """Lines of a document that `make` computes anew.

    With `after`, the lines are rows of the first table behind the line that begins so, those whose first cell
    begins with one of `rows`, and figures those of `columns` (counted from there, a date before it left out).
    Without, they are those of all tables of a lab's page, or of what console blocks show.
    """

    file: str
    make: Callable[[], list[str]]
    seconds: float  # of one idle thread, about
    relative: float = 0.0
    absolute: float = 0.0
    after: str = ""
    rows: tuple[str, ...] = ("",)
    columns: tuple[int, ...] = ()
    key: int = 1  # cells that say which row it is
    data: bool = False  # whether it needs REBASIN_DATA

    def near(self, claimed: float, found: float) -> bool:
        return abs(claimed - found) <= max(self.relative * abs(claimed), self.absolute) * (1 + 1e-9)

    @property
    def tolerance(self) -> str:
        words = [f"{self.relative:.0%}"] * bool(self.relative) + [f"{self.absolute:g}"] * bool(self.absolute)
        return " or ".join(words) or "as written"

    def claimed(self) -> list[tuple[int, str]]:
        """Its lines with their numbers in the file, from 1; none where the text is not there any more."""
        lines = list(enumerate((ROOT / self.file).read_text(encoding="utf-8").split("\n"), start=1))
        if not self.after:
            return [(n, line) for n, line in shown(lines, console="/lab/" not in self.file)]
        begins = next((k for k, (_, line) in enumerate(lines) if line.startswith(self.after)), len(lines))
        table = next((k for k in range(begins, len(lines)) if lines[k][1].startswith("|")), len(lines))
        found = []
        for number, line in lines[table + 2 :]:
            if not line.startswith("|"):
                break
            if cells(line)[0].startswith(self.rows):
                found.append((number, line))
        return found

    def figures(self, line: str) -> list[str]:
        if self.columns:
            return [n for c in self.columns for n in NUMBER.findall(cells(line)[c])]
        if line.startswith("| ") and len(cells(line)) == CLAIM:  # of a lab's page: measured, interval
            return NUMBER.findall(" ".join(cells(line)[-3:-1]))
        return NUMBER.findall(SECONDS.sub("", line))

    def names(self, line: str) -> list[str]:
        """By what the same line is found in what was computed: its first cells, or all but its figures."""
        return cells(line)[: self.key] if self.columns else NUMBER.sub("#", SECONDS.sub("", line)).split()


def cells(line: str) -> list[str]:
    """Those of a row of a table, without a date in front."""
    found = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    return found[1:] if DATE.fullmatch(found[0]) else found


def shown(lines: Sequence[tuple[int, str]], *, console: bool) -> Iterator[tuple[int, str]]:
    """What console blocks show of outputs; or rows of a page's tables, up to what says how it was made."""
    inside = not console
    for number, line in lines:
        if console and line.startswith("```"):
            inside = line == "```console"
        elif line == "## How" and not console:
            return
        elif inside and (console or line.startswith("| ")) and not line.startswith("$ "):
            if line.strip() not in ("", "…"):
                yield number, line


def drawn(places: Sequence[Place], count: int, seed: int) -> dict[Place, list[tuple[int, str, int]]]:
    """Of every place the figures that were drawn: the line's number, the line, which of its figures."""
    left = {}
    for place in places:
        if not (found := place.claimed()):
            raise SystemExit(f"{place.file}: no such lines any more: {place.after or 'outputs'}")
        left[place] = [(n, line, k) for n, line in found for k in range(len(place.figures(line)))]
    rng, chosen = random.Random(seed), {place: [] for place in places}
    for _ in range(count):
        if not (rest := [place for place in places if left[place]]):
            break
        place = rng.choice(rest)
        chosen[place].append(left[place].pop(rng.randrange(len(left[place]))))
    return {place: figures for place, figures in chosen.items() if figures}


def computed(place: Place, lines: Sequence[str]) -> dict[int, str]:
    """By the number of each line of the file, the one that says the same of what was computed; in order."""
    rest, found = list(lines), {}
    for number, line in place.claimed():
        at = next((k for k, other in enumerate(rest) if _same(place, line, other)), None)
        if at is not None:
            found[number], rest = rest[at], rest[at + 1 :]
    return found


def _same(place: Place, line: str, other: str) -> bool:
    return bool(place.names(line)) and place.names(line) == place.names(other)


# ------------------------------------------------------------------------------------------- what computes


def said(command: str) -> list[str]:
    """What a command prints, results first; as tests/test_docs.py runs it."""
    from tests.test_docs import run

    _, out, err = run(command)
    return [*out.splitlines(), *err.splitlines()]


def console(file: str) -> list[str]:
    """What the commands of a page print, all in one folder."""
    from tests.test_docs import blocks, steps

    page = ROOT / file
    for name in set(re.findall(r"\(examples/([\w.]+)\)", page.read_text(encoding="utf-8"))):
        shutil.copy(ROOT / "docs" / "examples" / name, name)
    commands = [command for block in blocks(page, "console") for command, _, _ in steps(block)]
    return [line for command in commands for line in said(command)]


def lab(name: str) -> list[str]:
    """The page of an experiment, with the parameters and the seed that its JSON says."""
    from rebasin_cli.lab import registry
    from rebasin_cli.lab.engine import page
    from rebasin_cli.lab.engine.bench import Bench

    made = json.loads((ROOT / "docs" / "lab" / f"{name}.json").read_text(encoding="utf-8"))
    outcome = registry.get(name).run(Bench(made["parameters"], made["seed"]))
    return page.page(made | json.loads(json.dumps(outcome.plain()))).split("\n")


def script(name: str, *arguments: str) -> list[str]:
    """What a script of this folder prints."""
    out, before = io.StringIO(), sys.argv
    sys.argv = [name, *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
    finally:
        sys.argv = before
    return out.getvalue().splitlines()


def planted() -> list[str]:
    """Its columns as the table has them."""
    rows = [line.split() for line in script("planted.py", "mlp", "resnet20", "googlenet")[1:]]
    return [f"| {net} | {count} | {'yes' if exact == 'True' else 'no'} | |" for net, count, exact, *_ in rows]


def symmetries() -> list[str]:
    """log₁₀ of the equivalent weights of every network of the table, by the command beside it."""
    rows = []
    for _, line in SYMMETRIES.claimed():
        name, _, command = cells(line)
        shown_ = " ".join(said(command.strip("`")))
        (value,) = re.findall(r"10\^([\d.]+)", shown_) or ("",)
        rows.append(f"| {name} | {value} | {command} |")
    return rows


def repairs() -> list[str]:
    """Two MLPs 3 × 64 on MNIST, merged with each repair, on the test split."""
    for seed in "01":
        said(f"rebasin train mlp --data mnist --width 64 --seed {seed} -o {seed}.safetensors -q")
    rows = []
    for repair in ("none", "repair", "bias"):
        out = f"{repair}.safetensors"
        said(f"rebasin merge 0.safetensors 1.safetensors --method wm --repair {repair} -o {out} -q")
        told = json.loads("\n".join(said(f"rebasin eval {out} --data mnist --json -q")))
        rows.append(f"| `{repair}` | {told['loss']:.4f}, {told['accuracy']:.4f} | |")
    return rows


def page(file: str, seconds: float, relative: float = 0.1, absolute: float = 0.02) -> Place:
    return Place(file, partial(console, file), seconds, relative, absolute)


def experiment(name: str, seconds: float, relative: float = 0.02, absolute: float = 1e-3) -> Place:
    return Place(f"docs/lab/{name}.md", partial(lab, name), seconds, relative, absolute)


SYMMETRIES = Place("docs/how-it-works.md", symmetries, 5, 0, 0.05, "| network | log₁₀", columns=(1,))
EXACT = ("mlp 3x512", "resnet20 1x", "resnet20 4x")
MUTATED = ("mlp", "vgg11", "tinyten")
PLACES = [
    page("README.md", 10, absolute=0.006),  # of a barrier of 0.03: another processor trains to 0.027
    page("docs/curves.md", 20),
    page("docs/many-models.md", 15),
    SYMMETRIES,
    Place(
        *("docs/repairs.md", repairs, 40, 0.1, 0.005, "Merges of the MLPs of seeds 0 and 1"),
        columns=(1,),
        data=True,
    ),
    experiment("counterexample", 1),
    experiment("hardness", 1),
    experiment("statements", 11),
    experiment("overlap", 1),
    experiment("slerp", 3, 0.05),
    experiment("split-data", 8, 0.05),
    experiment("steepest-descent", 3, 0.05),
    experiment("halves", 15, 0.05),
    Place(
        *("benchmarks/results.md", planted, 10, 0, 0, "`python benchmarks/planted.py`"),
        rows=("mlp", "resnet20", "googlenet"),
        columns=(1,),
    ),
    Place(
        *("benchmarks/results.md", partial(script, "exactness.py", "--rows", ",".join(EXACT)), 15, 0, 0),
        after="The rows of networks without data once more, 2026-11-27",
        rows=tuple(f"{net} {kind}" for net in EXACT for kind in ("independent", "planted")),
        columns=(1, 2, 3),
    ),
    Place(
        *("benchmarks/results.md", partial(script, "regret.py", "rules"), 5, 0, 0, "All 155 cases of"),
        columns=tuple(range(1, 9)),
    ),
    Place(
        *("benchmarks/results.md", partial(script, "mutations.py", "--rows", ",".join(MUTATED)), 10, 0, 0),
        after="`benchmarks/mutations.py`: one axis or tensor",
        rows=MUTATED,
        columns=tuple(range(1, 8)),
    ),
]


# ------------------------------------------------------------------------------------------------------ main


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """In a new folder, 80 columns, one thread, without colour: what the documents show."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "80"
    for variable in ("FORCE_COLOR", "REBASIN_DEBUG"):
        os.environ.pop(variable, None)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        yield
    torch.set_num_threads(before)


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    asked.add_argument("--draw", type=int, default=DRAW)
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--only", default="", help="places whose file holds this text")
    asked.add_argument("--all", action="store_true", help="every figure, in place of a draw")
    options = asked.parse_args()
    places = [place for place in PLACES if options.only in place.file]
    if not os.environ.get("REBASIN_DATA"):
        for place in places:
            if place.data:
                print(f"left out: {place.file}, which needs REBASIN_DATA")
        places = [place for place in places if not place.data]
    chosen = drawn(places, 10**9 if options.all else options.draw, options.seed)
    print("| file | claimed | computed | tolerance | |\n|---|---|---|---|---|")
    wrong = total = 0
    for place, figures in chosen.items():
        began = time.process_time()
        with alone():
            found = computed(place, place.make())
        for number, line, which in sorted(figures):
            claim = place.figures(line)[which]
            now = place.figures(found[number])[which] if number in found else ""
            right = bool(now) and place.near(*(float(n.replace(",", "")) for n in (claim, now)))
            total, wrong = total + 1, wrong + (not right)
            told = f"{place.file}:{number} | {claim} | {now or 'no such line'} | {place.tolerance}"
            print(f"| {told} | {'ok' if right else '**wrong**'} |", flush=True)
        print(f"{place.file}: {time.process_time() - began:.0f} s", file=sys.stderr)
    print(f"\n{total} figures, {wrong} not within their tolerance")
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    sys.exit(main())
