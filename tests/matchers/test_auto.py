"""auto: what is tried, that time holds, and which one is taken; swaps on the true loss."""

import dataclasses
import itertools
import math
import time

import pytest
import torch
from torch import nn

import rebasin_cli
from rebasin_cli import networks
from rebasin_cli.datasets import Data, Normalization, Samples
from rebasin_cli.errors import DataError, NetworkError, UsageError
from rebasin_cli.matchers import MatchResult, Problem, auto, wm
from rebasin_cli.matchers.polish import search
from rebasin_cli.matchers.polish.length import Length
from rebasin_cli.matchers.polish.midpoint import Midpoint
from rebasin_cli.matchers.polish.search import polish
from rebasin_cli.matchers.portfolio import contest, gains, worth
from rebasin_cli.matchers.portfolio.candidates import Candidate, candidates
from rebasin_cli.matchers.portfolio.clock import Clock
from rebasin_cli.matchers.portfolio.contest import Trial, Trials
from rebasin_cli.matchers.portfolio.worth import Mending
from rebasin_cli.nets import build
from rebasin_cli.networks.evaluation import Scores
from rebasin_cli.repair import Outcome, Repaired, repair_steps
from rebasin_cli.repair.choices import Measured
from rebasin_cli.spec.library import resolve_spec
from rebasin_cli.symmetry import permutation

SPENT = "not tried: nothing is left of the budget"


@pytest.fixture(scope="module")
def problem():
    """A teacher and itself relabelled: the mean has the teacher's loss where all units are found."""
    torch.manual_seed(0)
    network = build("mlp", input_shape=(6,), classes=4, width=8, depth=2)
    a = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    fitted = resolve_spec(None, [a])
    hidden = permutation.random(fitted.words, torch.Generator().manual_seed(1))
    b = dict(permutation.permuted(a, fitted, hidden))
    x = torch.randn(600, 6)
    with torch.no_grad():
        data = [(part, network(part).argmax(1)) for part in x.split(100)]
    return Problem(fitted, (a, b), network=network, data=data)


@pytest.fixture(autouse=True)
def _all_is_tried(monkeypatch):
    """However little is left to gain."""
    monkeypatch.setattr(contest, "LITTLE", -math.inf)
    monkeypatch.setattr(gains, "NOISE", -math.inf)


def still(problem):
    return [permutation.identity(problem.fitted.words)]


def test_swaps_find_a_relabelling_that_the_loss_shows(problem):
    done = polish(problem, still(problem), Length(steps=60))
    assert done.swaps > 3 and done.after < done.before - 0.05
    permutation.check(done.permutations[0], problem.fitted.words)


def test_the_same_number_of_steps_gives_the_same_permutations(problem):
    one, two = (polish(problem, still(problem), Length(steps=12)) for _ in range(2))
    assert one.account() == two.account() and one.steps == 12
    for word, perm in one.permutations[0].items():
        assert torch.equal(perm, two.permutations[0][word])


def test_what_is_told_of_the_loss_is_that_of_the_permutations_that_are_given_back(problem):
    done = polish(problem, still(problem), Length(steps=20))
    again = polish(problem, done.permutations, Length(steps=1))
    assert again.before == pytest.approx(done.after, abs=1e-6)


def test_nothing_is_better_than_all_units_in_place(problem):
    a, _ = problem.models
    alone = Problem(problem.fitted, (a, a), network=problem.network, data=problem.data)
    done = polish(alone, still(alone), Length(steps=8))
    assert done.after <= done.before and done.after >= 0


def test_the_slope_proposes_what_a_swap_really_changes(problem):
    """First order: for a small share of the second model the change of the loss is the predicted one."""
    midpoint, (a, b) = Midpoint(problem), problem.models
    batch = midpoint.batch(*problem.data[0], 0)
    share = 1e-3
    mean = {n: (1 - share) * a[n] + share * b[n] for n in midpoint.names}
    places = search.movable(problem.fitted, midpoint.names)
    word = next(iter(places))
    loss, gradient = midpoint.gradient(mean, batch)
    slope = search.slopes(places[word], gradient, b)
    for i, j in itertools.islice(itertools.combinations(range(8), 2), 6):
        index = search.order(8, [(i, j)])
        moved = {n: b[n].index_select(dim, index) for n, dim in places[word]}
        changed = {n: mean[n] + share * (t - b[n]) for n, t in moved.items()}
        found = midpoint.losses(mean, [changed], batch)[0] - loss
        predicted = share * (slope[i, j] + slope[j, i] - slope[i, i] - slope[j, j]).item()
        assert found == pytest.approx(predicted, rel=0.05, abs=2e-6)


def test_the_steepest_swaps_are_proposed_first_and_none_that_rises():
    slope = torch.zeros(4, 4)
    slope[0, 1] = slope[1, 0] = -1.0
    slope[2, 3] = -3.0
    slope[0, 2] = 5.0
    assert search.best(slope, 10) == [(2, 3), (0, 1)] and search.best(slope, 1) == [(2, 3)]
    assert search.apart([(2, 3), (0, 2), (0, 1)]) == [(2, 3), (0, 1)]


def test_many_changes_at_once_have_the_losses_that_they_have_one_by_one(problem):
    midpoint, (a, b) = Midpoint(problem), problem.models
    batch = midpoint.batch(*problem.data[0], 0)
    changes = [{"head.weight": b["head.weight"] * k} for k in (0.5, 1.0, 2.0)]
    together = midpoint.losses(a, changes, batch)
    assert midpoint.at_once
    midpoint.at_once = False
    assert together == pytest.approx(midpoint.losses(a, changes, batch), rel=1e-5)
    assert len(set(together)) == 3


