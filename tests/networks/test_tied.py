"""A tensor that a network has under two names, of which files have one, or both."""

import pytest
import torch
from torch import nn

from rebasin_cli import networks
from rebasin_cli.errors import CheckpointError, NetworkError
from rebasin_cli.inference import infer
from rebasin_cli.networks import tied
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec.fits import fit


class Language(nn.Module):
    """The embedding is the head."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden = nn.Embedding(9, 6), nn.Linear(6, 5)
        self.out, self.head = nn.Linear(5, 6), nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.out(torch.relu(self.hidden(self.embed(ids)))))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Language()


def stored(net, without="head.weight"):
    """As files hold it that have each tensor once."""
    return {name: value.clone() for name, value in net.state_dict().items() if name != without}


IDS = torch.tensor([[0, 3, 5], [8, 1, 2]])


@pytest.mark.parametrize("name", ["head.weight", "embed.weight"])
def test_one_name_of_a_tied_tensor_is_enough(net, name):
    tensors, other = stored(net, name), Language()
    networks.check(other, {key: tuple(value.shape) for key, value in tensors.items()})
    networks.load(other, tensors)
    assert torch.equal(other(IDS), net(IDS))


def test_without_both_names_the_tensor_is_missing(net):
    shapes = {key: tuple(value.shape) for key, value in stored(net).items()}
    del shapes["embed.weight"]
    with pytest.raises(NetworkError) as caught:
        networks.check(net, shapes)
    assert len(caught.value.problems) == 2


def test_a_spec_of_one_name_is_proven_on_the_network_that_has_two(net):
    spec = infer(net, IDS).spec
    fitted = fit(spec, {key: tuple(value.shape) for key, value in stored(net).items()})
    assert "head.weight" not in fitted.tensors
    assert prove(net, fitted, IDS).largest_difference < 1e-12


def test_tensors_that_differ_are_not_one(net):
    tensors = stored(net, None)
    tensors["head.weight"] += 1
    with pytest.raises(CheckpointError, match="head.weight are one tensor in the network, and differ"):
        networks.load(net, tensors)


def test_names_of_one_tensor_stand_together(net):
    assert tied.tied(net)["head.weight"] == ("embed.weight", "head.weight")
    assert tied.absent(net, {"hidden.weight"}) == {}
