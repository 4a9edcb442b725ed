"""Files of torch.save, written tensor by tensor: PyTorch reads them, whole and mapped."""

import zipfile

import pytest
import torch

from rebasin_cli.checkpoints.around import MOST, Slot, around
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.checkpoints.safetensors_format import CODES
from rebasin_cli.checkpoints.saved import MAX_DEPTH
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.checkpoints.writer import write_torch
from rebasin_cli.errors import CheckpointError

DTYPES = [*CODES]  # those that a safetensors file can hold


def bits(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path):
    values = torch.arange(24).reshape(2, 3, 4)
    tensors = {str(dtype): values.to(dtype) for dtype in DTYPES}
    tensors |= {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "turned": torch.rand(4, 3).T}
    envelope = {"n": 1, "état": [{name: Slot(name) for name in tensors}, None, ("x", 2.5)]}
    write_torch(tmp_path / "a.pt", tensors, envelope)
    for how in ({}, {"mmap": True}):
        found = torch.load(tmp_path / "a.pt", weights_only=True, **how)
        assert found["n"] == 1 and found["état"][1:] == [None, ("x", 2.5)]
        for name, tensor in tensors.items():
            read = found["état"][0][name]
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(bits(read), bits(tensor)), name
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        assert archive.testzip() is None
    read = open_checkpoint(tmp_path / "a.pt", key="état.0")
    assert all(torch.equal(bits(read[name]), bits(tensor)) for name, tensor in tensors.items())


def nested(depth):
    value = {"lr": 0.1}
    for _ in range(depth):
        value = {"of": value}
    return value


@pytest.mark.parametrize(
    ("beside", "stays"),
    [
        ({"epoch": 3}, True),
        (nested(MAX_DEPTH - 3), True),
        (nested(MAX_DEPTH + 1), False),
        ([0] * (MOST - 10), True),
        ([0] * (MOST + 10), False),
    ],
)
def test_what_lies_around_the_weights_is_kept_up_to_a_depth_and_a_number(beside, stays):
    found = around({"model": {"w": torch.ones(2)}, "config": beside}, {"w": ("model", "w")}, {})
    assert found.tree["model"] == {"w": Slot("w")}
    assert found.tree.get("config") == (beside if stays else None)
    assert found.left_out == (() if stays else ("config",))


def test_no_number_leaves_nothing(tmp_path):
    tensors = {"w": torch.tensor([1.0, float("nan")])}
    with pytest.raises(CheckpointError, match="w"):
        write_torch(tmp_path / "a.pt", tensors, {"w": Slot("w")}, finite={"w"})
    assert not any(tmp_path.iterdir())


def test_one_tensor_after_the_other_is_asked_for_in_the_order_of_names(tmp_path):
    asked, shapes, dtypes = [], dict.fromkeys("cab", (2,)), dict.fromkeys("cab", torch.float32)
    lazy = LazyTensors(shapes, dtypes, lambda name: asked.append(name) or torch.ones(2))
    told = []
    write_torch(tmp_path / "a.pt", lazy, {name: Slot(name) for name in lazy}, tell=told.append)
    assert asked == ["a", "b", "c"] and told == [open_checkpoint(tmp_path / "a.pt").digest()]
