"""The language of gates: what people may type, what reports hold, and what each mistake is told."""

import math

import pytest

from rebasin_cli.errors import UsageError
from rebasin_cli.measure.gates import check_gate_names
from rebasin_cli.measure.settings import plan_attacks, plan_curves, plan_groups, plan_rows
from rebasin_cli.measure.thresholds import (
    LONG,
    OPTIONS,
    PLAIN,
    Language,
    asked,
    gone,
    instead,
    of_option,
    parse_gate,
    stored,
)
from rebasin_cli.networks.attacks import Attack
from rebasin_cli.types import CROSS_ENTROPY, Quantity


def said(text, rows=None):
    """What is told of a gate that is refused."""
    with pytest.raises(UsageError) as caught:
        gate = parse_gate(text)
        check_gate_names([gate], rows or [], ["train", "test"])
    return str(caught.value)


def test_a_metric_is_named_as_reports_show_it_or_by_one_word():
    metrics = (Quantity("Absolute error", larger_is_better=False), Quantity("error"))
    language = Language(CROSS_ENTROPY, metrics)
    for text, parted in {
        "absolute error <= 1": "shipped:test:absolute_error<=1",
        "absolute_error <= 1": "shipped:test:absolute_error<=1",
        "naive train Absolute  error rise <= 1": "naive:train:absolute_error_drop<=1",
        "test absolute error drop <= 1": "shipped:test:absolute_error_drop<=1",
        "naive:test:absolute error<=1": "naive:test:absolute_error<=1",
        "error >= 1": "shipped:test:error>=1",
        "error drop <= 1": "shipped:test:error_drop<=1",
    }.items():
        assert parse_gate(text, language).parted == parted
    assert {"absolute_error rise", "error drop"} <= {*language.names}


def test_a_gate_says_a_figure_and_a_limit_and_the_rest_has_defaults():
    for text, parted in {
        "barrier <= 0.05": "shipped:test:chord<=0.05",
        "test barrier <= 0.05": "shipped:test:chord<=0.05",
        "train barrier midpoint <= 0.1": "shipped:train:midpoint<=0.1",
        "test accuracy >= 0.9": "shipped:test:accuracy>=0.9",
        "test accuracy drop <= 0.01": "shipped:test:accuracy_drop<=0.01",
        "aligned + reset test chord <= 0.05": "aligned + reset:test:chord<=0.05",
        "shipped loss <= 1": "shipped:test:loss<=1",
        # any order, any spelling that can mean one thing
        "midpoint barrier train <= .1": "shipped:train:midpoint<=0.1",
        "chord test aligned+reset <= 5e-2": "aligned + reset:test:chord<=0.05",
        "  Accuracy   TEST≥0.9 ": "shipped:test:accuracy>=0.9",
        "test\tbarrier\n≤ 1": "shipped:test:chord<=1",
        "loss barrier (midpoint) <= 1": "shipped:test:midpoint<=1",
        "naive loss barrier (chord) <= 1": "naive:test:chord<=1",
        "naive barrier accuracy <= 0.2": "naive:test:accuracy_chord<=0.2",
        "accuracy_midpoint train <= 0.2": "shipped:train:accuracy_midpoint<=0.2",
        "accuracy midpoint barrier <= 0.2": "shipped:test:accuracy_midpoint<=0.2",
        "0.9 <= test accuracy": "shipped:test:accuracy>=0.9",
        "0.05 => barrier": "shipped:test:chord<=0.05",
        "90% <= accuracy": "shipped:test:accuracy>=0.9",
        # units
        "accuracy >= 99.9%": "shipped:test:accuracy>=0.999",
        "accuracy drop <= -1%": "shipped:test:accuracy_drop<=-0.01",
        "accuracy drop <= 1 %": "shipped:test:accuracy_drop<=0.01",
        "barrier <= 0.05 nats": "shipped:test:chord<=0.05",
        "barrier <= -1e-3": "shipped:test:chord<=-0.001",
        # between colons
        "aligned+ reset : test:chord <= 5e-2": "aligned + reset:test:chord<=0.05",
        "naive:train:accuracy≥0.5": "naive:train:accuracy>=0.5",
        "aligned:test:barrier midpoint<=1": "aligned:test:midpoint<=1",
        "test:test:chord<=1": "test:test:chord<=1",
        "aligned + pgd-5@0.1:0.05:test:accuracy>=0.1": "aligned + pgd-5@0.1:0.05:test:accuracy>=0.1",
    }.items():
        gate = parse_gate(text)
        assert (gate.parted, gate.text) == (parted, text.strip())
        again = parse_gate(gate.parted)
        assert (again.row, again.split, again.definition, again.limit) == (
            *(gate.row, gate.split, gate.definition, gate.limit),
        )