def test_an_operator_that_cannot_be_batched_is_tried_one_by_one(problem):
    class Odd(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            out = self.inner(x)
            return out if out.sum().item() < math.inf else out  # .item() is no business of vmap's

    odd = Odd(problem.network)
    names = {f"inner.{n}": t for n, t in problem.models[0].items()}
    midpoint = Midpoint(Problem(problem.fitted, (names, names), network=odd, data=problem.data))
    batch = midpoint.batch(*problem.data[0], 0)
    key = "inner.head.weight"
    losses = midpoint.losses(names, [{key: names[key] * k} for k in (1.0, 2.0)], batch)
    assert not midpoint.at_once and losses[0] != losses[1]


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("25", Length(25)),
        ("25s", Length(25)),
        ("1.5m", Length(90)),
        ("1h", Length(3600)),
        ("300steps", Length(steps=300)),
        ("500G", Length(work=5e11)),
        (" 2.5 T ", Length(work=2.5e12)),
        (".1P", Length(work=1e14)),
    ],
)
def test_lengths_are_times_steps_or_multiplications(text, length):
    assert Length.parse(text) == length
    if length.steps is None:
        assert auto.budget_of(text) == length
    else:
        with pytest.raises(UsageError, match="is no length"):
            auto.budget_of(text)


def test_a_length_is_over_by_what_it_is_of():
    now = time.monotonic()
    assert Length(steps=3).over(now - 1e6, 3, 0.0) and not Length(steps=3).over(now - 1e6, 2, 1e30)
    assert Length(work=10.0).over(now, 0, 10.0) and not Length(work=10.0).over(now - 1e6, 10**9, 9.0)
    assert Length(5.0).over(now - 6, 0, 0.0) and not Length(5.0).over(now, 10**9, 1e30)


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "nan", "inf", "5x", "0steps", "1e9h", "steps", "0T", "2t", "T", "99999999P"]
)
def test_what_is_no_length_is_refused(text):
    with pytest.raises(UsageError, match="--polish"):
        Length.parse(text)
    with pytest.raises(UsageError, match="--budget"):
        auto.budget_of(text)


# auto


def test_without_data_auto_is_wm(problem):
    bare = Problem(problem.fitted, problem.models)
    found, plain = auto.match(bare), wm.match(bare)
    assert found.chosen.method == "wm" and [row.method for row in found.chosen.tried] == ["wm"]
    for word, perm in plain.permutations[0].items():
        assert torch.equal(found.permutations[0][word], perm)


def only_weights(monkeypatch, how):
    """auto tries nothing but `wm`, which is quick, and takes it with this repair."""
    alone = Candidate("wm", "")
    monkeypatch.setattr(auto, "candidates", lambda *given, **options: (alone,))
    monkeypatch.setattr(Trials, "best", property(lambda self: (self.done[0], how)))


@pytest.mark.parametrize("unseen", [False, True])
def test_where_next_to_nothing_is_left_to_gain_no_other_is_tried(problem, monkeypatch, unseen):
    """The mean of a model and itself is what both say; on unseen samples another may yet be better."""
    monkeypatch.setattr(contest, "LITTLE", 0.005)
    one, held = problem.models[0], problem.data[4:] if unseen else None
    able = dataclasses.replace(problem, models=(one, one), held=held, repairs=("none", "repair", "refit"))
    rows = auto.match(able, auto.Options(budget="2G")).chosen.rows()
    assert (rows[0]["method"], rows[0]["repair"]) == ("wm", "none") and rows[0]["distance"] < 1e-6
    assert rows[0]["held_out_loss"] > 0.1
    assert all(row.get("why") == contest.ENOUGH for row in rows[1:]) is not unseen
    assert len({row["method"] for row in rows}) == len(candidates(problem.fitted, 2, able=True))


@pytest.mark.parametrize("repaired", [True, False])
def test_what_is_left_to_gain_is_asked_of_the_best_so_far(problem, monkeypatch, repaired):
    monkeypatch.setattr(contest, "LITTLE", 0.005)
    found = trials_of(problem, ("am", "none", figures(0.3, apart=0.01)))
    monkeypatch.setattr(found.mending.comparison, "agreement", Agreed(0.0))
    assert not found._settled()
    judged = {"none": figures(0.1, apart=0.01), "refit": figures(0.002 + 0.1 * (not repaired), apart=0.0)}
    monkeypatch.setattr(Mending, "judge", lambda self, models, how, *given, **more: judged[how])
    trial = Trial("wm", result=MatchResult((permutation.identity(problem.fitted.words),), 0, 0, 1, 1, True))
    found.mending.open = ("none", "repair", "refit")
    judged["repair"] = figures(0.2, apart=0.01)
    found._mend(trial, last=True)  # the refit first, which is worth most
    assert list(trial.merges) == (["none", "refit"] if repaired else ["none", "refit", "repair"])
    assert trial.lacking == ({"repair": contest.ENOUGH} if repaired else {})


SKIPPED = "not tried: on recorded pairs it takes {} of what is left, here less than 0.002 nats"


