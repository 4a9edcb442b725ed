"""Intervals: over samples drawn anew, over pairs; and the choice of a repair."""

import functools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from rebasin_cli.errors import NetworkError, UsageError
from rebasin_cli.measure import intervals, paths
from rebasin_cli.measure.controls import Ensemble
from rebasin_cli.measure.intervals import interval, resampled_means, t_interval
from rebasin_cli.networks.evaluation import Scores, evaluate
from rebasin_cli.repair import choices
from rebasin_cli.repair.calibration import Scaled
from rebasin_cli.reports import Curve, Middle, Report, Row, barrier_of
from rebasin_cli.reports.conclusion import conclude
from rebasin_cli.types import Quantity


def test_a_bootstrap_interval_is_that_of_the_normal_law_for_many_samples():
    values = torch.randn(5000, 1, generator=torch.Generator().manual_seed(0)) * 3 + 1
    low, high = interval(resampled_means(values, seed=1)[:, 0])
    half = 1.96 * values.std().item() / math.sqrt(5000)
    assert low == pytest.approx(values.mean().item() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean().item() + half, abs=0.1 * half)


def test_draws_are_the_same_for_all_columns_whatever_fits_into_memory(monkeypatch):
    values = torch.randn(300, 1, generator=torch.Generator().manual_seed(0))
    both = torch.cat([values, values + 2], dim=1)
    means = resampled_means(both, seed=3)
    assert torch.allclose(means[:, 1] - means[:, 0], torch.tensor(2.0, dtype=torch.float64))
    assert torch.equal(means, resampled_means(both, seed=3))
    assert not torch.equal(means, resampled_means(both, seed=4))
    monkeypatch.setattr(intervals, "SLAB", 300 * 16 * 7)  # seven rows at a time
    assert torch.allclose(resampled_means(both, seed=3), means, atol=1e-12)


def test_infinite_losses_have_no_interval_and_spoil_no_other():
    values = torch.tensor([[1.0, math.inf], [2.0, 1.0], [3.0, 1.0]])
    means = resampled_means(values, seed=0)
    assert len(interval(means[:, 0])) == 2 and interval(means[:, 1]) == ()


def test_students_interval_is_the_textbooks():
    # n = 4, mean 5, s = 2.581989, t(0.975, 3) = 3.182446: 5 ± 4.108521
    assert t_interval([2.0, 4.0, 6.0, 8.0]) == pytest.approx((5 - 4.108521, 5 + 4.108521), abs=1e-5)
    assert t_interval([1.0]) == () and t_interval([1.0, math.inf]) == ()


# controls


class Line(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, x):
        return {"logits": self.factor * x}


def test_an_ensemble_averages_logits_and_leaves_the_network_as_it_was():
    network = Line(9.0)
    ensemble = Ensemble(network, [{"factor": torch.tensor(1.0)}, {"factor": torch.tensor(4.0)}], "logits")
    x = torch.randn(3, 2)
    assert torch.allclose(ensemble(x), 2.5 * x)
    assert network.factor.item() == 9.0 and ensemble.details == {"cost": 2}


def test_a_temperature_changes_the_loss_and_no_decision():
    generator = torch.Generator().manual_seed(0)
    x, targets = torch.randn(200, 3, generator=generator), torch.randint(3, (200,), generator=generator)
    network = Line(5.0)
    scaled = Scaled(network, [(x, targets)], "logits", "cpu")
    plain = evaluate(network, [(x, targets)], output="logits")
    cooled = evaluate(scaled, [(x, targets)])
    right = Scaled(network, [(x, x.argmax(1))], "logits", "cpu")  # the colder, the better
    assert right.details == {"temperature": 1.0, "why": "no temperature is best on these samples"}
    assert scaled.temperature > 2 and cooled.loss < plain.loss and cooled.accuracy == plain.accuracy


def test_the_temperature_of_a_row_is_that_at_the_middle():
    """On the way logits turn round: no temperature is best before, and another one after it."""
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.where(torch.arange(200) % 5 == 0, (x.argmax(1) + 1) % 3, x.argmax(1))
    network = nn.Sequential(nn.Linear(3, 3, bias=False))

    def scaled(network):
        return Scaled(network, [(x, targets)], None, "cpu")

    a, b = ({"0.weight": factor * torch.eye(3)} for factor in (-10.0, 30.0))
    path = paths.Path("aligned + temperature", a, b, 5, wrap=scaled)
    row = paths.measure(path, network, {"test": [(x, targets)]})
    with torch.no_grad():
        network[0].weight.copy_(10 * torch.eye(3))
    assert row.details == {"temperature": scaled(network).temperature}


# the choice


