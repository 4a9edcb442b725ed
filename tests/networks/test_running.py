"""Large batches in parts, and outputs that are kept."""

import pytest
import torch
from torch import nn

from rebasin_cli.networks import running
from rebasin_cli.networks.recording import Recording
from rebasin_cli.networks.running import call, in_parts


class Counting(nn.Sequential):
    """Says how many samples each of its calls had."""

    def forward(self, x):
        self.calls = [*getattr(self, "calls", ()), len(x)]
        return super().forward(x)


class Across(Counting):
    """Looks across the samples of a batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


@pytest.fixture
def small_caches(monkeypatch):
    """As if ten samples of an 8-unit layer in float32 were all that they hold."""
    monkeypatch.setattr(running, "PART", 10 * 8 * 4)


def network(kind=Counting):
    torch.manual_seed(0)
    return kind(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@torch.no_grad()
def test_a_large_batch_is_run_in_parts_of_nearly_equal_size(small_caches):
    net, batch = network(), torch.rand(25, 4)
    whole = call(net, batch)
    net.calls = []
    assert torch.equal(in_parts(net, batch), whole)
    assert net.calls == [25, 9, 8, 8]  # the first time both are compared
    assert torch.allclose(in_parts(net, batch), whole) and net.calls[4:] == [9, 8, 8]
    assert torch.equal(in_parts(net, batch[:10]), call(net, batch[:10])) and net.calls[-2] == 10


@torch.no_grad()
def test_a_small_batch_says_nothing_of_large_ones(small_caches):
    net, batch = network(Across), torch.rand(25, 4)
    in_parts(net, batch[:5])
    assert torch.equal(in_parts(net, batch), call(net, batch))


@torch.no_grad()
def test_a_network_that_looks_across_samples_is_run_on_the_whole(small_caches):
    net, batch = network(Across), torch.rand(25, 4)
    whole = call(net, batch)
    net.calls = []
    for _ in range(2):
        assert torch.equal(in_parts(net, batch), whole)
    assert net.calls[-1] == 25


@torch.no_grad()
def test_a_batch_that_comes_again_is_answered_from_memory(small_caches):
    net, (one, other) = network(), torch.rand(2, 6, 4)
    record = Recording(net, None)
    first = record(one)
    net.calls = []
    assert record(one) is first and not net.calls
    assert record.known(other) is None and torch.equal(record(other), call(net, other))
    assert not torch.equal(record(one.clone() + 1), first)  # equal numbers would be another tensor, too


@torch.no_grad()
def test_no_more_is_kept_than_fits(monkeypatch):
    monkeypatch.setattr("rebasin_cli.networks.recording.MOST", 6 * 3 * 4)
    record, (one, other) = Recording(network(), None), torch.rand(2, 6, 4)
    record(one), record(other)
    assert record.known(one) is not None and record.known(other) is None
