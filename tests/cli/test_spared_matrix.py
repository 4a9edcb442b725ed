"""Every command, every file that it reads, every output that it may leave, every way to be the same file.

With --force, what is read stays as it is, byte for byte, and one message says so. Some of the cases run
always, a third of them in the sweep: every input with every output, in two or three of the seven ways.
"""

import contextlib
import itertools
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.writer import write_safetensors
from rebasin_cli.spec import library

from .conftest import contents, rebasin

# What a line names, and what is read with it: shards, includes, imports, files of a folder.
NAMED = {
    "a": "a.safetensors",
    "b": "b.safetensors",
    "c": "c.safetensors",
    "torch": "t.pth",
    "index": "parts.safetensors.index.json",
    "folder": "folder",
    "spec": "own.yaml",
    "perm": "ab.perm.safetensors",
    "curve": "ab.curve.safetensors",
    "report": "rep/report.json",
    "net": "net.py",
    "loss": "loss.py",
    "loader": "loader.py",
    "data": "data.npz",
    "root": "root",
    "recipe": "recipe.yaml",
    "axes": "axes.json",
}
WITH = {
    "spec": ["base.yaml"],
    "net": ["helper.py"],
    "index": ["parts-00001-of-00002.safetensors"],
    "folder": ["folder/model.safetensors", "folder/config.json"],
    "torch": ["t.pth.rebasin.json"],
    "root": ["root/mnist/t10k-labels-idx1-ubyte.gz"],
}
FIXED = {"spec", "index", "folder", "net", "root"}  # these are not known by another name

# An output: the words, and the file that they would write. V is a file of any name, V.x one with that ending;
# O is another output, beside which that file would lie.
Written = tuple[tuple[str, ...], str]
O = ("-o", "O.safetensors")  # noqa: E741
WEIGHTS: list[Written] = [
    (("-o", "V"), "V.safetensors"),
    ((*O, "--attest", "V"), "V"),
    ((*O, "--out-shard-size", "1500"), "O-00001-of-00002.safetensors"),
    (O, "O.safetensors.index.json"),
    (("-o", "V"), "V.pth"),
    (("-o", "O.pth"), "O.pth.rebasin.json"),
    (("-o", "OD/"), "OD/model.safetensors"),
]
SEARCHED: list[Written] = [
    *WEIGHTS,
    (O, "O.search.safetensors"),
    ((*O, "--method", "ste", "--epochs", "1", "--log", "V"), "V"),
]
IN_FILES = [one for one in SEARCHED if one[0] != ("-o", "OD/")]
ALIGNED: list[Written] = [*SEARCHED, (O, "O.perm.safetensors"), (("-o", "O.pth"), "O.perm.safetensors")]


def files(*options: str) -> list[Written]:
    return [((option, "V"), "V") for option in options]


def below(option: str, *names: str) -> list[Written]:
    return [((option, "R"), f"R/{name}") for name in names]