@pytest.mark.parametrize(
    ("left", "refitted", "distilled", "tried"),
    [
        (0.02, True, 0.0, []),
        (0.035, True, 0.0, ["dual"]),
        (0.035, True, 9.0, []),
        (0.06, True, 9.0, ["dual"]),
        (0.06, True, 0.0, ["dual", "am", "ste", "polish"]),
        (math.inf, True, 0.0, ["dual", "am", "ste", "polish"]),
        (0.02, False, 0.0, ["dual", "am", "ste", "polish"]),
    ],
)
def test_a_search_that_gains_next_to_nothing_of_what_is_left_is_not_tried(
    problem, monkeypatch, left, refitted, distilled, tried
):
    monkeypatch.setattr(gains, "NOISE", 0.002)
    found = trials_of(problem, ("wm", "refit" if refitted else "none", figures(0.1 + left, apart=0.0)))
    known = None if math.isinf(left) else Agreed(0.1)
    monkeypatch.setattr(found.mending.comparison, "agreement", known)
    found.reserved = distilled
    why = {name: found._idle(name) for name in ("dual", "am", "ste", "polish")}
    assert [name for name, text in why.items() if not text] == tried
    share = gains.SHARES["ste"][distilled > 0]
    assert "ste" in tried or why["ste"] == SKIPPED.format(f"{share:.0%}")
    three = dataclasses.replace(found.problem, models=(*problem.models, problem.models[0]))
    monkeypatch.setattr(found, "problem", three)
    assert not any(map(found._idle, why))


def test_what_is_left_out_by_its_gain_is_told_and_takes_no_time(problem, monkeypatch):
    monkeypatch.setattr(gains, "NOISE", 0.002)
    found = trials_of(problem, ("wm", "refit", figures(0.12, apart=0.0)))
    found.done[0].merges["none"] = figures(0.3, apart=0.0), 0.0
    monkeypatch.setattr(found.mending.comparison, "agreement", Agreed(0.1))
    left = found.clock.left
    monkeypatch.setattr(Trials, "_searched", None)
    assert found.try_(Candidate("dual", "")).why == SKIPPED.format("7%") and found.clock.left <= left


@pytest.mark.parametrize(("loss", "told"), [(0.104, contest.ENOUGH), (0.106, "")])
def test_nothing_is_distilled_that_loses_no_more_than_the_endpoints_mean(problem, monkeypatch, loss, told):
    """However far from it its answers are: what it gained there is gone on other samples."""
    monkeypatch.setattr(contest, "LITTLE", 0.005)
    repairs = ("none", "refit", "distill")
    found = trials_of(problem, ("wm", "refit", figures(loss, apart=1.0)), repairs=repairs)
    monkeypatch.setattr(found.mending.comparison, "agreement", Agreed(0.1))
    assert found._needless(found.done[0], "distill", False) == told
    assert found._idle("dual") == ""


@pytest.mark.parametrize(("left", "longer"), [(0.01, False), (0.02, True)])
def test_more_samples_are_distilled_where_that_is_worth_their_time(problem, monkeypatch, left, longer):
    monkeypatch.setattr(gains, "NOISE", 0.002)
    inputs, targets = map(torch.cat, zip(*problem.data, strict=True))
    data = Data("x", "train", Samples(inputs, targets), Normalization(), classes=4)
    monkeypatch.setattr(worth, "DISTILL_SAMPLES", 50)
    own = dataclasses.replace(problem, data=data)
    found = trials_of(
        own, ("wm", "refit", figures(0.1 + left, apart=0.0)), repairs=("none", "refit", "distill")
    )
    monkeypatch.setattr(found.mending.comparison, "agreement", Agreed(0.1))
    found.mending.took["refit"] = 0.0
    shares = []
    monkeypatch.setattr(found, "_mend", lambda *given, **more: shares.append(found.mending._share(math.inf)))
    found.finish()
    assert shares[-1] == (540 / 50 if longer else 1.0)


def test_every_candidate_is_told_with_its_figures_and_the_chosen_one_is_among_them(problem):
    found = auto.match(problem, auto.Options(budget="6s"))
    tried = found.chosen.rows()
    rows = {row["method"]: row for row in tried}
    assert len(rows) == len(tried) == len(candidates(problem.fitted, 2, able=True))
    assert (
        "held_out_loss" in rows["wm"]
        and "held_out_loss" in rows[found.chosen.method]
        and found.chosen.repair is None
    )
    assert all("repair" not in row and ("held_out_loss" in row or row["why"]) for row in tried)


class Agreed:
    """An ensemble of this loss."""

    def __init__(self, loss):
        self.loss = loss