def scores_of(losses, *, logits=False):
    """A measure that gives these losses one after the other."""
    given = iter(losses)

    def scores(network, held, **more):
        loss = next(given)
        each = {"loss": loss + 0.1 * torch.randn(100, generator=torch.Generator().manual_seed(1))}
        return Scores(loss, {"accuracy": 1.0}, 100, math.nan, each=each)

    return scores


@pytest.mark.parametrize(
    ("losses", "chosen"), [((0.5, 0.4), "repair"), ((0.4, 0.5), "none"), ((0.4, 0.4), "none")]
)
def test_the_smaller_held_out_loss_is_chosen_and_on_a_tie_nothing_changes(losses, chosen):
    choice = choices.choose(nn.Identity(), lambda network: None, [], scores=scores_of(losses))
    assert choice.chosen == chosen and tuple(choice.losses.values()) == losses
    assert f"--repair auto chose {chosen}: the merged model's held-out loss" in choices.in_words(choice)


@pytest.mark.parametrize("unseen", [False, True])
def test_a_little_gain_counts_on_whichever_samples(unseen):
    scores = scores_of((0.5, 0.48))
    choice = choices.choose(nn.Identity(), lambda network: None, [], scores=scores, unseen=unseen)
    assert (choice.chosen, choice.unseen, choice.distances) == ("repair", unseen, {})
    on = "samples that no endpoint was trained on" if unseen else "training samples"
    assert f"with repair, on 100 {on}" in choices.in_words(choice)


@pytest.mark.parametrize(
    ("factor", "unseen", "chosen"), [(4.0, False, "none"), (1.6, False, "repair"), (4.0, True, "repair")]
)
def test_what_makes_logits_larger_than_the_endpoints_are_is_not_chosen(factor, unseen, chosen):
    """As on samples that are known by heart: all are right, so larger logits always lose less."""
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    held, network = [(x, x.argmax(1))], Line(1.0)
    ends = [{"factor": torch.tensor(value)} for value in (1.4, 1.6)]
    choice = choices.choose(
        network,
        lambda it: it.factor.data.fill_(factor),
        held,
        scores=functools.partial(evaluate, output="logits"),
        endpoints=ends,
        weights=[0.5, 0.5],
        output="logits",
        unseen=unseen,
    )
    assert choice.losses["repair"] < choice.losses["none"] and choice.chosen == chosen
    wanted = sum(0.5 * (end["factor"] * x).softmax(1) for end in ends)
    for how, by in (("none", 1.0), ("repair", factor)):
        apart = functional.kl_div((by * x).log_softmax(1), wanted, reduction="batchmean").item()
        assert choice.distances[how] == pytest.approx(apart, rel=1e-4)
    assert "nats from the mean of the endpoints' answers" in choices.in_words(choice)
    pull = choices.LESS if unseen else choices.PULL
    cost = [choice.losses[how] + pull * choice.distances[how] for how in ("none", "repair")]
    assert choice.gain == pytest.approx(cost[0] - cost[1], rel=1e-4) and choice.error > 0


def test_what_cannot_be_repaired_is_not_and_says_why():
    def fail(network):
        raise NetworkError("the network cannot be traced")

    for named in (False, True):
        choice = choices.choose(nn.Identity(), fail, [], scores=scores_of([0.5]), named=named)
        assert (choice.chosen, choice.why) == ("none", "the network cannot be traced")
        assert "cannot be traced" in choices.in_words(choice)


def test_what_a_user_named_has_to_be_measurable():
    def broken(*_, **__):
        raise NetworkError("batch 0: longer is float32 (65,)")

    how = {"scores": broken}
    assert choices.choose(nn.Identity(), str, [], **how).why == "batch 0: longer is float32 (65,)"
    with pytest.raises(NetworkError, match="longer"):
        choices.choose(nn.Identity(), str, [], **how, named=True)


@pytest.mark.parametrize(("first", "then", "chosen"), [(math.inf, 0.5, "repair"), (0.5, math.nan, "none")])
def test_one_figure_that_is_a_number_is_enough_to_choose_by(first, then, chosen):
    """A repair may make numbers of what is none, or the other way round."""
    found = iter([Scores(first, {}, 4), Scores(then, {}, 4)])
    choice = choices.choose(nn.Identity(), str, [], scores=lambda *_, **__: next(found))
    assert choice.chosen == chosen


def test_every_third_batch_is_held_out_and_one_batch_serves_for_both():
    measured, held = choices.parted(list(range(7)))
    assert (list(measured), list(held)) == ([0, 1, 3, 4, 6], [2, 5]) and list(held) == [2, 5]
    few = [1, 2]
    assert choices.parted(few) == (few, few)


# the verdict


def _row(name, loss, **flags):
    curve = Curve((0.0, 0.5, 1.0), (0.1, loss, 0.1), {"accuracy": (0.9, 0.5, 0.9)}, 1000)
    return Row(name, {"test": curve}, {"test": barrier_of(curve)}, **flags)


