"""What a proof does of a network in training: what is drawn there is its mean, and modes come back."""

import torch
from torch import nn

from rebasin_cli.proof.training_mode import _in_training, _twice


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