def test_every_row_that_a_report_may_have_can_be_named_in_words():
    rows = plan_curves(["curve (aligned)", "curve 2 (unaligned)"], resets=True)
    for word in ("", "reset", "repair", "rescale", "reshift", "refit", "distill", "bias"):
        rows += plan_rows(aligned=True, word=word, auto=True, statistics=True, turning=True)
        rows += plan_groups(word)
    rows += plan_attacks(rows, [Attack.parse("0.1"), Attack.parse("0.1,step=0.05")], statistics=False)
    names = [row.name for row in rows]
    assert any(":" in name for name in names) and any("ends too" in name for name in names)
    for name in names:
        for text in (f"{name} test barrier <= 1", f"train accuracy {name} >= 0", f"{name}:test:loss<=1"):
            gate = parse_gate(text)
            check_gate_names([gate], names, ["train", "test"])
            assert gate.row == name


def test_every_figure_is_found_by_both_its_names():
    for key, figure in PLAIN.figures.items():
        sign = ">=" if figure.larger else "<="
        for name in (key, figure.name, *figure.also):
            assert parse_gate(f"{name} {sign} 0.5").definition == key
            assert parse_gate(f"naive:test:{name}{sign}0.5").definition == key


def test_each_mistake_is_told_where_it_is_with_what_there_is_and_the_nearest():
    for text, told in {
        "": "has no comparison",
        "nonsense": "has no comparison",
        "test barrier 0.05": "has no comparison",
        "barrier <= 0.05 <= 0.1": "has 2 comparisons, <= and <=",
        "0 <= barrier ≤ 1": "has 2 comparisons, <= and ≤",
        "<= 0.05": "names no figure",
        "test <= 0.05": "names no figure",
        "ece <= 0.05": "names no figure",
        "test barier <= 0.05": "'barier' looks like 'barrier', misspelt|Did you mean barrier?",
        "tst barrier <= 0.05": "'tst' looks like 'test'|Did you mean test?",
        "test acuracy drop <= 0.05": "'acuracy' looks like 'accuracy'|Did you mean accuracy?",
        "loss accuracy <= 1": "'loss accuracy' is no figure",
        "loss midpoint <= 1": "'loss midpoint' is no figure|Did you mean barrier midpoint?",
        "accuracy midpoint >= 0.9": "'accuracy midpoint' is no figure|accuracy barrier midpoint",
        "chord midpoint <= 1": "'chord midpoint' is no figure",
        "loss loss <= 1": "'loss loss' is no figure",
        "test train loss <= 1": "names 2 splits, test and train",
        "test test loss <= 1": "names 2 splits, test and test",
        "my test run barrier <= 1": "'my test run' has words of the language within|my test run:test:chord",
        "x " * 50 + "loss <= 1": "has 51 words",
        "aligned::chord <= 1": "lacks a name beside a colon",
        "aligned:test:cord<=0.05": "unknown figure 'cord'|Did you mean chord",
        "aligned:chord <= 0.05": "names no figure",
    }.items():
        found = said(text)
        assert found.startswith("--gate ") and all(part in found for part in told.split("|")), text
        lines = [line.split()[0] for line in found.splitlines()[1:4]]
        assert lines == ["rows:", "splits:", "figures:"] and len(found.splitlines()) == 5, text
    for text, told in {
        "barrier <=": "lacks its number",
        "barrier <= low": "'low' is not a number",
        "barrier <= 0_05": "'0_05' is not a number",
        "barrier <= ٥": "'٥' is not a number",
        "barrier <= nan": "the limit is nan, expected a number",
        "barrier <= inf": "the limit is inf, expected a number",
        "barrier <= 1e999": "the limit is inf, expected a number",
        "barrier <= 5%": "loss barrier (chord) is in nats, not in per cent",
        "accuracy >= nan%": "the limit is nan",
        "accuracy >= 98": "did you mean 0.98?",
        "accuracy drop <= 2": "did you mean 0.02?",
        "accuracy barrier <= 5": "did you mean 0.05?",
        "accuracy >= 200%": "the limit is 2",
        "accuracy >= 0.9 nats": "'0.9 nats' is not a number",
        "barrier < 0.05": "smaller, found '<'|Write 'barrier <= 0.05'",
        "barrier = 0.05": "smaller, found '='|Write 'barrier <= 0.05'",
        "aligned:test:chord>=0.05": "smaller, found '>='|Write 'aligned:test:chord <= 0.05'",
        "test accuracy <= 0.9": "larger, found '<='|Write 'test accuracy >= 0.9'",
        "0.9 >= accuracy": "larger, found '>='|Write 'accuracy >= 0.9'",
    }.items():
        found = said(text)
        assert found.startswith("--gate ") and all(part in found for part in told.split("|")), text
    assert len(said("z" * 9_999).splitlines()[0]) < LONG + 50


