"""Models whose lists change places: tensor by tensor what the stacked tensor would be."""

import pytest
import torch

from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.errors import CheckpointError
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.lists import held_stacked, stacked

SPEC = """
tensors:
  gate.weight: "experts stream"
  experts.{}.up: "experts (2 hidden*) stream"
  experts.{}.down: "experts stream hidden*"
  out: ". (heads dim*)"
  in: "(heads dim*) stream"
sizes:
  heads: 2
within:
  hidden: experts
"""
E, H, D = 11, 5, 6


@pytest.fixture
def model():
    torch.manual_seed(0)
    found = {"gate.weight": torch.randn(E, D), "out": torch.randn(3, 8), "in": torch.randn(8, D)}
    for e in range(E):
        found |= {f"experts.{e}.up": torch.randn(2 * H, D), f"experts.{e}.down": torch.randn(D, H)}
    return found


@pytest.fixture
def fitted(model):
    return fit(parse(SPEC, name="s"), {name: tuple(tensor.shape) for name, tensor in model.items()})


@pytest.fixture
def perms(fitted):
    return permutation.random(fitted.words, torch.Generator().manual_seed(1), within=fitted.within)


def test_permuting_members_is_permuting_the_stack(model, fitted, perms):
    moved = permutation.permuted(model, fitted, perms)
    one, other = (
        stacked(dict(moved), fitted),
        permutation.permuted(stacked(model, fitted), fitted.stacked, perms),
    )
    assert set(one) == set(other) == {"gate.weight", "experts.{}.up", "experts.{}.down", "out", "in"}
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert list(moved) == list(model) and not torch.equal(moved["experts.0.up"], model["experts.0.up"])


def test_parts_are_parts_of_the_whole(model, fitted, perms):
    moved = permutation.permuted(model, fitted, perms)
    for name in model:
        assert torch.equal(
            torch.cat([moved.rows(name, 0, 2), moved.rows(name, 2, len(model[name]))]), moved[name]
        )


def test_it_is_undone(model, fitted, perms):
    there = dict(permutation.permuted(model, fitted, perms))
    back = permutation.permuted(there, fitted, permutation.invert(perms))
    assert all(torch.equal(back[name], model[name]) for name in model)


def test_a_member_is_read_alone(model, fitted, perms):
    """Moving a mixture takes the memory of one expert's tensor, not of all of them."""
    read = []

    def get(name):
        read.append(name)
        return model[name]

    shapes = {name: tuple(tensor.shape) for name, tensor in model.items()}
    lazy = LazyTensors(shapes, {name: torch.float32 for name in model}, get)
    permutation.permuted(lazy, fitted, perms)["experts.3.up"]
    assert read == [f"experts.{int(perms['experts'][3])}.up"]
    read.clear()
    kept = held_stacked(lazy, fitted)
    assert kept["experts.{}.up"] is kept["experts.{}.up"] and len(read) == E


def test_members_of_several_dtypes_cannot_change_places(model, fitted, perms):
    model["experts.4.down"] = model["experts.4.down"].half()
    with pytest.raises(CheckpointError, match="several dtypes") as refused:
        permutation.permuted(model, fitted, perms)
    assert refused.value.problems[:2] == ("experts.0.down  is float32", "experts.4.down  is float16")
    with pytest.raises(CheckpointError, match="several dtypes"):
        stacked(model, fitted)