def figures(loss, spread=0.0, *, apart=None, samples=100):
    """Held-out figures of a merge, whose samples lose `loss` and, every other one, `spread` more or less.

    All are as far `apart` from their endpoints' mean answer.
    """
    each = loss + spread * torch.tensor([1.0, -1.0]).repeat(samples // 2)
    scores = Scores(loss, {"accuracy": 0.5}, samples, 0.0, each={"loss": each, "accuracy": each})
    return Measured(scores, None if apart is None else torch.full((samples,), apart))


def trials_of(problem, *merges, repairs=("none", "repair", "refit"), held=None):
    """Trials of `merges`: method, repair, figures."""
    found = Trials(dataclasses.replace(problem, repairs=repairs, held=held), Clock(5.0))
    found.done = [
        Trial(f"{method}", result=object(), merges={how: (seen, 0.0)}) for method, how, seen in merges
    ]
    return found


def taken(problem, *merges, **how):
    trial, repair = trials_of(problem, *merges, **how).best
    return trial.method, repair


def test_the_one_of_least_loss_and_distance_is_taken_and_of_equals_the_first(problem):
    first, *others = (
        ("wm", "none", figures(0.5)),
        ("am", "none", figures(0.49, 0.1)),
        ("wm", "refit", figures(0.48)),
    )
    assert taken(problem, first, ("am", "none", figures(0.5))) == ("wm", "none")
    assert taken(problem, first, others[0]) == ("am", "none")
    assert taken(problem, first, *others) == taken(problem, first, *reversed(others)) == ("wm", "refit")
    assert taken(problem, first, *others, held=problem.data[:1]) == ("wm", "refit")
    near, far = figures(0.5, apart=0.01), figures(0.49, apart=0.02)
    assert taken(problem, ("wm", "none", far), ("wm", "refit", near)) == ("wm", "refit")
    assert taken(problem, ("wm", "none", near), ("wm", "refit", far)) == ("wm", "none")
    assert taken(problem, ("wm", "none", figures(math.inf)), ("wm", "refit", far)) == ("wm", "refit")


def test_a_repair_is_not_tried_where_another_one_was_better_wherever_both_were(problem):
    both = ("wm", "repair", figures(0.4)), ("wm", "refit", figures(0.3))
    for more in ((), [("am", "repair", figures(0.2))]):
        found = trials_of(problem, ("wm", "none", figures(0.5)), *both, *more)
        found.done = merged(found.done)
        assert found._beaten("repair") == "refit" and not found._beaten("refit")
        assert "refit was better" in found._needless(found.done[-1], "repair", False)
        assert not found._needless(found.done[0], "none", True)
    whole = {"repairs": ("none", "repair", "refit", "distill")}
    found = trials_of(problem, *both, ("wm", "distill", figures(0.1)), **whole)
    found.done = merged(found.done)
    assert not found._beaten("refit")  # what ends it is tried once, a refit with every mean
    worse = ("dual", "repair", figures(0.2)), ("dual", "refit", figures(0.3))
    found = trials_of(problem, *both, *worse)
    found.done = merged(found.done)
    assert not found._beaten("repair")
    found = trials_of(problem, ("wm", "repair", figures(0.4)), ("am", "refit", figures(0.3)))
    assert not found._beaten("repair")  # nowhere were both


def merged(trials):
    """One trial a method."""
    found = {}
    for trial in trials:
        found.setdefault(trial.method, trial).merges.update(trial.merges)
    return list(found.values())


def test_learning_starts_from_the_mean_that_loses_least_before_a_repair_fits_it(problem):
    trials = trials_of(problem, ("wm", "none", figures(0.5)), ("am", "none", figures(0.4)))
    trials.done[0].merges["refit"] = figures(0.1), 0.0
    assert trials.start.method == "am" and trials.best[0].method == "wm"


@pytest.mark.parametrize("how", ["distill", "refit"])
def test_what_a_search_distilled_is_taken_as_it_is_for_a_mean_with_equal_weights(problem, monkeypatch, how):
    kept, first = Outcome({"layers.0.bias": torch.ones(8)}, Repaired("distill", ())), problem.models[0]
    trial = Trial("wm", result=wm.match(problem), merges={how: (figures(0.5), 1.0)})
    trial.repaired = {"distill": kept}
    monkeypatch.setattr(Trials, "try_", lambda self, candidate: self.done.append(trial))
    monkeypatch.setattr(Trials, "finish", lambda self: None)
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: (Candidate("wm", ""),))
    given = {"network": problem.network, "train": problem.data[:1], "method": "auto", "ridge": 0.0}
    taken = [
        rebasin_cli.merge(problem.models, problem.fitted, weights=weights, **given)
        for weights in (None, (0.5, 0.5), [0.6, 0.4])
    ]
    expected = [how == "distill"] * 2 + [False]
    assert [merged.repair is kept.repaired for merged in taken] == expected
    assert [bool((merged.tensors["layers.0.bias"] == 1).all()) for merged in taken] == expected
    assert all(merged.tensors["head.bias"].equal(first["head.bias"]) for merged in taken[:2])


def test_time_is_kept_back_for_the_repairs_of_what_learning_finds(problem):
    trials = Trials(dataclasses.replace(problem, repairs=("none", "refit")), Clock(1e3, counts=True))
    first, second, *_ = candidates(problem.fitted, 2, able=True)
    trials.try_(first)
    left = trials.clock.left
    trials.mending.took = {"refit": 0.5 * left}
    assert trials._for_repairs() == 1.3 * 0.5 * left
    trials.mending.took = {"refit": 0.6 * left}  # nothing would be left to find what is to be repaired
    assert trials._for_repairs() == 0.0
    found = trials.try_(second)
    assert set(found.merges) == {"none"} and "too long" in found.lacking["refit"]


def test_in_the_end_the_best_mean_has_the_repair_that_is_worth_most(problem, monkeypatch):
    trials = Trials(
        dataclasses.replace(problem, repairs=("none", "repair", "refit")), Clock(1e3, counts=True)
    )
    monkeypatch.setattr(contest, "REPAIR", 0.0)
    first, second, *_ = candidates(problem.fitted, 2, able=True)
    trials.try_(first)
    assert set(trials.try_(second).merges) == {"none"}
    trials.mending.took = {"repair": 0.5 * trials.clock.left, "refit": 0.6 * trials.clock.left}
    trials.done[1].merges["none"] = figures(0.05), 0.0
    trials.finish()
    assert [set(trial.merges) for trial in trials.done] == [{"none", "repair"}, {"none", "refit"}]


