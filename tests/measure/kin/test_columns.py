"""Weights that data never moved: which they are, strangers and copies, and when there is no exact test."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from rebasin_cli.measure.kin import columns
from rebasin_cli.measure.kin.columns import Still

from .test_orders import MLP, fitted_of, strangers


def images(seed=0, values=20):
    """Pixels of which the last nine never change, one of them at another value than zero."""
    x = torch.randn(50, values, generator=torch.Generator().manual_seed(seed))
    x[:, -9:] = 0
    x[:, -1] = 0.5
    return [(x[:30], None), (x[30:], None)]


def test_columns_that_the_data_never_move():
    (found,) = columns.still(columns.read(images()), strangers(0), MLP)
    assert (found.tensor, found.dim, found.positions.tolist()) == ("layers.0.weight", 1, [*range(11, 20)])
    assert found.value.tolist() == [0.0] * 8 + [0.5]


def test_tokens_that_are_never_there():
    model = {"embed": torch.randn(30, 6), "out": torch.randn(4, 6)}
    fitted = fitted_of({"embed": ". s", "out": ". s"}, {"embed": (30, 6), "out": (4, 6)})
    (found,) = columns.still(columns.read([(torch.tensor([[3, 7], [9, 3]]), None)]), model, fitted)
    assert found.tensor == "embed" and len(found.positions) == 27 and 7 not in found.positions
    (found,) = columns.still(columns.read([(torch.tensor([[3, 7]]), torch.tensor([[7, 5]]))]), model, fitted)
    assert len(found.positions) == 27 and 5 not in found.positions


def test_outputs_as_many_as_the_inputs_are_none_of_these():
    """What a network writes is moved by its targets, which may change where an input never does."""
    shapes = {"in": (12, 20), "out": (20, 12)}
    fitted = fitted_of({"in": "h .", "out": ". h"}, shapes)
    model = {name: torch.randn(shape) for name, shape in shapes.items()}
    found = columns.still(columns.read(images()), model, fitted)
    assert [(its.tensor, its.dim) for its in found] == [("in", 1)]


def test_a_table_of_another_length_may_be_that_of_the_tokens_as_well():
    """Rows of classes are moved by training, and alike in strangers that learned the same ones."""
    shapes = {"embed": (30, 6), "head": (100, 6)}
    model = {name: torch.randn(shape) for name, shape in shapes.items()}
    fitted = fitted_of(dict.fromkeys(shapes, ". s"), shapes)
    data = [(torch.tensor([[3, 7], [9, 3]]), None)]
    assert columns.still(columns.read(data), model, fitted) == []
    assert "other lengths" in columns.too_few([], 0)


def test_data_without_an_end_are_read_as_long_as_something_changes(monkeypatch):
    monkeypatch.setattr(columns, "QUIET", 300)

    def endless(changing=20, count=0):
        while True:
            x = torch.zeros(10, 20)
            x[:, 0] = torch.arange(10)
            x[0, min(count, changing)] += 1
            count += 1
            yield x, None

    found = columns.read(endless(changing=6))  # in the seventh batch for the last time
    assert found.quiet and found.samples == 70 + 300 and found.still.tolist() == [*range(7, 20)]
    few = columns.read(endless(changing=19))  # less than eight are left
    assert not few.quiet and few.samples == 130 and len(few.still) == 7
    tokens = columns.read((torch.tensor([[1, 2 + min(k, 5)]]), None) for k in range(10_000))
    assert tokens.quiet and tokens.samples == 306 and tokens.tokens == {*range(1, 8)}


def block(seed, units=24, count=40):
    return torch.randn(units, count, generator=torch.Generator().manual_seed(seed))


def still(count=40, value=0.0):
    return [Still("w", 1, torch.arange(count), torch.full((count,), value))]


@pytest.mark.sweep
def test_p_is_uniform_for_strangers_and_small_for_copies():
    found = [
        columns.relabelled({"w": block(2 * k)}, {"w": block(2 * k + 1)}, still(), draws=99, seed=k)
        for k in range(100)
    ]
    assert kstest([(each.p * 100 - 0.5) / 100 for each in found], "uniform").pvalue > 0.001
    assert 0.8 < torch.tensor([each.z for each in found]).std() < 1.2
    copy = columns.relabelled({"w": block(0)}, {"w": block(0) + 2 * block(1)}, still())
    assert copy.p == 0.001 and copy.z > 5 and copy.columns == 40


def test_what_is_common_to_all_columns_is_no_evidence():
    """A pixel that stays at another value is a second bias: it moves its columns alike."""
    bias = torch.randn(24, 1, generator=torch.Generator().manual_seed(9))
    a, b = ({"w": block(seed) + 3 * bias} for seed in range(2))
    assert columns.relabelled(a, b, still(value=1.0)).p > 0.01
    # of two values each is a bias of its own, and their columns do not change places
    value = torch.arange(40) % 2
    a, b = ({"w": block(seed) + 3 * bias * value} for seed in range(2))
    found = columns.relabelled(a, b, [Still("w", 1, torch.arange(40), value.float())])
    assert found.p > 0.01 and found.columns == 40


def test_columns_that_something_moved_are_no_exact_test():
    """Shifted images move pixels at the border, and neighbours alike."""
    smooth = torch.randn(24, 41, generator=torch.Generator().manual_seed(3))
    moved = block(0) + (smooth[:, 1:] + smooth[:, :-1])
    found = columns.relabelled({"w": block(1)}, {"w": moved}, still())
    assert "were moved in B" in found.why and found.p != found.p


def test_columns_that_samples_beyond_the_data_moved_are_no_exact_test():
    """Rare inputs move their columns a little, in both, along what all samples share."""
    rng = torch.Generator().manual_seed(3)
    shared, amounts = torch.randn(24, 1, generator=rng), torch.rand(40, generator=rng)
    a, b = ({"w": block(seed) + 4 * shared * amounts} for seed in range(2))
    assert "not all the data" in columns.relabelled(a, b, still()).why


def test_few_columns_or_empty_ones_are_no_exact_test():
    zero = {"w": torch.zeros(24, 40)}
    assert "fewer than 8 have values" in columns.relabelled({"w": block(0)}, zero, still()).why
    assert "7 columns" in columns.too_few(still(7), 7)
    assert "no tensor reads the inputs" in columns.too_few([], 0)
