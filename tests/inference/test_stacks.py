"""Tensors of which parts with units of their own lie side by side: the states of several layers."""

import math

import pytest
import torch
from torch import nn

import rebasin_cli
from rebasin_cli.inference import infer
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.symmetry import permutation

LAYERS, BATCH, UNITS = 3, 2, 5


def digits(units, words):
    return words * math.lgamma(units + 1) / math.log(10)


class Reading(nn.Module):
    """A recurrent network of which `read` takes the last states, (layers × directions, batch, units)."""

    def __init__(self, read, kind=nn.LSTM, **more):
        super().__init__()
        self.read, self.rnn = read, kind(4, UNITS, num_layers=LAYERS, batch_first=True, **more)
        with torch.no_grad():
            self.head = nn.Linear(self.states(torch.zeros(BATCH, 2, 4)).shape[-1], 3)

    def states(self, x):
        states = self.rnn(x)[1]
        return self.read(*(states if isinstance(states, tuple) else (states, states)))

    def forward(self, x):
        return self.head(self.states(x))


IDIOMS = {  # how the states are read → the words that the network has
    "the last": (lambda h, c: h[-1], 6),
    "the last two": (lambda h, c: torch.cat([h[-2], h[-1]], -1), 6),
    "a slice, flattened": (lambda h, c: h[-2:].transpose(0, 1).flatten(1), 6),
    "a list": (lambda h, c: h[[4, 5]].transpose(0, 1).reshape(BATCH, -1), 6),
    "layers and directions": (
        lambda h, c: h.view(LAYERS, 2, BATCH, UNITS)[-1].transpose(0, 1).reshape(BATCH, -1),
        6,
    ),
    "all, directions outside": (
        lambda h, c: h.view(LAYERS, 2, BATCH, UNITS).permute(2, 1, 0, 3).reshape(BATCH, -1),
        6,
    ),
    "chunks": (lambda h, c: h.chunk(3)[-1].sum(0), 5),
    "an activation": (lambda h, c: torch.tanh(0.5 * (h + c))[-1], 6),
    "a sum over directions": (lambda h, c: h.view(LAYERS, 2, BATCH, UNITS).sum(1)[-1], 3),
    "the mean of all": (lambda h, c: h.mean(0), 1),
}


AGAIN = {
    "the last two",
    "a slice, flattened",
    "all, directions outside",
    "an activation",
}  # read as others are


@pytest.mark.parametrize(
    "idiom", [pytest.param(it, marks=pytest.mark.sweep if it in AGAIN else ()) for it in IDIOMS]
)
def test_states_in_one_tensor_have_units_of_their_own_until_they_meet(idiom):
    read, words = IDIOMS[idiom]
    found = infer(Reading(read, bidirectional=True), torch.randn(BATCH, 3, 4))
    assert found.proof is not None
    assert found.fitted.log10_symmetries() == pytest.approx(digits(UNITS, words))


@pytest.mark.parametrize(
    ("kind", "more", "words"),
    [(nn.GRU, {}, 3), (nn.RNN, {}, 3), (nn.LSTM, {"proj_size": 3}, 3)],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_every_kind_of_recurrent_layer_is_read_by_its_last_state(kind, more, words):
    found = infer(Reading(lambda h, c: h[-1], kind, **more), torch.randn(BATCH, 3, 4))
    projected = digits(more["proj_size"], LAYERS) if more else 0
    assert found.fitted.log10_symmetries() == pytest.approx(digits(UNITS, words) + projected)


def test_a_noisy_copy_of_a_deep_network_read_by_its_last_state_is_brought_back():
    net = Reading(lambda h, c: h[-1])
    fitted = infer(net, torch.randn(BATCH, 3, 4)).fitted
    own, rng = dict(net.state_dict()), generator(0, "planted")
    drawn = permutation.random(fitted.words, rng)
    noisy = {
        name: value + 0.05 * value.std() * torch.randn(value.shape, generator=rng)
        for name, value in permutation.permuted(own, fitted, drawn).items()
    }
    aligned = rebasin_cli.align(own, noisy, fitted.spec)
    for name, value in aligned.tensors.items():
        assert torch.dist(value, own[name]) < 0.2 * own[name].norm()
