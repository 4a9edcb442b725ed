"""Ten jobs at once: what they leave in one folder, under one name, and of one recipe with one cache."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rebasin_cli.checkpoints.checkpoint import open_checkpoint

from . import crashing
from .cases import hidden, outputs

JOBS = 10


def at_once(folder: Path, commands: Sequence[tuple[str, ...]]) -> list[tuple[int, str]]:
    """Exit code and stderr of each, all started before any has ended."""
    children = []
    for k, arguments in enumerate(commands):
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.chdir(folder)
                for descriptor in (1, 2):
                    with open(folder.parent / f"{folder.name}-{k}.{descriptor}", "wb") as log:
                        os.dup2(log.fileno(), descriptor)
                code = crashing.command(*arguments)()
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    logs = [folder.parent / f"{folder.name}-{k}.2" for k in range(len(commands))]
    return [(code, log.read_text(errors="replace")) for code, log in zip(codes, logs, strict=True)]


def into_one_folder(made: Path, folder: Path) -> list[str]:
    """Each job its own output; the problems."""
    shutil.copytree(made, folder)
    commands = [
        ("align", "a.safetensors", "b.safetensors", "-o", f"out{k}.safetensors", "--no-prove")
        + ("--out-shard-size", "2kB") * (k % 2)
        for k in range(JOBS)
    ]
    problems = []
    for k, (code, said) in enumerate(at_once(folder, commands)):
        if code or "removed" in said:
            problems.append(f"job {k}: exit code {code}: {said}")
    digests = {
        open_checkpoint(next(folder.glob(f"out{k}.safetensors*"))).digest()
        for k in range(JOBS)
        if list(folder.glob(f"out{k}.safetensors*"))
    }
    if len(digests) > 1 or hidden(folder):
        problems.append(f"{len(digests)} results of one search, {hidden(folder)} left behind")
    return problems


def into_one_output(made: Path, folder: Path) -> list[str]:
    """All jobs one output in several shards, each with its own weights: in the end it is one job's, whole."""
    shutil.copytree(made, folder)
    shards = ("--out-shard-size", "2kB", "--force", "-o")
    weights = [f"{k / 20},{1 - k / 20}" for k in range(JOBS)]
    merge = ("merge", "a.safetensors", "b.safetensors", "--method", "none", "--no-prove", "--weights")
    ended = at_once(folder, [(*merge, weight, *shards, "out.safetensors") for weight in weights])
    problems = [f"job {k}: exit code {code}: {said}" for k, (code, said) in enumerate(ended) if code]
    found = open_checkpoint(folder / "out.safetensors.index.json").digest()
    alone = folder.with_name(f"{folder.name} alone")
    shutil.copytree(made, alone)
    digests = []
    for k, weight in enumerate(weights):
        at_once(alone, [(*merge, weight, *shards, f"{k}.safetensors")])
        digests.append(open_checkpoint(alone / f"{k}.safetensors.index.json").digest())
    if found not in digests or len(set(digests)) != JOBS:
        problems.append("the output is a mixture of several jobs'")
    if hidden(folder):
        problems.append(f"left behind: {hidden(folder)}")
    return problems


def into_one_cache(made: Path, folder: Path) -> list[str]:
    """All jobs one recipe: one does a step, the others find it done; the files are those of one job alone."""
    shutil.copytree(made, folder)
    problems = [
        f"job {k}: exit code {code}: {said}"
        for k, (code, said) in enumerate(at_once(folder, [("run", "recipe.yaml", "--json")] * JOBS))
        if code
    ]
    found = outputs(folder)
    did = [(folder.parent / f"{folder.name}-{k}.1").read_text() for k in range(JOBS)]
    by_step = [[step["status"] for step in json.loads(told)["steps"]] for told in did if told]
    for statuses in zip(*by_step, strict=True):
        if statuses.count("done") != 1 or statuses.count("unchanged") != JOBS - 1:
            problems.append(f"a step was done {statuses.count('done')} times")
    shutil.rmtree(folder)
    shutil.copytree(made, folder)  # at the same path, which the statement names
    at_once(folder, [("run", "recipe.yaml")])
    alone = outputs(folder)
    differing = [name for name in alone.keys() | found.keys() if alone.get(name) != found.get(name)]
    if differing or hidden(folder):
        problems.append(f"other than alone: {differing}; left behind: {hidden(folder)}")
    return problems
