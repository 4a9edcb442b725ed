"""A first linear layer between two models: two products for a whole path."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli import networks
from rebasin_cli.averages.means import interpolate, slerp
from rebasin_cli.datasets import Once
from rebasin_cli.measure import paths
from rebasin_cli.networks import first_layer
from rebasin_cli.networks.first_layer import find
from rebasin_cli.repair import Repairs

IMAGES = torch.rand(40, 1, 8, 8)
BATCHES = [(part, torch.randint(10, (20,))) for part in IMAGES.split(20)]


def network(seed, *first):
    torch.manual_seed(seed)
    return nn.Sequential(*(first or (nn.Flatten(),)), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)).eval()


def ends(build=network):
    return tuple({name: t.clone() for name, t in build(seed).state_dict().items()} for seed in (0, 1))


def products(run):
    """How often a layer of 64 inputs is multiplied meanwhile."""
    real, seen = F.linear, []

    def linear(x, *given):
        seen.append(x.shape[-1] == 64)
        return real(x, *given)

    with mock.patch.object(F, "linear", linear):
        run()
    return sum(seen)


def test_a_path_is_measured_as_point_by_point_with_two_products_a_batch():
    path, net = paths.Path("aligned", *ends(), points=11), network(2)
    rows = []
    count = products(lambda: rows.append(paths.measure(path, net, {"test": Once(BATCHES)})))
    plain = products(lambda: rows.append(paths.measure(path, net, {"test": BATCHES})))
    # both ends of each batch, the path's ends by themselves; a few rows find the layer, show it right, and
    # show how large a sample is
    assert plain == 11 * 2 and count == 2 * 2 + 2 * 2 + 1 + 9 + 2
    losses = [row.curves["test"].loss for row in rows]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6) and losses[0] != losses[1]
    assert "forward" not in vars(net[1])


def test_what_the_layer_gives_is_what_it_gave_on_every_batch():
    a, b = ends()
    net = network(2)
    layer = find(net, BATCHES, (a, b))
    for share in (0.25, 0.75):
        networks.load(net, interpolate(a, b, share))
        with torch.no_grad():
            plain = [net(x) for x, _ in BATCHES]
            with layer.at(share):
                ours = [net(x) for x, _ in BATCHES]
                fresh = net(IMAGES[5:9].clone())  # lies elsewhere
        assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(ours, plain, strict=True))
        assert torch.allclose(fresh, net(IMAGES[5:9]), atol=1e-6)
        assert len(layer.kept) == 3  # two batches and what else was fed at the first point; no more later


def test_weights_that_are_written_to_count_and_so_do_those_of_a_copy():
    a, b = ends()
    net = network(2)
    layer = find(net, BATCHES, (a, b))
    networks.load(net, interpolate(a, b, 0.5))
    with torch.no_grad(), layer.at(0.5):
        net(IMAGES[:20])
        twin = copy.deepcopy(net)
        for written in (net, twin):
            written[1].weight.mul_(2)
            expected = F.linear(IMAGES[:20].flatten(1), written[1].weight, written[1].bias)
            assert torch.equal(written[1](IMAGES[:20].flatten(1)), expected)


@pytest.mark.parametrize("name", ["1.weight", "1.bias"])
def test_tensors_that_stay_the_first_models_do_so_in_what_the_layer_gives(name):
    path, net = paths.Path("row", *ends(), points=11, keep={name}), network(2)
    rows = [paths.measure(path, net, {"test": BATCHES})]
    count = products(lambda: rows.append(paths.measure(path, net, {"test": Once(BATCHES)})))
    assert count == 2 * 2 + 2 * 2 + 1 + 9  # as where nothing stays
    assert rows[1].curves["test"].loss == pytest.approx(rows[0].curves["test"].loss, abs=1e-6)


class Normed(nn.Module):
    """Its first layer's weights are divided by their lengths where PyTorch does not count it."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.f, self.g = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, x):
        self.f.weight.data = F.normalize(self.f.weight.data, dim=1)
        return self.g(self.f(x.flatten(1)).relu())


