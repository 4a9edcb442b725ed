"""Another usual normalisation that models lose clearly less with: told where it is so, never by chance."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli import datasets
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.datasets import USUAL, Data, Samples
from rebasin_cli.networks.evaluation import Scores, evaluate
from rebasin_cli.session import doubts

OWN = datasets.Normalization((0.13, 0.2, 0.1), (0.2, 0.25, 0.3))


def pictures(name="cifar10", count=1500):
    """Bytes (N, 3, 4, 4) of which a network can learn the class, which is where they are bright."""
    rng = torch.Generator().manual_seed(0)
    targets = torch.arange(count) % 5
    inputs = torch.randint(0, 120, (count, 3, 16), generator=rng)
    inputs[torch.arange(count), targets % 3, targets] += 90
    return Data(name, "test", Samples(inputs.byte().view(count, 3, 4, 4), targets), USUAL["unit"], 5)


class Net(nn.Sequential):
    def __init__(self, width=32):
        super().__init__(nn.Flatten(), nn.Linear(48, width), nn.ReLU(), nn.Linear(width, 5))


def trained(normalization, steps, seed=0, lr=0.01):
    torch.manual_seed(seed)
    net, data = Net(), pictures()
    inputs, optimizer = normalization.apply(data.source.inputs), torch.optim.Adam(net.parameters(), lr)
    for step in range(steps):
        some = torch.arange(step * 50, step * 50 + 50) % len(inputs)
        loss = F.cross_entropy(net(inputs[some]), data.source.targets[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def told(net, used, data=None):
    data = dataclasses.replace(data or pictures(), normalization=used)
    found = list(doubts.better("a", data, lambda few: evaluate(net, few, each=True)))
    return found[0].option if found else None


@pytest.fixture(scope="module")
def names():
    return datasets.normalizations(pictures())


def test_a_network_is_told_what_it_was_trained_with_and_nothing_where_it_gets_it(names):
    assert list(names) == ["dataset", "unit", "half", "imagenet", "raw"]
    near = {"dataset", "imagenet"}  # of CIFAR-10 these are nearly the same
    for name, normalization in names.items():
        net = trained(normalization, 120)
        assert told(net, normalization) is None, name
        for other, used in names.items():
            if other != name and {name, other} != near:
                right = near if name in near else {name}
                assert told(net, used) in right | {None}, (name, other)
    net = trained(names["dataset"], 120)
    assert told(net, names["unit"]) in near and told(net, names["raw"]) in near


def test_nothing_is_told_of_networks_that_know_nothing_or_have_just_begun(names):
    for seed in range(6):
        net = trained(USUAL["unit"], 0, seed)
        assert not any(told(net, used) for used in names.values())
        for steps in (3, 10, 40):
            assert told(trained(USUAL["unit"], steps, seed, lr=0.002), USUAL["unit"]) is None, (seed, steps)


def test_text_has_no_normalisation_and_grey_pictures_no_three_channels():
    grey = dataclasses.replace(pictures("mnist"), source=Samples(torch.zeros(4, 1, 2, 2), torch.zeros(4)))
    assert list(datasets.normalizations(grey)) == ["dataset", "unit", "half", "raw"]
    assert list(datasets.normalizations(pictures("npz:some.npz"))) == ["unit", "half", "imagenet", "raw"]
    assert datasets.normalizations(dataclasses.replace(grey, normalization=None)) == {}
    features = Samples(torch.randn(9, 5), torch.zeros(9))  # no pixels: they are given as they are
    assert list(datasets.normalizations(dataclasses.replace(grey, source=features))) == ["unit"]


def scored(losses, right):
    each = torch.stack([torch.as_tensor(losses), torch.as_tensor(right, dtype=torch.float32)], 1)
    return Scores(
        each[:, 0].mean().item(),
        {"accuracy": each[:, 1].mean().item()},
        len(each),
        0.0,
        each={"loss": each[:, 0], "accuracy": each[:, 1]},
    )


def test_a_difference_has_to_be_large_certain_and_of_a_network_that_knows_something():
    targets = torch.arange(400) % 2
    half = torch.arange(400) % 4 < 2
    before = scored(torch.full((400,), 2.0), half)
    assert doubts.clearly(before, scored(torch.full((400,), 0.2), torch.ones(400)), targets)
    assert doubts.clearly(before, scored(torch.full((400,), 0.2), half), targets)  # far less, as many right
    fewer = half & (torch.arange(400) > 2)
    assert doubts.clearly(before, scored(torch.full((400,), 0.2), fewer), targets)  # and two less
    sure = torch.where(torch.arange(400) % 5 < 1, 6.0, 0.05)  # too sure of itself: it loses by a few alone
    assert not doubts.clearly(scored(sure, half), scored(torch.full((400,), 0.2), fewer), targets)
    assert not doubts.clearly(before, scored(torch.full((400,), 1.9), half), targets)
    more = torch.arange(400) % 20 < 16
    assert doubts.clearly(before, scored(torch.full((400,), 1.4), more), targets)
    most = torch.arange(400) % 20 < 17
    known = scored(torch.full((400,), 2.0), more)
    assert not doubts.clearly(known, scored(torch.full((400,), 1.6), most), targets)  # a fifth less, no more
    assert doubts.clearly(known, scored(torch.full((400,), 1.4), most), targets)
    right = torch.ones(400)  # a network that answers all right is only surer with it
    sure = scored(torch.full((400,), 0.3), right), scored(torch.full((400,), 0.01), right)
    assert not doubts.clearly(*sure, targets)
    assert not doubts.clearly(before, scored(torch.full((400,), 0.69), half), targets)  # it guesses
    few = torch.arange(20)
    small = scored(torch.full((20,), 2.0), half[few]), scored(torch.full((20,), 0.2), torch.ones(20))
    assert not doubts.clearly(*small, targets[few])
    broken = scored(torch.full((400,), float("inf")), half)
    assert not doubts.clearly(broken, broken, targets)


def test_running_statistics_of_the_first_steps_are_no_reason_to_doubt():
    def model(count):
        state = {"norm.num_batches_tracked": torch.tensor(count), "w": torch.ones(2)}
        return LazyTensors({n: tuple(t.shape) for n, t in state.items()}, {}, state.__getitem__)

    assert [doubts._has_learned(model(count)) for count in (0, 30, 5_000)] == [True, False, True]
