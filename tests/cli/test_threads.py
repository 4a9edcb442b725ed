"""The same bytes on one thread and on two, for every method and repair: a CI machine is not yours."""

import contextlib

import pytest
import torch

from rebasin_cli import matchers
from rebasin_cli.repair import REPAIRS

from .conftest import fresh

DIGITS = ["--data", "digits", "--normalize", "unit", "--net", "mlp"]
FEW = ["--limit", "600"]
QUICK = {"am": FEW, "dual": FEW, "ste": [*FEW, "--epochs", "1"], "ste-mm": [*FEW, "--epochs", "1"]}
QUICK["pam"] = [*QUICK["ste"], "--samples", "4", "--scored", "200"]


@contextlib.contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def same_bytes(done, tmp_path):
    """Run a command on one thread and on two; every file that it writes has the same bytes."""

    def same_bytes(*command):
        written = {}
        for count in (1, 2):
            folder = tmp_path / f"on{count}"
            folder.mkdir()
            with threads(count):
                done(*command, "-o", folder / "o.safetensors", "-q")
            written[count] = {path.name: path.read_bytes() for path in folder.iterdir()}
        assert written[1] == written[2] and "o.safetensors" in written[1]

    return same_bytes


@pytest.fixture
def wide(tmp_path):
    """Two MLPs whose products are large enough to be shared by threads."""
    return [fresh(tmp_path / f"{n}.safetensors", seed=k, width=320, depth=2) for k, n in enumerate("ab")]


# Not auto: what it tries depends on the seconds that it has, and its result says what that was.
METHODS = [name for name in matchers.registry.names() if name != "auto"]


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["none", *METHODS])
def test_merges(method, wide, same_bytes):
    same_bytes("merge", *wide, *DIGITS, "--method", method, "--repair", "none", *QUICK.get(method, ()))


@pytest.mark.sweep
@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("merge-many", "universe")])
def test_alignments(method, wide, same_bytes):
    same_bytes("align", *wide, *DIGITS, "--method", method, *QUICK.get(method, ()))


@pytest.mark.sweep
@pytest.mark.parametrize("repair", [name for name in REPAIRS if name not in ("none", "reset")])
def test_repairs(repair, wide, same_bytes):
    same_bytes("merge", *wide, *DIGITS, "--method", "none", "--repair", repair)


@pytest.mark.sweep
@pytest.mark.parametrize("method", ["wm", "am"])
def test_networks_with_batchnorm(method, resnets, same_bytes):
    same_bytes(
        "merge", *resnets, "--method", method, "--repair", "reset", "--data", "npz:pictures.npz",
        "--normalize", "unit", "--net", "resnet20",
    )  # fmt: skip


def test_weight_matching_and_plain_averages(pair, same_bytes):
    same_bytes("merge", *pair, "--repair", "none")
