"""Gates: read, checked before an hour of measuring, and held against a report."""

import dataclasses
import math

import pytest

from rebasin_cli.errors import GateNotMet, UsageError
from rebasin_cli.measure.baseline import Baseline
from rebasin_cli.measure.gates import (
    GateSet,
    check_gate_names,
    contradicted,
    evaluate_gates,
    fixed_rows,
    judged,
)
from rebasin_cli.measure.thresholds import PLAIN, asked, of_option, parse_gate
from rebasin_cli.reports import Barrier, ClassShare, Curve, Flips, Heights, Middle, Report, Row
from rebasin_cli.reports.verdicts import raise_unmet, results


def _barrier(midpoint, chord, accuracy_midpoint, accuracy_chord):
    return Barrier(midpoint, chord, {"accuracy": Heights(accuracy_midpoint, accuracy_chord)})


def _numbers(barrier):
    of = barrier.metrics["accuracy"]
    return barrier.midpoint, barrier.chord, of.midpoint, of.chord


def _row(name, loss, accuracy, barrier, **flags):
    """A row with the same curves on both splits, but other barriers on train."""
    curve = Curve((0.0, 0.5, 1.0), (0.3, loss, 0.3), {"accuracy": (0.93, accuracy, 0.92)}, 1000)
    train = _barrier(*(10 * value for value in _numbers(barrier)))
    classes = (ClassShare(3, 40, 0.5, (0.35, 0.65), 0.75), ClassShare(1, 9, 0.9, (0.5, 1.0), 0.9))
    flips = Flips("accuracy", 1000, 900, 40, 3, (0.03, 0.05))
    middle = {"test": Middle(classes=classes, flips=flips)}
    return Row(
        name, {"test": curve, "train": curve}, {"test": barrier, "train": train}, middle=middle, **flags
    )


def report(*, chord=0.05, accuracy=0.915, loss=0.36, data="mnist") -> Report:
    rows = (
        _row("naive", 2.2, 0.32, _barrier(1.91, 1.9, 0.62, 0.6)),
        _row("aligned", 1.0, 0.75, _barrier(0.71, 0.7, 0.19, 0.18)),
        _row("aligned + reset", loss, accuracy, _barrier(0.06, chord, 0.012, 0.01), shipped=True),
    )
    ends = tuple({"name": name, "test": {"accuracy": a}} for name, a in (("A", 0.93), ("B", 0.92)))
    return Report("0", "", 0, (), {}, {"name": data}, {}, {}, ends, rows)


def _one(report, *, gates=(), **limits):
    """One gate: of `gates`, or of an option."""
    asked = [*(of_option(key, limit) for key, limit in limits.items()), *gates]
    (gate,) = evaluate_gates(report, asked)
    return gate


# names


def test_gate_names_are_checked_against_what_will_be_measured():
    rows, splits = ["naive", "aligned", "aligned + reset"], ["test", "train"]
    check_gate_names([parse_gate("aligned + reset:train:loss<=1")], rows, splits)
    with pytest.raises(UsageError, match="unknown row 'aligned \\+ rest'") as caught:
        check_gate_names([parse_gate("aligned + rest:test:chord<=1")], rows, splits)
    assert "Did you mean aligned + reset" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        check_gate_names(map(parse_gate, ["nave:tests:chord<=1", "naive:test:loss<=1"]), rows, splits)
    assert len(caught.value.problems) == 5 and caught.value.problems[-1].startswith("figures: barrier, ")
    assert "'nave'" in caught.value.problems[0] and "Did you mean naive" in caught.value.problems[0]
    assert "'tests'" in caught.value.problems[1] and "Did you mean test" in caught.value.problems[1]


def test_a_tolerance_that_is_none_is_refused():
    for tolerance, told in ((math.nan, "a number"), (math.inf, "a number"), (-0.01, "0 or more")):
        with pytest.raises(UsageError, match=f"--baseline-tolerance: .*, expected {told}"):
            GateSet(baseline_tolerance=tolerance)
        with pytest.raises(UsageError, match="--baseline-tolerance"):
            evaluate_gates(report(), baseline_tolerance=tolerance)


def test_a_search_may_choose_no_other_repair_than_a_gate_names():
    gates = ["aligned + reset train loss <= 1", "aligned + repair:test:chord<=1", "aligned + reset loss <= 2"]
    gates += ["naive barrier <= 1", "barrier <= 1", "aligned accuracy >= 0"]
    assert fixed_rows(map(parse_gate, gates)) == ["aligned + repair", "aligned + reset"]
    assert GateSet().any is False and fixed_rows([]) == []


