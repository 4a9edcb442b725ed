"""What differences of outputs are relative to: large numbers beside them hide no small ones."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli.errors import NotProven
from rebasin_cli.proof.distance import difference, own_sizes
from rebasin_cli.proof.prove import prove
from tests.proof.test_prove import spec_for

X = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
RIGHT = {
    **{"trunk.weight": "h .", "trunk.bias": "h", "large.weight": ". h", "large.bias": "."},
    **{"inner.weight": "k h", "inner.bias": "k", "small.weight": ". k", "small.bias": "."},
}


class Heads(nn.Module):
    """A head of numbers of this size, and one of about 1, together as `join` says."""

    def __init__(self, size, join, coarse=False):
        super().__init__()
        self.trunk, self.large = nn.Linear(5, 6), nn.Linear(6, 3)
        self.inner, self.small = nn.Linear(6, 4), nn.Linear(4, 2)
        self.size, self.join, self.coarse = size, join, coarse

    def forward(self, x):
        if self.coarse and x.dtype is torch.float64:
            raise RuntimeError("not in float64")
        hidden = self.trunk(x).relu()
        return self.join([self.size * self.large(hidden), self.small(self.inner(hidden).relu())])


def test_a_wrong_head_is_seen_beside_numbers_of_any_size():
    def masked(heads):  # as logits of attention are
        each = torch.cat(heads, 1)[:, :, None].expand(-1, -1, 5)
        return each.masked_fill(torch.ones(5, 5).tril(-1).bool(), torch.finfo(torch.float32).min)

    ways = tuple, lambda heads: torch.cat(heads, 1), lambda heads: torch.cat(heads, 1)[..., None].mT, masked
    for join in ways:
        for size, coarse in ((1e7, False), (1e14, False), (1e4, True), (1e14, True)):
            network = Heads(size, join, coarse)
            right = prove(network, spec_for(network, RIGHT), X)
            assert right.without_effect == () and right.largest_difference <= right.tolerance < 1e-3
            with pytest.raises(NotProven) as refused:
                prove(network, spec_for(network, RIGHT | {"small.weight": ". ."}), X)
            assert refused.value.words == ("k",), (join, size, coarse)


def test_what_is_left_where_large_numbers_cancel_is_as_exact_as_they_are():
    def rest(heads):
        large, small = heads
        one, two, three = large.split(1, dim=1)
        return torch.cat([large, small, ((one + two) + three) - (one + (two + three))], 1)

    for size in (1e3, 1e7):
        for x in (X, X[:1]):
            network = Heads(size, rest)
            proof = prove(network, spec_for(network, RIGHT), x)
            assert proof.largest_difference <= proof.tolerance < 1e-11, (size, len(x))
            with pytest.raises(NotProven):
                prove(network, spec_for(network, RIGHT | {"small.weight": ". ."}), x)


def test_differences_are_relative_to_numbers_of_the_same_channel():
    before = torch.tensor([[1e9, 1.0, 0.0], [-1e9, 0.5, 0.0]], dtype=torch.float64)
    for place, change, told in (((0, 0), 1.0, 1e-9), ((1, 1), 1.0, 1e-2), ((0, 2), 1e-300, 1.0)):
        after = before.clone()
        after[place] += change
        assert difference([before], [after]) >= told * 0.99, place
        assert difference([before[:, place[1]]], [after[:, place[1]]]) > 0.99e-9
    rounded = before + torch.tensor([0, 1e-7, 1e-7], dtype=torch.float64)
    assert own_sizes([before], [rounded])[0].max() == 1e9  # never more than what is there
    assert difference([before], [rounded], own_sizes([before], [rounded])) < 1e-15
    odd = torch.tensor([[math.inf, 1.0], [0.0, 2.0]]), torch.tensor([[math.inf, 1.0], [0.0, math.nan]])
    assert difference(odd[:1], odd[:1]) == 0 and difference(odd[:1], odd[1:]) == math.inf
    assert difference([torch.empty(0, 3)], [torch.empty(0, 3)]) == 0
    one, row = torch.ones(2, 3), torch.ones(1, 3)  # of other shapes, or less of them
    assert difference([one], [row]) == difference([one, one], [one]) == difference([one], []) == math.inf
