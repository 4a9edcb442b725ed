"""A second network, also of one whose attributes nobody can copy."""

import os
import threading
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as pruning

from rebasin_cli import networks
from rebasin_cli.networks.state import duplicate


class Odd(nn.Module):
    """Two layers, and something that `copy.deepcopy` does not take."""

    def __init__(self, kind):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)
        self.kept = None
        self.history = {"all": []}
        if kind == "weight norm by hooks":
            with pytest.warns(FutureWarning, match="weight_norm"):
                torch.nn.utils.weight_norm(self.a)
        if kind == "pruned":
            pruning.random_unstructured(self.a, "weight", 0.5)
        if kind == "an open file":
            self.log = open(os.devnull, "w")  # noqa: SIM115 (it stays open, as it does where somebody logs)
        if kind == "a lock":
            self.lock = {"inner": [threading.Lock()]}
        if kind == "a generator in an object":
            self.plan = types.SimpleNamespace(steps=(k for k in range(3)))
        self.keeps = kind == "an activation"

    def forward(self, x):
        hidden = torch.relu(self.a(x))
        if self.keeps:
            self.kept = hidden
            self.history["all"].append(hidden)
        return self.b(hidden)


KINDS = (
    "weight norm by hooks", "pruned", "an open file", "a lock", "a generator in an object", "an activation",
)  # fmt: skip


@pytest.fixture(params=KINDS)
def odd(request):
    torch.manual_seed(0)
    network = Odd(request.param)
    network(torch.rand(3, 4))
    yield network
    if request.param == "an open file":
        network.log.close()


def test_a_second_network_computes_the_same_from_tensors_of_its_own(odd):
    x = torch.rand(3, 4)
    second = duplicate(odd)
    before = odd(x)
    assert torch.equal(second(x), before)
    with torch.no_grad():
        for tensor in second.parameters():
            tensor.mul_(2)
    assert torch.equal(odd(x), before) and not torch.equal(second(x), before)
    assert not {id(module) for module in odd.modules()} & {id(module) for module in second.modules()}


def test_what_a_module_keeps_is_not_shared(odd):
    second = duplicate(odd)
    before = len(odd.history["all"])
    second(torch.rand(3, 4))
    assert len(odd.history["all"]) == before
    assert odd.kept is None or odd.kept is not second.kept


def test_tied_tensors_stay_tied():
    network = Odd("a lock")
    network.b.weight = nn.Parameter(network.b.weight.detach())
    network.c = nn.Linear(6, 4)
    network.c.weight = network.b.weight
    second = duplicate(network)
    assert second.c.weight is second.b.weight and second.b.weight is not network.b.weight


def test_a_network_goes_to_another_device_and_stays_where_it_was(odd):
    assert networks.on(odd, "cpu") is odd
    there = networks.on(odd, "meta")
    assert {tensor.device.type for tensor in there.parameters()} == {"meta"}
    assert {tensor.device.type for tensor in odd.parameters()} == {"cpu"}