# holding


@pytest.mark.parametrize(
    ("definition", "figure"),
    [
        ("midpoint", 0.71),
        ("chord", 0.7),
        ("accuracy_midpoint", 0.19),
        ("accuracy_chord", 0.18),
        ("loss", 1.0),
        ("accuracy", 0.75),
        ("accuracy_drop", 0.175),
        ("class_accuracy_drop", 0.25),
        ("negative_flips", 0.04),
    ],
)
def test_every_definition_measures_its_own_figure(definition, figure):
    assert len(PLAIN.figures) == 9
    sign, worse = (">=", 0.001) if definition == "accuracy" else ("<=", -0.001)
    exact = _one(report(), gates=[f"aligned:test:{definition}{sign}{figure}"])
    missed = _one(report(), gates=[parse_gate(f"aligned:test:{definition}{sign}{figure + worse}")])
    assert (exact.measured, exact.limit, exact.met) == (pytest.approx(figure), figure, True)
    assert not missed.met
    assert "aligned, test" in missed.detail


def test_a_gate_looks_at_its_split():
    assert _one(report(), gates=["aligned:train:chord<=7"]).measured == 7.0


def test_max_barrier_looks_at_the_shipped_rows_chord_on_test():
    gate = _one(report(chord=0.05), max_barrier=0.05)
    assert (gate.text, gate.measured, gate.met) == ("--max-barrier 0.05", 0.05, True)
    assert not _one(report(chord=0.0501), max_barrier=0.05).met
    detail = "aligned + reset, test: loss barrier (chord) is 0.05 nats, wanted at most 0.05 nats"
    assert gate.detail == detail


def test_a_narrow_miss_is_told_with_enough_digits():
    detail = _one(report(chord=0.0500001), max_barrier=0.05).detail
    assert "is 0.0500001 nats, wanted at most 0.05 nats" in detail


def test_what_float32_leaves_of_a_path_between_equal_models_is_no_barrier():
    assert _one(report(chord=1.3e-8), max_barrier=0).met
    assert not _one(report(chord=1e-6), max_barrier=0).met


def test_min_accuracy_looks_at_the_shipped_row_half_way():
    assert _one(report(accuracy=0.915), min_accuracy=0.915).met
    gate = _one(report(accuracy=0.914), min_accuracy=0.915)
    assert not gate.met
    assert "accuracy at λ=½ is 0.914, wanted at least 0.915" in gate.detail


def test_accuracy_drop_is_from_the_mean_of_the_endpoints():
    gate = _one(report(accuracy=0.915), max_accuracy_drop=0.01)
    assert gate.measured == pytest.approx(0.01)
    assert gate.met  # by the last bit: (0.93 + 0.92)/2 - 0.915 is not exactly 0.01
    assert not _one(report(accuracy=0.914), max_accuracy_drop=0.01).met
    ends = tuple({**end, "train": {"accuracy": 0.95}} for end in report().endpoints)
    train = _one(dataclasses.replace(report(), endpoints=ends), gates=["aligned train accuracy drop <= 0.2"])
    assert train.measured == pytest.approx(0.2) and train.met


def test_what_is_no_number_or_was_not_measured_does_not_meet_its_gate():
    for value in (math.nan, math.inf, -math.inf):
        assert not _one(report(chord=value), max_barrier=0.05).met
        assert not _one(report(loss=value), gates=["aligned + reset:test:loss<=9"]).met
    for value in (math.nan, math.inf):
        assert not _one(report(accuracy=value), min_accuracy=0.1).met
        assert not _one(report(accuracy=value), max_accuracy_drop=0.1).met
    for value in (37.0, -37.0):  # of a metric that counts otherwise: 37 % of what should be 90 %
        percent = _one(report(accuracy=value), min_accuracy=0.9)
        assert not percent.met and f"is {value:g}" in percent.detail and "no share" in percent.detail
    assert _one(report(accuracy=1.0), min_accuracy=1.0).met
    ends_only = Curve((0.0, 1.0), (0.3, 0.3), {"accuracy": (0.9, 0.9)}, 10)
    broken = dataclasses.replace(report().rows[2], curves={"test": ends_only}, barriers={})
    broken = dataclasses.replace(report(), rows=(broken,))
    lacking = _one(broken, min_accuracy=0.1).detail
    assert "was not measured" in lacking and "missed by" not in lacking
    assert not _one(broken, max_barrier=9.0).met
    assert not _one(dataclasses.replace(report(), endpoints=()), max_accuracy_drop=0.9).met


