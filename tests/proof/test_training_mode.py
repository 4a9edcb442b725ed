"""What a proof does of a network in training: what is drawn there is its mean, and modes come back."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import NotProven
from rebasin_cli.inference import infer
from rebasin_cli.proof.prove import prove
from rebasin_cli.proof.training_mode import _in_training, _twice
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse


def test_what_is_drawn_in_training_is_its_mean_and_the_modes_come_back():
    network = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)).eval()
    network[1].train()
    chances = torch.tensor([0.25, 0.75])
    with _in_training(network):
        assert all(module.training for module in network.modules())
        drawn = [torch.empty(3).uniform_(2, 4), torch.empty(3).normal_(5, 1), torch.rand(3), torch.randn(3)]
        kept = torch.bernoulli(chances)
    assert [one.tolist() for one in drawn] == [[3] * 3, [5] * 3, [0.5] * 3, [0] * 3]
    assert torch.equal(kept, chances)
    assert [module.training for module in network] == [False, True] and not network.training


def test_of_one_sample_two_are_made_that_differ():
    one = torch.tensor([[1.0, 2.0, 3.0]])
    assert _twice(one).tolist() == [[1, 2, 3], [3, 2, 1]]
    assert torch.equal(_twice(one.repeat(2, 1)), one.repeat(2, 1))


class Drawing(nn.Module):
    """Hidden units by halves: `before` noise is drawn for each of them, `after` there is none."""

    def __init__(self, how):
        super().__init__()
        self.before, self.after, self.head = nn.Linear(3, 6), nn.Linear(6, 5), nn.Linear(5, 2)
        self.how = how

    def forward(self, x):
        hidden = self.how(self.before(x).relu())
        return self.head(self.after(hidden).relu())


WAYS = {
    "noise": lambda h: h + torch.randn_like(h) / 10,
    "scale": lambda h: h * torch.rand(h.shape),
    "Python": lambda h: h + torch.tensor([random.random() for _ in range(6)], dtype=h.dtype),
    "numpy": lambda h: h + torch.from_numpy(np.random.rand(6)).to(h),
}
BOTH = 'tensors: {before.weight: "h .", before.bias: "h", after.weight: "g h", after.bias: "g", '
BOTH += 'head.weight: ". g", head.bias: "."}'
LAST = BOTH.replace('"h .', '". .').replace('bias: "h"', 'bias: "."').replace("g h", "g .")


def fitted_to(network, text):
    return fit(parse(text, name="test"), {name: tuple(t.shape) for name, t in network.state_dict().items()})


@pytest.mark.parametrize("way", WAYS)
def test_a_network_that_draws_in_evaluation_is_proven_where_nothing_is_drawn_for_single_units(way):
    network, inputs = Drawing(WAYS[way]), torch.randn(4, 3)
    torch.manual_seed(7)
    before = torch.get_rng_state(), random.getstate()
    prove(network, fitted_to(network, LAST), inputs)
    with pytest.raises(NotProven):
        prove(network, fitted_to(network, BOTH), inputs)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


@pytest.mark.parametrize("dropout", [F.dropout, F.alpha_dropout, torch.nn.Dropout(0.5).train().forward])
def test_what_drops_units_in_evaluation_drops_each_by_the_same_chance(dropout):
    """No order of them changes what is to be expected; another mistake is seen all the same."""
    network, inputs = Drawing(dropout), torch.randn(4, 3)
    prove(network, fitted_to(network, BOTH), inputs)
    with pytest.raises(NotProven):
        prove(network, fitted_to(network, BOTH.replace('bias: "h"', 'bias: "."')), inputs)


def test_what_is_drawn_about_a_mean_is_not_taken_for_it():
    """Of an autoencoder that draws in evaluation, the deviations' units stay, as those of the means do."""

    class Drawn(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden, self.mean, self.spread = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(6, 5)
            self.back = nn.Linear(5, 4)

        def forward(self, x):
            h = self.hidden(x).relu()
            mean, spread = self.mean(h), self.spread(h).exp()
            return self.back(mean + spread * torch.randn_like(mean))

    network, inputs = Drawn(), torch.randn(4, 4)
    found = infer(network, inputs).fitted
    assert set(found.words.values()) == {6}
    text = 'tensors: {hidden.weight: "h .", hidden.bias: "h", mean.weight: ". h", mean.bias: ".", '
    text += 'spread.weight: "s h", spread.bias: "s", back.weight: ". .", back.bias: "."}'
    with pytest.raises(NotProven):
        prove(network, fitted_to(network, text), inputs)
