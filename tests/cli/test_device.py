"""Commands beside a device that is not the CPU (see device_driver): what the CPU finds, computed there."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from .conftest import fresh, pictures, rebasin, same

DRIVER = Path(__file__).with_name("device_driver.py")
PLACES = ("cpu", "simulated")
MLPS, NETS = ("a.safetensors", "b.safetensors"), ("ra.safetensors", "rb.safetensors")
THREE = (*MLPS, "c.safetensors")
DIGITS = ("--data", "digits", "--limit", "300")
PICTURES = ("--data", "npz:pictures.npz")
EPOCHS = ("--epochs", "2")
FEW = ("--points", "5", "--skip-checks")
EVERY = ("--share", "1", "--init", "identity", "--batch-size", "30")  # permutations move in every step
ALIGN = {
    "wm": ("align", *MLPS),
    "wm of wide ones": ("align", "wa.safetensors", "wb.safetensors"),
    "wm of residual ones": ("align", *NETS),
    "am": ("align", *MLPS, "--method", "am", *DIGITS),
    "am with BatchNorm": ("align", *NETS, "--method", "am", *PICTURES),
    "dual": ("align", *MLPS, "--method", "dual", *DIGITS),
    "dual with BatchNorm": ("align", *NETS, "--method", "dual", *PICTURES),
    "ste": ("align", *MLPS, "--method", "ste", *DIGITS, *EPOCHS, *EVERY),
    "ste with BatchNorm": ("align", *NETS, "--method", "ste", *PICTURES, *EPOCHS),
    "pam": ("align", *MLPS, "--method", "pam", *DIGITS, "--epochs", "1", "--samples", "2"),
    "wm with groups": ("align", "va.safetensors", "vb.safetensors", "--groups", "all", "--effort", "fast"),
}
WRITE = {
    "repair": ("merge", *MLPS, *DIGITS[:2], "--repair", "repair", "--bake-temperature"),
    "reset": ("merge", *NETS, *PICTURES),
    "refit": ("merge", *MLPS, *DIGITS[:2], "--repair", "refit"),
    "distill": ("merge", *MLPS, *DIGITS[:2], "--repair", "distill", "--repair-samples", "300"),
    "merge-many": ("merge", *THREE, "--method", "merge-many"),
    "universe": ("merge", *THREE, "--method", "universe"),
    "ste-mm": ("merge", *THREE, "--method", "ste-mm", *DIGITS, *EPOCHS, *EVERY),
    "repair of a mean": ("repair", "mean.safetensors", "--endpoints", *MLPS, *DIGITS[:2]),
    "polish": ("merge", *MLPS, *DIGITS, "--polish", "2 steps", "--repair", "none", "--skip-checks"),
    "train": ("train", "mlp", "--data", "digits", "--epochs", "1"),
}
LOOK = {
    "barrier": ("barrier", *NETS, *PICTURES, "--method", "am", *FEW),
    "barrier of ste": ("barrier", *MLPS, *DIGITS, "--method", "ste", *EPOCHS, *FEW),
    "compare": ("compare", *THREE, *DIGITS, *FEW),
    "compare of sharpness": ("compare", *THREE, *DIGITS, "--sharpness", *FEW),
    "eval": ("eval", "a.safetensors", "--data", "digits", "--skip-checks"),
    "signature": ("signature", *NETS, *PICTURES),
    "doctor": ("doctor", *NETS, *PICTURES),
    "plane": ("plane", *THREE, *DIGITS, "--points", "3", "--skip-checks"),
    "curve": ("curve", *MLPS, *DIGITS, "--epochs", "1", "-o", "made.curve.safetensors", "--force"),
    "dream": ("dream", NETS[0], "--images", "16", "--steps", "2", "-o", "made.npz", "--force"),
}


# One command of each kind, and a little more, in one process; all others in another one.
QUICK = {"wm of wide ones", "am", "ste", "reset", "merge-many", "train", "eval"}
WHICH = pytest.mark.parametrize("which", ["quick", "rest"])
pytestmark = pytest.mark.sweep  # two interpreters, and PyTorch's compiler in both


def those(which, *lists):
    """Of these lists the quick commands, or the others."""
    all_of_them = {name: command for some in lists for name, command in some.items()}
    return {name: made for name, made in all_of_them.items() if (name in QUICK) is (which == "quick")}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run a list of commands, which should succeed, in one process; every list once.

    An interpreter of its own: PyTorch can be told of a device only once, never forgets it, and where it has
    computed gradients before, it computes none there. What comes back is the folder they ran in, and
    {name: (stdout, counts)}.
    """

    @cache
    def ran(listed, which, **environment):
        folder = models(tmp_path_factory.mktemp("device"))
        commands = listed(which)
        (folder / "commands.json").write_text(json.dumps(commands))
        command = [sys.executable, DRIVER, "commands.json"]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600)
        told = [json.loads(line) for line in done.stdout.splitlines()]
        assert done.returncode == 0 and [name for name, *_ in told] == list(commands), done.stderr
        for name, code, _, err, _ in told:
            assert code == (130 if len(commands[name]) > 1 else 0), (name, err)
        return folder, {name: (out, counts) for name, _, out, _, counts in told}

    return ran


def models(folder):
    """What the commands read, in this folder."""
    pictures(folder / "pictures.npz")
    for seed, name in enumerate("abc"):
        fresh(folder / f"{name}.safetensors", seed=seed, width=12, depth=3)
    for seed, name in enumerate("ab"):
        fresh(folder / f"w{name}.safetensors", seed=seed, width=300, depth=3)
        fresh(folder / f"r{name}.safetensors", "resnet20", seed=seed, shape=(3, 8, 8), width=0.25)
    for seed, name in enumerate("ab"):
        fresh(folder / f"plain {name}.safetensors", "vit", seed=seed, shape=(1, 8, 8), width=16, depth=1)
        canon = rebasin("canon", folder / f"plain {name}.safetensors", "-o", folder / f"v{name}.safetensors")
        assert canon.code == 0, canon.err
    two = (folder / name for name in MLPS)
    mean = rebasin("merge", *two, "--method", "none", "--repair", "none", "-o", folder / "mean.safetensors")
    assert mean.code == 0, mean.err
    return folder


