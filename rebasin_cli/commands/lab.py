"""`rebasin lab` on files: experiments listed, shown and run; a page, a picture and JSON of each."""

from __future__ import annotations

import datetime
import inspect
import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints import destination, writer
from ..errors import UsageError
from ..lab import registry
from ..lab.engine import page, parameters
from ..registry.options import MAY_RUN, PLAIN, TRUSTS, WRITES, again, argument, option
from ..registry.results import Result
from ..reports import pictures
from ..runtime import files
from ..runtime.files import NOTHING
from ..runtime.threads import on_one_thread
from ..session.listener import SILENT, Listener
from ..session.outcomes import Answer, Screen, Weights
from ..session.subjects import DataSet, Running
from .verbs import outputs, report_files

SCHEMA = "rebasin.lab/1"
ALL = "all"
INDEX = "README.md"
STATE = ".state.json"
SHOWN = ("claims", "times", "title", "paper", "name", "threads", "faster", "command", "date", "scale")
# What two runs must agree in for --resume to take one for the other.
IDENTITY = ("experiment", "scale", "seed", "parameters", "versions")


GROUP = "The papers' experiments: each claim confirmed, refuted or undecided, by its 95 % interval."
PANEL = "Measure"


@dataclass(frozen=True, kw_only=True)
class List:
    """List the experiments, those of other packages included, with the papers that they are about.

    Example: rebasin lab list
    """

    json: bool = Answer.json


@dataclass(frozen=True)
class ListResult(Result):
    """Every experiment's "name", "title" and "paper", with the minutes of both scales."""

    experiments: list[dict[str, Any]]


def list_(asked: List, listener: Listener = SILENT) -> ListResult:
    """The experiments in this package and in others."""
    found = []
    for name in registry.names():
        told = {"name": name, "title": registry.summary(name), "paper": registry.constant(name, "PAPER")}
        found.append(told | {"minutes": dict(_declared(name).minutes)})
    return ListResult(found)


@dataclass(frozen=True, kw_only=True)
class Show:
    """Show what an experiment does and its parameters, each at both scales.

    Example: rebasin lab show teacher-barrier
    """

    name: str = argument("NAME", "An experiment (`rebasin lab list`).", role=PLAIN)
    json: bool = Answer.json


@dataclass(frozen=True)
class ShowResult(Result):
    """What an experiment is about, its minutes by scale, its parameters with both scales.

    `faster` says what was left out at the small scale.
    """

    name: str
    title: str
    paper: str
    about: str
    minutes: Mapping[str, float]
    parameters: list[dict[str, Any]]
    faster: str


def show(asked: Show, listener: Listener = SILENT) -> ShowResult:
    """What one experiment does. Raises UsageError for a name that is none."""
    module, declared = registry.get(asked.name), _declared(asked.name)
    rows = [
        {"name": p.name, "type": p.kind, "small": p.small, "full": p.full, "help": p.option.help}
        | ({"choices": list(p.option.choices)} if p.option.choices else {})
        for p in declared.parameters
    ]
    title, about = _told(module)
    return ShowResult(asked.name, title, module.PAPER, about, dict(declared.minutes), rows, module.FASTER)


@dataclass(frozen=True, kw_only=True)
class Run(Screen):
    """Run an experiment, or all of them, and write a page, a picture and JSON of each.

    A claim that is refuted is a result: the exit code is 0.

    Example: rebasin lab run overlap --set teachers=5,10
    """

    name: str = argument("NAME", "An experiment, or all.", role=PLAIN)
    scale: str = option("small", "small: within minutes; full: the paper's own numbers.", role=PLAIN)
    assign: tuple[str, ...] = option(
        (),
        "Another value of a parameter (`rebasin lab show NAME`), lists with commas; repeatable.",
        flag="--set",
        metavar="KEY=VALUE",
        role=MAY_RUN,
    )
    out: Path = option(
        Path("lab"),
        "Where NAME.md, NAME.png, NAME.json go.",
        also=("-o",),
        metavar="FOLDER",
        role=WRITES,
    )
    data_root: Path | None = DataSet.data_root
    seed: int = again(Running.seed, 0, help="Of all that is drawn.", panel="")
    resume: bool = option(False, "Keep what is there, go on with what was interrupted.", role=TRUSTS)
    force: bool = Weights.force
    dry_run: bool = Answer.dry_run
    json: bool = Answer.json