def said(losses, shipped, *, noise=0.01):
    """The verdict on rows of these losses, each with samples that scatter by `noise`."""
    rows = [_row(name, loss, shipped=name == shipped) for name, loss in losses.items()]
    middles = {}
    for place, (name, loss) in enumerate(losses.items()):
        draws = noise * torch.randn(1000, generator=torch.Generator().manual_seed(place))
        each = {"loss": loss + draws - draws.mean(), "accuracy": torch.ones(1000)}
        middles[name] = Scores(loss, {"accuracy": 0.5}, 1000, 0.1, each=each)
    ends = [next(iter(middles.values()))] * 2
    found = intervals.compare(rows, ends, middles, seed=0)
    assert found.sure
    return conclude(
        Report("0", "", 0, (), {}, {}, {}, {}, (), tuple(found.rows), differences=found.differences)
    )


WIDE = {"naive": 1.17, "aligned": 0.057, "aligned + repair": 0.068, "naive + repair": 0.12}


def test_the_verdict_where_alignment_wins_and_repair_does_harm():
    text = said(WIDE, "aligned")
    assert text.startswith(
        "Alignment explains all of the 1.113 nats gained over naive (95 % interval 1.112 to "
    )
    assert "; repair loses 0.011 nats (95 % interval 0.010 to 0.012)" in text
    assert text.endswith("; without alignment, repair gains 1.050.")


def test_the_verdict_where_both_help_and_the_ensemble_is_better_still():
    losses = {"naive": 1.66, "aligned": 0.19, "aligned + repair": 0.16, "naive + repair": 0.99}
    text = said(losses | {"logit ensemble": 0.08}, "aligned + repair")
    assert text.startswith("Alignment explains 1.470 of the 1.500 nats gained over naive (95 %")
    assert "; repair explains 0.030 on top of it (95 %" in text
    assert text.endswith(". The ensemble of both, at twice the cost, loses 0.080 nats less.")


@pytest.mark.parametrize(
    ("control", "than"), [(0.159, "better, -0.001"), (0.1601, "as good"), (0.1612, "nearly as good")]
)
def test_the_verdict_where_repair_alone_does_it(control, than):
    losses = {"naive": 1.66, "aligned": 0.6, "aligned + repair": 0.16, "naive + repair": control}
    text = said(losses, "aligned + repair", noise=0.005)
    assert text.startswith(f"Alignment is not what helps: repair alone (naive + repair) is {than}")


def test_the_verdict_where_nothing_is_gained_or_lost():
    losses = {"naive": 0.5, "aligned": 0.499, "aligned + repair": 0.5, "naive + repair": 0.5}
    text = said(losses, "aligned", noise=0.3)
    assert text.startswith(
        "Nothing is gained over naive: the loss at λ=½ falls by 0.001 nats, which may be chance (95 %"
    )
    text = said(losses | {"aligned": 0.7}, "aligned")
    assert text.startswith(
        "Worse than naive: aligned loses 0.200 nats more at λ=½ (95 % interval 0.199 to 0.201)"
    )


def test_the_verdict_where_alignment_alone_does_harm():
    losses = {"naive": 1.0, "aligned": 1.2, "aligned + reset": 0.3, "naive + reset": 0.9}
    text = said(losses, "aligned + reset")
    assert "0.700 nats are gained over naive" in text
    assert "but only by alignment and reset together: alignment alone loses 0.200 nats" in text


def test_the_verdict_without_alignment_and_without_intervals():
    assert said({"naive": 1.0, "naive + repair": 0.4}, "naive + repair").startswith(
        "Repair gains 0.600 nats over naive"
    )
    assert said({"naive": 1.0, "logit ensemble": 0.2}, "naive").startswith(
        "Nothing was aligned, and nothing is repaired."
    )
    rows = tuple(_row(name, loss, shipped=name == "aligned") for name, loss in WIDE.items())
    bare = Report("0", "", 0, (), {}, {}, {}, {}, (), rows)
    assert conclude(bare).startswith(
        "Alignment explains all of the 1.113 nats gained over naive; repair loses 0.011 nats"
    )
    assert conclude(Report("0", "", 0, (), {}, {}, {}, {}, (), rows[:1])) == ""


# over pairs