def test_gates_come_in_their_order_that_of_max_barrier_first_and_the_baselines_last():
    texts = [
        gate.text
        for gate in evaluate_gates(
            report(),
            asked(["naive:test:loss<=3", "aligned test loss <= 3"], max_barrier=0.1),
            baseline=report(),
        )
    ]
    assert texts == [
        "--max-barrier 0.1",
        "naive:test:loss<=3",
        "aligned test loss <= 3",
        "--baseline chord",
        "--baseline accuracy",
    ]
    assert evaluate_gates(report()) == ()


def test_a_gate_on_an_unknown_row_or_without_a_shipped_row_is_a_usage_error():
    with pytest.raises(UsageError, match="unknown row 'aligne'"):
        evaluate_gates(report(), gates=["aligne:test:loss<=3"])
    nothing = dataclasses.replace(report(), rows=report().rows[:2])
    for gate in (of_option("max_barrier", 0.1), "accuracy >= 0.1", "accuracy drop <= 0.1"):
        with pytest.raises(UsageError, match="no row that would be shipped"):
            evaluate_gates(nothing, [gate])


# the end


def test_unmet_gates_raise_one_error_that_names_them_all():
    gates = evaluate_gates(report(), asked(["accuracy >= 0.99", "naive:test:chord<=1"], max_barrier=0.1))
    with pytest.raises(GateNotMet, match="2 of 3 gates not met") as caught:
        raise_unmet(results(dataclasses.replace(report(), gates=gates)))
    assert caught.value.exit_code == 1
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "accuracy >= 0.99",
        "naive:test:chord<=1",
    ]
    raise_unmet(results(dataclasses.replace(report(), gates=gates[:1])))


def test_a_gate_on_the_shipped_row_holds_whatever_row_that_is():
    check_gate_names([parse_gate("shipped:test:loss<=1")], ["naive", "aligned"], ["test"])
    gate = _one(report(), gates=["shipped:test:loss<=1"])
    other = _one(report(), gates=["aligned + reset:test:loss<=1"])
    assert (gate.measured, gate.met) == (other.measured, other.met)
    assert gate.detail == other.detail and gate.text == "shipped:test:loss<=1"


def test_a_report_whose_gates_say_what_its_figures_do_not_is_contradicted():
    old = (of_option("min_accuracy", 0.99), of_option("max_accuracy_drop", 0.01))  # of versions before
    made = judged(report(), GateSet((*asked(["naive:test:chord<=1"], max_barrier=0.1), *old)))
    assert [gate.met for gate in made.gates] == [True, False, False, True] and not [*contradicted(made)]
    assert [gate.text for gate in made.gates][2:] == ["--min-accuracy 0.99", "--max-accuracy-drop 0.01"]
    for place, gate in enumerate(made.gates):
        turned = [*made.gates]
        turned[place] = dataclasses.replace(gate, met=not gate.met, measured=0.5)
        (said,) = contradicted(dataclasses.replace(made, gates=tuple(turned)))
        assert said.startswith(f"{gate.text}: it says {'not met' if gate.met else 'met'}, and ")
    odd = dataclasses.replace(made.gates[0], text="gone:test:chord<=1")
    assert "unknown row 'gone'" in next(contradicted(dataclasses.replace(made, gates=(odd,))))
    for limit in (0.2, math.nan):  # the text says 0.1
        odd = dataclasses.replace(made.gates[0], limit=limit)
        (said,) = contradicted(dataclasses.replace(made, gates=(odd,)))
        assert said == f"--max-barrier 0.1: it was held against {limit:g}"


def test_a_limit_of_more_digits_than_its_option_shows_contradicts_nothing():
    made = judged(report(chord=1.234573), GateSet((of_option("max_barrier", 1.234574),)))
    assert [(gate.text, gate.met) for gate in made.gates] == [("--max-barrier 1.23457", True)]
    assert not [*contradicted(made)]


def test_gates_that_are_judged_anew_take_the_place_of_those_before():
    first = judged(report(), GateSet(asked([], max_barrier=0.1), Baseline("base.json")))
    assert first.baseline == {"file": "base.json", "missing": True} and len(first.gates) == 1
    base = Baseline("base.json", report(), "ab")
    second = judged(first, GateSet(asked(["accuracy >= 0.5"]), base))
    assert second.baseline == {"file": "base.json", "sha256": "ab"}
    assert [gate.text.split()[0] for gate in second.gates] == ["accuracy", "--baseline", "--baseline"]
    assert judged(second, GateSet()) == report()
    assert [GateSet().any, GateSet(asked([], max_barrier=0.0)).any, GateSet(baseline=Baseline("b")).any] == [
        False,
        True,
        True,
    ]