def test_repairs_are_tried_with_the_methods_and_the_best_pair_is_taken(problem):
    still_, b = problem.models
    torch.manual_seed(3)
    other = build("mlp", input_shape=(6,), classes=4, width=8, depth=2)
    far = dataclasses.replace(
        problem, models=(still_, dict(other.state_dict())), repairs=("none", "repair", "refit")
    )
    found = auto.match(far, auto.Options(budget="60s"))
    rows = {(row["method"], row.get("repair")): row for row in found.chosen.rows()}
    for how in far.repairs:
        assert "held_out_loss" in rows["wm", how], rows
    measured = [row for row in rows.values() if "held_out_loss" in row]
    least = min(measured, key=lambda row: row["held_out_loss"] + 2 * row["distance"])
    assert (found.chosen.method, found.chosen.repair) == (least["method"], least["repair"])


@pytest.mark.parametrize(("how", "told"), [("none", None), ("repair", None), ("refit", "refit")])
def test_what_a_merge_chooses_by_itself_is_left_to_it(problem, monkeypatch, how, told):
    only_weights(monkeypatch, how)
    for repairs, is_told in ((("none", "repair", "refit"), told), ((how,), how)):
        able = dataclasses.replace(problem, repairs=repairs)
        assert auto.match(able, auto.Options(budget="1T")).chosen.repair == is_told
        assert auto.match(able, auto.Options(budget="60s")).chosen.repair == how  # there is no time to do so


def test_what_the_default_would_repair_is_tried_whatever_is_counted_and_a_refit_only_in_time(problem):
    able = dataclasses.replace(problem, repairs=("none", "repair", "refit"))
    counted = Trials(able, Clock(1e3, counts=True))
    counted.clock.seconds = 0.0
    first = candidates(problem.fitted, 2, able=True)[0]
    assert set(counted.try_(first).merges) == {"none", "repair"}
    trials = Trials(able, Clock(5.0))
    trials.clock.began -= 1000  # on the wall the time is over
    trial = trials.try_(first)
    assert set(trial.merges) == {"none"} and all("too long" in why for why in trial.lacking.values())
    assert trials.try_(candidates(problem.fitted, 2, able=True)[1]).why == SPENT
    wide = trials.try_(candidates(problem.fitted, 2, able=True, wider=True)[1])
    assert (wide.method, wide.why) == ("wm + groups", SPENT)
    trials.clock.began += 2000
    trials.finish()
    assert set(trial.merges) == {"none", "repair", "refit"} and not trial.lacking


def test_a_refit_is_tried_on_as_many_samples_as_there_is_time_for(problem):
    worth = Trials(dataclasses.replace(problem, repairs=("none", "refit")), Clock(60.0)).mending
    assert worth.seconds("refit", 60.0) < 60 and worth.fitted == 1_000
    for a_sample, room, fitted in ((0.01, 32.0, 500), (0.01, 10.0, 150), (0.01, 1.0, 100)):
        worth.a_sample = a_sample  # two models and the merge, two passes each: 0.06 s a sample
        seconds = worth.seconds("refit", room)
        assert worth.fitted == pytest.approx(fitted, abs=2)
        assert (seconds <= room) == (room > 7)
    worth.took["refit"] = 3.0
    assert worth.seconds("refit", 1.0) == 3.0 and worth.fitted == pytest.approx(100)
    assert sum(len(targets) for _, targets in worth._batches("refit")) == 100


def test_a_repair_that_reads_its_samples_for_every_layer_leaves_time_for_others(problem):
    """On as few samples as take a tenth of the time, a hundred at least; a merge that takes it reads more."""
    worth = Trials(dataclasses.replace(problem, repairs=("none", "repair")), Clock(60.0)).mending
    worth.graphs = {"known": None}  # nothing is traced any more
    for a_sample, count in ((1e-5, 2_500), (1e-3, 857), (1e-2, 100), (1.0, 100)):
        worth.a_sample = a_sample  # three layers: read 3.5 times, by two models
        assert worth._samples("repair") == count
        assert worth.seconds("repair", 60.0) == pytest.approx(7 * a_sample * count)
    assert sum(len(targets) for _, targets in worth._batches("repair")) == 100


def test_the_repairs_of_the_first_are_compared_where_others_could_not_be(problem, monkeypatch):
    """On a hundred samples: with large networks a refit is worth more than anything else."""
    able = dataclasses.replace(problem, repairs=("none", "refit"))
    for a_sample, held in ((1e-6, 100), (5e-3, 83), (1e-2, 50), (0.05, 50), (0.08, 0)):
        monkeypatch.setattr(Trials, "_timed", lambda self, data, a_sample=a_sample: a_sample)
        monkeypatch.setattr(contest, "COMPARABLE", 50)
        trials = Trials(able, Clock(20.0))  # a quarter of it, for two repairs
        assert trials.comparable is bool(held)
        assert sum(len(targets) for _, targets in trials.held) == held


def test_what_there_was_no_time_for_is_repaired_in_the_end(problem, monkeypatch):
    monkeypatch.setattr(contest, "REPAIR", 0.0)
    alone = candidates(problem.fitted, 2, able=True)[:1]
    monkeypatch.setattr(auto, "candidates", lambda *given, **how: alone)
    able = dataclasses.replace(problem, repairs=("none", "refit"))
    rows = auto.match(able, auto.Options(budget="20s")).chosen.rows()
    assert [row["repair"] for row in rows if "held_out_loss" in row] == ["none", "refit"] and len(rows) == 2


