"""Weights as a person writes them, and what is said of those that are none."""

from __future__ import annotations

import doctest

import pytest
import torch

from rebasin_cli.averages import weights
from rebasin_cli.averages.means import average
from rebasin_cli.averages.weights import checked, parse, suggested
from rebasin_cli.errors import UsageError


def test_the_examples_in_the_docstrings_run():
    found = doctest.testmod(weights)
    assert found.attempted >= 3 and found.failed == 0


def test_numbers_fractions_and_names_are_weights():
    told = {
        "0.5,0.3,0.2": [0.5, 0.3, 0.2],
        "1, 0.8,-0.8": [1, 0.8, -0.8],
        "2/3,.5/1.5": [2 / 3, 1 / 3],
        "+1.,-0,0e5": [1, 0, 0],
        "cosine": "cosine",
        "minus-sqrt": "minus-sqrt",
    }
    assert {text: parse(text) for text in told} == told and parse(None) is None


@pytest.mark.parametrize("models", [3, 7, 49])
def test_fractions_of_one_are_the_plain_mean_bit_for_bit(models):
    tensors = [{"w": torch.randn(50, generator=torch.Generator().manual_seed(k))} for k in range(models)]
    given = parse(",".join([f"1/{models}"] * models))
    assert torch.equal(average(tensors, given)["w"], average(tensors)["w"])


def test_what_is_no_number_is_refused_with_the_part_that_is_not():
    none = "nan inf -inf 1e999 1_000 0x1 1/0 1/3/2 ١ 60% 0,5;0,5 .".split()
    for part in [*none, "9" * 10_000, "1e99999999", "1/1e-9999"]:
        with pytest.raises(UsageError, match="is no number"):
            parse(f"0.5,{part}")
    for text in ("", ",", "0.5,", "0.5,,0.5"):
        with pytest.raises(UsageError, match="lacks a number"):
            parse(text)
    for text in ("nan", "Infinity", "-inf"):
        with pytest.raises(UsageError, match="is no number"):
            parse(text)
    with pytest.raises(UsageError, match="unknown schedule of weights 'cosin'") as told:
        parse("cosin")
    assert "cosine" in told.value.hint


def test_weights_of_another_sum_are_told_in_their_proportions():
    told = {
        (600, 400): "0.6,0.4",
        (1, 1): "0.5,0.5",
        (1, 1, 1): "1/3,1/3,1/3",
        (2, 1): "2/3,1/3",
        (0.5, 0.4): "5/9,4/9",
        (3, -1): "1.5,-0.5",
        (1e-3, 1e-3): "0.5,0.5",
        (12345, 6789, 1011): "0.612807,0.337007,0.050186",
        (1e300, 1e300): "0.5,0.5",
        (1, -1): None,
        (-2, 1): None,
    }
    assert {given: suggested(given) for given in told} == told
    for given, shares in told.items():
        with pytest.raises(UsageError, match="expected 1") as error:
            checked(given, len(given))
        if shares is None:
            assert "Negative ones are allowed" in error.value.hint
        else:
            assert shares in error.value.hint and checked(parse(shares), len(given))


def test_weights_in_memory_are_numbers_too():
    for given in (["1/2", "x"], [None, 1], [1, [0]], 3):
        with pytest.raises(UsageError, match="are no numbers"):
            checked(given, 2)
    assert checked(torch.tensor([0.5, 0.5]), 2) == [0.5, 0.5]
