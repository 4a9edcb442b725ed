"""The control of a refit: an endpoint trained on for as long."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.measure.controls import fine_tuned
from rebasin_cli.repair import plan_refit
from rebasin_cli.repair.costs import distillation_passes


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def data(count=120):
    rng = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 6, generator=rng)
    labels = inputs[:, :3].argmax(1)
    return list(zip(inputs.split(50), labels.split(50), strict=True))


def test_it_learns_its_labels_for_as_many_multiplications_as_the_refit_takes_twice_alike():
    model, given = network().state_dict(), network()
    with torch.no_grad():
        given[0].weight.zero_()
    found = [fine_tuned(given, model, "B", data(), seed=3) for _ in range(2)]
    one, other = (tuned.network.state_dict() for tuned in found)
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert not given[0].weight.any() and not found[0].training
    planned = plan_refit(given, data()[0][0])
    visits = 120 * (2 * planned.products + 6 * planned.forward) / (3 * planned.forward)
    details = found[0].details
    assert details["endpoint"] == "B" and details["labels"] == 120
    assert 0 <= 50 * details["steps"] - visits < 3 * 50 + 0.2 * visits  # the last batch is smaller
    inputs, labels = (torch.cat(parts) for parts in zip(*data(), strict=True))
    wrong = [(x, (y + 1) % 3) for x, y in data()]
    other = fine_tuned(given, model, "B", wrong, seed=3)
    assert F.cross_entropy(found[0](inputs), labels) < F.cross_entropy(other(inputs), labels)


def test_it_learns_for_longer_beside_a_distillation():
    model = network().state_dict()
    steps = {
        word: fine_tuned(network(), model, "A", data(), word=word).details["steps"]
        for word in ("refit", "distill")
    }
    more = 120 * distillation_passes(2, 120) / 3 / (120 / 3)
    assert steps["distill"] - steps["refit"] == pytest.approx(more, rel=0.1)


def test_a_sample_that_is_left_over_is_passed_by_and_one_alone_ends():
    network_ = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    assert fine_tuned(network_, network_.state_dict(), "A", data(51)).details["steps"] > 0
    assert fine_tuned(network_, network_.state_dict(), "A", data(1)).details["labels"] == 1