def test_names_are_held_against_the_rows_that_there_are():
    rows = ["naive", "aligned", "aligned + reset"]
    found = said("alined + reset barrier <= 1", rows)
    assert "unknown row 'alined + reset'" in found and "Did you mean aligned + reset" in found
    assert "rows: naive, aligned, aligned + reset; shipped where none is named" in found
    assert "unknown row 'tset'" in (found := said("tset barrier <= 1", rows)) and "mean test?" in found
    assert "Did you mean shipped?" in said("shiped barrier <= 1", rows)
    assert "unknown split 'valid'" in said("aligned:valid:chord<=1", rows)


def test_words_that_are_the_name_of_another_row_as_well_are_refused():
    rows = ["naive", "test", "run 2", "test run 2"]
    found = said("test run 2 barrier <= 1", rows)
    assert "a row 'test run 2'" in found
    assert "Write 'run 2:test:chord<=1', or such as 'test run 2:test:chord<=1'" in found
    assert "a row 'test'" in said("test barrier <= 1", rows)
    for fine in ("run 2 barrier <= 1", "test run 2:test:chord<=1", "shipped:test:chord<=1"):
        check_gate_names([parse_gate(fine)], rows, ["test"])
    for option in (of_option("max_barrier", 1), stored("--max-barrier 1")):  # no words of a person's
        check_gate_names([option], ["test", "naive"], ["test"])


# options


def test_max_barrier_is_the_gate_on_the_test_barrier():
    option, other = asked(["test barrier <= 0.05"], max_barrier=0.05)
    assert option.text == "--max-barrier 0.05" and option.parted == other.parted
    for limit in (math.nan, math.inf):
        with pytest.raises(UsageError, match=f"--max-barrier: the limit is {limit}, expected a number"):
            asked([], max_barrier=limit)


def test_what_reports_hold_is_read_whatever_version_wrote_it():
    for text, parted in {
        "--max-barrier 1.23457e+06": "shipped:test:chord<=1234570",
        "--min-accuracy 0.9": "shipped:test:accuracy>=0.9",
        "--max-accuracy-drop -0.01": "shipped:test:accuracy_drop<=-0.01",
        "naive:test:accuracy_chord<=5": "naive:test:accuracy_chord<=5",
        "test barrier <= 0.05": "shipped:test:chord<=0.05",
    }.items():
        gate = stored(text)
        assert (gate.parted, gate.text) == (parted, text)
    assert stored("--max-barrier 0.1").asks(0.1 + 1e-9) and not stored("barrier <= 0.1").asks(0.1 + 1e-9)


def test_limits_that_were_options_are_told_as_the_gates_that_they_are():
    assert gone("--min-accuracy", "0.9") == "--min-accuracy is a gate now: --gate 'test accuracy >= 0.9'"
    assert (
        gone("--max-accuracy-drop") == "--max-accuracy-drop is a gate now: --gate 'test accuracy drop <= X'"
    )
    assert gone("--max-barrier") is gone("min-accuracy") is instead("max_barrier") is None
    assert instead("min_accuracy", 0.95) == "test accuracy >= 0.95"
    for key in OPTIONS:
        assert parse_gate(OPTIONS[key].format(0.5))
    assert "--min-accuracy is a gate now: --gate 'test accuracy >= 1'" in said("--min-accuracy 1")