def test_a_distillation_is_tried_once_in_the_end_with_the_best_if_there_is_time(problem, monkeypatch):
    able = dataclasses.replace(problem, repairs=("none", "refit", "distill"))
    monkeypatch.setattr(worth, "DISTILL_SAMPLES", 200)
    first, second, *_ = candidates(problem.fitted, 2, able=True)
    trials = Trials(able, Clock(60.0))
    for candidate in (first, second):
        assert "distill" not in {*trials.try_(candidate).merges, *trials.done[-1].lacking}
    best = trials.best[0]
    trials.finish()
    assert [trial for trial in trials.done if "distill" in trial.merges] == [best]
    models = trials.mending.models(best.result.permutations)
    fitted = {**rebasin_cli.average(models), **trials.mending.kept.tensors}
    figures = trials.mending.comparison.scores(networks.load(problem.network, fitted), trials.held)
    assert figures.loss == pytest.approx(best.merges["distill"][0].plain.loss, rel=1e-6)
    hasty = Trials(able, Clock(60.0))
    hasty.try_(first)
    hasty.mending.a_sample = 100.0
    hasty.finish()
    assert "distill" not in hasty.done[0].merges and "too long" in hasty.done[0].lacking["distill"]
    del hasty.mending.took["refit"]
    hasty.finish()
    assert "begins with a refit" in hasty.done[0].lacking["distill"]


