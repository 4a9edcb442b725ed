"""Errors as they are shown: all findings where they are few, kinds of them where they are many."""

from __future__ import annotations

import doctest

import pytest

from rebasin_cli import errors
from rebasin_cli.cli.screen import screen
from rebasin_cli.errors import FEW, MOST, SpecError, gathered, near

LAYERS = [
    f"model.layers.{k}.{part}.weight  is absent in {where}, float32 {size} elsewhere"
    for where, size in (("a2.pt", "4×4"), ("b2.pt", "4×16"))
    for k in range(12)
    for part in ("q_proj", "k_proj", "v_proj", "o_proj")
]


def test_the_examples_in_the_docstrings_run():
    found = doctest.testmod(errors)
    assert found.attempted >= 1 and found.failed == 0


def test_a_few_problems_are_told_one_by_one():
    few = LAYERS[:FEW]
    assert gathered(few) == few


def test_names_that_differ_in_numbers_are_one():
    told = gathered([f"b{k}.layers.{j}.w  is 3×4" for k in range(2) for j in range(5)] + ["head.w  is 2×4"])
    assert told == ["b{i}.layers.{j}.w  is 3×4 (10 such)", "head.w  is 2×4"]


def test_kinds_are_kept_apart_by_what_is_said_and_by_the_file():
    told = gathered(LAYERS)
    assert told == [
        "48 names, such as model.layers.0.q_proj.weight  is absent in a2.pt, float32 4×4 elsewhere",
        "48 names, such as model.layers.0.q_proj.weight  is absent in b2.pt, float32 4×16 elsewhere",
    ]
    told = gathered(
        [f"w.{name}  is {name}" for name in "abcdefgh"] + [f"v{k}  is 3 in model {k}" for k in "12"]
    )
    assert len(told) == 10, "nothing of this is of one kind"
    assert gathered(["line 3: steps"] * 9) == ["line 3: steps"] * 9, "no name, nothing to gather"
    told = gathered([f"{name}  is absent in model {k}" for k in "12" for name in "abcdefgh"])
    assert told == [f"8 names, such as a  is absent in model {k}" for k in "12"]


def test_all_are_shown_where_somebody_asks_for_them():
    error = SpecError("they differ", problems=LAYERS, hint="Next")
    assert len(error.lines()) == 4
    with pytest.raises(SpecError) as told, screen(verbose=True):
        raise error
    assert len(told.value.lines()) == len(LAYERS) + 2
    many = SpecError("they differ", problems=[f"{'ab'[k % 2] * k}  is {k}{k * 'x'}" for k in range(1, 40)])
    assert many.lines()[-1] == f"  … and {39 - MOST} more"


def test_of_many_names_that_are_all_unlike_it_the_nearest_are_told():
    many = [f"{letter}{letter}_option" for letter in "abcdefghijklmnopqrstuvw"]
    assert near("aa_optoin", many) == "did you mean aa_option?"
    assert near("zz", many[:3]) == "known: aa_option, bb_option, cc_option"
    told = near("cc", many)
    assert told.startswith("the nearest of 23: ") and "cc_option" in told and told.count(",") == 4
