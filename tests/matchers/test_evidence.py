"""dual with groups: activations and weights, searched together."""

from dataclasses import replace

import pytest
import torch

from rebasin_cli.matchers import Problem, dual
from rebasin_cli.matchers.activations import mixes
from rebasin_cli.matchers.activations.elements import seen
from rebasin_cli.matchers.activations.evidence import Evidence
from rebasin_cli.matchers.activations.options import Looking
from rebasin_cli.matchers.descent.baked import Baked
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.spec.notation import Fixed
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.form import canonical, constant
from tests.transformers import ByGroup, Neighbours, Rotary, Transformer, drawn, inferred, outputs, tanh


def data_for(net):
    shape = tuple(net.example_shape) if hasattr(net, "example_shape") else (5, 6)
    batches = [torch.randn(20, *shape, generator=torch.Generator().manual_seed(k)) for k in range(5)]
    return [(batch, torch.zeros(20, dtype=torch.long)) for batch in batches]


def setting(make, models=None):
    """Two networks of their own, or the models given, and how they are matched."""
    net, found = inferred(make)
    models = models or [drawn(net, seed) for seed in (0, 1)]
    models = [{name: tensor.float() for name, tensor in model.items()} for model in models]
    how = {"network": net.float(), "data": data_for(net), "folds": found.folds, "prove": False}
    return net, found, models, how


def searched(make, models=None, **options):
    """Matched by both."""
    net, found, models, how = setting(make, models)
    return net, found, models, how, align(models, found.fitted, method="dual", options=options, **how)


SLOW = pytest.mark.sweep  # the same of more networks


@pytest.mark.parametrize("make", [pytest.param(Transformer, marks=SLOW), tanh, Rotary, Neighbours, ByGroup])
def test_a_planted_element_is_recovered(make):
    net, found = inferred(make)
    a = canonical(drawn(net, 0), found.fitted, found.folds)
    element = acts.random(found.fitted, torch.Generator().manual_seed(3))
    b = dict(acts.acted(a.tensors, found.fitted, element))
    net, found, _, _, done = searched(make, [a.tensors, b], mix=0.5)
    for name, tensor in done.models[0].items():
        assert torch.allclose(tensor, done.tensors[name], atol=3e-4), name
    before, after = (outputs(net.double(), {n: t.double() for n, t in m.items()}) for m in (b, done.tensors))
    assert (before - after).abs().max() < 1e-4 * before.abs().max()


@pytest.mark.parametrize("make", [pytest.param(Transformer, marks=SLOW), tanh])
def test_the_objective_is_the_share_of_each_and_never_falls(make):
    heights = []
    net, found, models, how = setting(make)
    how |= {"options": {"mix": 0.3}, "progress": lambda state: heights.append(state.objective)}
    done = align(models, found.fitted, method="dual", **how)
    assert all(later >= earlier - 1e-9 for earlier, later in zip(heights, heights[1:], strict=False))
    forms = tuple(canonical(model, found.fitted, found.folds).tensors for model in models)
    given = problem(found, forms, how)
    both = Evidence(given, seen(given, Looking()))
    tensors, words = both.shares(0.3)
    evidence = {*tensors} - found.fitted.statistics - constant(found.fitted)
    most = [tensors[n] * float(forms[0][n].double().norm() * forms[1][n].double().norm()) for n in evidence]
    assert sum(most) == pytest.approx(0.7)
    activations = sum(
        words[word] * float((matrix * matrix_of(done, word, len(matrix), found)).sum())
        for word, matrix in both.matrices.items()
    )
    assert 0 < activations <= 0.3 + 1e-6
    still = permutation.identity(found.fitted.words)
    moved = acts.acted(forms[1], found.fitted, done.result.elements[0])
    pair = Baked(forms[0], moved, found.fitted, tensors)
    with pair.computing():
        weights = pair.objective(still)
    assert done.result.objective_after == pytest.approx(activations + weights, rel=1e-5)


def problem(found, forms, how):
    return Problem(found.fitted, forms, network=how["network"], data=how["data"])


def element_of(done):
    return done.result.elements[0]


