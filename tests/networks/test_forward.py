"""Large batches in parts, and outputs that are kept."""

import pytest
import torch
from torch import nn

from rebasin_cli.networks import layout
from rebasin_cli.networks.answers import Recording
from rebasin_cli.networks.forward import call
from rebasin_cli.networks.layout import in_parts, laid


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
    monkeypatch.setattr(layout, "PART", 10 * 8 * 4)


def coarse(numbers):
    """Eighths, whose products and sums are exact: their bits depend on no order, nor on the processor's."""
    return (numbers * 8).round() / 8


def network(kind=Counting):
    torch.manual_seed(0)
    return kind(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()


@torch.no_grad()
def test_a_large_batch_is_run_in_parts_of_nearly_equal_size(small_caches):
    net, batch = network(), torch.rand(25, 4)
    whole = call(net, batch)
    net.calls = []
    first = in_parts(net, batch)
    assert net.calls == [2, 4, 9, 8, 17, 8]  # how large a sample is, and two parts beside both in one
    assert torch.equal(in_parts(net, batch), first) and net.calls[6:] == [9, 8, 8]
    assert torch.allclose(first, whole)
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
def test_the_ends_of_a_batch_show_what_looks_across_all_of_it(small_caches):
    class Largest(Counting):
        def forward(self, x):
            return super().forward(x) + x.amax()

    net, batch = network(Largest), torch.zeros(25, 4)
    batch[-1] = 1.0
    assert torch.equal(in_parts(net, batch), call(net, batch))


@torch.no_grad()
def test_a_network_that_takes_no_few_samples_is_run_on_the_whole(small_caches):
    class Fixed(Counting):
        def forward(self, x):
            return super().forward(x).view(25, 3)

    net, batch = network(Fixed), torch.rand(25, 4)
    for _ in range(2):
        assert torch.equal(in_parts(net, batch), call(net, batch))
    assert net.calls == [2, 25, 25, 25, 25]


@torch.no_grad()
def test_what_is_as_large_for_any_batch_makes_parts_no_smaller(small_caches):
    class Table(nn.Module):
        def forward(self, x):
            return torch.zeros(1000, 4)

    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.then = Table(), network()

        def forward(self, x):
            return self.then(x + self.table(x)[0])

    net = Moved().eval()
    in_parts(net, torch.rand(25, 4))
    assert net.then.calls == [2, 4, 9, 8, 17, 8]


@torch.no_grad()
def test_exact_parts_give_the_same_bits_or_the_whole_is_run(small_caches):
    class Rounding(Counting):
        def forward(self, x):
            return super().forward(x) * (1 + 1e-6 * len(x))

    net, other, batch = network(), network(Rounding), coarse(torch.rand(24, 4))
    for parameter in net.parameters():
        parameter.copy_(coarse(parameter))
    whole = call(other, batch)
    for _ in range(2):
        assert torch.equal(in_parts(other, batch, exact=True), whole)
    assert other.calls[-1] == 24 and not torch.equal(in_parts(other, batch), whole)
    in_parts(net, batch, exact=True), in_parts(net, batch, exact=True)
    assert net.calls[-3:] == [8, 8, 8]


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
    monkeypatch.setattr("rebasin_cli.networks.answers.MOST", 6 * 3 * 4)
    record, (one, other) = Recording(network(), None), torch.rand(2, 6, 4)
    record(one), record(other)
    assert record.known(one) is not None and record.known(other) is None


class Images(nn.Module):
    """Convolves, and notes whether it was given channels last; `view` asks for rows."""

    def __init__(self, channels: int = 6, view: bool = False):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, channels, 3), nn.Linear(channels * 36, 4)
        self.view, self.last = view, []

    def forward(self, x):
        self.last.append(x.is_contiguous(memory_format=torch.channels_last))
        x = torch.relu(self.conv(x))
        return self.head(x.view(len(x), -1) if self.view else x.flatten(1))


@torch.no_grad()
@pytest.mark.parametrize(
    ("network", "last"), [(Images(), True), (Images(view=True), False), (Images(layout.NARROW + 1), False)]
)
def test_images_lie_channels_last_where_a_network_takes_them_and_is_faster(network, last):
    batch = torch.rand(5, 3, 8, 8)
    whole = call(network.eval(), batch)
    for _ in range(2):
        torch.testing.assert_close(in_parts(network, batch), whole)
        assert network.last[-1] == last
    assert laid(network, batch).is_contiguous(memory_format=torch.channels_last) == last


@torch.no_grad()
def test_whether_channels_lie_last_is_asked_in_evaluation_and_once():
    network = Images().train()
    for _ in range(3):
        laid(network, torch.rand(5, 3, 8, 8))
    assert network.last == [False, True] and network.training
