"""`--input`: tensors of every kind, by position and by name, from one line."""

import pytest
import torch
from torch import nn

from rebasin_cli.errors import UsageError
from rebasin_cli.networks import inputs
from rebasin_cli.networks.inputs import Wanted
from rebasin_cli.session import network as running
from rebasin_cli.session.subjects import Network


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1x3×224X224", [Wanted((1, 3, 224, 224))]),
        ("2x4:float", [Wanted((2, 4))]),
        ("2x16:int30522", [Wanted((2, 16), below=30522)]),
        ("2x16:int", [Wanted((2, 16), below=2)]),
        ("7:bool", [Wanted((7,), below=2, truth=True)]),
        ("1x3x32x32, 1x8", [Wanted((1, 3, 32, 32)), Wanted((1, 8))]),
        (
            "2x4,input_ids=2x16:int99,mask=2x16:bool",
            [Wanted((2, 4)), Wanted((2, 16), "input_ids", 99), Wanted((2, 16), "mask", 2, True)],
        ),
    ],
)
def test_tensors_are_read(text, wanted):
    assert list(inputs.parse(text)) == wanted


@pytest.mark.parametrize(
    "text",
    ["", "x", "1x0", "1x-2", "2x", "2x4:", "2x4:double", "2x4:int-1", "2x4:bool3", "2x4;1x3", "²x4", "=2x4"]
    + ["2 x 4", "1a=2x4", "a b=2x4", "2x4,", "x=", "99999999999x99999999999", "2x4:int0", f"2x4:int{2**63}"],
)
def test_what_cannot_be_read_is_refused_with_the_form(text):
    with pytest.raises(UsageError, match="cannot be read") as caught:
        inputs.parse(text)
    assert len(caught.value.problems) == 1 and "input_ids=2x16:int30522" in caught.value.hint


def test_what_is_no_tensor_is_said_by_name():
    args, kwargs = inputs.draw(inputs.parse("2x3,use_cache=False,mask=none,ids=2x4:int9,deep=true"), rng())
    assert len(args) == 1 and kwargs.pop("ids").shape == (2, 4)
    assert kwargs == {"use_cache": False, "mask": None, "deep": True}
    with pytest.raises(UsageError, match="cannot be read"):
        inputs.parse("2x3,False")


def test_everything_that_cannot_be_read_is_named_at_once():
    with pytest.raises(UsageError) as caught:
        inputs.parse("ids=2x4:int9,2x8,ids=2x4,2x4:half")
    assert list(caught.value.problems) == [
        "'2x8'  has no name, and comes after one that has",
        "'ids=2x4'  is the second ids",
        "'2x4:half'  is no tensor",
    ]


def test_tensors_are_drawn_by_kind():
    args, kwargs = inputs.draw(inputs.parse("2x3x50,t=40:int7,flag=4x50:int,mask=4x50:bool"), rng())
    assert [tuple(tensor.shape) for tensor in args] == [(2, 3, 50)] and args[0].dtype == torch.float32
    assert 0 <= args[0].min() < 0.1 and 0.9 < args[0].max() < 1
    assert kwargs["t"].dtype == torch.int64 and set(kwargs["t"].tolist()) == set(range(7))
    assert kwargs["flag"].dtype == torch.int64 and set(kwargs["flag"].flatten().tolist()) == {0, 1}
    assert kwargs["mask"].dtype == torch.bool and not kwargs["mask"].all()


def test_no_row_of_a_mask_is_empty():
    for seed in range(20):
        _, kwargs = inputs.draw(inputs.parse("mask=8x2:bool,other=8x2:int"), rng(seed))
        assert kwargs["mask"].any(1).all() and kwargs["other"].any(1).all()


def test_the_seed_draws():
    wanted = inputs.parse("3x4,ids=3x4:int99")
    (one, ids), (same, again), (other, _) = (
        (args[0], kwargs["ids"]) for args, kwargs in (inputs.draw(wanted, rng(seed)) for seed in (1, 1, 2))
    )
    assert torch.equal(one, same) and torch.equal(ids, again) and not torch.equal(one, other)


# ----------------------------------------------------------------------------- one batch as networks take it


class Two(nn.Module):
    def forward(self, x, ids, *, scale=None):
        return x + ids


def batch(text, network=None):
    return running.proof_inputs(network or Two(), Network(input=text))


def test_one_tensor_comes_alone_several_as_arguments_named_ones_as_keywords():
    assert batch("2x4").shape == (2, 4) and batch("2x4:int9").dtype == torch.int64
    assert [tensor.shape for tensor in batch("2x4,2x5")] == [(2, 4), (2, 5)]
    assert {name: tensor.dtype for name, tensor in batch("ids=2x4:int9,x=2x4").items()} == {
        "ids": torch.int64,
        "x": torch.float32,
    }


def test_positions_and_names_come_together_under_the_names_of_forward():
    assert [tensor.dtype for tensor in batch("2x4,ids=2x4:int9")] == [torch.float32, torch.int64]
    assert list(batch("2x4,ids=2x4:int9,scale=2x1")) == ["x", "ids", "scale"]


def test_a_plain_shape_has_to_fit_what_the_network_says_and_others_say_more_than_it():
    network = Two()
    network.example_shape = (3, 8, 8)
    with pytest.raises(UsageError, match="is no batch of inputs"):
        batch("2x4", network)
    assert batch("2x4:int9", network).shape == (2, 4) and len(batch("2x4,2x4", network)) == 2


@pytest.mark.parametrize("text", ["2x16:int99", "x=2x16", "1x3x8x8,1x8"])
def test_where_a_plain_shape_is_wanted_the_rest_is_refused(text):
    with pytest.raises(UsageError, match="is not a shape") as caught:
        running.parse_shape(text)
    assert "1x3x224x224" in caught.value.hint
