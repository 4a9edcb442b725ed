"""What a proof compares: of one number, of masked logits, of a network whose last units are dead."""

import pytest
import torch
from torch import nn

from rebasin_cli.errors import NetworkError, NotProven
from rebasin_cli.inference import infer
from rebasin_cli.proof.prove import prove
from tests.proof.test_prove import GOOD, Telling, spec_for, try_to_prove

ROWS = {n: torch.rand(n, 4, generator=torch.Generator().manual_seed(n)) for n in (1, 2, 3)}
WRONG = [
    {"0.weight": "h .", "0.bias": "h", "2.weight": ". .", "2.bias": "."},
    {"0.weight": "h .", "0.bias": ".", "2.weight": ". h", "2.bias": "."},
]


def masked(logits, hidden):
    first = torch.arange(logits.shape[1]) == 0
    return logits.masked_fill(first, -torch.inf)


def test_outputs_may_be_infinite_where_they_always_are():
    assert try_to_prove(GOOD, Telling(masked)).largest_difference < 1e-12
    with pytest.raises(NotProven):
        try_to_prove(GOOD | {"one.bias": "."}, Telling(masked))
    with pytest.raises(NetworkError, match="NaN or infinite") as refused:
        try_to_prove(GOOD, Telling(lambda logits, hidden: (logits, logits / 0 * 0)))
    assert refused.value.hint.endswith("--not-kept 1")


def test_outputs_may_be_empty_and_of_shapes_that_depend_on_values():
    picked = Telling(lambda logits, hidden: (logits, logits[logits > 0], logits[:0]))
    assert try_to_prove(GOOD, picked).largest_difference < 1e-12
    with pytest.raises(NotProven):
        try_to_prove(GOOD | {"one.bias": "."}, picked)


class Mean(nn.Module):
    """One number for all of a batch, as a loss is."""

    def forward(self, x):
        return x.mean()


class Similarities(nn.Module):
    """As many outputs as there are samples."""

    def forward(self, x):
        return x @ x.mT


def test_one_number_is_compared_over_several_inputs():
    for last in (nn.Identity(), nn.Sigmoid(), nn.Flatten(0), Mean(), Similarities()):
        network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), last)
        for count in (1, 2):
            found = infer(network, ROWS[count])
            assert list(found.fitted.words.values()) == [8], (last, count)
            assert found.proof.largest_difference < 1e-12
            for wrong in WRONG:
                with pytest.raises(NotProven):
                    prove(network, spec_for(network, wrong), ROWS[count])


def test_one_number_of_an_image_is_compared_too():
    image = torch.rand(1, 3, 8, 8)
    layers = nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 1)
    network = nn.Sequential(*layers)
    assert list(infer(network, image).fitted.words.values()) == [6]
    wrong = {"0.weight": "h . . .", "0.bias": ".", "4.weight": ". h", "4.bias": "."}
    with pytest.raises(NotProven):
        prove(network, spec_for(network, wrong), image)


def test_a_last_unit_that_is_dead_on_some_weights_gets_others():
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.ReLU())
    with torch.no_grad():
        network[2].bias.fill_(-100)  # so it is near its own weights
    right = spec_for(network, WRONG[0] | {"2.weight": ". h"})
    for seed in (1, 2, 3):  # drawn so, it is dead at first for 1 and 3
        for count in (1, 2):
            assert prove(network, right, ROWS[count], seed=seed).largest_difference < 1e-12
            with pytest.raises(NotProven):
                prove(network, spec_for(network, WRONG[0]), ROWS[count], seed=seed)


class Constant(nn.Module):
    """Reads its input and answers with a bias."""

    def __init__(self, outputs):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, outputs)

    def forward(self, x):
        return self.two(torch.tanh(self.one(x)) * 0)


def test_a_network_that_is_constant_on_all_weights_is_refused():
    spec = {"one.weight": "h .", "one.bias": "h", "two.weight": ". h", "two.bias": "."}
    for outputs, counts in ((1, (1, 2, 3)), (3, (1,))):
        network = Constant(outputs)
        for inputs in map(ROWS.get, counts):
            with pytest.raises(NetworkError, match="answers every input alike"):
                prove(network, spec_for(network, spec), inputs)


def test_one_input_that_no_other_can_be_drawn_for_is_told_with_the_next_step():
    network = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 1))
    spec = spec_for(network, {"0.weight": ". h", "1.weight": ". h", "1.bias": "."})
    with pytest.raises(NetworkError, match="alike") as refused:
        prove(network, spec, torch.tensor([2]))
    assert "--input 2x" in refused.value.hint
    assert prove(network, spec, torch.tensor([2, 3])).largest_difference < 1e-12