DATA = " --data npz:{data} --normalize unit"
OWN = " --spec {spec} --net {net}:build"
LINES: list[tuple[str, list[Written]]] = [
    ("align {a} {b} --no-prove --spec {spec}", ALIGNED),
    ("align {a} {index} --net {net}:build --input 1x1x8x8", IN_FILES),
    ("align {a} {b} --init {perm} --method ste --epochs 1" + DATA, ALIGNED[:4]),
    ("align {torch} {b} --data mnist --data-root {root}", ALIGNED),
    ("align {a} {folder}", ALIGNED),
    ("apply {perm} {b}", WEIGHTS),
    ("apply {perm} {folder}", WEIGHTS),
    ("canon {a}" + OWN + " --input 1x1x8x8", WEIGHTS),
    ("merge {a} {b} {c} --method none", WEIGHTS),
    ("merge {torch} {b} --method none", WEIGHTS),
    ("merge {a} {index} --method none", WEIGHTS),
    ("merge {folder} {a} --method none --copy-files", below("-o", "config.json", "model.safetensors")),
    ("merge {a} {b} --perm {perm}", SEARCHED),
    ("merge {a} {b} --curve {curve} --at .5", WEIGHTS),
    ("merge {a} {b} --method wm --net {net}:build --loss {loss}:loss" + DATA, SEARCHED),
    ("merge {a} {b} --repair refit --held-out npz:{data} --data {loader}:load", SEARCHED),
    ("repair {a} --endpoints {b} {c} --perm {perm} --spec {spec}" + DATA, WEIGHTS),
    (
        "curve {a} {b} --epochs 1 --perm {perm}" + DATA + OWN,
        [
            (("-o", "V"), "V.curve.safetensors"),
            (("-o", "O.curve.safetensors"), "O.curve.search.safetensors"),
            (("-o", "O.curve.safetensors", "--log", "V"), "V"),
        ],
    ),
    ("dream {a} {b} --images 10 --steps 1 --input 1x1x8x8" + OWN, [(("-o", "V"), "V.npz")]),
    ("train mlp --epochs 1 --width 4" + DATA, [(("-o", "V"), "V.safetensors"), (O, "O.training.pt")]),
    (
        "train {net}:build --data {loader}:load --epochs 1",
        [((*O, "--keep-every", "1"), "O.epoch1.safetensors")],
    ),
    ("train mlp --data mnist --data-root {root}", [(O, "O.training.pt")]),
    (
        "barrier {a} {b} --baseline {report} --method none" + DATA,
        files("--html", "--json-file", "--markdown", "--junit", "--png", "--step-summary")
        + below("--report", "report.html", "report.json", "report.md", "report.png"),
    ),
    ("barrier {a} {b} --curve {curve} --perm {perm}" + DATA + OWN, files("--html", "--step-summary")),
    ("barrier {a} {a} --pair {index},{folder} --method none --data {loader}:load", files("--html")),
    ("barrier {a} {b} --held-out npz:{data} --data mnist --data-root {root}", files("--html", "--junit")),
    (
        "compare {a} {b} {c} --loss {loss}:loss --metric {loss}:metric" + DATA + OWN,
        files("--html", "--json-file", "--markdown")
        + below("--report", "compare.html", "compare.md", "compare.json", "compare.png"),
    ),
    (
        "plane {a} {b} --curve {curve} --points 3" + DATA + OWN,
        files("--html", "--json-file", "--plot") + below("--report", "plane.html", "plane.json", "plane.png"),
    ),
    ("signature {a} {b} --curve {curve}" + DATA + OWN, files("--plot", "--html")),
    ("doctor {a} {b}" + DATA + OWN, files("--html")),
    ("doctor {index} {folder}", files("--html")),
    ("verify {a} {b} --input 1x1x8x8" + OWN, [(("-o", "V"), "V.safetensors")]),
    ("card {a} --barrier {report} --recipe {recipe}" + DATA + OWN, files("-o")),
    ("spec infer --net {net}:build --checkpoint {a} --input 1x1x8x8", [(("-o", "V"), "V.yaml")]),
    ("spec import {axes} --checkpoint {a}", [(("-o", "V"), "V.yaml"), (("-o", "V"), "V")]),
    ("merge-driver {a} {b} {c}", [(("--out", "V"), "V.safetensors")]),
]  # fmt: skip
WAYS = ("same", "absolute", "dots", "through a folder's link", "read by a link", "a hard link", "a link")
GIVEN = WAYS[:5]  # in these the output is named as the input lies


@dataclass(frozen=True)
class Case:
    """A line with one of the files that it reads (`source`), and the output that would be it in some way."""

    line: str
    key: str
    source: str
    words: tuple[str, ...]
    victim: str
    way: str


def cases():
    for line, written in LINES:
        keys = dict.fromkeys(re.findall(r"\{(\w+)\}", line))
        sources = [(key, NAMED[key]) for key in keys if key not in ("folder", "root")]
        sources += [(key, more) for key in keys for more in WITH.get(key, ())]
        for (key, source), (words, victim), way in itertools.product(sources, written, WAYS):
            yield Case(line, key, source, words, victim, way)


