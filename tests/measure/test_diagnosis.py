"""The doctor: kin and strangers, what the midpoint keeps, and the verdict of cases that are known."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import nets, networks
from rebasin_cli.datasets import open_data
from rebasin_cli.learning.training import train
from rebasin_cli.matchers import wm
from rebasin_cli.measure import matrices
from rebasin_cli.measure.diagnosis import doctor, facts
from rebasin_cli.measure.diagnosis import weights as activations
from rebasin_cli.measure.diagnosis.facts import VERDICTS, judge
from rebasin_cli.measure.diagnosis.weights import weigh
from rebasin_cli.runtime.seeds import seeded
from rebasin_cli.spec import fits, parser
from rebasin_cli.spec.library import resolve_spec
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.permutation import permuted
from tests.matchers.test_am import Net, built
from tests.measure.test_signatures import hidden


def trained(seed, *, start=None, width=64, epochs=30, **recipe):
    """An MLP trained on digits, from `start` where that is given: random weights have no kin to tell."""
    if start is None:
        return train("mlp", "digits", width=width, epochs=epochs, seed=seed, **recipe).tensors
    return train(loaded(start), "digits", epochs=epochs, seed=seed, **recipe).tensors


def loaded(tensors):
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return networks.load(networks.from_reference("mlp", shapes), tensors)


def fresh(net, seed, **options):
    with seeded(seed, "fresh"):
        return nets.build(net, **options).state_dict()


def noisy(tensors, share, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {name: t + share * t.std() * torch.randn(t.shape, generator=rng) for name, t in tensors.items()}


def relabelled(tensors):
    fitted = resolve_spec(None, [tensors])
    return dict(permuted(tensors, fitted, permutation.random(fitted.words, torch.Generator().manual_seed(4))))


@pytest.fixture(scope="module")
def digits():
    return open_data("digits", "train")


@pytest.fixture(scope="module")
def a():
    return trained(1)


def look(a, b, digits):
    found = doctor(a, b, network=loaded(a), data=digits)
    assert found.verdict in VERDICTS and found.advice.startswith(VERDICTS[found.verdict])
    assert found.unseen == ()
    return found, {fact.name: fact for fact in found.facts}


def test_two_seeds_are_to_be_aligned(a, digits):
    found, facts = look(a, trained(2), digits)
    assert found.verdict in ("align", "align-and-repair")
    assert abs(facts["cosine"].value) < 0.1 and facts["in_place"].value < 0.1
    assert facts["aligned_cosine"].value > 0.3 and facts["over_chance"].value > 1.1
    assert facts["correlation"].value > 0.5
    assert facts["midpoint_naive"].value < 0.4 < 0.6 < facts["midpoint_aligned"].value
    assert facts["width"].value == 64 and not facts["width"].warns


def test_a_fine_tune_is_to_be_averaged(a, digits):
    found, facts = look(a, trained(9, start=a, epochs=3), digits)
    assert found.verdict == "average" and "do not re-basin" in found.advice.lower()
    assert facts["in_place"].value == 1 and facts["cosine"].value > 0.95
    assert facts["midpoint_naive"].value > 0.95


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_a_noisy_copy_is_to_be_averaged(a, digits, share):
    assert look(a, noisy(a, share), digits)[0].verdict == "average"


@pytest.mark.sweep
def test_a_model_that_left_its_ancestor_far_behind_is_to_be_measured(digits):
    start = fresh("mlp", 3, input_shape=(1, 8, 8), classes=10, width=64)
    one, other = (trained(seed, start=start, epochs=60, learning_rate=0.03) for seed in (1, 2))
    found, facts = look(one, other, digits)
    assert found.verdict == "related" and "an ancestor" in facts["cosine"].says


def test_models_that_were_aligned_before_are_to_be_measured(a, digits):
    aligned = dict(rebasin_cli.align(a, trained(2)).tensors)
    found, facts = look(a, aligned, digits)
    assert found.verdict == "related" and facts["in_place"].value > 0.9
    assert "or were aligned" in facts["cosine"].says


def test_a_shuffled_copy_is_recognised_noisy_or_not(a, digits):
    found, facts = look(a, noisy(relabelled(a), 0.1), digits)
    assert found.verdict == "relabelled" and not found.exact
    assert abs(facts["cosine"].value) < 0.2 and facts["aligned_cosine"].value > 0.9
    found, _ = look(a, relabelled(a), digits)
    assert found.verdict == "relabelled" and found.exact


def test_a_copy_that_differs_where_nobody_looked_is_not_exact(monkeypatch):
    monkeypatch.setattr(matrices, "SLAB", 640)
    monkeypatch.setattr(activations, "LOOKED", 2000)
    a = fresh("mlp", 0, input_shape=(1, 8, 8), classes=10, width=128)
    b = relabelled(a)
    assert weigh(a, b, resolve_spec(None, [a])).aligned_distance < activations.EXACT
    name = next(name for name, tensor in b.items() if tensor.shape == (128, 64))
    b[name][17] *= 1.01  # in no slab
    assert activations.EXACT < weigh(a, b, resolve_spec(None, [a])).aligned_distance < 1e-2


def test_the_same_model_twice(a, digits):
    found, facts = look(a, dict(a), digits)
    assert found.verdict == "identical" and found.exact and facts["distance"].value == 0


@pytest.mark.parametrize(
    ("net", "options"),
    [
        ("mlp", {"input_shape": (1, 28, 28), "width": 128}),
        ("resnet20", {"input_shape": (3, 16, 16), "width": 0.5}),
        ("vgg16", {"input_shape": (3, 32, 32), "width": 0.125}),
    ],
)
def test_random_initialisations_have_nothing_in_common(net, options):
    found = doctor(*(fresh(net, seed, classes=10, **options) for seed in (0, 1)))
    (fact,) = (fact for fact in found.facts if fact.name == "over_chance")
    assert found.verdict == "nothing-in-common" and 0.75 < fact.value < 0.9 and fact.warns


def test_some_steps_of_training_are_too_few(digits):
    found, facts = look(*(trained(seed, epochs=2) for seed in (1, 2)), digits)
    assert found.verdict == "nothing-in-common" and facts["midpoint_aligned"].value < 0.6


@pytest.mark.sweep
def test_narrow_layers_are_doubtful(digits):
    found, facts = look(*(trained(seed, width=16) for seed in (1, 2)), digits)
    assert found.verdict == "doubtful" and "layers of 16 units are narrow" in found.advice
    assert facts["width"].warns and "A.1" in facts["width"].says


# ------------------------------------------------------------------------------------------------- facts


def test_what_the_midpoint_keeps_is_that_of_a_plain_computation():
    network, fitted, data = built("mlp")
    one, other = (dict(fresh("mlp", seed, input_shape=(1, 6, 6), classes=5, width=24)) for seed in (0, 1))
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(1))
    rows = activations.look(one, other, perms, fitted, network, data, limit=40)
    inputs = torch.cat([x for x, _ in data])[:40]

    def spread(model):
        return {
            word: shown.std(0, correction=0).mean().item() for word, shown in hidden(model, inputs).items()
        }

    ends = spread(one), spread(other)
    for way, moved in (("naive", other), ("aligned", permuted(other, fitted, perms))):
        middle = spread({name: (tensor + moved[name]) / 2 for name, tensor in one.items()})
        for row in rows:
            plain = middle[row["word"]] / ((ends[0][row["word"]] + ends[1][row["word"]]) / 2)
            assert row["midpoint"][way] == pytest.approx(plain, rel=1e-4)


def test_weights_are_compared_tensor_by_tensor(a):
    b = noisy(a, 0.5)
    b["layers.1.weight"] = b["layers.1.weight"] * 3
    found = weigh(a, b, resolve_spec(None, [a, b]))
    assert [row["tensor"] for row in found.tensors] == [n for n in a if n.endswith("weight")]
    axes = {"layers.0.weight": [0], "head.weight": [1]}  # those on which units lie
    own = [{n: t.double() for n, t in model.items() if n.endswith("weight")} for model in (a, b)]
    for model in own:
        for name in model:
            for axis in axes.get(name, [0, 1]):
                model[name] = model[name] - model[name].mean(axis, keepdim=True)
    x, y = (torch.cat([tensor.flatten() for tensor in model.values()]).numpy() for model in own)
    assert found.cosine == pytest.approx((x @ y) / math.sqrt((x @ x) * (y @ y)))
    x, y = (
        torch.cat([model[n].flatten() for n in a if n.endswith("weight")]).double().numpy()
        for model in (a, b)
    )
    assert found.distance == pytest.approx(math.sqrt(((x - y) ** 2).sum() / (x @ x)))
    (row,) = (row for row in found.tensors if row["tensor"] == "layers.1.weight")
    x, y = (model["layers.1.weight"].double() for model in (a, b))
    assert row["norm_ratio"] == pytest.approx((x.norm() / y.norm()).item())
    x, y = (model["layers.1.weight"] for model in own)
    assert row["cosine"] == pytest.approx(((x * y).sum() / (x.norm() * y.norm())).item())


def test_norms_and_dead_units_that_are_off_are_said(a, digits):
    b = noisy(a, 0.01)
    b["head.weight"] = b["head.weight"] * 5
    b["layers.1.bias"] = b["layers.1.bias"] - 1e4
    found, facts = look(a, b, digits)
    assert facts["norm_ratio"].warns and "head.weight: 0.20" in facts["norm_ratio"].says
    assert facts["dead"].warns and 'in "h1"' in facts["dead"].says
    row = found.words[1]
    assert row["dead_b"] == 64 and row["dead_a"] < 32


def test_running_statistics_need_a_reset(monkeypatch):
    monkeypatch.setattr(facts, "NARROW", 4)
    shapes = {"input_shape": (3, 8, 8), "classes": 5, "width": 0.25}
    one, other = (fresh("resnet20", seed, **shapes) for seed in (0, 1))
    fitted = resolve_spec(None, [one, other])
    weights = weigh(one, other, fitted)
    alike = [{"after": {"mean": 0.7}, "midpoint": {"aligned": 0.1}}]  # without reset: nothing to go by
    learnt = dataclasses.replace(weights, aligned_cosine=0.3, chance=0.1)
    assert judge(learnt, alike, fitted)[0] == "align-and-repair"
    unlike = [{"after": {"mean": 0.4}, "midpoint": {"aligned": 0.1}}]
    verdict, why = judge(learnt, unlike, fitted)
    assert verdict == "doubtful" and "0.40" in why and "spread" not in why
    (fact,) = (fact for fact in doctor(one, other).facts if fact.name == "running_statistics")
    assert "data" in fact.says


def test_faded_midpoints_want_repair_and_gone_ones_are_doubtful(a):
    fitted = resolve_spec(None, [a])
    weights = dataclasses.replace(weigh(a, a, fitted), identical=False, cosine=0.0)
    weights = dataclasses.replace(weights, aligned_cosine=0.4, chance=0.1)

    def verdict(alike, kept):
        return judge(weights, [{"after": {"mean": alike}, "midpoint": {"aligned": kept}}], fitted)[0]

    assert verdict(0.7, 0.9) == "align"
    assert verdict(0.7, 0.7) == verdict(0.6, 0.9) == "align-and-repair"
    assert verdict(0.7, 0.5) == verdict(0.4, 0.9) == "doubtful"


def test_what_could_not_be_looked_at_is_said(a, digits):
    b = noisy(a, 0.1)
    found = doctor(a, b)
    assert found.verdict == "average" and found.unseen == ("activations: the network and data are missing",)
    assert doctor(a, b, data=digits).unseen == ("activations: the network is missing",)
    assert all(set(row) == {"word", "units"} for row in found.words)
    assert "correlation" not in {fact.name for fact in found.facts}


def test_a_network_that_cannot_be_traced_leaves_what_weights_say(digits):
    def forward(s, x):
        x = F.relu(s.fc1(x.flatten(1)))
        return s.fc2(x if x.sum().item() > 0 else -x)

    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        models.append(Net(forward, fc1=nn.Linear(64, 32), fc2=nn.Linear(32, 10)))
    found = doctor(*(model.state_dict() for model in models), "two_layer", network=models[0], data=digits)
    assert found.verdict == "nothing-in-common" and "cannot be traced" in found.unseen[0]


def test_the_inputs_stay_as_they_are(a, digits):
    b = noisy(a, 0.1)
    before = [{name: tensor.clone() for name, tensor in model.items()} for model in (a, b)]
    rebasin_cli.doctor(a, b, network=loaded(a), data=digits)
    for model, kept in zip((a, b), before, strict=True):
        assert all(torch.equal(model[name], tensor) for name, tensor in kept.items())


def test_a_model_of_zeros_has_nothing_in_common_and_no_figures_that_are_no_numbers():
    shapes = {"layers.0.weight": (6, 5), "layers.0.bias": (6,), "head.weight": (3, 6), "head.bias": (3,)}
    rng = torch.Generator().manual_seed(0)
    model = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    nothing = {name: torch.zeros(shape) for name, shape in shapes.items()}
    found = rebasin_cli.doctor(model, nothing)
    assert found.verdict == "nothing-in-common" and "zero" in found.advice
    assert all(math.isfinite(fact.value) and "nan" not in fact.says for fact in found.facts)


def test_a_first_convolution_of_grey_images_is_no_depthwise_one():
    spec = parser.parse(
        'tensors:\n  a: "h . . ."\n  b: "h . . ."\n  c: ". h"\n', name="own", source="own.yaml"
    )
    fitted = fits.fit(spec, {"a": (8, 1, 3, 3), "b": (8, 1, 3, 3), "c": (2, 8)})
    assert facts._depthwise(fitted) == ["b"]


def test_strangers_are_searched_once_and_copies_never(a, monkeypatch):
    searches = []
    match = wm.match
    monkeypatch.setattr(wm, "match", lambda *given: searches.append(1) or match(*given))
    for other, count in ((trained(2), 1), (dict(a), 0)):
        searches.clear()
        doctor(a, other)
        assert len(searches) == count
