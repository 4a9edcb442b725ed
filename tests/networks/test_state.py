"""A second network, also of one whose attributes nobody can copy."""

import os
import threading
import types
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import prune as pruning
from torch.optim.swa_utils import AveragedModel

from rebasin_cli import networks
from rebasin_cli.errors import NetworkError
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


COMPILED = partial(torch.compile, backend="eager")


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.compile(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), backend="eager")
        self.twice = nn.ModuleList([self.body, torch.compile(nn.Linear(4, 2), backend="eager")])

    def forward(self, x):
        return self.twice[1](self.body(x))


@pytest.mark.parametrize(
    "wrap", [lambda n: n, lambda n: nn.DataParallel(COMPILED(n)), AveragedModel, Wrapped, COMPILED]
)
def test_a_network_is_taken_without_what_is_wrapped_around_it(wrap):
    """As the names in its checkpoints are read."""
    inner = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    network = networks.unwrapped(Wrapped() if wrap is Wrapped else wrap(inner))
    names = [name for name in network.state_dict()]
    assert not any("_orig_mod" in name or "module." in name or "n_averaged" in name for name in names)
    assert network(torch.ones(1, 3)).shape == (1, 2)
    if wrap is Wrapped:
        assert network.body is network.twice[0]
    else:
        assert network is inner or wrap is AveragedModel  # which is of a copy


def test_a_module_that_is_called_module_is_no_wrapper():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(3, 2)

    own = Own()
    assert networks.unwrapped(own) is own


def test_a_checkpoint_that_holds_the_network_below_a_name_is_told():
    shapes = {"model.weight": (2, 3), "model.bias": (2,), "criterion.weight": (2,)}
    with pytest.raises(NetworkError) as told:
        networks.check(nn.Linear(3, 2), shapes)
    assert "below 'model.', beside other tensors" in told.value.hint
    with pytest.raises(NetworkError) as told:
        networks.check(nn.Linear(3, 3), shapes)
    assert told.value.hint is None