@dataclass(frozen=True)
class RunResult(Result):
    """Of each experiment its title, its claims with their verdicts, and what was written; or the plan."""

    experiments: list[dict[str, Any]]


def run(asked: Run, listener: Listener = SILENT) -> RunResult:
    """Run an experiment, or `all`; what was made of each, also in files: NAME.md, NAME.png and NAME.json.

    `all` leaves README.md too, with the claims of all. With --resume what is there already is taken as it is,
    and an experiment that was interrupted goes on after its last finished part. Raises UsageError, and
    OutputExists before anything is run.
    """
    names = registry.names() if asked.name == ALL else [asked.name]
    if asked.name == ALL and asked.assign:
        raise UsageError("--set is for one experiment, not for all", hint="rebasin lab run NAME --set …")
    plans = [_plan(each, asked) for each in names]
    _check(plans, asked, index=asked.name == ALL)
    if asked.dry_run:
        return RunResult(plans)
    made = []
    before = [_done(plan, asked) if asked.resume else None for plan in plans]  # refused before any work
    for number, (plan, done) in enumerate(zip(plans, before, strict=True), start=1):
        if done is None:
            length = f"about {plan['minutes']:g} minutes"
            listener.say(f"{plan['experiment']} ({number} of {len(plans)}, {length})")
            done = _run(plan, asked, listener)
        made.append(done)
    if asked.name == ALL:
        minutes = {each: _declared(each).minutes["full"] for each in names}
        text = page.index(made, HEAD, minutes=minutes, others=_others(asked.out))
        head = (asked.out / INDEX, text)
        report_files.write_files([head], force=True)
        made[-1]["written"].append(str(head[0]))
    return RunResult(made)


HEAD = """\
# The lab

What four papers claim of merging models, run and measured: `rebasin lab run all` writes these pages.
A claim is *confirmed* where the whole 95 % interval of the number lies within what the paper says, *refuted*
where none of it does, and *undecided* otherwise. `exact`: without an interval, since the number is
computed, or all runs gave the same, or it is of this one set of draws alone.

A verdict is about what was run. At the small scale that is narrow networks on the 1,437 training samples of
`digits`: a claim on trained networks that is refuted there may hold at the paper's own scale, which is
`--scale full`. What is computed of formulas does not depend on that. Pages in folders below this one are of
other runs, made with `--out`: `mnist/` at the paper's data as far as two cores go, `full/` at the full scale.
What keeps the rest from it are hours,
[reckoned from measured parts](../../benchmarks/results.md#hours-of-the-lab).
"""


def _plan(name: str, asked: Run) -> dict[str, Any]:
    """What identifies a run, and about how long it takes."""
    declared = _declared(name)
    values = declared.values(asked.scale, asked.assign)
    told = {"experiment": name, "scale": asked.scale, "seed": asked.seed, "parameters": values}
    return told | {"versions": _versions(), "minutes": declared.minutes[asked.scale]}


def _check(plans: Sequence[Mapping[str, Any]], asked: Run, *, index: bool) -> None:
    """Whether all that is going to be written may be, before any work."""
    again = asked.force or asked.resume
    pages = [path for plan in plans for path in _files(plan["experiment"], asked.out).values()]
    named = [(path.suffix, path) for path in pages] + [(INDEX, asked.out / INDEX)] * index
    report_files.check_files(named, NOTHING, folder=asked.out, force=again)
    for plan in plans:
        outputs.check_state(_state(plan["experiment"], asked.out), "experiment", NOTHING, again=again)


def _files(name: str, folder: Path) -> dict[str, Path]:
    return {kind: folder / f"{name}.{kind}" for kind in ("md", "png", "json")}


def _state(name: str, folder: Path) -> Path:
    return folder / f"{name}{STATE}"


def _done(plan: Mapping[str, Any], asked: Run) -> dict[str, Any] | None:
    """What this very run has made already, from its file. Raises UsageError where another run made it."""
    files = _files(plan["experiment"], asked.out)
    if not all(path.exists() for path in files.values()):
        return None
    found = _read(files["json"], *SHOWN)
    if differs := _differences(found, plan):
        if asked.force:
            return None
        raise UsageError(
            f"{files['json']} is from another run",
            problems=differs,
            hint="Choose another folder with --out, or let it be replaced with --force",
        )
    return found | {"written": []}


