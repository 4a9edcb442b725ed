"""Commands in 2, 3 and 4 processes leave what one process leaves, byte for byte, and say the same."""

import functools
import json
import os
import re
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import processes

from .conftest import fresh, rebasin

DRIVER = Path(__file__).with_name("together_driver.py")
SWEEP = pytest.mark.sweep
PLAIN = ("--repair", "none")
PAIR = ("a.safetensors", "b.safetensors")
SOME = ("--data", "digits", "--limit", "200", "--batch-size", "30")
ACTS = (*SOME, "--method", "am", "--repair-samples", "150")
# Everything is written below out/, where one process has written it, too.
WRITES = {
    "one file": ["average", *PAIR, "-o", "out/mean.safetensors", *PLAIN],
    "shards": ["average", "a/", "b/", "c/", "-o", "out/shards/", *PLAIN, "--weights", "0.5,0.3,0.2"],
    "its own shards": ["average", "a/", "b/", "-o", "out/x.safetensors", "--out-shard-size", "9KB", *PLAIN],
    "converted": ["average", "a.safetensors", "-o", "out/cut/", "--out-shard-size", "9KB", *PLAIN],
    "rounded": ["average", "a/", "b/", "-o", "out/r.safetensors", "--out-dtype", "bfloat16", *PLAIN],
    "torch": ["average", "a/", "b/", "-o", "out/mean.pt", *PLAIN],
    "merged": ["merge", *PAIR, "--method", "none", "-o", "out/m.safetensors"],
    "permuted": ["merge", *PAIR, "--perm", "p.perm.safetensors", "-o", "out/p.safetensors", *PLAIN],
    "searched": ["merge", *PAIR, "--method", "wm", "-o", "out/s.safetensors", *PLAIN],
    "applied": ["apply", "p.perm.safetensors", "b.safetensors", "-o", "out/applied.safetensors"],
    "refitted": ["merge", *PAIR, *ACTS, "--repair", "refit", "-o", "out/refit.safetensors"],
    "repaired": ["repair", "m.safetensors", "--endpoints", *PAIR, *SOME[:2], "-o", "out/mended.safetensors"],
    "matched by both": ["align", *PAIR, *SOME, "--method", "dual", "-o", "out/dual.safetensors"],
    "applied to shards": ["apply", "p.perm.safetensors", "b/", "-o", "out/applied/"],
    "canonical": ["canon", "a.safetensors", "--net", "mlp", "--input", "1x64", "-o", "out/canon.safetensors"],
    "verified": ["verify", "b.safetensors", "out/applied.safetensors", "-o", "out/v.safetensors", "--json"],
    "a recipe": ["run", "recipe.yaml"],
    "not shared": ["kin", *PAIR, "--json"],
}
DATA = ("--data", "digits", "--limit", "60", "--batch-size", "7", "--skip-checks", "--json")
MISSED = ("--json-file", "out/missed.json")
MEASURES = {
    "missed": ["barrier", *PAIR, *DATA, *"--method none --points 3 --max-barrier -1".split(), *MISSED],
    "aligned": ["barrier", *PAIR, *DATA, "--method", "wm", "--points", "3", "--report", "out/report"],
    "by the clock": ["barrier", *PAIR, *DATA, "--method", "auto", "--points", "3", "--budget", "0.001T"],
    "plane": ["plane", *PAIR, *DATA, "--method", "wm", "--points", "3", "--json-file", "out/plane.json"],
    "compare": ["compare", *PAIR, "c.safetensors", *DATA, "--points", "2", "--json-file", "out/c.json"],
    "signature": ["signature", *PAIR, *SOME, "--method", "am", "--json", "--html", "out/s.html"],
    "stability": ["signature", *PAIR, *SOME[:2], "--method", "am", "--stability", "45,100", "--json"],
    "verified": ["verify", *PAIR, "--json"],
    "eval": ["eval", "a.safetensors", *DATA, "--against", "b.safetensors"],
}