def matrix_of(done, word, size, found):
    """What the element does to the word's units, (size, size)."""
    start = torch.eye(size, dtype=torch.float64)
    fitted = replace(found.fitted, tensors={"one": (dual._axis(word, found.fitted.within), Fixed(size))})
    return acts.acted({"one": start}, fitted, element_of(done))["one"]


def test_all_of_the_mix_is_one_method_alone():
    net, found, models, how, done = searched(Transformer, mix=1)
    alone = align(models, found.fitted, method="am", **how)
    assert all(torch.equal(done.tensors[name], alone.tensors[name]) for name in alone.tensors)
    *_, none = searched(Transformer, models, mix=0)
    weights = align(models, found.fitted, method="wm", folds=found.folds)
    assert all(torch.equal(none.tensors[name], weights.tensors[name]) for name in weights.tensors)


def test_without_a_mix_the_one_is_taken_whose_mean_is_nearest_to_what_both_give():
    kept = []
    models = [drawn(inferred(tanh)[0], seed) for seed in (6, 106)]  # of which one word is of another mix
    net, found, models, how = setting(tanh, models)
    whole = align(models, found.fitted, method="dual", progress=lambda s: kept.append(copied(s)), **how)
    told = whole.result.account
    lacks, every = {}, {}
    for mix in mixes.MIXES:
        one = every[mix] = align(models, found.fitted, method="dual", options={"mix": mix}, **how)
        mean = {name: (tensor + one.tensors[name]) / 2 for name, tensor in one.models[0].items()}
        lacks[f"{mix:g}"] = lacking(net, mean, models, how["data"])
    assert told.lacks == pytest.approx(lacks, rel=1e-4)
    assert told.mix == float(min(lacks, key=lacks.__getitem__))
    mean = {name: (tensor + whole.tensors[name]) / 2 for name, tensor in whole.models[0].items()}
    assert told.joined == pytest.approx(lacking(net, mean, models, how["data"]), rel=1e-4)
    assert told.words and told.joined < min(lacks.values())
    for word in found.fitted.words:  # each is that of the mix it is said to be of
        named = every[told.words.get(word, told.mix)].result
        assert torch.equal(whole.result.permutations[0][word], named.permutations[0][word])
        assert torch.equal(
            *(each.elements[0].maps.get(word, torch.zeros(0)) for each in (whole.result, named))
        )
    for state in (kept[0], next(s for s in kept if s.notes["mix"] == 2), kept[-1]):
        more = []
        again = align(
            models,
            found.fitted,
            method="dual",
            start=state,
            progress=lambda s, more=more: more.append(s),
            **how,
        )
        assert all(s.notes["mix"] >= state.notes["mix"] for s in more)  # no search is run twice
        assert again.result.account.mix == told.mix
        assert again.result.account.lacks == pytest.approx(told.lacks, rel=1e-6)
        for name, tensor in whole.tensors.items():
            assert torch.allclose(tensor, again.tensors[name], atol=1e-6), name


def lacking(net, mean, models, data):
    """The mean square that a model lacks of the mean of both models' outputs."""
    inputs = torch.cat([batch for batch, _ in data])
    one, *both = (torch.func.functional_call(net, dict(each), (inputs,)) for each in (mean, *models))
    return float((one - sum(both) / 2).square().mean())


def test_a_mix_that_is_given_is_not_chosen():
    *_, done = searched(tanh, mix=0.5)
    assert done.result.account is None


def test_norms_with_running_statistics_have_the_usual_mix():
    models = [{n: t.abs() for n, t in drawn(WithStatistics(), seed).items()} for seed in (0, 1)]
    *_, done = searched(WithStatistics, models)
    assert done.result.account is None
    *_, usual = searched(WithStatistics, models, mix=0.5)
    assert all(torch.equal(done.tensors[name], usual.tensors[name]) for name in usual.tensors)


class WithStatistics(torch.nn.Module):
    example_shape = (6,)

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
        self.second, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.second(self.norm(self.first(x)).relu()).tanh())


def copied(state):
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    return replace(state, tensors=tensors)