def _run(plan: Mapping[str, Any], asked: Run, listener: Listener) -> dict[str, Any]:
    from ..lab.engine.bench import Bench

    name, began = plan["experiment"], time.monotonic()
    module, state = registry.get(name), _state(name, asked.out)
    known, before = _kept(plan, state, asked)

    def keep(parts: Mapping[str, Any]) -> None:
        told = {key: plan[key] for key in IDENTITY}
        told |= {"parts": parts, "seconds": before + time.monotonic() - began}
        destination.make_folder(state.parent)
        writer.write_text_atomic(state, json.dumps(told, allow_nan=False), force=True)

    def step(task: str, done: int, total: int | None, detail: str) -> None:
        listener.step(f"{name}: {task}", done, total, detail)

    bench = Bench(plan["parameters"], plan["seed"], asked.data_root, step, known, keep)
    try:
        with on_one_thread():  # systems this small are slower on two, and sums would have other last bits
            outcome = module.run(bench)
    except KeyboardInterrupt:
        if state.exists():
            listener.say(f"stopped; finished parts are kept in {state}: go on with --resume")
        raise
    title, about = _told(module)
    made = {"schema": SCHEMA, "name": name} | {key: plan[key] for key in IDENTITY}
    made |= {"title": title, "paper": module.PAPER, "about": about, "faster": module.FASTER}
    made |= {"command": _line(plan), "threads": 1} | outcome.plain()
    made |= {"date": datetime.date.today().isoformat()}
    made |= {"times": {"seconds": round(before + time.monotonic() - began, 1)}}
    made = dict(_finite(made))
    files = _files(name, asked.out)
    told = page.document(made, outcome.panels)
    rendered: dict[str, str | bytes] = {"md": page.page(made), "png": pictures.png(told)}
    rendered["json"] = json.dumps(made, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    report_files.write_files([(files[kind], text) for kind, text in rendered.items()], force=True)
    state.unlink(missing_ok=True)
    return made | {"written": [str(path) for path in files.values()]}


def _kept(plan: Mapping[str, Any], state: Path, asked: Run) -> tuple[dict[str, Any], float]:
    """Finished parts of an earlier run, and the seconds they took. Raises UsageError where it was another."""
    if not asked.resume or not state.exists():
        return {}, 0.0
    found = _read(state, "parts", "seconds")
    if differs := _differences(found, plan):
        raise UsageError(
            f"{state} is from another run",
            problems=differs,
            hint="Repeat its options to go on, or start anew with --force",
        )
    return dict(found["parts"]), float(found["seconds"])


def _read(path: Path, *more: str) -> dict[str, Any]:
    with suppress(ValueError, OSError, RecursionError):
        found = json.loads(files.content(path))
        if isinstance(found, dict) and {*IDENTITY, *more} <= set(found):
            return found
    raise UsageError(f"{path} is not what an experiment leaves", hint="Choose another folder with --out")


def _others(folder: Path) -> dict[str, dict[str, Any]]:
    """Runs that lie in folders below, such as those of another scale, by their pages: mnist/width."""
    found = {}
    for path in sorted(folder.glob("*/*.json")):
        if path.with_suffix(".md").exists() and not path.name.endswith(STATE):
            found[f"{path.parent.name}/{path.stem}"] = _read(path, *SHOWN)
    return found


def _differences(found: Mapping[str, Any], plan: Mapping[str, Any]) -> list[str]:
    return [f"{key}: {found[key]}, now {plan[key]}" for key in IDENTITY if found[key] != plan[key]]


def _declared(name: str) -> parameters.Declared:
    file = inspect.getfile(registry.get(name))
    return parameters.declared(Path(file).with_suffix(".yaml"))


def _told(module: Any) -> tuple[str, str]:
    """The title and the text of an experiment, from its docstring."""
    title, _, about = (inspect.getdoc(module) or "").partition("\n")
    return title.rstrip("."), " ".join(about.split())


def _versions() -> dict[str, str]:
    import platform

    import torch

    from ..version import version

    return {"rebasin": version(), "torch": torch.__version__, "python": platform.python_version()}


def _line(plan: Mapping[str, Any]) -> str:
    values, known = plan["parameters"], _declared(plan["experiment"]).values(plan["scale"])
    changed = [name for name in values if values[name] != known[name]]
    texts = [",".join(map(str, v)) if isinstance(v, list) else str(v) for v in map(values.get, changed)]
    sets = "".join(f" --set {name}={text}" for name, text in zip(changed, texts, strict=True))
    seed = f" --seed {plan['seed']}" if plan["seed"] else ""
    return f"rebasin lab run {plan['experiment']} --scale {plan['scale']}{seed}{sets}"


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: there is no such number."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