TUNED = "--method wm --repair distill --points 3 --repair-samples 60".split()
# What is learned together is what one process learns up to rounding, of steps in float32.
LEARNS = {
    "train": [
        "train",
        "mlp",
        *DATA[:4],
        "--width",
        "8",
        *"--epochs 2 --keep-every 1 -o out/t.safetensors".split(),
    ],
    "ste": ["align", *PAIR, *SOME, "--method", "ste", "--epochs", "1", "-o", "out/ste.safetensors"],
    "curve": ["curve", *PAIR, *SOME[:2], "--limit", "200", "--epochs", "2", "-o", "out/x.curve.safetensors"],
    "pam": ["align", *PAIR, *SOME, *"--method pam --epochs 1 --samples 2 -o out/pam.safetensors".split()],
    "many": [
        "merge",
        *PAIR,
        "c.safetensors",
        *SOME,
        *"--method ste-mm --epochs 1 --repair none -o out/many.safetensors".split(),
    ],
    "distilled": ["merge", *PAIR, *ACTS, "--repair", "distill", "-o", "out/d.safetensors"],
    "beside fine-tuned": ["barrier", *PAIR, *SOME, "--skip-checks", *TUNED, "--json-file", "out/tuned.json"],
}


def inputs(folder):
    """Models a, b, c: a file of each, and the same in shards; the permutation of b to a."""
    for k, name in enumerate("abc"):
        path = folder / f"{name}.safetensors"
        fresh(path, seed=k, width=24, depth=3)
        done = rebasin("average", path, "-o", f"{folder}/{name}/", *PLAIN, "--out-shard-size", "6KB")
        assert done.code == 0, done.err
    pair = [folder / name for name in PAIR]
    found = rebasin("align", *pair, "-o", folder / "p.safetensors")
    assert found.code == 0, found.err
    merged = rebasin("merge", *pair, "--method", "none", "-o", folder / "m.safetensors", *PLAIN)
    assert merged.code == 0, merged.err
    (folder / "recipe.yaml").write_text(
        "steps:\n  - average:\n      models: [a.safetensors, b.safetensors]\n"
        "      out: out/recipe.safetensors\n      repair: none\n"
    )
    (folder / "out").mkdir()


