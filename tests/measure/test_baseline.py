"""A report held against an earlier one: real differences, chance, and what cannot be compared."""

import base64
import dataclasses
import math

import numpy as np
import pytest
import torch

from rebasin_cli.datasets.loaders import LoaderData
from rebasin_cli.errors import UsageError
from rebasin_cli.measure import baseline, samples
from rebasin_cli.measure.baseline import Subject, against, check_baseline
from rebasin_cli.networks.evaluation import Scores
from rebasin_cli.reports import Barrier, Curve, Heights, Middle, Report, Row
from rebasin_cli.reports.formats import json as json_format
from rebasin_cli.types import CROSS_ENTROPY, Quantity

SAMPLES = 2_000
DATA = {"name": "mnist", "normalization": "0/1", "samples": {"test": SAMPLES}, "sha256": "f6"}
SPEC = {"sha256": "c3", "log10_symmetries": 12.5}
BATCHES = [(torch.arange(20.0).reshape(10, 2), torch.arange(10)), (torch.ones(4, 2), torch.ones(4).long())]


def losses(seed, *, mean=0.1, count=SAMPLES):
    """Of single samples, heavy-tailed as losses are, with exactly this mean."""
    drawn = np.random.default_rng(seed).exponential(mean, count)
    return torch.tensor(drawn * mean / drawn.mean(), dtype=torch.float32)


def scores(loss, right=None):
    right = torch.full_like(loss, 0.9) if right is None else right
    each = {"loss": loss.float(), "accuracy": right.float()}
    return Scores(loss.mean().item(), {"accuracy": right.mean().item()}, len(loss), 0.0, each=each)


def kept(middle, count=SAMPLES, batches=BATCHES):
    return samples.kept(middle, [scores(torch.full((count,), 0.3))] * 2, batches)


def report(loss=0.35, accuracy=0.915, *, each=None, intervals=None, name="aligned", **more) -> Report:
    if each is not None:
        loss, accuracy = each.loss, each.accuracy
    curve = Curve((0.0, 0.5, 1.0), (0.3, loss, 0.3), {"accuracy": (0.93, accuracy, 0.93)}, SAMPLES)
    middle = {"test": Middle(0.0, intervals=intervals or {})}
    row = Row(
        name,
        {"test": curve},
        {"test": Barrier(9, 9, {"accuracy": Heights(9, 9)})},
        shipped=True,
        middle=middle,
    )
    given = {"data": DATA, "spec": SPEC} | more
    samples = kept(each, each.samples) if each is not None else {}
    return Report("0", "", 0, (), given["spec"], given["data"], {}, {}, (), (row,), each=samples)


def judged(old, new, **how):
    return [gate.met for gate in against(old, new, **how)]


# with nothing but the figures


def test_without_intervals_a_baseline_allows_its_tolerance_and_no_more():
    assert judged(report(), report()) == [True, True]
    assert judged(report(), report(loss=0.36)) == [True, True]
    assert judged(report(), report(loss=0.3601)) == [False, True]
    assert judged(report(), report(loss=0.3601), tolerance=0.02) == [True, True]
    assert judged(report(), report(loss=0.35001), tolerance=0.0) == [False, True]
    assert judged(report(), report(accuracy=0.91)) == [True, True]
    assert judged(report(), report(accuracy=0.909)) == [True, False]
    assert judged(report(), report(loss=0.1, accuracy=0.99)) == [True, True]  # better is never a miss
    gate = against(report(), report(loss=0.3601))[0]
    assert "no intervals: by the tolerance alone" in gate.detail
    assert "a real difference" not in gate.detail  # that nobody knows
    assert gate.wanted == "at most the baseline's 0.05 nats + 0.01, or a difference that may be chance"


def test_the_height_above_the_chord_is_what_counts_not_the_loss():
    """Endpoints that are worse by as much as their merge are no fault of the merge."""
    worse = report(loss=1.35)
    curve = dataclasses.replace(worse.rows[0].curves["test"], loss=(1.3, 1.35, 1.3))
    row = dataclasses.replace(worse.rows[0], curves={"test": curve})
    assert judged(report(), dataclasses.replace(worse, rows=(row,))) == [True, True]


def test_what_is_no_number_or_was_not_measured_is_not_met():
    for loss, accuracy in ((math.nan, 0.92), (math.inf, 0.92), (0.3, math.nan)):
        gates = against(report(), report(loss=loss, accuracy=accuracy))
        assert [gate.met for gate in gates] == [math.isfinite(loss), math.isfinite(accuracy)]
        assert any("was not measured or is not a number" in gate.detail for gate in gates)
    new = report()
    nothing = dataclasses.replace(new, rows=(dataclasses.replace(new.rows[0], curves={}),))
    assert judged(report(), nothing) == [False, False]


# real differences and chance


