"""dual with groups: activations and weights, searched together."""

from dataclasses import replace

import pytest
import torch

from rebasin_cli.canonical.form import canonical
from rebasin_cli.errors import UsageError
from rebasin_cli.groups import elements as acts
from rebasin_cli.matchers import Problem, dual
from rebasin_cli.matchers.activations.options import Looking
from rebasin_cli.matchers.grouped.baked import Baked, constant
from rebasin_cli.matchers.grouped.both import sized
from rebasin_cli.matchers.search.align import align, check_groups
from rebasin_cli.permutations import permutation
from rebasin_cli.spec.notation import Fixed
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


@pytest.mark.parametrize("make", [Transformer, tanh, Rotary, Neighbours, ByGroup])
def test_a_planted_element_is_recovered(make):
    net, found = inferred(make)
    a = canonical(drawn(net, 0), found.fitted, found.folds)
    element = acts.random(found.fitted, torch.Generator().manual_seed(3))
    b = dict(acts.acted(a.tensors, found.fitted, element))
    net, found, _, _, done = searched(make, [a.tensors, b])
    for name, tensor in done.models[0].items():
        assert torch.allclose(tensor, done.tensors[name], atol=1e-4), name
    before, after = (outputs(net.double(), {n: t.double() for n, t in m.items()}) for m in (b, done.tensors))
    assert (before - after).abs().max() < 1e-4 * before.abs().max()


@pytest.mark.parametrize("make", [Transformer, tanh])
def test_the_objective_is_the_share_of_each_and_never_falls(make):
    seen = []
    net, found, models, how = setting(make)
    how |= {"options": {"mix": 0.3}, "progress": lambda state: seen.append(state.objective)}
    done = align(models, found.fitted, method="dual", **how)
    assert all(later >= earlier - 1e-9 for earlier, later in zip(seen, seen[1:], strict=False))
    forms = tuple(canonical(model, found.fitted, found.folds).tensors for model in models)
    both = sized(problem(found, forms, how), Looking(), 0.3)
    evidence = {*both.tensors} - found.fitted.statistics - constant(found.fitted)
    most = [
        both.tensors[n] * float(forms[0][n].double().norm() * forms[1][n].double().norm()) for n in evidence
    ]
    assert sum(most) == pytest.approx(0.7)
    activations = sum(
        both.words[word] * float((matrix * matrix_of(done, word, len(matrix), found)).sum())
        for word, matrix in both.matrices.items()
    )
    assert 0 < activations <= 0.3 + 1e-6
    still = permutation.identity(found.fitted.words)
    moved = acts.acted(
        forms[1], found.fitted, acts.Elements(dict(done.result.permutations[0]), dict(done.result.maps[0]))
    )
    pair = Baked(forms[0], moved, found.fitted, {*found.fitted.words}, both.tensors).pair
    with pair.computing():
        weights = pair.objective(still)
    assert done.result.objective_after == pytest.approx(activations + weights, rel=1e-5)


def problem(found, forms, how):
    return Problem(found.fitted, forms, network=how["network"], data=how["data"])


def element_of(done):
    return acts.Elements(dict(done.result.permutations[0]), dict(done.result.maps[0]))


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


def test_a_search_that_was_interrupted_goes_on_to_the_same():
    kept = []
    _, found, models, how = setting(Transformer)
    whole = align(models, found.fitted, method="dual", progress=lambda s: kept.append(copied(s)), **how)
    assert len(kept) > 1
    again = align(models, found.fitted, method="dual", start=kept[0], **how)
    for name, tensor in whole.tensors.items():
        assert torch.allclose(tensor, again.tensors[name], atol=1e-6), name


def copied(state):
    tensors = {name: tensor.clone() for name, tensor in state.tensors.items()}
    return replace(state, tensors=tensors)


def test_options_of_orders_are_refused():
    with pytest.raises(UsageError, match="--effort has no effect"):
        check_groups("dual", options=["effort"])