def together(folder, size, lines, **environment):
    """What every rank has told of these command lines, by name."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} | environment
    named = json.dumps([[name, *line] for name, line in lines.items()])
    log = folder.with_name(f"{folder.name}-log{size}")
    ranks = [
        processes.script(DRIVER, folder, named, log=f"{log}.{k}", RANK=str(k), **place) for k in range(size)
    ]
    try:
        assert [rank.wait(400) for rank in ranks] == [0] * size, [rank.err for rank in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return [json.loads((folder / f"rank{k}.json").read_text()) for k in range(size)]


def content(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """The folder of inputs."""
    folder = tmp_path_factory.mktemp("given")
    inputs(folder)
    return folder


@pytest.fixture(scope="module")
def alone(given, tmp_path_factory):
    """What one process tells of command lines by these names, and the folder `out` that it leaves; once."""

    @functools.cache
    def alone(names):
        folder = among(given, tmp_path_factory.mktemp("alone"))
        before = os.getcwd()
        os.chdir(folder)
        try:
            told = {name: rebasin(*WRITES[name]) for name in names}
        finally:
            os.chdir(before)
        assert [found.err for found in told.values() if found.code] == []
        return told, folder / "out"

    return alone


def among(given, folder):
    """The folder, with the inputs and an empty `out` in it."""
    for path in given.iterdir():
        if path.name not in ("out", ".rebasin"):
            (folder / path.name).symlink_to(path)
    (folder / "out").mkdir()
    return folder


# Of every way to write, and to share a search, one; the others are as these but for what is in the files.
FEW = "one file", "shards", "torch", "permuted", "searched", "refitted", "applied", "verified", "a recipe"


@pytest.mark.parametrize(
    ("size", "names"),
    [(3, FEW), *(pytest.param(size, tuple(WRITES), marks=SWEEP) for size in (2, 4))],
    ids=["3 few", "2", "4"],
)
def test_any_number_of_processes_writes_the_same_bytes(given, alone, tmp_path, size, names):
    expected, left = alone(names)
    (tmp_path / "work").mkdir()
    work = among(given, tmp_path / "work")
    first, *others = together(work, size, {name: WRITES[name] for name in names})
    for name, (code, out, err) in first.items():
        assert code == 0, (name, err)
        assert _words(out) == _words(expected[name].out), name
        assert [other[name] for other in others] == [[0, "", ""]] * (size - 1), name
    assert content(work / "out") == content(left)
    assert not [name for name in os.listdir(work) if name.startswith(".rebasin-")]


# Of every way to share batches one: along a path, in a search, of one model.
QUICK = "missed", "signature", "eval", "verified"


@pytest.mark.parametrize(
    ("size", "names"),
    [(2, QUICK), pytest.param(3, MEASURES, marks=SWEEP)],
    ids=["2 quick", "3"],
)
def test_processes_that_share_batches_have_the_figures_of_one(given, tmp_path, size, names):
    lines = {name: MEASURES[name] for name in names}
    before = os.getcwd()
    for path in given.glob("?.safetensors"):
        (tmp_path / path.name).symlink_to(path)
    (one := tmp_path / "one").mkdir()
    (tmp_path / "out").mkdir()
    os.chdir(tmp_path)
    try:
        expected = {
            name: rebasin(*(word.replace("out/", "one/") for word in line)) for name, line in lines.items()
        }
    finally:
        os.chdir(before)
    first, *others = together(tmp_path, size, lines)
    for name, (code, out, err) in first.items():
        assert code == expected[name].code, (name, err, expected[name].err)
        assert _figures(json.loads(out)) == pytest.approx(_figures(expected[name].json()), rel=1e-10), name
        assert [other[name] for other in others] == [[code, "", ""]] * (size - 1), name
    assert content(one).keys() == content(tmp_path / "out").keys()


@pytest.mark.parametrize(
    ("size", "names"),
    [(2, ("train", "ste")), *(pytest.param(size, LEARNS, marks=SWEEP) for size in (2, 3))],
    ids=["2 few", "2", "3"],
)
def test_processes_that_share_steps_learn_what_one_learns(given, tmp_path, size, names):
    lines = {name: [*LEARNS[name], "--json"] for name in names}
    for folder in (one := tmp_path / "one", two := tmp_path / "two"):
        folder.mkdir()
        among(given, folder)
    before = os.getcwd()
    os.chdir(one)
    try:
        expected = {name: rebasin(*line) for name, line in lines.items()}
    finally:
        os.chdir(before)
    first, *others = together(two, size, lines)
    for name, (code, out, err) in first.items():
        assert (code, expected[name].code) == (0, 0), (name, err, expected[name].err)
        assert "not shared" not in err, (name, err)
        assert _figures(json.loads(out)) == pytest.approx(
            _figures(expected[name].json()), rel=1e-3, abs=1e-5
        ), name
        assert [other[name] for other in others] == [[0, "", ""]] * (size - 1), name
    files = content(one / "out")
    assert content(two / "out").keys() == files.keys()
    for name in files:
        if name.endswith(".safetensors"):
            a, b = (load_file(folder / "out" / name) for folder in (one, two))
            for key, tensor in a.items():
                if not tensor.is_floating_point():
                    assert torch.equal(tensor, b[key]), (name, key)
                apart = (tensor.double() - b[key].double()).norm()
                assert apart <= 1e-2 * tensor.double().norm(), (name, key)  # rounding, after many steps


def _figures(values, place=""):
    """Every number by its place, but for times."""
    if isinstance(values, dict):
        parts = [_figures(v, f"{place}/{k}") for k, v in values.items() if k not in ("times", "command")]
        return {at: value for part in parts for at, value in part.items()}
    if isinstance(values, list):
        return {at: v for k, each in enumerate(values) for at, v in _figures(each, f"{place}/{k}").items()}
    return {place: values} if isinstance(values, int | float) and values is not None else {}


def _words(text):
    """What was told, without numbers."""
    return re.sub(r"[0-9.]+ ?s\b|[0-9.e-]+", "", text)
