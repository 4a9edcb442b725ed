"""`make types`: mypy, which counts down. `types_left.txt` holds what is left, file by file; it only shrinks.

A file that is not in the list is strict. One that is in it may have as many errors as the list says, and no
more; with fewer the list has to be written anew (`--write`), so that what was won is not lost. mypy runs
with its strict settings, which are those of pyproject.toml, and with its lax ones where something is left:
what is strict in all is lax, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".txt")
HEAD = "# Errors of mypy that are left: strict, lax, file. The list only shrinks: tests/types_left.py\n"
LAX = """
[mypy]
files = rebasin_cli
python_version = 3.11
[mypy-huggingface_hub.*]
ignore_missing_imports = True
"""

Left = dict[str, tuple[int, int]]  # of each file, its strict and its lax errors


def read(path: Path = LIST) -> Left:
    """What is left by file, as it is committed."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    return {name: (int(strict), int(lax)) for strict, lax, name in lines}


def errors_of(text: str) -> Counter[str]:
    """How many errors mypy told of each file. Lines that are no error say more about the one above."""
    return Counter(line.partition(":")[0] for line in text.splitlines() if ": error: " in line)


def check(cache: Path, *, strict: bool) -> str:
    """What mypy says. Ends the program where it could not look, as at a syntax error."""
    settings = ["--config-file", "pyproject.toml"]
    if not strict:
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "lax.ini").write_text(LAX, encoding="utf-8")
        settings = ["--config-file", str(cache / "lax.ini")]
    command = [sys.executable, "-m", "mypy", *settings, "--cache-dir", str(cache), "--no-error-summary"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 1) or (done.returncode and not errors_of(done.stdout)):
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def differences(left: Left, found: Left, said: str) -> list[str]:
    """What is not as the list says, one sentence each, the new errors of a file below it."""
    lines, fewer = [], []
    for name in sorted({*left, *found}):
        allowed, there = left.get(name, (0, 0)), found.get(name, (0, 0))
        if there[0] > allowed[0] or there[1] > allowed[1]:
            lines.append(
                f"{name}: {there[0]} strict and {there[1]} lax errors; {allowed[0]} and {allowed[1]} are left"
            )
            lines += [f"  {line}" for line in said.splitlines() if line.startswith(f"{name}:")]
        elif there != allowed:
            fewer.append(name)
    shown = ", ".join(fewer[:3]) + " …" * (len(fewer) > 3)
    hint = f"fewer errors than the list says, in {len(fewer)} files: make types WRITE=--write ({shown})"
    return [*lines, hint] if fewer else lines


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the list, unless it would grow")
    parser.add_argument("--grow", action="store_true", help="write it even so: after a change of mypy")
    parser.add_argument("--cache", type=Path, default=ROOT / ".mypy_cache", metavar="DIR")
    asked = parser.parse_args(arguments)
    left = read() if LIST.exists() else {}
    said = check(asked.cache / "strict", strict=True)
    strict, lax = errors_of(said), Counter[str]()
    if strict or left:
        lax = errors_of(check(asked.cache / "lax", strict=False))
    found = {name: (strict[name], lax[name]) for name in sorted({*strict, *lax})}
    before, after = ([sum(each) for each in zip((0, 0), *its.values(), strict=True)] for its in (left, found))
    print(f"mypy: {after[0]} strict errors in {len(found)} files are left, {after[1]} lax ones")
    if asked.write or asked.grow:
        if not asked.grow and (after[0] > before[0] or after[1] > before[1]):
            sys.exit(f"the list would grow: it says {before[0]} and {before[1]}")
        LIST.write_text(
            HEAD + "".join(f"{a} {b} {name}\n" for name, (a, b) in found.items()), encoding="utf-8"
        )
    elif wrong := differences(left, found, said):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
