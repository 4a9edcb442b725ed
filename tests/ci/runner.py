"""A server that plays jobs: GitHub's, with its cache, its artefacts and its signals, and plain shell lines.

Lines run as the server runs them: in a bare environment, without a terminal, in a process of their own that
alone gets the signals of a job that is cancelled. `pip` and `gh` write down what they were called with, and
do nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .expressions import Context

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
ACTION = ROOT / ".github" / "actions" / "rebasin" / "action.yml"
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
CALLED = '#!/bin/sh\nprintf "%s\\n" "$0 $*" >> "{calls}"\n'
ANEW = f'exec {sys.executable} -P -m rebasin_cli "$@"'  # an interpreter of its own
INTERRUPTED, KILLED = 7.5, 2.5  # seconds that GitHub waits after SIGINT, and then after SIGTERM


def read(path: Path) -> Any:
    """A YAML file as its server reads it: `on` is a word, and so is every value."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


@dataclass(frozen=True)
class Signals:
    """What a job's processes get once `reached` is there: signals, and the seconds to wait after each."""

    reached: Path
    sent: Sequence[tuple[int, float]]


def cancel(reached: Path) -> Signals:
    """As GitHub does it, also where a job's time is up."""
    return Signals(reached, ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, KILLED), (signal.SIGKILL, 60.0)))


def terminate(reached: Path) -> Signals:
    """As GitLab, systemd, containers and batch systems do it."""
    return Signals(reached, ((signal.SIGTERM, 10.0), (signal.SIGKILL, 60.0)))


def kill(reached: Path) -> Signals:
    """As a machine without memory does it."""
    return Signals(reached, ((signal.SIGKILL, 60.0),))


@dataclass
class Shell:
    """Where lines run: a folder with programs of its own before all others, and a bare environment."""

    home: Path
    rebasin: str = ANEW

    def __post_init__(self) -> None:
        self.bin, self.calls = self.home / "bin", self.home / "calls"
        self.bin.mkdir(parents=True)
        called = CALLED.format(calls=self.calls)
        pip = f'case "$*" in *"-m pip "*)\n{called[10:]}exit 0 ;; esac\n'
        self.program("pip", called)
        self.program("gh", called)
        self.program("python", f'#!/bin/sh\n{pip}exec {sys.executable} "$@"\n')
        self.program("rebasin", f"#!/bin/sh\n{self.rebasin}\n")

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        bare = {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home)}
        return bare | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)} | more

    def run(
        self, lines: str, folder: Path, signals: Signals | None = None, log: Path | None = None, **more: str
    ) -> tuple[int, str]:
        """The exit code of these lines, and what they told; negative where a signal ended them."""
        log = log or self.home / "log"
        script = log.with_suffix(
            ".sh"
        )  # from a file, as the server does: given by -c, bash would end in rebasin
        script.write_text(lines)
        with open(log, "wb") as told:
            process = subprocess.Popen(
                [*BASH, str(script)],
                cwd=folder,
                env=self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_answering,  # noqa: PLW1509 (no threads here)
            )
            try:
                code = _ended(process, signals)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return code, log.read_text(encoding="utf-8", errors="replace")