def test_means_over_pairs_are_those_of_rows_that_all_reports_have():
    def report(shift, shipped):
        rows = tuple(_row(n, v + shift, shipped=n == shipped) for n, v in (("naive", 1.0), ("aligned", 0.2)))
        extra = (_row("aligned + repair", 0.1),) if shift else ()
        return Report("0", "", 0, ({"file": "a"},), {}, {}, {}, {}, (), rows + extra, times={"total": 2.0})

    reports = [report(shift, "aligned" if shift else "naive") for shift in (0.0, 0.1, 0.2)]
    found = {over.row: over for over in intervals.over_pairs(reports)}
    assert set(found) == {"naive", "aligned", "shipped"}
    assert found["aligned"].mean["loss"] == pytest.approx(0.3)
    assert found["aligned"].intervals["loss"] == pytest.approx(t_interval([0.2, 0.3, 0.4]))
    assert found["shipped"].mean["loss"] == pytest.approx((1.0 + 0.3 + 0.4) / 3)
    whole = intervals.with_pairs(reports[0], reports[1:])
    assert whole.times == {"total": 6.0}
    assert [p["shipped"] for p in whole.pairs] == ["naive", "aligned", "aligned"]
    assert intervals.over_pairs([]) == ()


def test_the_chord_over_pairs_is_the_barriers_along_the_path():
    """Of rows that are higher elsewhere than at λ = ½: a chord of the middle alone would be another."""

    def report(height):
        curves = {"test": Curve((0.0, 0.25, 0.5, 1.0), (0.1, height, 0.4, 0.3), {"accuracy": (0.9,) * 4}, 9)}
        barriers = {split: barrier_of(curve) for split, curve in curves.items()}
        return Report("0", "", 0, (), {}, {}, {}, {}, (), (Row("naive", curves, barriers, shipped=True),))

    (over,) = intervals.over_pairs([report(0.9), report(1.1), report(1.3)])
    assert over.mean["chord"] == pytest.approx(0.95)
    assert over.intervals["chord"] == pytest.approx(t_interval([0.75, 0.95, 1.15]))
    assert over.mean["loss"] == pytest.approx(0.4)


def test_the_interval_of_the_chord_is_paired_with_both_ends():
    """The middle is ½ above the mean of the ends on every sample: there is nothing to be unsure of."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.rand(200, 1, generator=generator) for _ in range(2))
    right = torch.ones(200, 1)

    def scores(losses):
        return Scores(
            losses.mean().item(),
            {"accuracy": 1.0},
            200,
            0.0,
            each={"loss": losses[:, 0], "accuracy": right[:, 0]},
        )

    row = _row("naive", 1.0, middle={"test": Middle(0.1)})
    middle = scores((a + b) / 2 + 0.5)
    found = intervals.compare([row], (scores(a), scores(b)), {"naive": middle}, seed=0)
    low, high = found.rows[0].middle["test"].intervals["chord"]
    assert (low, high) == pytest.approx((0.5, 0.5), abs=1e-6)
    wide = found.rows[0].middle["test"].intervals["loss"]
    assert wide[1] - wide[0] > 0.02


def test_means_of_batches_count_by_their_samples_and_few_of_them_tell_nothing():
    """One batch has nine in ten samples: without its weight the mean would lie outside its own interval."""

    def found(losses, sizes):
        one = Scores(0.9, {}, sum(sizes), each={"loss": losses}, sizes=sizes, batched=frozenset({"loss"}))
        row = _row("naive", 0.9, middle={"test": Middle(0.1)})
        return intervals.compare([row], (one, one), {"naive": one}, seed=0).rows[0].middle["test"].intervals

    losses = torch.tensor([0.0] * 9 + [1.0])
    low, high = found(losses, (1,) * 9 + (81,))["loss"]
    assert low < 0.9 < high
    assert found(losses[-7:], (1,) * 6 + (54,)) == {} == found(losses, (1,) * 9)


@pytest.mark.parametrize(("larger", "chosen"), [(True, "repair"), (False, "none")])
def test_a_metric_that_is_named_decides_whichever_way_is_better(larger, chosen):
    given = iter((0.5, 0.6))
    quantities = (Quantity("cents lost"), Quantity("hits", larger_is_better=larger))

    def scores(network, held, **more):
        return Scores(1.0, {"hits": next(given)}, 100, quantities=quantities)

    choice = choices.choose(nn.Identity(), lambda network: None, [], scores=scores, unseen=True, by="hits")
    assert choice.chosen == chosen and choice.metrics == {"none": {"hits": 0.5}, "repair": {"hits": 0.6}}


def test_a_metric_that_was_not_measured_decides_nothing():
    with pytest.raises(UsageError, match="not measured"):
        choices.choose(nn.Identity(), lambda it: None, [], scores=scores_of([0.5, 0.4]), by="iou")


@pytest.mark.parametrize("there", [["0.weight"], ["1.weight"], ["0.weight", "1.weight"]], ids=str)
def test_an_ensemble_of_networks_with_a_tied_tensor_takes_any_of_its_names(there):
    network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    network[1].weight = network[0].weight
    values = torch.eye(3), 3 * torch.eye(3)
    a, b = ({name: value.clone() for name in there} for value in values)
    x = torch.ones(2, 3)
    assert torch.equal(Ensemble(network, [a, b], None)(x), 5 * x)  # (1² + 3²) / 2
