"""How a job ends: the workflow of pull requests, the page's recipe, and one thing that differs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from . import junit
from .runner import ANEW, EXAMPLES, Job, Server, Shell, Signals, cancel, kill, read, terminate

HERE = "org/models"
LOADER = """\
import time
from pathlib import Path

from rebasin_cli.datasets.sets import digits


def load(split):
    {body}
    samples = digits.load(split, None)
    return [(samples.inputs, samples.targets)]
"""
SLOW = 'Path("reached").touch(); time.sleep(120)'
CRASH = 'raise RuntimeError("the disk of samples is gone")'
LOADED = "--set defaults.data=loader.py:load"
OTHER_GATES = "--set steps.path.max_barrier=9 --set 'steps.path.gate=test accuracy >= 0'"
FORK = """\
rebasin: 1
output_dir: out
steps:
  - name: path
    barrier:
      models: [models/a.safetensors, models/b.safetensors]
      net: net.py:build
      data: digits
      report: report
"""


@dataclass(frozen=True)
class Case:
    """One way to end. `change` alters the checkout; `arguments` go to the recipe; `signals` when it runs.

    The job comes after one that passed, whose cache it finds: that of the page, or that of the case `before`;
    or, `anew`, after none. Of `several` at once, in one folder, one that waited tells. With a
    `baseline`, that is the report of the one that passed.
    """

    name: str
    arguments: str = ""
    inputs: Mapping[str, str] = field(default_factory=dict)
    change: Callable[[Path], None] = lambda merge: None
    signals: Callable[[Path], Signals] | None = None
    anew: bool = False
    rebasin: str = ""
    head: str = HERE
    before: Case | None = None
    several: int = 1
    baseline: bool = False


def slow(how: Callable[[Path], Signals]) -> Callable[[Path], Signals]:
    return lambda workspace: how(workspace / "merge" / "reached")


def loader(body: str) -> Callable[[Path], None]:
    return lambda merge: (merge / "loader.py").write_text(LOADER.format(body=body)) and None


def _cut(merge: Path) -> None:
    path = merge / "models" / "b.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _fork(merge: Path) -> None:
    (merge / "recipe.yaml").write_text(FORK)
    (merge / "net.py").write_text('from pathlib import Path\nPath("ran").touch()\n')


def _other(merge: Path) -> None:
    shutil.copy(merge / "models" / "a.safetensors", merge / "models" / "b.safetensors")


def _worse(merge: Path) -> None:
    shutil.copy(merge / "models" / "c.safetensors", merge / "models" / "b.safetensors")


CASES = (
    Case("first run, no baseline yet", anew=True),
    Case("passed again, nothing changed"),
    Case("passed, not worse than the baseline", baseline=True),
    Case("an input is another one", change=_other),
    Case(
        "the loader is another one",
        LOADED,
        change=loader("split = str(split)"),
        before=Case("", LOADED, change=loader("pass")),
    ),
    Case("two jobs at once in one folder", inputs={"cache": "false"}, anew=True, several=2),
    Case("a gate is not met", "--set 'steps.path.gate=test accuracy >= 1'"),
    Case("worse than the baseline", OTHER_GATES, change=_worse, baseline=True),
    Case("the recipe is wrong", "--set steps.path.max_barier=1"),
    Case("a checkpoint is cut off", change=_cut),
    Case("the loader crashes", LOADED, change=loader(CRASH)),
    Case("the loader calls `sys.exit(0)`", LOADED, change=loader("raise SystemExit(0)")),
    Case("out of its own time", LOADED, {"time-limit": "30s"}, loader(SLOW)),
    Case("cancelled, or out of the job's time", LOADED, {}, loader(SLOW), slow(cancel)),
    Case("SIGTERM", LOADED, {}, loader(SLOW), slow(terminate)),
    Case("`kill -9`, as without memory", LOADED, {}, loader(SLOW), slow(kill)),
    Case("a fork's recipe, of models alone", anew=True, head="stranger/models"),
    Case("a fork's recipe that runs code", change=_fork, anew=True, head="stranger/models"),
    Case("the installation is broken", rebasin="broken"),
)


def checkout(place: Path, models: Path) -> Path:
    """A repository with the page's recipe and two models."""
    merge = place / "merge"
    shutil.copytree(models, merge / "models")
    shutil.copy(EXAMPLES / "gated.yaml", merge / "recipe.yaml")
    return place