def test_pairs_tell_a_small_real_difference_from_chance():
    base = losses(0)
    old = report(each=scores(base))
    gate = against(old, report(each=scores(base + 0.02 + 0.1 * (losses(1) - losses(2)))))[0]
    assert not gate.met and "0.02 worse than the baseline's" in gate.detail
    assert "a real difference" in gate.detail and "paired on 2,000 samples, 99 % sure of" in gate.detail
    noise = torch.tensor(np.random.default_rng(1).normal(0.0, 1.0, SAMPLES))
    gate = against(old, report(each=scores((base + noise - noise.mean() + 0.02).float())))[0]
    assert gate.met and "which may be chance (paired on 2,000 samples: sure only from 0.0" in gate.detail


def test_a_real_difference_within_the_tolerance_is_met():
    old, new = report(each=scores(losses(0))), report(each=scores(losses(0) + 0.009))
    gate = against(old, new)[0]
    assert gate.met and "within the tolerance of 0.01" in gate.detail
    assert not against(old, new, tolerance=0.0)[0].met


def test_accuracy_is_paired_as_well():
    right = torch.ones(SAMPLES)
    right[:100] = 0.0
    worse = right.clone()
    worse[100:140] = 0.0
    old = report(each=scores(losses(0), right))
    gate = against(old, report(each=scores(losses(0), worse)))[1]
    assert not gate.met and gate.text == "--baseline accuracy" and "0.02 worse" in gate.detail
    other = torch.ones(SAMPLES)
    other[100:212] = 0.0  # 112 other samples: 0.006 worse, of 212 that changed
    gate = against(old, report(each=scores(losses(0), other)))[1]
    assert gate.met and "which may be chance (paired" in gate.detail


def test_other_samples_are_compared_by_their_intervals():
    def unpaired(worse, half):
        sure = {"chord": (0.05 - half, 0.05 + half), "accuracy": (0.915 - half, 0.915 + half)}
        old, new = (
            report(each=scores(losses(0)), intervals=sure),
            report(each=scores(losses(1) + worse), intervals=sure),
        )
        return against(old, dataclasses.replace(new, each=new.each | {"samples": "others"}))[0]

    gate = unpaired(0.02, 0.02)
    assert gate.met and "may be chance (by both intervals, not paired: sure only from 0.03" in gate.detail
    assert not unpaired(0.04, 0.02).met
    assert not unpaired(0.02, 0.005).met


def test_equal_models_miss_a_gate_once_in_a_hundred_runs_and_planted_differences_are_found():
    """By simulation, without any tolerance; `benchmarks/gates.py` does the same with losses of networks."""
    rng, alarms, found = np.random.default_rng(7), 0, 0
    for _ in range(200):
        hard = rng.exponential(0.3, 400)
        one, two = (torch.tensor(hard + rng.exponential(0.1, 400)).float() for _ in range(2))
        old = report(each=scores(one))
        alarms += not against(old, report(each=scores(two)), tolerance=0.0)[0].met
        found += not against(old, report(each=scores(two + 0.04)), tolerance=0.0)[0].met
    assert alarms <= 7  # expected: 2; more than 7 has a chance of 1 in 1,000
    assert found >= 190


# what cannot be compared


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"data": DATA | {"name": "cifar10"}}, "the data set: cifar10 there, mnist here"),
        ({"data": DATA | {"normalization": "1/2"}}, "the normalisation of inputs: 1/2 there, 0/1 here"),
        ({"data": DATA | {"samples": {"test": 10}}}, "test samples (--limit): 10 there, 2000 here"),
        ({"data": DATA | {"scores": {"loss": "my.py:f"}}}, "--loss: my.py:f there, None here"),
        ({"data": DATA | {"scores": {"output": "b"}}}, "--output: b there, None here"),
        ({"data": DATA | {"sha256": "e5"}}, "samples themselves (SHA-256): e5 there, f6 here"),
        ({"data": DATA | {"samples": 5}}, "test samples (--limit): None there, 2000 here"),
        ({"spec": SPEC | {"sha256": "d4"}}, "the spec: d4 there, c3 here"),
        ({"spec": SPEC | {"log10_symmetries": 13.0}}, "the widths of the network: 13.0 there, 12.5 here"),
    ],
)
def test_a_baseline_of_something_else_is_refused_and_says_of_what(other, says):
    with pytest.raises(UsageError) as caught:
        against(report(**other), report())
    (problem,) = caught.value.problems
    assert says in problem and "rebasin barrier" in caught.value.hint


def test_figures_that_only_the_baseline_has_may_come_where_not_all_are_told_before():
    one, more, other = (Quantity(name) for name in ("one", "more", "other"))

    def measuring(*metrics, **how):
        return dataclasses.replace(Subject.of(report()), quantities=(CROSS_ENTROPY, *metrics), **how)

    there = measuring(one, more)
    assert there.unlike(measuring(one, open=True)) == []
    for here in (measuring(one), measuring(other, open=True), measuring(one, more, other, open=True)):
        assert "what is measured" in there.unlike(here)[0], here.quantities
    smaller = dataclasses.replace(one, larger_is_better=False)
    told = there.unlike(measuring(smaller, open=True))
    assert len(told) == 1 and told[0].endswith("larger one there, smaller cross-entropy, smaller one here")