ELEMENTS = {"wm with groups"}  # elements are composed, and forms made, on the CPU

# On the CPU statistics are summed in another way, since images lie channels last there, and Adam takes its
# steps in one pass over the weights; 200 of them let rounding grow.
ROUNDED = {"reset": 1e-6, "distill": 1e-5}


def near(one, other, most):
    """Whether two files hold the same numbers up to rounding."""
    a, b = load_file(one), load_file(other)
    return list(a) == list(b) and all(torch.allclose(a[name], b[name], rtol=1e-5, atol=most) for name in a)


def told_by(command, place, *more):
    return [*command, "--json", "--device", place, *more]


def written(name, command, place, *more):
    """The command, which writes what it is called; without the proof, which runs on the CPU anywhere."""
    proof = () if command[0] in ("train", "repair") else ("--no-prove",)
    return told_by(command, place, *proof, "-o", f"{name} {place}.safetensors", *more)


def both(which):
    """Every command on either device; with the quick ones a shorter and a stopped search."""
    told = {}
    for place in PLACES:
        for name, command in those(which, ALIGN, WRITE).items():
            told[f"{name} {place}"] = [written(name, command, place)]
        told |= {f"{name} {place}": [told_by(look, place)] for name, look in those(which, LOOK).items()}
    if which == "quick":
        told["shorter"] = [written("shorter", ALIGN["ste"], "simulated", "--epochs", "1")]
        whole, stopped = (
            written(name, ALIGN["ste"], "simulated", "--log", f"{name}.jsonl") for name in ("ste", "stopped")
        )
        stopped += ["--checkpoint-every", "1"]
        told |= {"ste simulated": [whole], "stopped": [stopped, 8], "resumed": [[*stopped, "--resume"]]}
    return told


@WHICH
def test_results_are_the_cpus_and_computed_there(ran, which):
    folder, told = ran(both, which)
    for name, command in those(which, ALIGN, WRITE).items():
        for kind in ("safetensors", "perm.safetensors")[: 1 + (command[0] == "align")]:
            files = [folder / f"{name} {place}.{kind}" for place in PLACES]
            assert near(*files, ROUNDED[name]) if name in ROUNDED else same(*files), name
        here, there = (told[f"{name} {place}"][1] for place in PLACES)
        # a CPU is tried on a few samples first, so it may multiply more often
        assert there.get("products there", 0) > 0 and here.get("products here", 0) > 0, name
        assert "products there" not in here, name
        left = here["products here"] - there["products there"] if name in ELEMENTS else 0
        assert there.get("products here", 0) == left, name


@WHICH
def test_figures_are_the_cpus(ran, which):
    _, told = ran(both, which)
    for name in those(which, LOOK):
        found, expected = (numbers(json.loads(told[f"{name} {place}"][0])) for place in PLACES)
        assert len(found) > 3
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), name  # float32, and differences of it
        assert "products there" in told[f"{name} simulated"][1]


def numbers(value, path=""):
    """All numbers of a JSON document by their places, without those of clocks."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        return {path: float(value)} if isinstance(value, int | float) and ".times" not in path else {}
    return {key: number for k, item in items for key, number in numbers(item, f"{path}.{k}").items()}


def test_what_leaves_it_in_a_step_is_what_is_assigned(ran):
    """And a few numbers; the weights that move stay there."""
    _, told = ran(both, "quick")
    steps, bytes_out = (
        [value(*told[name]) for name in ("shorter", "ste simulated")]
        for value in (lambda out, _: json.loads(out)["match"]["sweeps"], lambda _, c: c["bytes out"])
    )
    similarities = 3 * 12 * 12 * 4  # of three words of twelve units, in float32
    assert steps[1] - steps[0] == 9  # an epoch
    assert bytes_out[1] - bytes_out[0] <= 1.5 * similarities * (steps[1] - steps[0])


def test_a_stopped_search_goes_on_there(ran):
    """Step by step to the same losses, which show where the dummies are before any permutation does."""
    folder, _ = ran(both, "quick")
    assert same(*(folder / f"{name} simulated.safetensors" for name in ("ste", "stopped")))
    logs = [
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("ste", "stopped")
    ]
    losses = [[row["loss"] for row in log if "loss" in row] for log in logs]
    assert len(losses[0]) == 18 and losses[0] == losses[1]


# What runs as another one does where there is no float64, on other networks.
ALIKE = {"wm of wide ones", "compare of sharpness"} | {
    f"{one} with BatchNorm" for one in ("am", "dual", "ste")
}


def without_float64(which):
    told = {name: [written(name, command, "simulated")] for name, command in (ALIGN | WRITE).items()}
    told |= {name: [told_by(look, "simulated")] for name, look in LOOK.items()}
    return {name: command for name, command in told.items() if name not in ALIKE}


def test_without_float64_searches_run_on_the_cpu(ran):
    """As on Apple's GPUs."""
    _, told = ran(without_float64, "every", SIMULATED_FLOAT64="no")
    searches = [name for name in told if name in ALIGN]
    measured = [name for name in told if name in ("eval", "train", "barrier", "barrier of ste")]
    assert len(searches) >= 3 and len(measured) >= 3
    assert not any("products there" in told[name][1] for name in searches)
    assert all("products there" in told[name][1] for name in measured)
