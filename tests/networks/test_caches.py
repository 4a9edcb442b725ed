"""What a module computed in an earlier call is not taken for what it computes."""

import pytest
import torch
from torch import nn

from rebasin_cli import networks
from rebasin_cli.networks.state import fresh

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


class Doubling(nn.Module):
    """Computes with twice a weight, which it keeps from its first call on; `shift` is a table."""

    def __init__(self, way, learns=True):
        super().__init__()
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 3)
        self.way, self.learns, self.ready = way, learns, False
        self.shift = torch.linspace(0, 1, 4)
        if way == "None at first":
            self.kept = None
        if way in ("in a dictionary", "dropped in training"):
            self.kept = {}
        if way == "in a list":
            self.kept = []

    def train(self, mode=True):
        if mode and self.way == "dropped in training":
            self.kept = {}
        return super().train(mode)

    def _fill(self):
        made = 2 * self.a.weight
        made = made if self.learns else made.detach()
        if isinstance(getattr(self, "kept", None), dict):
            self.kept["weight"] = [made]
        elif isinstance(getattr(self, "kept", None), list):
            self.kept.append(made)
        else:
            self.kept = made
        self.ready = True

    def forward(self, x):
        empty = {
            "not there at first": lambda: not hasattr(self, "kept"),
            "None at first": lambda: self.kept is None,
            "behind a flag": lambda: not self.ready,
        }.get(self.way, lambda: not self.kept)
        if empty():
            self._fill()
        kept = self.kept["weight"][0] if isinstance(self.kept, dict) else self.kept
        kept = kept[0] if isinstance(kept, list) else kept
        return self.b(torch.relu((x + self.shift) @ kept.T + self.a.bias))


WAYS = ("not there at first", "None at first", "in a dictionary", "in a list", "dropped in training")


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_network_that_was_run_is_fresh_again_for_a_while(way, learns):
    network = nn.Sequential(Doubling(way, learns))
    network(X)
    kept = network[0].kept
    with fresh(network, X) as refresh:
        for _ in range(2):
            assert not getattr(network[0], "kept", None)
            network(X)
            assert len(network[0].kept)
            refresh()
    assert network[0].kept is kept


def test_a_table_is_no_cache_and_stays():
    network = Doubling("None at first")
    table = network.shift
    network(X)
    with fresh(network, X):
        assert network.shift is table and network.kept is None
    assert network.shift is table and network.kept is not None


def test_what_a_run_writes_into_buffers_is_taken_back():
    class Counting(Doubling):
        def __init__(self):
            super().__init__("None at first")
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return super().forward(x)

    network = Counting()
    network(X)
    with fresh(network, X):
        assert network.calls.item() == 1


@pytest.mark.parametrize("way", ["dropped in training", "None at first"])
def test_other_weights_come_without_what_was_computed_from_those_before(way):
    network = Doubling(way).eval()
    network(X)
    with fresh(network, X):  # which looks for caches
        pass
    other = {name: tensor + 1 for name, tensor in network.state_dict().items()}
    own = Doubling(way).eval()
    own.load_state_dict(other)
    assert torch.equal(networks.load(network, other)(X), own(X))
    assert not network.training


@pytest.mark.parametrize("way", WAYS)
def test_other_weights_are_computed_with_though_the_network_was_new_when_it_got_the_first(way):
    network, other = Doubling(way, learns=False), Doubling(way, learns=False)
    networks.load(network, dict(network.state_dict()))
    network(X)
    networks.load(network, dict(other.state_dict()))
    assert torch.equal(network(X), other(X))


def test_a_record_of_calls_is_no_cache_and_stays_the_users():
    class Recording(Doubling):
        def forward(self, x):
            self.log.append(x.sum())
            self.last = super().forward(x)
            return self.last

    network = Recording("None at first", learns=False)
    network.log = [torch.ones(())]
    network(X)
    log, last = network.log, network.last
    before = list(log)
    with fresh(network, X):
        network(X)
    networks.load(network, dict(network.state_dict()))
    assert network.log is log and network.last is last
    assert [id(t) for t in log] == [id(t) for t in before]
