"""BatchNorm statistics measured again."""

import pytest
import torch
from torch import nn

from rebasin_cli.errors import DataError
from rebasin_cli.repair import reset


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))


def batches(count: int = 5, size: int = 8) -> list:
    rng = torch.Generator().manual_seed(1)
    return [(torch.randn(size, 4, generator=rng) + k, torch.zeros(size).long()) for k in range(count)]


def test_statistics_are_the_averages_over_all_batches():
    network = small_network()
    assert reset(network, batches()) == 1
    outputs = [network[0](inputs) for inputs, _ in batches()]
    mean = torch.stack([x.mean(0) for x in outputs]).mean(0)
    variance = torch.stack([x.var(0, unbiased=True) for x in outputs]).mean(0)
    torch.testing.assert_close(network[1].running_mean, mean)
    torch.testing.assert_close(network[1].running_var, variance)
    assert network[1].num_batches_tracked == 5


def test_what_was_there_before_does_not_count():
    one, other = small_network(), small_network()
    other[1].running_mean.fill_(1e6)
    other[1].num_batches_tracked.fill_(1000)
    for network in (one, other):
        reset(network, batches())
    assert torch.equal(one[1].running_mean, other[1].running_mean)


def test_a_single_sample_after_larger_batches_is_left_out():
    one, other = small_network(), small_network()
    reset(one, batches())
    reset(other, [*batches(), (torch.ones(1, 4), torch.zeros(1).long())])
    assert torch.equal(one[1].running_var, other[1].running_var)


def test_later_norms_see_what_norms_in_training_let_through():
    network = nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(4, affine=False))
    assert reset(network, batches()) == 2
    first = [(x - x.mean(0)) / (x.var(0, unbiased=False) + 1e-5).sqrt() for x, _ in batches()]
    torch.testing.assert_close(network[1].running_var, torch.stack([x.var(0) for x in first]).mean(0))
    torch.testing.assert_close(network[1].running_mean, torch.zeros(4), atol=1e-6, rtol=0)


def test_dropout_stays_off():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Dropout(0.9), nn.BatchNorm1d(4))
    reset(network, batches())
    torch.testing.assert_close(
        network[1].running_mean, torch.stack([x.mean(0) for x, _ in batches()]).mean(0)
    )


@pytest.mark.parametrize("training", [True, False])
def test_weights_modes_and_momentum_are_left_as_they_were(training):
    network = small_network().train(training)
    network[1].momentum, network[3].training = 0.03, True
    before = {name: tensor.clone() for name, tensor in network.named_parameters()}
    reset(network, batches())
    assert network[1].momentum == 0.03
    assert [module.training for module in network] == [training, training, training, True, training]
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.named_parameters())
    assert all(tensor.grad is None for tensor in network.parameters())


def test_momentum_and_modes_come_back_after_an_error_too():
    network = small_network()
    with pytest.raises(DataError):
        reset(network, [batches()[0], "no batch"])
    assert network[1].momentum == 0.1 and network.training


def test_data_without_batches_is_refused():
    with pytest.raises(DataError, match="no batches"):
        reset(small_network(), [])


def test_a_network_without_running_statistics_reads_no_data():
    def fail():
        raise AssertionError("read")
        yield

    network = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2), nn.BatchNorm1d(2, track_running_stats=False))
    assert reset(network, fail()) == 0


def test_instance_norms_with_statistics_are_reset_alike():
    network = nn.InstanceNorm1d(2, track_running_stats=True)
    data = [(inputs.reshape(4, 2, 4), None) for inputs, _ in batches()]
    assert reset(network, data) == 1
    expected = torch.stack([inputs.mean((0, 2)) for inputs, _ in data]).mean(0)
    torch.testing.assert_close(network.running_mean, expected)
    assert network.momentum == 0.1


def test_frozen_norms_of_other_kinds_stay_frozen():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("running_mean", torch.ones(4))

        def forward(self, x):
            return x - self.running_mean

    network = nn.Sequential(Frozen(), nn.BatchNorm1d(4))
    assert reset(network, batches()) == 1
    assert torch.equal(network[0].running_mean, torch.ones(4))
