"""Running statistics measured again where inputs lie channels last: the figures of norms in training."""

import copy

import pytest
import torch
from torch import nn

from rebasin_cli.errors import DataError
from rebasin_cli.networks.layout import takes_last
from rebasin_cli.repair import batchnorm
from rebasin_cli.repair.batchnorm import moments, reset


class Small(nn.Module):
    def __init__(self, narrow=True):
        super().__init__()
        self.first, self.one = nn.Conv2d(3, 8 if narrow else 300, 3), nn.BatchNorm2d(8 if narrow else 300)
        self.last, self.other = nn.Linear(8 if narrow else 300, 4), nn.BatchNorm1d(4, momentum=0.3)

    def forward(self, x):
        return self.other(self.last(self.one(self.first(x)).relu().mean((2, 3))))


def batches(n=3, size=20):
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 3, 8, 8, generator=g) + k, torch.zeros(size).long()) for k in range(n)]


def by_training(net, data):
    """What PyTorch makes of it, in float64."""
    net = copy.deepcopy(net).double().eval()
    norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for x, _ in data:
            net(x.double())
    return {name: tensor for name, tensor in net.state_dict().items() if "running" in name or "num_" in name}


@pytest.mark.parametrize("narrow", [True, False])
def test_statistics_are_those_of_norms_in_training(narrow):
    torch.manual_seed(0)
    net, data = Small(narrow), batches()
    assert takes_last(net, data[0][0]) is narrow
    expected = by_training(net, data)
    assert reset(net, data) == 2
    for name, tensor in net.state_dict().items():
        if name in expected:
            assert torch.allclose(tensor.double(), expected[name].double(), rtol=2e-6, atol=2e-6), name
    assert (net.one.momentum, net.other.momentum) == (0.1, 0.3)
    assert not net.one._forward_pre_hooks and net.training and net.one.training


class Twice(Small):
    def forward(self, x):
        return super().forward(x) + super().forward(2 * x)


def test_a_norm_that_runs_twice_a_batch_counts_both():
    torch.manual_seed(0)
    net = Twice()
    expected = by_training(net, batches())
    reset(net, batches())
    assert torch.allclose(net.one.running_var.double(), expected["one.running_var"], rtol=2e-6)
    assert net.one.num_batches_tracked == expected["one.num_batches_tracked"] == 6


def test_one_value_a_channel_is_refused_and_statistics_stay():
    net = Small()
    with pytest.raises(DataError, match="norms have no variance"):
        reset(net, batches(size=1))
    assert not net.one._forward_pre_hooks and not net.other._forward_pre_hooks


@pytest.mark.parametrize("slab", [1 << 18, 100])
def test_moments_keep_their_digits_far_from_zero(slab, monkeypatch):
    monkeypatch.setattr(batchnorm, "SLAB", slab)
    torch.manual_seed(0)
    scale, middle = torch.tensor([1.0, 0.01, 1e-4]), torch.tensor([0.0, 1.0, 1.0])
    rows = torch.randn(5000, 3) * scale + middle
    mean, variance = moments(rows)
    wide = rows.double()
    assert torch.allclose(mean, wide.mean(0), rtol=1e-6, atol=1e-7)
    assert torch.allclose(variance, wide.var(0, correction=0), rtol=1e-3)
