"""What is fuzzed, and what is a finding: a traceback, more than ten seconds, memory, files left behind.

A target draws an input with hypothesis and hands it to the program as a user would. It may be refused, by a
`RebasinError` with a message of one exit code; anything else that is raised is a finding.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import struct
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from rebasin_cli.__main__ import main
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.validation import digest, validate
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.commands.recipes import familiar, reader
from rebasin_cli.commands.recipes.recipe import parse as parse_recipe
from rebasin_cli.commands.recipes.vocabulary import vocabulary
from rebasin_cli.errors import RebasinError
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import parse_axes
from rebasin_cli.spec.parser import parse as parse_spec
from tests.corpus import _records as right

from . import networks

SECONDS = 10.0
TIMES, SPARE = 4, 64 << 20  # memory: so many times the input, and what the program takes for anything

NAMES = st.sampled_from(
    ["a", "layers.0.weight", "layers.0.bias", "é", "", "\x1b]52;", "x" * 300, "{i}", "h.{i}.{j}"]
)
WORDS = vocabulary()


class Finding(AssertionError):
    """Something that no input may do."""


@contextlib.contextmanager
def watched(size: int) -> Iterator[Path]:
    """An empty folder to work in; raises Finding where time, memory or what is left there is too much."""
    before = _peak()
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        began = time.monotonic()
        with contextlib.suppress(RebasinError):
            yield Path(place)
        took, grown = time.monotonic() - began, _peak() - before
        if took > SECONDS:
            raise Finding(f"took {took:.0f} s")
        if grown > TIMES * size + SPARE:
            raise Finding(f"took {grown / 1e6:.0f} MB for an input of {size / 1e6:.3f} MB")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def left_behind(folder: Path, given: set[str]) -> None:
    """Raise Finding where a folder holds more than what was put there."""
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")} - given
    if found:
        raise Finding(f"left behind: {sorted(found)}")


def look(path: Path) -> None:
    """What every command does with a checkpoint first."""
    model = open_checkpoint(path)
    validate(model)
    digest(model)


# --------------------------------------------------------------------------------------------- checkpoints

SHAPES = st.lists(
    st.integers(-1, 5) | st.sampled_from([2**31, 2**63, 2**64, 1.5, True, None, "3"]), max_size=4
)
DTYPES = st.sampled_from(
    ["F32", "F16", "BF16", "F64", "I64", "BOOL", "F8_E4M3", "U8", "C64", "X", "", 3, None]
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": DTYPES,
        "shape": SHAPES,
        "data_offsets": st.lists(st.integers(-8, 200) | st.sampled_from([2**63, 1e9]), max_size=3),
        "more": st.none(),
    },
)
HEADER = st.dictionaries(NAMES, ENTRY, max_size=4) | st.dictionaries(
    st.just("__metadata__"), st.dictionaries(NAMES, NAMES | st.integers(), max_size=2)
)


@st.composite
def safetensors_bytes(draw: Callable) -> bytes:
    """A valid file with changed bytes, or a made-up header before some bytes."""
    if draw(st.booleans()):
        return _mutated(draw, _VALID)
    header = json.dumps(draw(HEADER)).encode()
    length = draw(st.just(len(header)) | st.integers(0, 2**64 - 1))
    return struct.pack("<Q", length) + header + draw(st.binary(max_size=200))


def _mutated(draw: Callable, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(changed) - 1)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "drop"]))
        if kind == "cut":
            del changed[at:]
        elif kind == "set" and changed:
            changed[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            changed[at:at] = draw(st.binary(max_size=8))
        else:
            del changed[at : at + draw(st.integers(1, 8))]
    return bytes(changed)


def _valid_safetensors() -> bytes:
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.safetensors"
        write_safetensors(
            path, {"w": torch.ones(2, 3), "n": torch.tensor(3)}, metadata={"rebasin.net": "mlp"}
        )
        return path.read_bytes()


def _valid_torch() -> bytes:
    saved = io.BytesIO()
    torch.save({"state_dict": {"w": torch.ones(2, 3), "b": torch.zeros(2)}, "epoch": 3}, saved)
    return saved.getvalue()


_VALID, _TORCH = _valid_safetensors(), _valid_torch()


@st.composite
def torch_bytes(draw: Callable) -> bytes:
    """A file of torch.save with changed bytes, or with changed entries of its zip."""
    if draw(st.booleans()):
        return _mutated(draw, _TORCH)
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(_TORCH)) as source, zipfile.ZipFile(made, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if draw(st.integers(0, 3)) == 0:
                content = _mutated(draw, content)
            if draw(st.integers(0, 9)):
                target.writestr(name, content)
    return made.getvalue()


def safetensors(content: bytes) -> None:
    _file(content, "a.safetensors")


def torch_files(content: bytes) -> None:
    _file(content, "a.pt")


def _file(content: bytes, name: str) -> None:
    with watched(len(content)) as folder:
        (folder / name).write_bytes(content)
        try:
            look(folder / name)
        finally:
            left_behind(folder, {name})


# ----------------------------------------------------------------------------------------- specs, recipes

AXES = st.lists(
    st.sampled_from(
        ["h0", ".", "...", "(", ")", "+", " ", "(c5 49)", "(3 h)", "d*", "{i}", "{i-1|.}", "_", "16", "0",
         "-1", "h{i", "*", "é", "\n", "((", "9" * 30, "h{first}", "h{last}"]
    ),
    max_size=12,
).map(" ".join) | st.text(max_size=30)  # fmt: skip
SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | AXES
YAML_KEYS = [
    "tensors",
    "statistics",
    "net",
    "schema",
    "include",
    "ignore",
    "sizes",
    "names",
    "description",
    "x",
]
SPEC = st.dictionaries(
    st.sampled_from(YAML_KEYS),
    SCALAR
    | st.lists(SCALAR, max_size=3)
    | st.dictionaries(NAMES | st.text(max_size=9), AXES | SCALAR, max_size=4),
    max_size=5,
)
STEP = st.dictionaries(
    st.sampled_from(["name", "depends", "merge", "align", "barrier", "spec infer", "train", "nonsense"]),
    SCALAR
    | st.dictionaries(
        st.sampled_from(["models", "out", "method", "weights", "seed", "gate", "report", "spec", "data",
                         "base_model", "merge_method", "parameters", "dtype", "endpoints", "json", "é"]),
        SCALAR | st.lists(SCALAR | st.just("a.safetensors"), max_size=3) | st.just("a.safetensors"),
        max_size=5,
    ),
    max_size=3,
)  # fmt: skip
RECIPE = st.fixed_dictionaries(
    {},
    optional={
        "rebasin": st.just(1) | SCALAR,
        "inputs": st.dictionaries(NAMES, SCALAR | st.dictionaries(NAMES, SCALAR, max_size=2), max_size=3)
        | SCALAR,
        "defaults": st.dictionaries(st.sampled_from(["seed", "data", "out", "x"]), SCALAR, max_size=3)
        | SCALAR,
        "output_dir": SCALAR,
        "steps": st.lists(STEP, max_size=4) | SCALAR,
        "merge_method": st.sampled_from(["linear", "slerp", "ties"]) | SCALAR,
        "models": st.lists(
            st.dictionaries(st.sampled_from(["model", "weight", "parameters"]), SCALAR), max_size=3
        ),
        "junit": SCALAR,
    },
)


def _as_yaml(values: object) -> str:
    import yaml

    return yaml.safe_dump(values, allow_unicode=True, sort_keys=False)


YAML_NOISE = st.text(alphabet="abc:-[]{}&*!|>'\"%@`#\n\t ,?~0123456789.é", max_size=80)
SPEC_TEXT = SPEC.map(_as_yaml) | YAML_NOISE
RECIPE_TEXT = RECIPE.map(_as_yaml) | YAML_NOISE | st.text(max_size=60)


def specs(text: str) -> None:
    with watched(len(text)):
        fit(parse_spec(text, name="fuzz"), {"layers.0.weight": (4, 3), "layers.0.bias": (4,), "a": (2, 2)})


def axes(text: str) -> None:
    with watched(len(text)):
        parse_axes(text)


def recipes(text: str) -> None:
    with watched(len(text)) as folder:
        (folder / "a.safetensors").write_bytes(_VALID)
        problems = reader.Problems()
        root = reader.read(text, {"HOME": "x"}, problems)
        if familiar.is_mergekit(root):
            root = familiar.as_recipe(root, problems)
        root = reader.with_set(root, ["steps.merge.seed=3"], {}, problems)
        made = parse_recipe(root, WORDS, problems)
        if not problems:
            [step.line(dry_run=True) for step in made.steps]
        left_behind(folder, {"a.safetensors"})


# ------------------------------------------------------------------------------------------ command lines

COMMANDS = sorted(name for name in WORDS if name not in ("train", "spec infer", "spec prove"))
FLAGS = sorted({option.flag for name in COMMANDS for option in WORDS[name].options.values()} - {"--help"})
VALUES = st.sampled_from(
    ["a.safetensors", "b.safetensors", "missing.pt", "-", "", "0", "-1", "1e400", "nan", "9" * 40, "mlp",
     "wm", "none", "am", "digits", "a:b", ".", "/", "x.yaml", "0.5,0.5", "aligned:test:chord<=1",
     "../x", "\x1b[2J",
     "é\udcff", "/dev/null"]
)  # fmt: skip


@st.composite
def command_lines(draw: Callable) -> list[str]:
    name = draw(st.sampled_from(COMMANDS))
    words = [*name.split(), *draw(st.lists(VALUES, max_size=3))]
    own = sorted(option.flag for option in WORDS[name].options.values())
    for _ in range(draw(st.integers(0, 3)) if own else 0):
        words += [draw(st.sampled_from(own) | st.sampled_from(FLAGS)), *draw(st.lists(VALUES, max_size=1))]
    return words + ["--dry-run"] * (name in ("align", "merge", "barrier", "compare"))


def commands(words: list[str]) -> None:
    """The whole program in this process; weights are small, and where a plan can be asked for it is."""
    with watched(1 << 20) as folder:
        for name, seed in (("a", 1), ("b", 2)):
            generator = torch.Generator().manual_seed(seed)
            shapes = {
                "layers.0.weight": (4, 3),
                "layers.0.bias": (4,),
                "head.weight": (2, 4),
                "head.bias": (2,),
            }
            weights = {key: torch.randn(shape, generator=generator) for key, shape in shapes.items()}
            write_safetensors(folder / f"{name}.safetensors", weights)
        code, out, err = _run(words)
        if "Traceback" in err or code not in (0, 1, 2, 3, 4, 5, 6):
            raise Finding(f"rebasin {words}: exit code {code}\n{err}")
        if code > 1:
            if not err.strip():
                raise Finding(f"rebasin {words}: exit code {code} without a word")
            left_behind(folder, {"a.safetensors", "b.safetensors"})
        for text in (out, err):
            if "\x1b[2J" in text:
                raise Finding(f"rebasin {words}: an escape reached the terminal")


def _run(words: list[str]) -> tuple[int, str, str]:
    out, err, code = io.StringIO(), io.StringIO(), 0
    os.environ.pop("REBASIN_DEBUG", None)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return code, out.getvalue(), err.getvalue()


# -------------------------------------------------------------------------------------- records, reports

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | NAMES
    | st.just("<img src=x>|"),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=6) | NAMES, inside, max_size=3)
    ),
    max_leaves=8,
)
TEXT = (
    JSON.map(json.dumps) | st.text(max_size=30) | st.sampled_from(["[" * 5_000, "9" * 5_000, "<img src=x>|"])
)


def somewhere(whole: Any) -> st.SearchStrategy[str]:
    """The text of something that is right, but for one place of it; or any text."""
    places = st.sampled_from(list(right.everywhere(whole)))
    return st.builds(lambda place, new: json.dumps(right.changed(whole, place, new)), places, JSON) | TEXT


def records(drawn: dict[str, str]) -> None:
    with watched(1 << 20):
        right.write_record(**drawn)
        _ends(["card", "m.safetensors"])


def read_reports(text: str) -> None:
    with watched(1 << 20) as folder:
        right.write_record()
        (folder / "r.json").write_text(text, errors="backslashreplace")
        _ends(["card", "m.safetensors", "--barrier", "r.json"])


def folds(text: str) -> None:
    with watched(1 << 20) as folder:
        model = {name: torch.ones(shape) for name, shape in right.SHAPES.items()}
        write_safetensors(folder / "b.safetensors", model)
        right.write_elements(text)
        _ends(["apply", "e.perm.safetensors", "b.safetensors", "-o", "y.safetensors"])


def curves(drawn: dict[str, str]) -> None:
    with watched(1 << 20) as folder:
        for name in "ab":
            write_safetensors(folder / f"{name}.safetensors", {"w": torch.ones(2, 2)})
        meta = {"rebasin.kind": "curve", "rebasin.curve": "bezier"} | drawn
        names = [name for name in drawn.values() if name and name.isprintable()]
        held = {f"control.1/{name}": torch.ones(2, 2) for name in ("w", *names)} | {"perm/h": torch.arange(2)}
        write_safetensors(folder / "x.curve.safetensors", held, metadata=meta)
        (folder / "s.yaml").write_text('tensors:\n  w: "h ."\n')
        line = ["merge", "a.safetensors", "b.safetensors", "--spec", "s.yaml", "--repair", "none"]
        _ends([*line, "--curve", "x.curve.safetensors", "--at", "0.5", "-o", "y.safetensors"])


def _ends(words: list[str]) -> None:
    """The whole program is done, or says in one message why not."""
    code, _, err = _run(words)
    if "Traceback" in err or code not in (0, 2, 3, 4) or (code and err.count("\nrebasin: ") > 0):
        raise Finding(f"rebasin {words}: exit code {code}\n{err}")


def inferred(drawn: list[tuple[str, int, int]]) -> None:
    if (apart := networks.farthest(drawn) or 0.0) > networks.WRONG:
        raise Finding(f"a spec of {drawn} changes outputs by {apart:.1e}")


KEYS = st.sampled_from(["options", "inputs", "method", "version", "spec", "seed", "command", "x|<b>"])
RECORD = st.dictionaries(KEYS, TEXT, max_size=3)
CURVE = st.dictionaries(KEYS.map("rebasin.{}".format) | st.just("rebasin.curve"), TEXT, max_size=3)

TARGETS: dict[str, tuple[st.SearchStrategy, Callable[..., None]]] = {
    "safetensors": (safetensors_bytes(), safetensors),
    "torch": (torch_bytes(), torch_files),
    "spec": (SPEC_TEXT, specs),
    "axes": (AXES, axes),
    "recipe": (RECIPE_TEXT, recipes),
    "command line": (command_lines(), commands),
    "record": (RECORD, records),
    "report": (somewhere(right.report()), read_reports),
    "folds": (somewhere(right.FOLDS), folds),
    "curve": (CURVE, curves),
    "network": (networks.DRAWN, inferred),
}