def test_a_baseline_that_compares_nothing_is_refused():
    check_baseline(report())
    check_baseline(report(), Subject.of(report()))
    with pytest.raises(UsageError, match="no finite test chord"):
        check_baseline(report(loss=math.inf))
    with pytest.raises(UsageError, match="no finite test accuracy"):
        check_baseline(report(accuracy=math.nan))
    with pytest.raises(UsageError, match="no row that would be shipped"):
        check_baseline(dataclasses.replace(report(), rows=()))


def test_another_row_is_compared_and_told():
    detail = against(report(name="aligned + repair"), report())[0].detail
    assert "the baseline's row is 'aligned + repair'" in detail


# what is kept of samples


def test_what_is_kept_survives_a_file_and_names_its_samples():
    old = json_format.load(json_format.render(report(each=scores(losses(0)))))
    found = baseline.differences(old, report(each=scores(losses(0) + 0.25)))
    assert set(found) == {"chord", "accuracy"} and len(found["chord"]) == SAMPLES
    assert found["chord"] == pytest.approx(0.25, abs=1e-3)
    assert not found["accuracy"].any()


def test_the_digest_is_of_the_samples_and_not_of_their_batches():
    inputs, targets = torch.randn(12, 3, 40, generator=torch.Generator().manual_seed(0)), torch.arange(12)
    whole = samples.digest([(inputs, targets)])
    assert samples.digest([(inputs[:5], targets[:5]), (inputs[5:], targets[5:])]) == whole
    assert samples.digest([(inputs.flip(0), targets.flip(0))]) != whole
    assert samples.digest([(inputs, targets + 1)]) != whole
    assert samples.digest([(inputs + 1e-3, targets)]) != whole
    assert samples.digest([({"x": inputs, "y": targets}, targets)]) != whole


def test_the_digest_of_all_is_of_the_data_in_any_order():
    inputs, targets = torch.randn(12, 3, 40, generator=torch.Generator().manual_seed(0)), torch.arange(12)
    whole = samples.digest_of_all([(inputs, targets)])
    order = torch.randperm(12)
    for same in ([(inputs[:5], targets[:5]), (inputs[5:], targets[5:])], [(inputs[order], targets[order])]):
        assert samples.digest_of_all(same) == whole
    nudged = inputs.clone()
    nudged[3, 1, 7] += 1e-6
    tokens, other = torch.arange(48).reshape(12, 4), torch.zeros(12, 40)
    others = [(nudged, targets), (inputs, targets.flip(0)), (inputs[:11], targets[:11]), (other, targets)]
    others += [(tokens, tokens.flatten()), (tokens, tokens + 1)]
    assert len({whole, *(samples.digest_of_all([another]) for another in others)}) == 1 + len(others)

    class Drawn:
        def __iter__(self):
            return iter([(torch.rand(4, 2), torch.arange(4))])

    assert samples.digest_of_all(LoaderData("own", "test", Drawn())) is None  # others each time
    assert samples.digest_of_all(LoaderData("own", "test", [(inputs, targets)])) == whole


def test_a_baseline_of_an_earlier_version_names_no_samples():
    old = report(data={key: value for key, value in DATA.items() if key != "sha256"})
    check_baseline(old, Subject.of(report()))


def test_nothing_is_kept_of_losses_that_are_no_numbers_or_not_of_single_samples():
    broken = losses(0)
    broken[3] = math.inf
    assert kept(scores(broken)) == {} and kept(None) == {}
    ends = scores(losses(0))
    alone = dataclasses.replace(ends, each=None)
    assert samples.kept(ends, [ends, alone], BATCHES) == {}
    assert samples.kept(ends, [ends, ends], BATCHES)


def test_what_was_tampered_with_is_not_paired():
    old, new = report(each=scores(losses(0))), report(each=scores(losses(1)))
    assert baseline.differences(old, new)
    none = base64.b64encode(np.full(SAMPLES, np.nan, "<f2").tobytes()).decode()
    changes = [
        {"chord": "%%%"},
        {"chord": 3},
        {"chord": none},
        {"count": 5},
        {"accuracy": ""},
        {"samples": ""},
    ]
    for change in changes:
        assert baseline.differences(dataclasses.replace(old, each=old.each | change), new) == {}


def test_figures_that_are_not_those_of_the_samples_and_broken_intervals_meet_no_gate():
    """A file that was edited may not turn a real difference into chance."""
    noisy = losses(0) + torch.tensor(np.random.default_rng(3).normal(0, 5.0, SAMPLES))
    old = dataclasses.replace(report(loss=0.35), each=report(each=scores(noisy)).each)
    new = dataclasses.replace(report(loss=0.45), each=report(each=scores(losses(1))).each)
    assert baseline.differences(old, new)
    gate = against(old, new)[0]
    assert not gate.met and "no intervals: by the tolerance alone" in gate.detail
    broken = {"chord": (math.nan, 0.07), "accuracy": (-math.inf, math.inf)}
    worse = report(loss=0.45, accuracy=0.5, intervals=broken)
    assert judged(report(intervals=broken), worse) == [False, False]
