"""Models of very many small tensors, long specs and long recipes: what commands take for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.runtime.seeds import generator

NAMES = (20_000, 40_000)  # of tensors: twice as many should take twice as long
LINES, STEPS, EMPTY = 100_000, 800, 600_000
UNITS = 4


def commands(work: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name of a row, and its command line."""
    out = ("-o", str(work / "out.safetensors"), "--force")
    for count in NAMES:
        spec, (a, b, turned) = _spec(work, count), _models(work, count)
        yield f"merge --method none, {count:,} names", ("merge", a, b, "--method", "none", *out)
        yield f"align, {count:,} names", ("align", a, b, "--spec", spec, *out)
        yield f"verify, {count:,} names", ("verify", a, turned, "--spec", spec)
        yield f"doctor, {count:,} names", ("doctor", a, b, "--spec", spec)
    yield f"spec check, {LINES:,} lines", ("spec", "check", _spec(work, LINES), _models(work, LINES)[0])
    yield f"run --dry-run, {STEPS} steps", ("run", _recipe(work), "--dry-run", "--cache", str(work / "cache"))
    yield f"inspect, {EMPTY:,} tensors without values: refused", ("inspect", _empty(work))


def _models(work: Path, count: int) -> tuple[str, str, str]:
    """A model, another one, and the first with its units in another order."""
    paths = [work / f"names.{count}.{k}.safetensors" for k in "abc"]
    a, b = (torch.randn(count, UNITS, generator=generator(0, f"names {k}")) for k in "ab")
    for path, values in zip(paths, (a, b, a.flip(1)), strict=True):
        if not path.is_file():
            write_safetensors(path, {_name(k): row for k, row in enumerate(values.clone())})
    return tuple(map(str, paths))


def _name(number: int) -> str:
    return f"layers.{number}.scale"


def _spec(work: Path, count: int) -> str:
    path = work / f"names.{count}.yaml"
    path.write_text("tensors:\n" + "".join(f'  {_name(k)}: "h"\n' for k in range(count)))
    return str(path)


def _recipe(work: Path) -> str:
    """Merges, each with what the one before it made."""
    path, (a, b, _) = work / "steps.yaml", _models(work, 10)
    lines = ["rebasin: 1", f"inputs: {{a: {a}, b: {b}}}", f"output_dir: {work / 'steps'}", "steps:"]
    for k in range(STEPS):
        models = f"[a, {f's{k - 1}' if k else 'b'}]"
        lines.append(f"  - {{name: s{k}, merge: {{models: {models}, method: none, repair: none}}}}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _empty(work: Path) -> str:
    path = work / "empty.safetensors"
    if not path.is_file():
        write_safetensors(path, {f"e{k}": torch.empty(0) for k in range(EMPTY)})
    return str(path)
