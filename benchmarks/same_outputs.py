"""Do two installations of rebasin give the same? Runs a fixed list of commands with both and compares.

    python benchmarks/same_outputs.py OLD_BIN NEW_BIN --work DIR [--only SUBSTRING] [--part K/N]

Inputs are made once, with OLD_BIN, in DIR/inputs. Then each command runs with the old and with the new
program, each time in a fresh copy of the inputs at one and the same path (DIR/here), so that no path can make
a difference. What a run leaves is kept in DIR/old/NAME and DIR/new/NAME. --part 3/8 runs every eighth
command from the third: the whole list in parts, for which one DIR serves. With --forked one process of each
program imports all of it once, and a copy of that process runs each command: on a busy machine a command
takes seconds in place of half a minute.

Compared are: the exit code, stdout, every file left behind (names and bytes), and, as a softer category,
stderr. Masked are durations in texts, the folder of the installation, lines on progress in stderr (but
with -v, where every one is told), and the version where the two programs name different ones; nothing else.
JSON is compared as text, layout and order of keys included. What the old program gave is kept, and used again
by the next call with the same DIR; --fresh runs it anew.

Every command also has an exit code that is expected of the old program: a list that rots is noticed.
Exit code: 0 all the same, 1 a difference (with --strict in stderr, too), 2 the inputs could not be made.

Needs REBASIN_DATA for CIFAR-10; one process runs at a time, with one thread unless --threads says otherwise.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _same_commands import (
    AXES,
    COMMANDS,
    MADE,
    OWN,
    SMALLNET,
    SMALLNET_YAML,
    TORCH_INPUTS,
    WRONG_YAML,
    Command,
)

TIMEOUT = 600  # seconds a command may take


# ---------------------------------------------------------------------------------------------- to run them


@dataclass(frozen=True)
class Settings:
    work: Path
    threads: int

    def environment(self, more: tuple[tuple[str, str], ...] = ()) -> dict[str, str]:
        """This process's, without what changes rebasin's behaviour, with a fixed width and few threads."""
        drop = ("REBASIN_DEBUG", "FORCE_COLOR", "WORLD_SIZE", "RANK", "PYTHONPATH", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if name not in drop}
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        return kept | threads | {"COLUMNS": "100", "LC_ALL": "C.UTF-8", "TERM": "dumb"} | dict(more)


@dataclass(frozen=True)
class Program:
    binary: Path
    version: str
    forked: list[Forked] = field(default_factory=list)  # one, where its commands are to be run so

    @property
    def home(self) -> Path | None:
        """The checkout that holds its virtual environment; None where that would be no folder of its own."""
        home = self.binary.parents[2] if len(self.binary.parents) > 3 else None
        return home if home and self.binary.parent.name == "bin" else None


@dataclass(frozen=True)
class Outcome:
    """What a run gave: exit code (or "timeout"), both streams, files that are new or changed, its seconds."""

    code: int | str
    out: str
    err: str
    folder: Path
    seconds: float

    def files(self) -> dict[str, Path]:
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path for path in found}


SERVER = """
import gc, importlib, json, os, pkgutil, signal, sys
answers, sys.argv = os.fdopen(os.dup(1), "w"), ["rebasin"]
from rebasin_cli.__main__ import main, prepare
prepare()
import rebasin_cli, safetensors.torch, scipy.optimize, torch, torch.export, torch._dynamo
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
for found in pkgutil.walk_packages(rebasin_cli.__path__, "rebasin_cli."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
gc.freeze()
print("ready", file=answers, flush=True)
for line in sys.stdin:
    arguments, where, env, limit = json.loads(line)
    if (child := os.fork()) == 0:
        os.chdir(where)
        os.environ.update(env)
        for stream, name, how in ((0, os.devnull, os.O_RDONLY), (1, "../out", 577), (2, "../err", 577)):
            os.dup2(os.open(name, how), stream)
        sys.argv += arguments
        main()
        sys.exit(0)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
    signal.alarm(limit)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(0)
    print("timeout" if status == -signal.SIGKILL else status, file=answers, flush=True)
"""


class Forked:
    """A process of a program that has imported all of it; each command runs in a copy of that process."""

    def __init__(self, by: Program, settings: Settings):
        self.work = settings.work
        self.process = subprocess.Popen(
            [by.binary.with_name("python"), "-P", "-c", SERVER],
            env=settings.environment(),
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True},
        )
        self.process.stdout.readline()

    def call(
        self, arguments: list[str], where: Path, env: dict[str, str]
    ) -> tuple[int | str, str, str, float]:
        """As `call`."""
        began = time.monotonic()
        for name in ("out", "err"):
            (self.work / name).write_text("")
        print(json.dumps([arguments, str(where), env, TIMEOUT]), file=self.process.stdin, flush=True)
        said = self.process.stdout.readline().strip()
        out, err = ((self.work / name).read_text("utf-8", "backslashreplace") for name in ("out", "err"))
        code = int(said) if said != "timeout" else said
        return code, out, err, time.monotonic() - began


def program(binary: str, settings: Settings) -> Program:
    path = Path(os.path.abspath(binary))
    said = subprocess.run([path, "--version"], capture_output=True, text=True, env=settings.environment())
    return Program(path, said.stdout.split()[-1] if said.stdout.split() else "unknown")


def call(line: str | list[str], where: Path, env: dict[str, str]) -> tuple[int | str, str, str, float]:
    """Run it: exit code or "timeout", stdout, stderr, seconds."""
    began, options = time.monotonic(), {"errors": "backslashreplace", "stdin": subprocess.DEVNULL}
    try:
        done = subprocess.run(
            line, cwd=where, env=env, capture_output=True, encoding="utf-8", timeout=TIMEOUT, **options
        )
    except subprocess.TimeoutExpired:
        return "timeout", "", "", time.monotonic() - began
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def run(command: Command, by: Program, settings: Settings, keep: Path) -> Outcome:
    """Run a command in a fresh copy of the inputs at DIR/here; what it leaves goes to `keep`."""
    here, inputs = settings.work / "here", settings.work / "inputs"
    shutil.rmtree(here, ignore_errors=True)
    shutil.rmtree(keep, ignore_errors=True)
    shutil.copytree(inputs, here)
    env = settings.environment(command.env)
    arguments = shlex.split(command.line)
    if by.forked:
        code, out, err, seconds = by.forked[0].call(arguments, here, env)
    else:
        code, out, err, seconds = call([str(by.binary), *arguments], here, env)
    drop_inputs(here, inputs)
    keep.parent.mkdir(parents=True, exist_ok=True)
    here.rename(keep)
    return Outcome(code, out, err, keep, seconds)


def drop_inputs(here: Path, inputs: Path) -> None:
    """Leave what is new or changed, and a note on inputs that are gone."""
    for path in inputs.rglob("*"):
        if not path.is_file():
            continue
        twin = here / path.relative_to(inputs)
        if not twin.exists():
            (here / f"{path.name}.INPUT-IS-GONE").touch()
        elif twin.read_bytes() == path.read_bytes():
            twin.unlink()
    for cache in here.rglob("__pycache__"):
        shutil.rmtree(cache)


def run_old(command: Command, by: Program, settings: Settings, fresh: bool) -> Outcome:
    """The old program's outcome, from an earlier call where there is one of the same command and inputs."""
    keep = settings.work / "old" / slug(command)
    note, key = (
        keep.with_name(f"{keep.name}.json"),
        [str(by.binary), by.version, command.line, settings.threads],
    )
    key += [[list(pair) for pair in command.env]]
    key.append((settings.work / "inputs" / "READY").read_text())
    if note.exists() and not fresh and (told := json.loads(note.read_text()))["key"] == key:
        return Outcome(told["code"], told["out"], told["err"], keep, told["seconds"])
    note.unlink(missing_ok=True)
    found = run(command, by, settings, keep)
    told = {"key": key, "code": found.code, "out": found.out, "err": found.err, "seconds": found.seconds}
    note.write_text(json.dumps(told))
    return found


def slug(command: Command) -> str:
    """A folder name: the first words of the command, and a digest of all of it."""
    words = re.sub(r"[^a-z0-9]+", "-", command.line.lower()).strip("-")[:60]
    return f"{words}-{hashlib.sha256(command.line.encode()).hexdigest()[:6]}"


# ---------------------------------------------------------------------------------------- to make the inputs


def make_inputs(old: Program, settings: Settings) -> None:
    """Train and write everything that commands read; once, then it is kept. Exits with 2 where that fails."""
    inputs = settings.work / "inputs"
    if (inputs / "READY").exists():
        return
    shutil.rmtree(inputs, ignore_errors=True)
    inputs.mkdir(parents=True)
    write_texts(inputs)
    for line in MADE:
        make([str(old.binary), *shlex.split(line)], inputs, settings)
    make([str(old.binary.with_name("python")), "-c", TORCH_INPUTS], inputs, settings)
    shutil.rmtree(inputs / "__pycache__", ignore_errors=True)
    (inputs / "cut.safetensors").write_bytes((inputs / "a.safetensors").read_bytes()[:-500])
    (inputs / "READY").write_text(f"{time.time()}\n")


def write_texts(inputs: Path) -> None:
    texts = {
        "smallnet.py": SMALLNET,
        "smallnet.yaml": SMALLNET_YAML,
        "trusting.yaml": f"net: smallnet.py:SmallNet\n{SMALLNET_YAML}",
        "wrong.yaml": WRONG_YAML,
        "own.py": OWN,
        "axes.json": json.dumps(AXES, indent=2),
        "garbage.safetensors": "this is no checkpoint\n" * 9,
        "pointer.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n",
    }
    for name, text in texts.items():
        (inputs / name).write_text(text, encoding="utf-8")
    for folder in ("empty", "full"):
        (inputs / folder).mkdir()
    (inputs / "full" / "a.safetensors").write_text("something\n")


def make(line: list[str], inputs: Path, settings: Settings) -> None:
    code, _, err, seconds = call(line, inputs, settings.environment((("PYTHONPATH", "."),)))
    print(f"input  {seconds:5.1f} s  {' '.join(line[1:])[:90].splitlines()[0]}", flush=True)
    if code != 0:
        print(f"exit code {code}\n{err}", file=sys.stderr)
        raise SystemExit(2)


# ----------------------------------------------------------------------------------------------- to compare

DURATIONS = (
    (re.compile(r'("(?:\w+_)?seconds": )(?:null|[-+.\deE]+)'), r"\1#"),
    (re.compile(r"^((?:estimated seconds|times) +).*$", re.MULTILINE), r"\1#"),
    (re.compile(r'"times": \{[^{}]*\}'), '"times": {}'),
    (re.compile(r' time="[\d.]+"'), ' time="#"'),
    (re.compile(r"(seconds: <code>)[-+.\de]+"), r"\1#"),
    (re.compile(r"\b\d+ h \d\d min\b|\b\d+ min \d\d s\b|\b[\d,]+(?:\.\d+)? s\b"), "#"),
    (re.compile(r"\b[\d,]+(?:\.\d+)? (?:minutes|seconds)\b"), "#"),
)


@dataclass(frozen=True)
class Mask:
    """What may differ in texts: durations, the program's own folder, `versions` if the two programs' differ.

    Both versions, for inputs record the old one. Blanks that fill up a masked line are masked with it.
    """

    home: Path | None
    versions: tuple[str, ...]

    def __call__(self, text: str) -> str:
        for pattern, instead in DURATIONS:
            text = pattern.sub(instead, text)
        if self.home:
            text = text.replace(str(self.home), "HOME")
        for number in map(re.escape, self.versions):
            text = re.sub(rf'(rebasin(?:\.version)?(?:" value="|"?:? *"?)){number}\b', r"\1VERSION", text)
        text = re.sub(r"((?:#|VERSION).*?) +$", r"\1", text, flags=re.MULTILINE)
        return text


@dataclass(frozen=True)
class Side:
    outcome: Outcome
    mask: Mask


def differences(old: Side, new: Side) -> Iterator[str]:
    """A few lines on each thing that is not the same, stderr left out."""
    if old.outcome.code != new.outcome.code:
        yield f"exit code: {old.outcome.code} → {new.outcome.code}"
    if text := text_difference(old.mask(old.outcome.out), new.mask(new.outcome.out)):
        yield f"stdout:\n{text}"
    before, after = old.outcome.files(), new.outcome.files()
    if gone := before.keys() - after.keys():
        yield f"files that only the old one leaves: {', '.join(sorted(gone))}"
    if more := after.keys() - before.keys():
        yield f"files that only the new one leaves: {', '.join(sorted(more))}"
    for name in sorted(before.keys() & after.keys()):
        if told := file_difference(before[name], after[name], old.mask, new.mask):
            yield f"{name}:\n{told}"


def file_difference(before: Path, after: Path, old: Mask, new: Mask) -> str:
    """Empty where they are the same: texts once masked, all others byte by byte."""
    one, other = before.read_bytes(), after.read_bytes()
    if one == other:
        return ""
    if before.suffix in (".json", ".md", ".html", ".xml", ".txt"):
        return text_difference(old(one.decode(errors="replace")), new(other.decode(errors="replace")))
    if before.suffix == ".safetensors":
        return tensor_difference(one, other, old, new)
    if before.suffix in (".log", ".yaml"):
        return text_difference(one.decode(errors="replace"), other.decode(errors="replace")) or "bytes differ"
    return f"    {len(one):,} and {len(other):,} bytes, and not the same"


def text_difference(before: str, after: str, most: int = 12) -> str:
    """A short diff; of JSON the places that differ."""
    if before == after:
        return ""
    values = [parsed(text) for text in (before, after)]
    if None not in values:
        lines = list(value_differences(*values)) or ["same values, other layout or order of keys"]
    else:
        told = difflib.unified_diff(before.splitlines(), after.splitlines(), "old", "new", lineterm="", n=0)
        lines = [line for line in told if not line.startswith(("---", "+++", "@@"))] or [
            "ends of lines differ"
        ]
    rest = [f"… {len(lines) - most} more lines"] if len(lines) > most else []
    return "\n".join(f"    {line[:200]}" for line in [*around(lines)[:most], *rest])


def around(lines: list[str], width: int = 150) -> list[str]:
    """A long line that was replaced by another: only what is around the first character that differs."""
    if len(lines) != 2 or max(map(len, lines)) <= width or {line[0] for line in lines} != {"-", "+"}:
        return lines
    start = len(os.path.commonprefix([line[1:] for line in lines])) - width // 2
    return [f"{line[0]}…{line[1:][max(0, start) : max(0, start) + width]}" for line in lines]


def parsed(text: str) -> Any:
    try:
        return json.loads(text.replace('seconds": #', 'seconds": 0'))
    except ValueError:
        return None


def value_differences(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Places in JSON values that differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            pair = before.get(key, "(absent)"), after.get(key, "(absent)")
            yield from value_differences(*pair, f"{at}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from value_differences(*pair, f"{at}[{i}]")
    elif before != after:
        yield f"{at or 'value'}: {json.dumps(before)[:80]} → {json.dumps(after)[:80]}"


def tensor_difference(before: bytes, after: bytes, old: Mask, new: Mask) -> str:
    """What of two safetensors files differs; empty where that is nothing but the versions they name."""
    try:
        (one, first), (other, second) = split_header(before), split_header(after)
        headers = old(one), new(other)
        lines = text_difference(*headers).splitlines()
        tables = json.loads(one), json.loads(other)
    except (ValueError, UnicodeDecodeError):
        return "    bytes differ, and they are no two safetensors files"
    names = (tables[0].keys() & tables[1].keys()) - {"__metadata__"}
    held = [
        {name: cut(data, table[name]) for name in names}
        for data, table in zip((first, second), tables, strict=True)
    ]
    unlike = sorted(name for name in names if held[0][name] != held[1][name])
    if unlike:
        lines.append(f"    values of {len(unlike)} of {len(names)} tensors: {', '.join(unlike[:5])}")
    same = old.versions and headers[0] == headers[1] and not unlike
    return "" if same else "\n".join(lines) or "    bytes differ, in padding or order"


def split_header(data: bytes) -> tuple[str, bytes]:
    """The header as text, and the bytes of the tensors."""
    size = int.from_bytes(data[:8], "little")
    return data[8 : 8 + size].decode().rstrip(), data[8 + size :]


def cut(data: bytes, entry: dict[str, Any]) -> bytes:
    begin, end = entry["data_offsets"]
    return data[begin:end]


# ------------------------------------------------------------------------------------------------- the whole


@dataclass(frozen=True)
class Row:
    command: Command
    hard: list[str]
    soft: str
    unexpected: str


def compare(command: Command, old: Program, new: Program, settings: Settings, fresh: bool) -> Row:
    """Run a command with both programs, and say what is not the same."""
    before = run_old(command, old, settings, fresh)
    after = run(command, new, settings, settings.work / "new" / slug(command))
    versions = (old.version, new.version) if old.version != new.version else ()
    sides = [Side(before, Mask(old.home, versions)), Side(after, Mask(new.home, versions))]
    soft = text_difference(*(side.mask(progress_masked(command, side.outcome.err)) for side in sides))
    odd = f"the old one ends with {before.code}, expected {command.code}" * (before.code != command.code)
    row = Row(command, list(differences(*sides)), soft, odd)
    show(row, before, after)
    return row


def progress_masked(command: Command, text: str) -> str:
    """Without the lines on how far a command is: unless -v asks for each, one is told every ten seconds."""
    told = re.compile(r"^[a-z ]+ \d+(?:/\d+)?(?:  .*)?\n", re.MULTILINE)
    return text if "-v" in command.line.split() else told.sub("", text)


def show(row: Row, before: Outcome, after: Outcome) -> None:
    word = "DIFFERENT" if row.hard else "stderr" if row.soft else "same"
    print(
        f"{word:<9}  {before.seconds:5.1f} {after.seconds:5.1f} s  {before.code!s:>3}  {row.command.line}",
        flush=True,
    )
    for told in row.hard:
        print(f"  {told}")
    if row.soft:
        print(f"  stderr differs:\n{row.soft}")
    if row.unexpected:
        print(f"  UNEXPECTED: {row.unexpected}; its stderr ends with\n    {before.err.strip()[-300:]}")


def summary(rows: list[Row], seconds: float) -> None:
    different = sum(bool(row.hard) for row in rows)
    soft = sum(bool(row.soft) for row in rows)
    odd = sum(bool(row.unexpected) for row in rows)
    print(
        f"\n{len(rows)} commands, {len(rows) - different} the same, {different} different"
        f" ({soft} with another stderr, {odd} where the old exit code is unexpected; {seconds / 60:.1f} min)"
    )


def part(text: str) -> tuple[int, int]:
    first, _, step = text.partition("/")
    if not 1 <= int(first) <= int(step):
        raise ValueError(text)
    return int(first), int(step)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", metavar="OLD_BIN")
    parser.add_argument("new", metavar="NEW_BIN")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="inputs and outputs go here")
    parser.add_argument(
        "--only", default="", metavar="SUBSTRING", help="only command lines with this in them"
    )
    parser.add_argument(
        "--fresh", action="store_true", help="run the old program anew, where it has run before"
    )
    parser.add_argument("--strict", action="store_true", help="another stderr is a difference, too")
    parser.add_argument("--part", type=part, default=(1, 1), metavar="K/N", help="every Nth from the Kth")
    parser.add_argument("--forked", action="store_true", help="import each program once for all commands")
    parser.add_argument("--threads", type=int, default=1, help="of each process (1)")
    parser.add_argument("--list", action="store_true", help="print the commands and stop")
    return parser.parse_args()


def main() -> int:
    given = arguments()
    first, step = given.part
    chosen = [command for command in COMMANDS[first - 1 :: step] if given.only in command.line]
    if given.list:
        print("\n".join(f"{command.code}  {command.line}" for command in chosen))
        return 0
    settings = Settings(given.work.resolve(), given.threads)
    settings.work.mkdir(parents=True, exist_ok=True)
    old, new = program(given.old, settings), program(given.new, settings)
    print(f"old  {old.binary}  {old.version}\nnew  {new.binary}  {new.version}", flush=True)
    make_inputs(old, settings)
    for each in (old, new) if given.forked else ():
        each.forked.append(Forked(each, settings))
    began = time.monotonic()
    rows = [compare(command, old, new, settings, given.fresh) for command in chosen]
    summary(rows, time.monotonic() - began)
    return int(any(row.hard or (given.strict and row.soft) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
