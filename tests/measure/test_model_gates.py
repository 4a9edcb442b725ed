"""Gates on the figures of one model: what may be typed, what each mistake is told, and what meets them."""

import math

import pytest

from rebasin_cli.errors import UsageError
from rebasin_cli.measure.gates import held, parse
from rebasin_cli.types import CROSS_ENTROPY, Quantity

MINE = Quantity("mine", larger_is_better=False)


def test_a_gate_names_a_figure_and_may_name_the_split():
    for text, split, told in (
        ("ece <= 0.05", "test", ("ece", 0.05)),
        (" TEST  Accuracy >= 90% ", "test", ("accuracy", 0.9)),
        ("loss test <= -1", "test", ("loss", -1.0)),
        ("train loss <= 0.5 nats", "train", ("loss", 0.5)),
        ("0.9 <= accuracy", "train", ("accuracy", 0.9)),
        ("train ece <= 5 %", "", ("ece", 0.05)),  # of a recipe, before it is known which split
    ):
        gate = parse(text, split)
        assert (gate.figure.name, gate.limit, gate.text) == (*told, text.strip())


def test_a_metric_is_named_as_reports_show_it_or_by_one_word():
    for text in ("test absolute error <= 1", "Absolute_error <= 1"):
        gate = parse(text, "test", MINE, (Quantity("absolute error", larger_is_better=False),))
        assert gate.figure.name == "absolute_error"


def test_each_mistake_is_told_with_what_there_is():
    for text, split, own_loss, told in (
        ("train loss <= 1", "test", False, "names train, and one split is measured, test"),
        ("test train loss <= 1", "test", False, "names test and train, and one split is measured, test"),
        ("test train loss <= 1", "", False, "names test and train, and one split is measured|Leave it out"),
        ("ece <= 0.1", "", True, "with --loss no ece is measured|figures: loss, accuracy"),
        ("loss accuracy <= 1", "", False, "unknown figure 'loss accuracy'|figures: loss, accuracy, ece"),
        ("acuracy >= 1", "", True, "Did you mean accuracy?"),
        ("test >= 1", "", False, "names no figure"),
        ("accuracy >= 98", "", False, "did you mean 0.98?"),
        ("ece <= inf", "", False, "the limit is inf, expected a number"),
        ("accuracy <= 0.9", "", False, "better when larger, found '<='|Write 'accuracy >= 0.9'"),
    ):
        with pytest.raises(UsageError) as caught:
            parse(text, split, MINE if own_loss else CROSS_ENTROPY)
        found = str(caught.value)
        assert found.startswith("--gate ") and all(part in found for part in told.split("|")), found
    assert parse("loss <= 1", loss=MINE) and parse("accuracy >= 1", loss=MINE)


def test_every_gate_is_held_against_its_own_figure_in_their_order():
    figures = {"loss": 0.5, "accuracy": 0.75, "ece": math.nan}
    gates = [parse(text) for text in ("ece <= 1", "loss <= 0.4", "accuracy >= 75%", "loss <= 0.5")]
    found = held(gates, figures, "train")
    assert [gate.met for gate in found] == [False, False, True, True]
    assert [gate.measured for gate in found[1:]] == [0.5, 0.75, 0.5]
    assert "was not measured" in found[0].detail and found[1].detail.startswith("train: loss is 0.5 nats")
    assert "missed by 0.1 nats" in found[1].detail
