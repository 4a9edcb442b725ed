"""Commands that write files, and what may be there after they were killed at any moment."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rebasin_cli.checkpoints.writer import write_safetensors
from tests.cli.conftest import fresh, rebasin

from . import crashing
from .crashing import Ended, Fault


@dataclass(frozen=True)
class Case:
    """`arguments` of a command that writes files beginning with "out", over an older output or none.

    `older` are arguments that made what lies there already. What is named in `later` is written after the
    rest is done, and may be missing. `anew`: git gives a merge driver its own file afresh every time.
    """

    arguments: tuple[str, ...]
    older: tuple[str, ...] | None = None
    later: tuple[str, ...] = ()
    anew: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether an interrupted search is taken up by --resume; a recipe does so by itself."""
        return self.arguments[0] != "run"


KEPT = (".search.safetensors", ".training.pt", ".log.jsonl")  # of what was interrupted
# Reports of two runs differ in these, and so do statements on such a report; JUnit tells which steps
# this very run has done.
TIMES = re.compile(
    rb'"times": \{[^}]*\}|time="[^"]*"|took(?:</dt><dd>|:)? ?[^<\n]*|"name": "out/j",\s*"digest": [^}]*'
    rb"|(?<=<system-out>)(done|unchanged)(?=;)"
)
PAIR = ("a.safetensors", "b.safetensors", "-o", "out.safetensors", "--force", "--no-prove")
TURNED = ("b.safetensors", "a.safetensors", "-o", "out.safetensors", "--no-prove")
SHARDS = ("--out-shard-size", "2kB")
DIGITS = ("--data", "digits", "--limit", "64")
REPORT = (*DIGITS, "--points", "3", "--skip-checks", "--no-prove", "--method", "none")
REPORT += ("--report", "out", "--force")
FACTORS = {"A": (2, 12), "B": (12, 2)}
DRIVER = ("merge-driver", "base.safetensors", "out.safetensors", "b.safetensors", "--both", "average")
STEPS = """
defaults: {seed: 0, no_prove: true}
output_dir: out
inputs: {first: a.safetensors, second: b.safetensors}
steps:
  - align: {models: [first, second], checkpoint_every: 1}
  - name: mean
    merge: {models: [first, align], method: none, weights: [0.5, 0.5]}
  - name: judged
    barrier: {models: [first, align], data: digits, limit: 64, method: none, points: 3, json_file: j,
             skip_checks: true}
junit: gates.xml
attest: run.intoto.json
"""
CASES = {
    "align": Case(("align", *PAIR)),
    "align over an older one": Case(("align", *PAIR), ("align", *TURNED)),
    "align to shards over shards": Case(("align", *PAIR, *SHARDS), ("align", *TURNED, *SHARDS)),
    "align to one file over shards": Case(("align", *PAIR), ("align", *TURNED, *SHARDS)),
    "align to a file of torch over an older one": Case(
        ("align", *PAIR[:2], "-o", "out.pth", *PAIR[4:]),
        ("align", *TURNED[:2], "-o", "out.pth", "--no-prove"),
    ),
    "merge": Case(("merge", *PAIR)),
    "merge to shards over one file": Case(("merge", *PAIR, *SHARDS), ("merge", *TURNED)),
    "merge with a statement": Case(
        ("merge", *PAIR, "--attest", "out.intoto.json"), later=("out.intoto.json",)
    ),
    "mean of folders": Case(
        ("merge", "one", "other", "--method", "none", "--copy-files", "-o", "out/", "--force"),
        ("merge", "other", "one", "--method", "none", "--weights", "0.3,0.7", "-o", "out/"),
    ),
    "mean of folders into a new one": Case(
        ("merge", "one", "other", "--method", "none", "--copy-files", "-o", "out/", "--force")
    ),
    "mean of adapters": Case(("average", "x", "y", "-o", "out/", "--force")),
    "mean of adapters over an older one": Case(
        ("average", "x", "y", "-o", "out/", "--force"), ("average", "x", "-o", "out/")
    ),
    "base with a mean of adapters": Case(
        ("average", "x", "y", "--base", "a.safetensors", "-o", "out.safetensors", "--force"),
        ("average", "x", "--base", "a.safetensors", "-o", "out.safetensors"),
    ),
    "apply": Case(
        ("apply", "p.perm.safetensors", "b.safetensors", "-o", "out.safetensors", "--force"),
        ("merge", *TURNED),
    ),
    "align that keeps every sweep": Case(("align", *PAIR, "--checkpoint-every", "1")),
    "ste-mm that keeps every step": Case(
        ("merge", *PAIR, "--method", "ste-mm", *DIGITS, "--checkpoint-every", "1", "--epochs", "2")
        + ("--log", "out.log.jsonl")
    ),
    "train": Case(
        ("train", "mlp", "--data", "digits", "--width", "4", "--depth", "1", "--epochs", "2")
        + ("--limit", "64", "-o", "out.safetensors", "--force")
    ),
    "barrier": Case(("barrier", "a.safetensors", "b.safetensors", *REPORT)),
    "barrier over an older report": Case(
        ("barrier", "a.safetensors", "b.safetensors", *REPORT),
        ("barrier", "b.safetensors", "a.safetensors", *REPORT),
    ),
    "compare": Case(("compare", "a.safetensors", "b.safetensors", *REPORT)),
    "card": Case(
        ("card", "m.safetensors", "-o", "out.md", "--license", "mit", "--force"),
        ("card", "m.safetensors", "-o", "out.md"),
    ),
    "merge-driver": Case(DRIVER, ("merge", *TURNED), anew=True),
    "run": Case(("run", "recipe.yaml")),
    "run over another recipe's": Case(
        ("run", "recipe.yaml"), ("run", "recipe.yaml", "--set", "steps.mean.weights=[0.3,0.7]")
    ),
}


