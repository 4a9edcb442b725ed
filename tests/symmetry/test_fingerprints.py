"""Relabellings found by the bits of every unit's values."""

import pytest
import torch

from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.fingerprints import of_values, read, relabelling

# Axes of tensors, their shapes.
SPECS = {
    "a chain": {"a.weight": ("h .", (7, 3)), "b.weight": ("g h", (5, 7)), "b.bias": ("g", (5,))},
    "a word on two axes": {"a.weight": ("h .", (7, 3)), "r.weight": ("h h", (7, 7))},
    "flattened and stacked": {"a.weight": ("(2 h) .", (14, 3)), "b.weight": (". (h 4)", (2, 28))},
    "rows of several blocks": {"a.weight": ("h .", (600, 600))},
    "two words on one axis": {"a.weight": ("(h g) .", (15, 4)), "b.weight": (". h g", (2, 3, 5))},
}


def fitted(axes):
    lines = "\n".join(f'  {name}: "{text}"' for name, (text, _) in axes.items())
    return fit(parse(f"tensors:\n{lines}\n", name="test"), {name: shape for name, (_, shape) in axes.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.float64])
@pytest.mark.parametrize("axes", SPECS.values(), ids=SPECS)
def test_units_in_another_order_are_found(axes, dtype):
    spec, made = fitted(axes), torch.Generator().manual_seed(0)
    model = {name: torch.randn(shape, generator=made).to(dtype) for name, (_, shape) in axes.items()}
    turn = permutation.random(spec.words, torch.Generator().manual_seed(1))
    other = dict(permutation.permuted(model, spec, turn))
    before = {name: tensor.clone() for name, tensor in model.items()}
    found = relabelling(model, other, spec)
    assert all(torch.equal(tensor.float(), before[name].float()) for name, tensor in model.items())
    back = permutation.permuted(other, spec, found)
    for name, tensor in model.items():
        assert torch.equal(back[name].float(), tensor.float())
    name = next(iter(axes))
    flat = other[name].reshape(-1).view(torch.uint8)
    flat[0] ^= 1  # the last bit of a value
    assert relabelling(model, other, spec) is None
    kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    assert relabelling(model, {name: its.view(kind) for name, its in model.items()}, spec) is None


def test_the_same_values_in_another_tensor_are_of_another_unit():
    spec = fitted({"a.weight": ("h .", (3, 2)), "b.weight": ("h .", (3, 2))})
    one, two, three = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    model = {"a.weight": torch.stack([one, two, three]), "b.weight": torch.stack([two, one, three])}
    turn = {"h": torch.tensor([1, 0, 2])}
    found = relabelling(model, dict(permutation.permuted(model, spec, turn)), spec)
    assert found["h"].tolist() == [1, 0, 2]


def test_units_that_are_alike_are_paired_in_order():
    spec = fitted(SPECS["a chain"])
    model = {name: torch.zeros(shape) for name, (_, shape) in SPECS["a chain"].items()}
    found = relabelling(model, model, spec)
    assert permutation.is_identity(found)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int16, torch.bool]
)
def test_the_same_values_in_whatever_order_have_one_number(dtype):
    values = torch.randn(700, 900, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    mixed = values.flatten()[torch.randperm(values.numel())].view(values.shape)
    assert of_values({"w": values}, "w") == of_values({"w": mixed}, "w")
    mixed[3, 4] = -mixed[3, 4].float() + 2 if dtype is not torch.bool else ~mixed[3, 4]
    assert of_values({"w": values}, "w") != of_values({"w": mixed}, "w")


def test_zeros_of_both_signs_are_one_value():
    zeros = {name: torch.tensor([1.0, sign * 0.0]) for name, sign in (("w", 1), ("v", -1))}
    assert of_values(zeros, "w") == of_values(zeros, "v")
    assert of_values({"w": torch.zeros(())}, "w") == of_values({"w": -torch.zeros(())}, "w")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_block_of_what_is_read_is_looked_at(dtype):
    spec = fitted(SPECS["a chain"] | {"alone.bias": (".", (5,))})
    model = {name: torch.ones(shape).to(dtype) for name, (_, shape) in SPECS["a chain"].items()}
    model["alone.bias"] = torch.ones(5, dtype=dtype)
    seen = []
    assert relabelling(model, model, spec, look=seen.append) is not None
    assert read(spec) == model.keys() - {"alone.bias"}
    assert sum(block.numel() for block in seen) == 2 * sum(model[name].numel() for name in read(spec))
