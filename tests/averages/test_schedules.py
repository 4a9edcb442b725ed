"""Weights by which a mean of a run's checkpoints is what a decay would have left."""

import math

import pytest
import torch

from rebasin_cli.averages.means import average
from rebasin_cli.averages.weights import DECAYS, NAMES, in_order, weights_of
from rebasin_cli.errors import UsageError


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("models", [1, 2, 3, 10, 1000])
def test_weights_add_up_to_one_and_none_is_negative(name, models):
    weights = weights_of(name, models)
    assert len(weights) == models and math.fsum(weights) == pytest.approx(1, abs=1e-12)
    assert all(weight > 0 for weight in weights)


SHARES = {  # of the learning rate that is left, t of the way: written down once more
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: math.cos(math.pi * t / 2) ** 2,
    "minus-sqrt": lambda t: 1.0 - t**0.5,
}


@pytest.mark.parametrize("name", SHARES)
def test_a_merge_is_the_first_checkpoint_and_every_update_with_its_decayed_share(name):
    torch.manual_seed(0)
    run = [{"w": torch.randn(50, dtype=torch.float64)}]
    for _ in range(5):
        run.append({"w": run[-1]["w"] + 0.1 * torch.randn(50, dtype=torch.float64)})
    decayed = run[0]["w"].clone()
    for k in range(1, 6):
        decayed += SHARES[name](k / 6) * (run[k]["w"] - run[k - 1]["w"])
    torch.testing.assert_close(average(run, weights_of(name, 6))["w"], decayed, rtol=1e-12, atol=1e-12)
    assert set(SHARES) == set(DECAYS)


def test_linear_decay_is_the_plain_mean():
    assert weights_of("linear", 7) == weights_of("uniform", 7) == [1 / 7] * 7


def test_the_documented_example():
    assert weights_of("minus-sqrt", 4) == pytest.approx([0.5, 0.2071, 0.1589, 0.1340], abs=1e-4)
    assert weights_of("cosine", 4) == pytest.approx([0.1464, 0.3536, 0.3536, 0.1464], abs=1e-4)


def test_steps_are_numbers_and_not_letters():
    names = ["run/step-1000.pt", "run/step-200.pt", "run/step-30.pt"]
    assert [names[k] for k in in_order(names)] == names[::-1]
    folders = ["ckpt-10/model.safetensors", "ckpt-9/model.safetensors"]
    assert in_order(folders) == [1, 0]


@pytest.mark.parametrize(
    "names, says",
    [
        (["a.pt", "b.pt"], "more than numbers"),
        (["step-1.pt", "last.pt"], "more than numbers"),
        (["step-1.pt", "step-01.pt"], "same numbers"),
    ],
)
def test_names_that_tell_no_order_are_refused(names, says):
    with pytest.raises(UsageError, match=says) as raised:
        in_order(names)
    assert raised.value.problems == tuple(names)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(UsageError, match="unknown schedule"):
        weights_of("cosin", 3)