def event(head: str = HERE) -> dict:
    return {"pull_request": {"number": "7", "head": {"repo": {"full_name": head}}}}


def workflow(name: str = "github.yml", job: str = "merge") -> dict:
    return read(EXAMPLES / name)["jobs"][job]


def play(case: Case, home: Path, repository: Path, passed: Server | None, rebasin: str = ANEW) -> Job:
    """The job of this case, run to its end, on a server of its own.

    `rebasin` is the shell line that runs it; where the process is what the case is about, it begins anew.
    """
    place = home / "repository"
    shutil.copytree(repository, place)
    server = Server(Shell(home, ANEW if case.signals or case.rebasin else rebasin), place)
    if case.before is not None:
        case.before.change(place / "merge")
        assert server.job(workflow(), **_asked(case.before)).status == "success"
    elif passed is not None and not case.anew:
        server.caches, server.runs = dict(passed.caches), passed.runs
    server.artifacts.clear()
    if case.rebasin == "broken":
        broken(server.shell)
    if case.baseline:
        assert passed is not None
        shutil.copy(passed.artifacts["reports"] / "out/report/report.json", place / "merge/baseline.json")
    case.change(place / "merge")
    if case.several > 1:
        jobs = server.jobs(workflow(), case.several, **_asked(case))
        assert [job.status for job in jobs] == ["success"] * len(jobs), [job.log for job in jobs]
        return max(jobs, key=lambda job: "unchanged" in steps(job.outputs["result"]))
    return server.job(workflow(), **_asked(case))


def _asked(case: Case) -> dict[str, Any]:
    inputs = {"arguments": f"--set defaults.seed=0 {case.arguments}", **case.inputs}
    return {"inputs": inputs, "event": event(case.head), "signals": case.signals}


def broken(shell: Shell) -> None:
    """An installation whose PyTorch fails on import."""
    package = shell.home / "broken" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text('raise ImportError("libtorch.so: cannot open shared object file")\n')
    shell.program(
        "rebasin", f'#!/bin/sh\nexport PYTHONPATH="{package.parent}:$PYTHONPATH"\n{shell.rebasin}\n'
    )


# ------------------------------------------------------------------------------------- rows of the page

COLUMNS = ("what happened", "exit code", "JUnit", "steps", "weights", "uploaded", "cache")


def row(case: Case, job: Job) -> dict[str, str]:
    """What a job left, a cell a column."""
    merge = job.workspace / "merge"
    weights = sorted(
        {path.parent.relative_to(merge).as_posix() for path in merge.glob("out/**/*.safetensors")}
    )
    return {
        "what happened": case.name,
        "exit code": code(job),
        "JUnit": junit.told(job.outputs["junit"]),
        "steps": steps(job.outputs["result"]),
        "weights": ", ".join(f"`{place}/`" for place in weights) or "none",
        "uploaded": ", ".join(f"`{name}`" for name in job.server.artifacts) or "nothing",
        "cache": "kept" if any("Keep what steps" in name for name in job.ran) else "as it was",
    }


def code(job: Job) -> str:
    """As shells tell it: 137 for one that was killed."""
    return str(job.code if job.code >= 0 else 128 - job.code)


def steps(result: str) -> str:
    """What became of the steps: `3 done, 1 failed`."""
    if not result:
        return "no JSON"
    found = [step["status"] for step in json.loads(Path(result).read_text()).get("steps", [])]
    return ", ".join(f"{len(list(some))} {status}" for status, some in groupby(found)) or "none began"


def log(job: Job) -> list[str]:
    """The last ten lines of what the run said."""
    said = job.said.replace(str(job.temp), "/home/runner/temp").replace(
        str(job.workspace), "/home/runner/work"
    )
    said = re.sub(r"/\S+/python[\d.]*", "/usr/bin/python3", said)
    return [line.rstrip() for line in said.rstrip("\n").splitlines()[-10:]]