def _answering() -> None:
    """A server's process answers Ctrl-C, whatever started these tests: in the background that is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _outputs(lines: list[str]) -> dict[str, str]:
    """What a step wrote into GITHUB_OUTPUT: `name=value`, or `name<<END`, lines, and END."""
    found, left = {}, list(lines)
    while left:
        line = left.pop(0)
        name, heredoc, end = line.partition("<<")
        if heredoc and "=" not in name:
            value = left[: left.index(end)]
            found[name], left = "\n".join(value), left[len(value) + 1 :]
        else:
            name, equals, value = line.partition("=")
            assert equals, f"neither NAME=VALUE nor NAME<<END: {line}"
            found[name] = value
    return found


def _ended(process: subprocess.Popen, signals: Signals | None) -> int:
    if signals is None:
        return process.wait(300)
    until = time.monotonic() + 120
    while not signals.reached.exists():
        assert process.poll() is None, "ended before the moment came"
        assert time.monotonic() < until, "the moment never came"
        time.sleep(0.02)
    for number, seconds in signals.sent:
        process.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(seconds)
    raise AssertionError("lives on after SIGKILL")


@dataclass
class Server:
    """GitHub, as far as the workflows need it: a repository, and what lies there from job to job.

    `runs` counts runs; a job gets a fresh checkout of `repository`, and what it does not keep is gone.
    """

    shell: Shell
    repository: Path
    caches: dict[str, Path] = field(default_factory=dict)
    artifacts: dict[str, Path] = field(default_factory=dict)
    runs: int = 0

    @property
    def home(self) -> Path:
        return self.shell.home

    def job(self, told: Mapping[str, Any], **more: Any) -> Job:
        """A job of a workflow, run to its end."""
        self.runs += 1
        job = Job(self, self.home / f"job{self.runs}", **more)
        job.play(told["steps"])
        return job

    def jobs(self, told: Mapping[str, Any], number: int, **more: Any) -> list[Job]:
        """Several at once, in one folder."""
        self.runs += 1
        made = [Job(self, self.home / f"job{self.runs}-{k}", **more) for k in range(number)]
        for job in made:
            job.workspace = made[0].workspace
        made[0]._checkout({})
        threads = [threading.Thread(target=job.play, args=(told["steps"],)) for job in made]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return made


@dataclass
class Job:
    """One job: how it stands, the log of its steps, and what each of these left for later ones.

    `signals` are sent to the step that runs the recipe; `inputs` replace those that the workflow gives.
    """

    server: Server
    place: Path
    inputs: Mapping[str, str] = field(default_factory=dict)
    event: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    given: Mapping[str, str] | None = None  # inputs of a workflow that somebody starts
    matrix: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, Any] = field(default_factory=dict)
    signals: Callable[[Path], Signals] | None = None

    def __post_init__(self) -> None:
        self.workspace, self.temp = self.place / "work", self.place / "temp"
        self.temp.mkdir(parents=True)
        self.workspace.mkdir()
        self.code, self.log, self.ran = 0, "", list[str]()
        self.summary, self.outputs = "", dict[str, str]()
        self.status = "success"

    # --------------------------------------------------------------------------------------- steps

    def play(
        self, steps: Sequence[Mapping[str, Any]], inputs: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The steps of a job, or of an action; what those with an `id` put out."""
        found: dict[str, Any] = {}
        stands = "success"
        for step in steps:
            context = self._context(found, inputs, stands)
            name = step.get("name") or step.get("uses") or step["run"].splitlines()[0]
            if "id" in step:
                found[step["id"]] = {"outputs": {}, "outcome": "skipped"}
            if not context.holds(step.get("if", "")):
                continue
            self.ran.append(name)
            outputs, well = self._step(step, context)
            stands = self.status if self.status != "success" else stands
            if "id" in step:
                found[step["id"]] = {"outputs": outputs, "outcome": "success" if well else "failure"}
        return found

    def _context(self, steps: Mapping[str, Any], inputs: Mapping[str, str] | None, status: str) -> Context:
        number = self.run or str(self.server.runs)
        github = {
            "run_id": number,
            "run_attempt": "1",
            "repository": "org/models",
            "ref_name": "v1",
            "token": "github-token",
            "event": self.event,
            "action_path": str(ACTION.parent),
        }
        values = {
            "github": github,
            "runner": {"os": "Linux", "temp": str(self.temp)},
            "steps": steps,
            "matrix": self.matrix,
            "needs": self.needs,
        }
        given = self.given if inputs is None else inputs
        return Context(values | ({} if given is None else {"inputs": given}), self.workspace, status)

    def _step(self, step: Mapping[str, Any], context: Context) -> tuple[dict[str, str], bool]:
        given = {name: context.filled(value) for name, value in step.get("with", {}).items()}
        if "run" in step:
            return self._shell(step, context)
        used = step["uses"].partition("@")[0]
        if used == "OWNER/REPOSITORY/.github/actions/rebasin":
            return self._action(given)
        plays = {
            "actions/checkout": self._checkout,
            "actions/setup-python": lambda given: {},
            "actions/cache/restore": self._restore,
            "actions/cache/save": self._save,
            "actions/upload-artifact": self._upload,
            "actions/download-artifact": self._download,
        }
        return plays[used](given) or {}, True

    def _shell(self, step: Mapping[str, Any], context: Context) -> tuple[dict[str, str], bool]:
        assert step.get("shell", "bash") == "bash"
        env = {name: context.filled(value) for name, value in step.get("env", {}).items()}
        files = {"GITHUB_OUTPUT": self.temp / "output", "GITHUB_STEP_SUMMARY": self.temp / "summary"}
        for path in files.values():
            path.write_text("")
        plain = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(self.workspace)} | {
            "RUNNER_TEMP": str(self.temp)
        }
        env |= plain | {name: str(path) for name, path in files.items()}
        runs = "exec rebasin" in step["run"]
        signals = self.signals(self.workspace) if self.signals and runs else None
        folder = self.workspace / context.filled(step.get("working-directory", "."))
        code, log = self.server.shell.run(step["run"], folder, signals, self.temp / "log", **env)
        self.log += log
        if runs:
            self.code, self.said = code, log
        self.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        outputs = _outputs(files["GITHUB_OUTPUT"].read_text().splitlines())
        if code and self.status == "success":
            self.code = code
            self.status = "cancelled" if signals and signals.sent[0][0] == signal.SIGINT else "failed"
        return outputs, code == 0

    def _action(self, given: Mapping[str, str]) -> tuple[dict[str, str], bool]:
        told = read(ACTION)
        given = dict(given) | dict(self.inputs)
        assert given.keys() <= told["inputs"].keys(), "no such input"
        needed = {name for name, about in told["inputs"].items() if about.get("required") == "true"}
        assert needed <= given.keys()
        inputs = {name: about.get("default", "") for name, about in told["inputs"].items()} | given
        steps = self.play(told["runs"]["steps"], inputs)
        context = self._context(steps, inputs, "success")
        self.outputs = {name: context.filled(about["value"]) for name, about in told["outputs"].items()}
        return self.outputs, self.status == "success"

    # ------------------------------------------------------------------- what the server's own actions do

    def _checkout(self, given: Mapping[str, str]) -> None:
        """A clone, where the repository is one of git; with a token to push only where it is asked for."""
        if self.server.repository.suffix == ".git":
            words = [
                "git",
                "clone",
                "--quiet",
                "--branch",
                given.get("ref", "main"),
                str(self.server.repository),
            ]
            subprocess.run([*words, str(self.workspace)], check=True)
            return
        if any(self.workspace.iterdir()):  # somebody else's folder, too
            return
        shutil.copytree(self.server.repository, self.workspace, dirs_exist_ok=True, symlinks=True)

    def _restore(self, given: Mapping[str, str]) -> dict[str, str]:
        """The entry of this key; else, of the first prefix that has some, the newest."""
        caches = self.server.caches
        prefixes = [line for line in given.get("restore-keys", "").splitlines() if line]
        near = [key for prefix in prefixes for key in reversed(caches) if key.startswith(prefix)]
        key = given["key"] if given["key"] in caches else near[0] if near else None
        if key is None:
            return {"cache-hit": "", "cache-matched-key": "", "cache-primary-key": given["key"]}
        shutil.copytree(caches[key], self.workspace, dirs_exist_ok=True, symlinks=True)
        return {
            "cache-hit": str(key == given["key"]).lower(),
            "cache-matched-key": key,
            "cache-primary-key": given["key"],
        }

    def _save(self, given: Mapping[str, str]) -> None:
        """One entry a key, for good; nothing where no path is there."""
        caches, key = self.server.caches, given["key"]
        assert key.strip("-") and "--" not in key, f"a part of the key is empty: {key}"
        found = [path for path in map(Path, given["path"].split()) if (self.workspace / path).exists()]
        if key in caches or not found:
            self.log += f"Failed to save: {key}\n"
            return
        place = self.server.home / "caches" / str(len(caches))
        for path in found:
            shutil.copytree(self.workspace / path, place / path, symlinks=True)
        caches[key] = place

    def _upload(self, given: Mapping[str, str]) -> None:
        """Files under their names below the folder that they share, as that action does."""
        files = _matching(self.workspace, given["path"])
        strict = given.get("if-no-files-found") == "error"
        assert files or not strict, f"no files for {given['name']}"
        if not files:
            return
        place = self.server.home / "artifacts" / str(len(self.server.artifacts)) / given["name"]
        several = len(given["path"].split()) > 1
        above = Path(os.path.commonpath([path.parent for path in files]))
        one = self.workspace / given["path"].strip()
        above = one if not several and one.is_dir() else above
        for path in files:
            (place / path.relative_to(above)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place / path.relative_to(above))
        self.server.artifacts[given["name"]] = place

    def _download(self, given: Mapping[str, str]) -> None:
        place = self.server.artifacts[given["name"]]
        shutil.copytree(place, self.workspace / given.get("path", "."), dirs_exist_ok=True)


def _matching(folder: Path, patterns: str) -> list[Path]:
    """The files that lines of `path:` name, in their order; `!` takes some out again."""
    found: dict[Path, None] = {}
    for line in filter(None, map(str.strip, patterns.splitlines())):
        path = folder / line.removeprefix("!")
        some = [path] if path.exists() else [folder / name for name in _glob(folder, line.removeprefix("!"))]
        files = [
            f for one in some for f in (sorted(one.rglob("*")) if one.is_dir() else [one]) if f.is_file()
        ]
        for file in files:
            if line.startswith("!"):
                found.pop(file, None)
            else:
                found[file] = None
    return list(found)


def _glob(folder: Path, text: str) -> list[str]:
    return [] if text.startswith("/") else [str(path) for path in sorted(folder.glob(text))]