class Doubled(Normed):
    """Its first layer gets other weights for the call."""

    def forward(self, x):
        given = {"weight": self.f.weight * 2, "bias": self.f.bias}
        return self.g(torch.func.functional_call(self.f, given, (x.flatten(1),)).relu())


@pytest.mark.parametrize("kind", [Normed, Doubled])
def test_weights_that_the_network_makes_of_its_own_are_multiplied(kind):
    path, net = paths.Path("row", *ends(kind), points=11), kind(2).eval()
    ours, plain = (paths.measure(path, net, {"test": its}) for its in (Once(BATCHES), BATCHES))
    assert ours.curves["test"].loss == pytest.approx(plain.curves["test"].loss, abs=1e-6)


def test_gradients_go_through_the_layer_itself():
    a, b = ends()
    net = network(2)
    layer = find(net, BATCHES, (a, b))
    networks.load(net, interpolate(a, b, 0.5))
    with layer.at(0.5):
        net(IMAGES[:20]).sum().backward()
    assert net[1].weight.grad is not None


def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(first_layer, "ROOM", 2 * 20 * 16 * 4)  # of one batch
    a, b = ends()
    net = network(2)
    layer = find(net, BATCHES, (a, b))
    networks.load(net, interpolate(a, b, 0.5))
    with torch.no_grad():
        plain = [net(x) for x, _ in BATCHES]
        with layer.at(0.5):
            ours = [net(x) for x, _ in BATCHES]
    assert len(layer.kept) == 1
    assert all(torch.allclose(one, two, atol=1e-6) for one, two in zip(ours, plain, strict=True))


class Shifted(nn.Module):
    def forward(self, x):
        return x.flatten(1) + 1


class Written(nn.Module):
    def forward(self, x):
        return x.sub_(0.5).flatten(1)


class Twice(nn.Sequential):
    def forward(self, x):
        return super().forward(x) + super().forward(x)


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(self.layer(x.flatten(1)).relu())


def hooked():
    net = network(0)
    net[1].register_forward_hook(lambda *given: None)
    return net


@pytest.mark.parametrize(
    "build",
    [
        lambda: network(0, Shifted()),
        lambda: network(0, Written()),
        lambda: Twice(*network(0)),
        Again,
        hooked,
        lambda: network(0).double(),
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10)),
        lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(64, 10)),
    ],
)
def test_layers_that_read_anything_else_are_left_alone(build):
    net = build()
    tensors = {name: t.clone() for name, t in net.state_dict().items()}
    assert find(net, [(IMAGES.clone().to(next(net.parameters()).dtype), None)], (tensors, tensors)) is None


class Refilled:
    """A loader that fills the same memory with every batch."""

    def __iter__(self):
        held = torch.empty(20, 1, 8, 8)
        for inputs, targets in BATCHES:
            yield held.copy_(inputs), targets


def test_a_loader_that_fills_the_same_memory_again_is_measured_point_by_point():
    path, net = paths.Path("aligned", *ends(), points=11), network(2)
    ours, plain = (paths.measure(path, net, {"test": its}).curves["test"] for its in (Refilled(), BATCHES))
    assert ours == plain
    reset = paths.Path("aligned", *ends(), points=11, repair=Repairs("reset", ends(), Refilled()))
    ours, plain = (paths.measure(reset, net, {"test": its}) for its in (Once(BATCHES), BATCHES))
    assert ours.curves["test"].loss == pytest.approx(plain.curves["test"].loss, abs=1e-6)


def test_repairs_that_change_weights_and_paths_that_are_bent_or_short_have_none():
    net = network(2)
    for more in (
        {"points": 5},
        {"points": 11, "join": slerp},
        {"points": 11, "repair": Repairs("repair", ends(), BATCHES)},
    ):
        assert paths._first_layer(paths.Path("row", *ends(), **more), net, {"test": Once(BATCHES)}) is None
    straight = paths.Path("row", *ends(), points=6, repair=Repairs("reset", ends(), BATCHES))
    assert paths._first_layer(straight, net, {"test": Once(BATCHES)}) is not None
