"""Norms folded into convolutions while a network is measured: the same outputs, nothing left behind."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.networks.folding import folded


class Normed(nn.Module):
    """Two convolutions with norms; what else reads the first one is for its children."""

    def __init__(self, affine=True, bias=False, groups=1):
        super().__init__()
        self.first, self.one = nn.Conv2d(3, 6, 3, bias=bias), nn.BatchNorm2d(6, affine=affine)
        self.second, self.other = nn.Conv2d(6, 4, 3, groups=groups), nn.BatchNorm2d(4)
        for norm in (self.one, self.other):
            norm.running_mean.normal_(), norm.running_var.uniform_(0.2, 3)
            if norm.affine:
                nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        self.eval()

    def forward(self, x):
        return self.other(self.second(self.one(self.first(x)).relu())).mean((2, 3))


class Raw(Normed):
    """The first convolution's own values are added in the end."""

    def forward(self, x):
        before = self.first(x)
        return self.other(self.second(self.one(before).relu())).mean((2, 3)) + before.mean((1, 2, 3))[:, None]


class Twice(Normed):
    """One norm behind one convolution, both run twice."""

    def forward(self, x):
        both = self.one(self.first(x)) + self.one(self.first(x.flip(3)))
        return self.other(self.second(both.relu())).mean((2, 3))


class Read(Normed):
    """Reads the second convolution's weights, besides."""

    def forward(self, x):
        return super().forward(x) + self.second.weight.sum()


def weights(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def used(net, x):
    """How many norms are left out while the network is folded."""
    with folded(net, x):
        return sum("forward" in vars(module) for module in net.modules())


@pytest.mark.parametrize("how", [{}, {"affine": False}, {"bias": True}, {"groups": 2}])
def test_outputs_are_the_same_and_weights_untouched(how):
    torch.manual_seed(0)
    net, x = Normed(**how), torch.randn(5, 3, 9, 9)
    before, kept, parameters = net(x), weights(net), list(net.parameters())
    assert used(net, x) == 2
    with folded(net, x):
        within = net(x)
    assert torch.allclose(within, before, rtol=1e-5, atol=1e-5) and not torch.equal(within, before)
    assert torch.equal(net(x), before)
    assert all(torch.equal(tensor, kept[name]) for name, tensor in net.state_dict().items())
    assert all(one is other for one, other in zip(net.parameters(), parameters, strict=True))


@pytest.mark.parametrize("kind, dims", [(nn.Conv1d, 1), (nn.Conv3d, 3)])
def test_other_dimensions(kind, dims):
    torch.manual_seed(0)
    norm = {1: nn.BatchNorm1d, 3: nn.BatchNorm3d}[dims](4)
    net = nn.Sequential(kind(2, 4, 3), norm, nn.Flatten()).eval()
    norm.running_mean.normal_()
    x = torch.randn(3, 2, *[5] * dims)
    assert used(net, x) == 1


@pytest.mark.parametrize("network, left", [(Raw, 0), (Twice, 1), (Read, 0)])
def test_what_else_looks_at_a_convolution_keeps_norms_as_they_are(network, left):
    torch.manual_seed(0)
    net, x = network(), torch.randn(5, 3, 9, 9)
    before = net(x)
    with folded(net, x):
        assert torch.allclose(net(x), before, rtol=1e-5, atol=1e-5)
    assert used(net, x) == left


def test_weights_that_are_computed_and_modules_that_are_watched_stay():
    torch.manual_seed(0)
    x = torch.randn(5, 3, 9, 9)
    computed = Normed()
    computed.first = parametrizations.weight_norm(computed.first)
    assert used(computed, x) == 1
    watched, seen = Normed(), []
    watched.one.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    assert used(watched, x) == 1
    training = Normed()
    training.one.train()
    assert used(training, x) == 1
    assert used(Normed().double(), x.double()) == 0
    assert (
        used(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval(), x) == 0
    )


def test_a_failure_leaves_the_network_as_it_was():
    torch.manual_seed(0)
    net, x = Normed(), torch.randn(5, 3, 9, 9)
    before = net(x)
    with pytest.raises(RuntimeError, match="channels"), folded(net, x):
        net(torch.randn(5, 7, 9, 9))
    assert torch.equal(net(x), before)
    assert used(net, torch.randn(5, 7, 9, 9)) == 0  # it fails, which is told by what runs it


def test_figures_are_those_of_the_network_as_it_is():
    torch.manual_seed(0)
    net, x = Normed(), torch.randn(40, 3, 9, 9)
    targets = torch.randint(0, 4, (40,))
    with torch.no_grad():
        expected = nn.functional.cross_entropy(net(x).double(), targets).item()
    scores = evaluate(net, [(x[:25], targets[:25]), (x[25:], targets[25:])])
    assert scores.loss == pytest.approx(expected, rel=1e-6)
    assert scores.accuracy == (net(x).argmax(1) == targets).double().mean().item()