def inputs(folder: Path) -> Path:
    """Two models and a permutation, which no case changes."""
    folder.mkdir(parents=True)
    for k, name in enumerate("ab"):
        fresh(folder / f"{name}.safetensors", seed=k, width=12, depth=2)
    a, b = folder / "a.safetensors", folder / "b.safetensors"
    # In this process, not in a child: what it imports now no child has to.
    for command, out in (("align", "p"), ("merge", "m")):
        done = rebasin(command, a, b, "-o", folder / f"{out}.safetensors", "--no-prove")
        assert done.code == 0, done.err
    shutil.copy(a, folder / "base.safetensors")
    for name, model in (("one", a), ("other", b)):
        out = folder / name / "model.safetensors"
        out.parent.mkdir()
        (out.parent / "config.json").write_text('{"torch_dtype": "float32"}')
        done = rebasin("merge", model, model, "--method", "none", "-o", out, *SHARDS)
        assert done.code == 0, done.err
    for name, seed in (("x", 0), ("y", 1)):
        _adapter(folder / name, torch.Generator().manual_seed(seed))
    (folder / "recipe.yaml").write_text(STEPS)
    return folder


def _adapter(folder: Path, rng: torch.Generator) -> None:
    folder.mkdir()
    stem = "base_model.model.layers.1"
    factors = {f"{stem}.lora_{w}.weight": torch.randn(shape, generator=rng) for w, shape in FACTORS.items()}
    write_safetensors(folder / "adapter_model.safetensors", factors)
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["layers.1"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def run(folder: Path, arguments: tuple[str, ...], fault: Fault | None = None) -> Ended:
    """One command in the folder, in a child."""

    def body() -> int:
        os.chdir(folder)
        return crashing.command(*arguments)()

    return crashing.run(body, fault or Fault(0), str(folder) + ".log")


def outputs(folder: Path) -> dict[str, bytes]:
    """What lies under final names, without the times in reports."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name[:9] != ".rebasin-"]
    texts = ("", ".json", ".html", ".md", ".xml")
    return {
        name: TIMES.sub(b"", path.read_bytes()) if path.suffix in texts else path.read_bytes()
        for path in found
        if (name := path.relative_to(folder).as_posix()).startswith("out")
    }


def hidden(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(".rebasin-*"))


@dataclass(frozen=True)
class Known:
    """A case that went well: what was there before and after, and how many operations and seconds it took.

    Every run is in the folder `here`: a recipe's cache knows files by their paths.
    """

    start: Path
    here: Path
    old: dict[str, bytes]
    new: dict[str, bytes]
    operations: int
    seconds: float


def _import_for(case: Case, made: Path, folder: Path) -> None:
    """Run it in this process, for its imports: no child has to do them then."""
    if {"barrier", "compare", "train", "run"}.isdisjoint(case.arguments) and "ste-mm" not in case.arguments:
        return
    with _begun(made, folder), chdir(folder):
        done = rebasin(*case.arguments)
        assert done.code == 0, done.err


def known(case: Case, made: Path, place: Path) -> Known:
    start, here = place / "start", place / "here"
    _import_for(case, made, here)
    shutil.copytree(made, here)
    if case.older:
        ended = run(here, case.older)
        assert ended.code == 0, ended.said
    here.rename(start)
    with _begun(start, here):
        began = time.monotonic()
        ended = run(here, case.arguments)
        seconds = time.monotonic() - began
        assert ended.code == 0 and not hidden(here), ended.said
        return Known(start, here, outputs(start), outputs(here), ended.operations, seconds)


@contextmanager
def _begun(start: Path, here: Path) -> Iterator[None]:
    shutil.copytree(start, here)
    try:
        yield
    finally:
        shutil.rmtree(here)


def problem_after(case: Case, of: Known, fault: Fault) -> str | None:
    """What is wrong with what is left by a command that is disturbed, or None."""
    with _begun(of.start, of.here):
        ended = run(of.here, case.arguments, fault)
        judge = {crashing.INTERRUPT: _interrupted, **dict.fromkeys(crashing.FAULTS, _failed)}.get(
            fault.how, _killed
        )
        found = _left(case, of) or judge(case, of, fault, ended)
        return found or _next(case, of)


def problem_after_seconds(case: Case, of: Known, seconds: float) -> str | None:
    """The same of a process that is killed after that time, wherever it is then."""
    with _begun(of.start, of.here):
        child = os.fork()
        if child == 0:
            try:
                os.chdir(of.here)
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, 1)
                os.dup2(nowhere, 2)
                crashing.command(*case.arguments)()
            finally:
                os._exit(0)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return _left(case, of) or _next(case, of)


def _left(case: Case, of: Known) -> str | None:
    for name, content in outputs(of.here).items():
        if name == "out/gates.xml" and content.endswith(b"</testsuites>\n"):
            continue  # it may tell that a step failed
        place = name.replace("out/not-passed/", "out/")  # of what has not passed, or is of an earlier run
        if not name.endswith(KEPT) and content not in (of.old.get(place), of.new.get(place)):
            return f"{name} is neither the old file nor the new one"
    return None


def _killed(case: Case, of: Known, fault: Fault, ended: Ended) -> str | None:
    return None if ended.code in (-9, 0) else f"exit code {ended.code}: {ended.said}"


def _interrupted(case: Case, of: Known, fault: Fault, ended: Ended) -> str | None:
    """A process that may say goodbye leaves nothing behind but a search that --resume takes up."""
    if ended.code not in (130, 0) or "Traceback" in ended.said:
        return f"exit code {ended.code}: {ended.said}"
    return f"left behind: {hidden(of.here)}" if hidden(of.here) else None


def _failed(case: Case, of: Known, fault: Fault, ended: Ended) -> str | None:
    """What a disk that failed must not leave: two outputs mixed, or a message that says nothing."""
    if ended.code not in (0, 5) or "Traceback" in ended.said:
        return f"exit code {ended.code}: {ended.said}"

    def counted(files: dict[str, bytes]) -> dict[str, bytes]:
        return {name: files[name] for name in files if not name.endswith(KEPT) and name not in case.later}

    kept = counted(outputs(of.here))
    settled = not any(name.endswith((".redo", ".undo")) for name in hidden(of.here))
    steps = case.arguments[0] == "run"  # each of its steps writes all or nothing
    if settled and ended.code and not steps and kept not in (counted(of.old), counted(of.new)):
        return "old and new files are mixed"
    if not settled and (not fault.lasting or "brings this to its end" not in ended.said):
        return f"left to the next run: {ended.said}"
    if ended.code and hidden(of.here) and not fault.lasting:
        return f"left behind: {hidden(of.here)}"
    return None


def _next(case: Case, of: Known) -> str | None:
    """What is wrong with the next run: an exit code, other bytes, or something left."""
    left = outputs(of.here)
    if case.anew:
        shutil.copy(of.start / "out.safetensors", of.here)
    resumed = [name for name in left if name.endswith(KEPT[:2])]
    # A journal that is to be finished is an output that is there.
    there = of.new.keys() & left.keys() - {"out.log.jsonl"} or [
        n for n in hidden(of.here) if n.endswith(".redo")
    ]
    if resumed and case.goes_on and not there:
        line = [a for a in case.arguments if case.older or a != "--force"]
        again = run(of.here, (*line, "--resume"))
        if "no search is kept" in again.said:
            return again.said
    else:
        again = run(of.here, case.arguments)
    if again.code:
        return f"the next run ends with {again.code}: {again.said}"
    if outputs(of.here) != of.new:
        return f"the next run leaves {sorted(outputs(of.here))}, or other bytes in them"
    if hidden(of.here):
        return f"the next run leaves {hidden(of.here)}"
    return None