@pytest.mark.parametrize("counts", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_a_distillation_reads_more_samples_where_there_is_time_and_they_are_there(
    problem, monkeypatch, counts
):
    """Of a data set; how many a loader has nobody knows before it is read."""
    monkeypatch.setattr(worth, "DISTILL_SAMPLES", 50)
    inputs, targets = map(torch.cat, zip(*problem.data, strict=True))
    whole = Data("x", "train", Samples(inputs, targets), Normalization(), classes=4)
    for data, most, taken in ((whole, 200, 200), (whole, 10_000, 540), (problem.data, 200, 50)):
        monkeypatch.setattr(worth, "MOST_DISTILLED", most)
        able = dataclasses.replace(problem, data=data, repairs=("none", "refit", "distill"))
        trials = Trials(able, Clock(100.0, counts=counts))
        trials.try_(candidates(problem.fitted, 2, able=True)[0])
        trials.finish()
        found = trials.mending.kept.repaired
        assert found.samples == (taken if data is whole else None) and found.share == 1.0
        share = taken / 50 if data is whole else 1.0
        assert trials.mending._share(math.inf) == share
        half = trials.mending._distilling(share / 2)
        assert trials.mending._share(half) == pytest.approx(share / 2)
        if counts and data is whole:  # in less time training is shorter, on as many samples as is usual
            models = trials.mending.models(trials.done[0].result.permutations)
            trials.mending.judge(models, "distill", trials.mending._distilling(0.5))
            short = trials.mending.kept.repaired
            assert (short.samples, short.share) == (50, 0.5)


def test_time_is_kept_back_for_half_a_distillation_at_least(problem, monkeypatch):
    able = dataclasses.replace(problem, repairs=("none", "refit", "distill"))
    first, second, *_ = candidates(problem.fitted, 2, able=True)
    own = worth.Mending.seconds

    def seconds(self, how, room, share=1.0):
        return 1.0 + 40.0 * share if how == "distill" else own(self, how, room, share)

    monkeypatch.setattr(worth.Mending, "seconds", seconds)
    for budget, kept in ((60.0, 41.0), (40.0, 21.0), (20.0, 0.0)):
        trials = Trials(able, Clock(budget))
        assert trials.reserved == 0
        trials.try_(first)
        assert trials.reserved == kept
    monkeypatch.setattr(contest, "LITTLE", 9.0)  # nats are left to gain
    trials = Trials(able, Clock(60.0))
    trials.try_(first)
    assert trials.reserved == 0
    monkeypatch.setattr(contest, "LITTLE", -math.inf)
    trials = Trials(able, Clock(25.0))
    trials.try_(first)
    trials.mending.took["refit"] = 15.0  # of the 4 seconds that are left
    found = trials.try_(second)
    assert "none" in found.merges and "too long" in found.lacking["refit"]
    trials.done[0].merges |= {"none": (figures(0.5), 0.0), "refit": (figures(0.1), 1.0)}
    found.merges["none"] = (figures(0.3), 0.0)
    trials.finish()
    assert "too long" in found.lacking["refit"] and trials.reserved == 0
    assert ["distill" in trial.merges for trial in trials.done] == [False, True]  # not all were refitted


def test_activations_alone_are_tried_for_two_models_or_with_running_statistics(problem):
    def methods(fitted, models):
        return [one.method for one in candidates(fitted, models, able=True)]

    assert methods(problem.fitted, 2) == ["wm", "dual", "am", "ste", "polish"]
    assert methods(problem.fitted, 3) == ["wm", "merge-many", "dual", "ste-mm", "polish"]
    tensors = build("mlp", input_shape=(4,), classes=2, width=8, depth=2, norm="batch").state_dict()
    normed = resolve_spec("mlp", [tensors])
    assert methods(normed, 3) == ["wm", "merge-many", "am", "dual", "ste-mm", "polish"]


def test_learning_leaves_less_to_swaps_where_no_layer_is_narrow():
    for width, share in ((127, 0.7), (128, 0.9)):
        tensors = build("mlp", input_shape=(4,), classes=2, width=width, depth=2).state_dict()
        shares = {one.method: one.share for one in candidates(resolve_spec("mlp", [tensors]), 2, able=True)}
        assert shares["ste"] == share


def test_a_repair_that_the_network_does_not_admit_is_told_and_not_tried_again(problem, monkeypatch):
    trials = Trials(dataclasses.replace(problem, repairs=("none", "refit")), Clock(60.0))
    judge, tried = trials.mending.judge, []

    def failing(models, how, seconds, **more):
        tried.append(how)
        if how == "refit":
            raise NetworkError("the network cannot be traced")
        return judge(models, how)

    monkeypatch.setattr(trials.mending, "judge", failing)
    first, second, *_ = candidates(problem.fitted, 2, able=True)
    told = [trials.try_(one).lacking for one in (first, second)]
    trials.finish()
    assert told == [{"refit": "the network cannot be traced"}] * 2 and tried.count("refit") == 1


def test_a_named_repair_is_the_one_that_methods_are_compared_with(problem):
    trials = Trials(dataclasses.replace(problem, repairs=("refit",)), Clock(5.0))
    trial = trials.try_(candidates(problem.fitted, 2, able=True)[0])
    assert set(trial.merges) == {"refit"} and trials.best == (trial, "refit")
    assert repair_steps.open_to_choice("refit", statistics=False) == ("refit",)
    for how in ("none", "bias", "distill"):  # methods are compared without
        assert repair_steps.open_to_choice(how, statistics=False) == ()


def test_samples_of_a_repair_are_not_those_that_it_is_judged_by(problem):
    x = torch.arange(6_000.0)[:, None].expand(-1, 6).contiguous()
    data = Data("x", "train", Samples(x, torch.zeros(6_000, dtype=torch.int64)), Normalization(), classes=4)
    worth = Trials(dataclasses.replace(problem, data=data), Clock(60.0)).mending
    held = {value.item() for inputs, _ in worth.held for value in inputs[:, 0]}
    for how, count in (("refit", 1_000), ("repair", 2_500)):
        seen = {value.item() for inputs, _ in worth._batches(how) for value in inputs[:, 0]}
        assert len(seen) == count and not seen & held and held


def test_a_short_time_is_held_and_the_first_method_is_tried_all_the_same(problem):
    began = time.monotonic()
    found = auto.match(problem, auto.Options(budget="0.0001s"))
    assert time.monotonic() - began < 5  # a loaded machine; any other candidate would learn for longer
    assert found.chosen.method == "wm" and "too little to compare methods" in found.chosen.tried[0].why
    assert found.chosen.repair is None


def test_a_candidate_is_stopped_when_its_time_is_over_and_what_it_found_is_kept(problem):
    trials = Trials(problem, Clock(5.0))
    weights, *_, learning, _ = candidates(problem.fitted, 2, able=True)
    trials.try_(weights)
    trials.a_sample = 1e-9  # as if all the epochs would fit
    trials.clock.began = time.monotonic() - trials.clock.seconds + 0.5
    began = time.monotonic()
    trial = trials.try_(learning)
    assert time.monotonic() - began < 3 and trial.result is not None
    assert math.isfinite(trial.merges["none"][0].plain.loss)


def test_samples_that_no_model_was_trained_on_are_what_is_compared_by(problem):
    inputs, targets = problem.data[0]
    wrong = [(inputs, (targets + 1) % 4)]
    unseen, seen = Trials(dataclasses.replace(problem, held=wrong), Clock(5.0)), Trials(problem, Clock(5.0))
    losses = [it.mending.judge(problem.models, "none").plain.loss for it in (unseen, seen)]
    assert losses[0] > losses[1] and list(unseen.train) == list(problem.data)


def test_what_is_tried_follows_from_what_is_known():
    network = build("resnet20", input_shape=(3, 8, 8), classes=4, width=0.25)
    normed = resolve_spec(None, [network.state_dict()])
    assert [c.method for c in candidates(normed, 2, able=False)] == ["wm"]
    assert [c.method for c in candidates(normed, 2, able=True)] == ["wm", "am", "dual", "ste", "polish"]
    assert [c.method for c in candidates(normed, 3, able=True)][1::3] == ["merge-many", "ste-mm"]


def test_the_library_takes_polish_and_auto(problem):
    given = {"network": problem.network, "data": problem.data}
    found = rebasin_cli.align(*problem.models, problem.fitted, method="wm", polish="3steps", **given)
    assert found.result.polished.steps <= 3
    with pytest.raises(UsageError, match="--polish"):
        rebasin_cli.align(*problem.models, problem.fitted, polish="3steps")
    with pytest.raises(UsageError, match="no place beside --method auto"):
        rebasin_cli.align(*problem.models, problem.fitted, method="auto", polish="3steps", **given)
    with pytest.raises(UsageError, match="--budget"):
        rebasin_cli.align(*problem.models, problem.fitted, method="auto", options={"budget": "soon"})


def test_the_library_repairs_as_auto_chose_unless_a_repair_is_named(problem, monkeypatch):
    only_weights(monkeypatch, "refit")
    few = problem.data[:2]
    given = {"network": problem.network, "train": few, "method": "auto", "options": {"budget": "60s"}}
    assert rebasin_cli.merge(problem.models, problem.fitted, **given).repair.method == "refit"
    named = rebasin_cli.merge(problem.models, problem.fitted, repair_with="none", **given)
    assert named.repair is None and named.alignment.result.chosen.repair is None


def read_by_refits(problem, monkeypatch, count):
    """As many samples, and a list that every refit adds the number of samples to that it reads."""
    only_weights(monkeypatch, "refit")
    x = torch.randn(count, 6)
    with torch.no_grad():
        y = problem.network(x).argmax(1)
    data, read = Data("x", "train", Samples(x, y), Normalization(), classes=4), []
    fitting = repair_steps.refit

    def refit(network, endpoints, batches, **how):
        read.append(sum(len(targets) for _, targets in batches))
        return fitting(network, endpoints, batches, **how)

    monkeypatch.setattr(repair_steps, "refit", refit)
    return data, read


def test_trials_have_the_ridge_that_the_merge_will_have(problem, monkeypatch):
    data, _ = read_by_refits(problem, monkeypatch, 600)
    fitting, ridges = repair_steps.refit, []

    def refit(*args, ridge, **how):
        ridges.append(ridge)
        return fitting(*args, ridge=ridge, **how)

    monkeypatch.setattr(repair_steps, "refit", refit)
    given = {"network": problem.network, "method": "auto", "options": {"budget": "60s"}, "train": data}
    rebasin_cli.merge(problem.models, problem.fitted, repair_with="refit", ridge=0.5, **given)
    rebasin_cli.barrier(
        *problem.models,
        problem.fitted,
        test=data.subset(50),
        repair_with="refit",
        ridge=0.5,
        points=3,
        **given,
    )
    assert len(ridges) > 4 and set(ridges) == {0.5}


def test_a_refit_that_auto_chose_reads_no_more_samples_than_one_that_is_named(problem, monkeypatch):
    data, read = read_by_refits(problem, monkeypatch, 2_000)
    given = {"network": problem.network, "method": "auto", "options": {"budget": "60s"}, "train": data}
    rebasin_cli.barrier(
        *problem.models, problem.fitted, test=data.subset(50), controls=False, points=3, **given
    )
    rebasin_cli.merge(problem.models, problem.fitted, **given)
    assert len(read) > 2 and set(read) == {1_000}


def test_a_refit_that_is_named_beside_auto_reads_all_samples_that_were_given(problem, monkeypatch):
    data, read = read_by_refits(problem, monkeypatch, 1_500)
    given = {
        "method": "auto",
        "options": {"budget": "60s"},
        "repair_with": "refit",
        "network": problem.network,
    }
    sizes = {"test": data.subset(50), "controls": False, "points": 3, "repaired_points": 3}
    rebasin_cli.barrier(*problem.models, problem.fitted, train=data, **sizes, **given)
    assert read[-1] == 1_500  # what auto tried before was less


def test_a_loader_that_was_read_before_is_told_when_the_network_is_followed(problem):
    worth = Trials(dataclasses.replace(problem, repairs=("none", "refit")), Clock(60.0)).mending
    worth.train = iter(())
    with pytest.raises(DataError, match="holds no samples") as told:
        worth.trace()
    assert "generator" in told.value.hint


@pytest.mark.parametrize("unseen", [False, True])
def test_held_out_samples_are_a_searchs_own_only_if_no_model_has_seen_them(problem, monkeypatch, unseen):
    asked = []

    def match(problem, options):
        asked.append((problem.held is not None, problem.repairs))
        return wm.match(problem)

    monkeypatch.setattr(auto, "match", match)
    held = problem.data[:1]
    given = {"network": problem.network, "train": problem.data, "method": "auto", "held": held}
    rebasin_cli.merge(problem.models, problem.fitted, unseen=unseen, **given)
    rebasin_cli.barrier(
        *problem.models, problem.fitted, test=held, unseen=unseen, controls=False, points=3, **given
    )
    assert asked == [(unseen, ("none", "repair", "refit", "distill"))] * 2


def test_in_a_time_the_best_merge_is_kept_as_it_was_measured_and_no_other(problem):
    """To repair it again, on all samples, takes as long as nobody gave it."""
    torch.manual_seed(3)
    other = dict(build("mlp", input_shape=(6,), classes=4, width=8, depth=2).state_dict())
    far = dataclasses.replace(problem, models=(problem.models[0], other), repairs=("none", "repair", "refit"))
    for counts in (True, False):
        trials = Trials(far, Clock(60.0, counts=counts))
        for candidate in candidates(problem.fitted, 2, able=True)[:2]:
            trials.try_(candidate)
        best, how = trials.best
        assert how != "none"  # else there is nothing to keep
        kept = [(trial, name) for trial in trials.done for name in trial.repaired]
        assert kept == ([] if counts else [(best, how)])
    models = trials.mending.models(best.found.elements)
    written = {**rebasin_cli.average(models), **best.repaired[how].tensors}
    scores = trials.mending.comparison.scores(networks.load(problem.network, written), trials.held)
    assert scores.loss == pytest.approx(best.merges[how][0].plain.loss, rel=1e-6)


@pytest.mark.parametrize("models", [2, 3])
def test_in_a_time_a_search_by_weights_ends_with_the_sweep_in_which_it_is_over(problem, models):
    torch.manual_seed(5)
    several = [
        dict(build("mlp", input_shape=(40,), classes=4, width=60, depth=3).state_dict())
        for _ in range(models)
    ]
    wide = Problem(resolve_spec(None, several), tuple(several))
    whole = auto.match(wide, auto.Options(budget="60s"))
    short = auto.match(wide, auto.Options(budget="0.001s"))
    counted = auto.match(wide, auto.Options(budget="1G"))
    assert whole.converged and counted.sweeps == whole.sweeps > 1
    assert short.sweeps == 1 and not short.converged
    assert short.objective_before < short.objective_after <= whole.objective_after
    (row,) = short.chosen.rows()
    assert row["why"].endswith("ended after 1 sweep, when the time was over")