def command_of(case):
    """The command line, with the file put where it would be written; None where there is no such way."""
    direct, named = case.way in GIVEN, dict(NAMED)
    ending, fixed = case.victim.removeprefix("V"), case.key in FIXED or case.source != NAMED[case.key]
    if case.victim.startswith("V"):
        if direct and not case.source.endswith(ending):
            return None
        path = case.source if direct else f"other{ending}"
    else:
        path = case.victim
        if direct and (fixed or path.rpartition(".")[2] != case.source.rpartition(".")[2]):
            return None
        if direct and (case.key in ("perm", "index") or case.way == "through a folder's link"):
            return None
    Path(path).parent.mkdir(exist_ok=True)
    if not direct:
        (os.link if case.way == "a hard link" else os.symlink)(os.path.abspath(case.source), path)
    elif path != case.source:
        shutil.copy(case.source, path)
        named[case.key] = path
    Path("sub").mkdir()
    before = {"absolute": os.getcwd(), "dots": "sub/..", "through a folder's link": "linked"}.get(case.way)
    if case.way == "through a folder's link":
        os.symlink(os.getcwd(), "linked")
    if case.way == "read by a link":
        if fixed:
            return None
        named[case.key] = f"sub/link{''.join(Path(path).suffixes)}"
        os.symlink(os.path.abspath(path), named[case.key])
    words = list(case.words)
    for k, word in enumerate(words):
        if word == "V":
            word = path
        elif word.rstrip("/") not in ("R", "OD") and not word.startswith("O"):
            continue
        words[k] = word if before is None else f"{before}/{word}"
    force = () if case.line.startswith("merge-driver") else ("--force",)
    return [*case.line.format(**named).split(), *words, *force]


@pytest.fixture
def made(trained, done, tmp_path):
    """One of everything that a command reads."""
    for name, model in zip("ab", trained, strict=True):
        shutil.copy(model, f"{name}.safetensors")
    model = open_checkpoint("b.safetensors")
    shutil.copy("b.safetensors", "c.safetensors")
    torch.save({name: model[name].clone() for name in model}, "t.pth")
    Path("t.pth.rebasin.json").write_text("{}")
    done("align", "a.safetensors", "b.safetensors", "-o", "ab.safetensors")
    done("curve", "a.safetensors", "b.safetensors", "--epochs", 1, "--limit", 64, "-o", NAMED["curve"])
    few = ("--data", "digits", "--limit", 64, "--method", "none")
    done("barrier", "a.safetensors", "b.safetensors", *few, "--json-file", "r.json")
    Path("rep").mkdir()
    shutil.move("r.json", "rep/report.json")
    write_safetensors("parts.safetensors", dict(model), metadata=dict(model.metadata), shard_size=3000)
    Path("folder").mkdir()
    write_safetensors("folder/model.safetensors", dict(model), metadata=dict(model.metadata))
    Path("folder/config.json").write_text("{}")
    shutil.copy(library.folder() / "mlp.yaml", "base.yaml")
    Path("own.yaml").write_text("include: base\n")
    Path("helper.py").write_text("from rebasin_cli.nets.mlp import MLP as build\n")
    Path("net.py").write_text("from helper import build\n")
    Path("loss.py").write_text("def loss(o, t): pass\ndef metric(o, t): pass\n")
    Path("loader.py").write_text("def load(split): pass\n")
    images, labels = np.zeros((32, 1, 8, 8), dtype=np.uint8), np.arange(32) % 10
    np.savez("data.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    Path("root/mnist").mkdir(parents=True)
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        Path(f"root/mnist/{name}-ubyte.gz").write_bytes(b"x")
    Path("axes.json").write_text("{}")
    Path("recipe.yaml").write_text("steps: []\n")
    assert all(Path(name).exists() for names in WITH.values() for name in names)


def check(some, folder):
    """The number of cases that were tried; each was refused, and all stayed as it was."""
    tried, mine = 0, contents(folder)
    for case in some:
        if (command := command_of(case)) is not None:
            before = contents(folder)
            outcome = rebasin(*command)
            told = f"{case}: rebasin {' '.join(command)}\n{outcome.err}"
            assert outcome.code == 2 and outcome.out == "", told
            assert outcome.err.count("rebasin: ") == 1 and "Traceback" not in outcome.err, told
            said = ("this very command", "is a link, and none is followed", "is Python code")
            assert any(words in outcome.err for words in said), told
            assert contents(folder) == before, told
            tried += 1
        clear(folder, mine)
    return tried


def clear(folder, mine):
    for path in sorted(folder.rglob("*"), reverse=True):
        if str(path.relative_to(folder)) not in mine and "__pycache__" not in path.parts:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


def test_no_output_is_an_input_in_some_way(made, tmp_path):
    assert check(itertools.islice(cases(), 0, None, 101), tmp_path) > 20


@pytest.mark.sweep
def test_no_output_of_any_command_is_an_input_in_any_way(made, tmp_path):
    assert check(itertools.islice(cases(), 0, None, 3), tmp_path) > 500
