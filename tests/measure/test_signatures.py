"""How alike matched units are, against plain computations, and how stable matches are."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rebasin_cli.errors import CheckpointError, DataError, UsageError
from rebasin_cli.learning.curves.curve import Curve
from rebasin_cli.matchers import Problem, am
from rebasin_cli.matchers.activations import options as looking
from rebasin_cli.matchers.activations.moments import Moments
from rebasin_cli.measure import signatures
from rebasin_cli.reports import pictures, signature
from rebasin_cli.reports.document import Document
from rebasin_cli.symmetry import permutation
from tests.matchers.test_am import built, setting, shuffled
from tests.matchers.test_matchers import randomised


def hidden(model, inputs):
    """What each layer of an MLP shows, after its activation: word → (samples, units), float64."""
    x, shown = inputs.flatten(1).double(), {}
    for k in range(sum(name.startswith("layers") and name.endswith("weight") for name in model)):
        x = F.relu(x @ model[f"layers.{k}.weight"].double().T + model[f"layers.{k}.bias"].double())
        shown[f"h{k}"] = x
    return shown


@pytest.fixture
def pair():
    network, fitted, data = built("mlp")
    return network, fitted, data, *(randomised(network.state_dict(), seed) for seed in range(2))


def matched(a, b, perm):
    """Correlations of matched units of which neither is constant."""
    x, y = a.numpy(), b[:, perm].numpy()
    alive = (x.std(0) > 0) & (y.std(0) > 0)
    return np.array([np.corrcoef(x[:, i], y[:, i])[0, 1] for i in np.flatnonzero(alive)])


def test_the_signature_is_that_of_a_plain_computation(pair):
    network, fitted, data, a, b = pair
    a["layers.1.bias"][:3] = -1e6  # three dead units in A, one in B
    b["layers.1.bias"][5] = -1e6
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(2))
    rows = signatures.signature(a, b, fitted, perms, network=network, data=data)
    inputs = torch.cat([x for x, _ in data])
    of_a, of_b = hidden(a, inputs), hidden(b, inputs)
    assert [row["word"] for row in rows] == ["h0", "h1", "h2"]
    for row in rows:
        word, dead = row["word"], sum(int((shown[row["word"]].std(0) == 0).sum()) for shown in (of_a, of_b))
        assert (row["units"], row["dead"]) == (fitted.words[word], dead)
        for when, perm in (("before", torch.arange(row["units"])), ("after", perms[word])):
            plain = matched(of_a[word], of_b[word], perm)
            assert row[when]["mean"] == pytest.approx(plain.mean(), abs=1e-5)
            assert row[when]["std"] == pytest.approx(plain.std(), abs=1e-5)
    assert rows[1]["dead"] >= 4


@pytest.mark.parametrize("name", ["mlp", "resnet20", "transformer"])
def test_a_planted_permutation_is_matched_perfectly(name):
    network, fitted, data = setting(name)
    a = randomised(network.state_dict(), 0)
    b, perm = shuffled(a, fitted)
    rows = signatures.signature(a, b, fitted, permutation.invert(perm), network=network, data=data)
    assert {row["word"] for row in rows} <= set(fitted.words) and len(rows) > 2
    for row in rows:
        assert row["after"]["mean"] == pytest.approx(1, abs=1e-4) and row["after"]["std"] < 1e-3
        assert row["before"]["mean"] < 0.9


def test_only_so_many_samples_are_looked_at(pair):
    network, fitted, data, a, b = pair
    still = permutation.identity(fitted.words)
    some = signatures.signature(a, b, fitted, still, network=network, data=data, limit=20)
    first = [(data[0][0], data[0][1]), (data[1][0][:4], data[1][1][:4])]
    assert some == signatures.signature(a, b, fitted, still, network=network, data=first)
    assert some != signatures.signature(a, b, fitted, still, network=network, data=data)


def test_a_layer_of_dead_units_has_no_correlation(pair):
    network, fitted, data, a, b = pair
    a["layers.2.bias"][:] = -1e6
    still = permutation.identity(fitted.words)
    row = signatures.signature(a, b, fitted, still, network=network, data=data)[2]
    assert (
        row["dead"] >= row["units"] and math.isnan(row["before"]["mean"]) and math.isnan(row["after"]["std"])
    )
    told = Document("A and B", [], [signature.drawn([row])])
    assert pictures.png(told).startswith(b"\x89PNG")


class Counted(list):
    """Batches that count how often they were read."""

    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("at", looking.AT)
def test_stability_is_that_of_separate_matches_and_reads_the_data_once(pair, at):
    network, fitted, data, a, b = pair
    b = {name: 0.5 * tensor + 0.5 * a[name] for name, tensor in b.items()}
    counts, data = (10, 24, 48), Counted(data)  # batches of 16
    options = am.Options(at=at)
    found = signatures.stability(a, b, fitted, counts, network=network, data=data, options=options)
    assert data.reads == 1 and found.samples == counts
    problem = Problem(fitted, (a, b), network=network, data=data)
    apart = [am.match(problem, am.Options(at=at, limit=count)).permutations[0] for count in counts]
    assert all(torch.equal(found.permutations[word], apart[-1][word]) for word in fitted.words)
    rows = signatures.signature(a, b, fitted, apart[-1], network=network, data=data)
    assert [row["word"] for row in found.table] == [row["word"] for row in rows]
    for row, plain in zip(found.table, rows, strict=True):
        assert row["after"] == pytest.approx(plain["after"]) and row["before"] == pytest.approx(
            plain["before"]
        )
    inputs = torch.cat([x for x, _ in data])
    total, agreed = 0, [0, 0, 0]
    for word, shown in hidden(a, inputs).items():
        other = hidden(b, inputs)[word][:, apart[-1][word]]
        alive = (shown.std(0) > 0) & (other.std(0) > 0)
        same = [int((perms[word] == apart[-1][word])[alive].sum()) for perms in apart]
        assert found.words[word] == pytest.approx([n / int(alive.sum()) for n in same])
        total += int(alive.sum())
        agreed = [x + y for x, y in zip(agreed, same, strict=True)]
    assert found.overall == pytest.approx([n / total for n in agreed])
    assert found.overall[0] < found.overall[2] == 1


def test_what_is_refused(pair):
    network, fitted, data, a, b = pair
    given = {"network": network, "data": data}
    with pytest.raises(UsageError, match="two counts of samples or more, and 10, 10 is given"):
        signatures.stability(a, b, fitted, [10, 10], **given)
    with pytest.raises(DataError, match="the data has 48 samples, and matches on 49"):
        signatures.stability(a, b, fitted, [10, 49], **given)
    with pytest.raises(CheckpointError, match="do not fit"):
        signatures.signature(a, b, fitted, {}, **given)
    with pytest.raises(DataError, match="no samples"):
        signatures.signature(a, b, fitted, permutation.identity(fitted.words), network=network, data=[])
    a["layers.0.bias"][0] = math.nan
    with pytest.raises(CheckpointError, match="NaN"):
        signatures.signature(a, b, fitted, permutation.identity(fitted.words), **given)


def test_a_unit_is_dead_only_where_it_is_constant_at_every_place():
    rng = torch.Generator().manual_seed(0)
    places = []
    for still in (0, 1):
        units = torch.randn(3, 50, generator=rng)
        units[still], units[2] = 1.5, 0.0  # another one at each place, and the last at both
        places.append(Moments.none(3, torch.device("cpu")))
        places[-1].add(units, torch.randn(3, 50, generator=rng))
    assert signatures.dead(places) == (1, 0)


# --------------------------------------------------------------------------------------------- along a curve


def control(a, b, t):
    return {name: ((1 - t) * a[name] + t * b[name]).float() for name in a}


def test_a_curve_on_the_straight_line_has_the_lines_signature_and_the_ends_are_the_pairs(pair):
    network, fitted, data, a, b = pair
    perms = permutation.identity(fitted.words)
    plain = signatures.signature(a, b, fitted, perms, network=network, data=data)
    rows = signatures.along(Curve("bezier", a, b, [control(a, b, 0.5)]), fitted, network=network, data=data)
    for row, given in zip(rows, plain, strict=True):
        assert row["ends"] == given["before"]
        assert row["before"]["mean"] == pytest.approx(row["line"]["mean"], abs=1e-5)
        assert row["after"]["mean"] >= row["before"]["mean"] - 1e-9 and row["before"] != row["ends"]


def test_a_curve_that_permutes_units_on_its_way_is_matched_back(pair):
    """Its middle is A with its units in another order: strangers as they are, A's once matched."""
    network, fitted, data, a, _ = pair
    moved, _ = shuffled(a, fitted)
    bend = {name: 2 * moved[name] - a[name] for name in a}  # r(½) = (A + 2·bend + A) / 4 = πA
    rows = signatures.along(Curve("bezier", a, a, [bend]), fitted, network=network, data=data)
    for row in rows:
        assert row["after"]["mean"] == pytest.approx(1, abs=1e-4) and row["before"]["mean"] < 0.6
        assert row["ends"]["mean"] == row["line"]["mean"] == pytest.approx(1)


def test_statistics_of_a_curves_middle_are_estimated_anew_first():
    network, fitted, data = built("resnet20")
    a, b = (randomised(network.state_dict(), seed) for seed in range(2))
    names = [name for name in a if name not in fitted.statistics and a[name].is_floating_point()]
    curve = Curve("bezier", a, b, [{name: (a[name] + b[name]) / 2 for name in names}])
    still = signatures.along(curve, fitted, network=network, data=data)
    anew = signatures.along(curve, fitted, network=network, data=data, reset_batches=data)
    assert still[0]["ends"] == anew[0]["ends"]
    assert any(
        one["before"]["mean"] != other["before"]["mean"] for one, other in zip(still, anew, strict=True)
    )
    assert any(one["line"]["mean"] != other["line"]["mean"] for one, other in zip(still, anew, strict=True))
