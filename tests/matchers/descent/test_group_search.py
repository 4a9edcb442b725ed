import functools
from collections import Counter

import pytest
import torch

from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.matchers import Problem, State, wm
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.form import canonical, turned
from tests.transformers import (
    ByGroup,
    ByHead,
    Factored,
    Gated,
    Neighbours,
    Packed,
    Rotary,
    Transformer,
    drawn,
    inferred,
    outputs,
    relu,
    tanh,
    transformer,
)

ONCE = wm.Options(effort="fast")


def search(a, b, fitted, options=ONCE, **how):
    return wm.match(Problem(fitted, (a, b), **how), options)


SLOW = pytest.mark.sweep  # the same of more networks
NETS = [Transformer, Packed, Gated, relu, tanh, Factored, Rotary, Neighbours, ByHead, ByGroup]


def planted(make, noise, seed=0):
    net, found = inferred(make)
    a = canonical(drawn(net, seed), found.fitted, found.folds)
    element = acts.random(found.fitted, torch.Generator().manual_seed(seed + 7))
    b = dict(acts.acted(a.tensors, found.fitted, element))
    rng = torch.Generator().manual_seed(seed + 9)
    b = {
        n: t + noise * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t
        for n, t in b.items()
    }
    return net, found, a, b


@pytest.mark.parametrize("make", NETS)
@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=SLOW), 0.05])
def test_a_planted_element_is_recovered(make, noise):
    net, found, a, b = planted(make, noise)
    form = canonical(b, found.fitted, found.folds)
    result = search(a.tensors, form.tensors, found.fitted)
    moved = turned(form.tensors, found.fitted, result.elements[0])
    near = max(1e-6, 3 * noise)
    for tensor in a.tensors:
        mine, theirs = a.tensors[tensor], moved[tensor]
        assert (mine - theirs).norm() <= near * mine.norm().clamp_min(1), tensor
    before = outputs(net, b)
    assert (before - outputs(net, moved)).abs().max() <= 1e-11 * before.abs().max()


@pytest.mark.parametrize("make", [pytest.param(Transformer, marks=SLOW), Gated, relu])
def test_the_objective_never_falls(make):
    net, found = inferred(make)
    a, b = (canonical(drawn(net, seed), found.fitted, found.folds).tensors for seed in (0, 1))
    states = []
    result = search(a, b, found.fitted, wm.Options(restarts=1), progress=states.append)
    steps = [result.objective_before, *(state.objective for state in states), result.objective_after]
    assert all(later >= earlier - 1e-6 for earlier, later in zip(steps, steps[1:], strict=False))
    assert len(states) > 3 and result.objective_after > result.objective_before and result.converged


def test_a_search_that_goes_on_from_its_element_loses_nothing():
    net, found = inferred(Transformer)
    a, b = (canonical(drawn(net, seed), found.fitted, found.folds).tensors for seed in (0, 1))
    first = search(a, b, found.fitted, wm.Options(max_sweeps=3))
    on = search(a, b, found.fitted, start=State(first.elements, first.sweeps))
    assert on.objective_after >= first.objective_after > first.objective_before


@functools.cache
def aligned():
    """Two transformers, searched once."""
    net, found = inferred(Transformer)
    a, b = drawn(net, 0), drawn(net, 1)
    return net, found, a, b, align([a, b], found.fitted, folds=found.folds)


def test_inputs_are_untouched_and_the_same_seed_gives_the_same():
    _, found, a, b, one = aligned()
    kept = {name: tensor.clone() for name, tensor in b.items()}
    two = align([a, b], found.fitted, folds=found.folds)
    assert all(torch.equal(b[name], kept[name]) for name in b)
    assert all(torch.equal(one.tensors[name], two.tensors[name]) for name in b)
    assert one.elements[0].maps.keys() == found.fitted.groups.keys()


def test_what_is_aligned_computes_what_it_did_and_lies_nearer():
    net, found, a, b, done = aligned()
    for before, after in ((a, done.models[0]), (b, done.models[1])):
        wanted = outputs(net, before)
        assert (wanted - outputs(net, after)).abs().max() <= 1e-11 * wanted.abs().max()
    forms = [canonical(model, found.fitted, found.folds).tensors for model in (a, b)]
    plain = align(forms, found.fitted.ordered)
    near, far = (
        sum(float((x[n] * y[n]).sum()) for n in a if "norm" not in n) for x, y in (done.models, plain.models)
    )
    assert near > 1.2 * far


@pytest.mark.parametrize("make", [pytest.param(Transformer, marks=SLOW), Gated, tanh])
def test_many_models_that_are_one_are_brought_together(make):
    net, found = inferred(make)
    a = canonical(drawn(net, 0), found.fitted, found.folds).tensors
    rng = torch.Generator().manual_seed(3)
    models = [a, *(dict(acts.acted(a, found.fitted, acts.random(found.fitted, rng))) for _ in range(2))]
    done = align(models, found.fitted, method="merge-many", folds=found.folds)
    for model, before in zip(done.models[1:], models[1:], strict=True):
        assert all(torch.allclose(model[name], done.models[0][name], atol=1e-6) for name in a)
        wanted = outputs(net, before)
        assert (wanted - outputs(net, model)).abs().max() <= 1e-11 * wanted.abs().max()


@pytest.mark.sweep
def test_rounds_of_many_models_never_lose_and_go_on_where_they_stood():
    net, found = inferred(transformer)
    models = [drawn(net, seed) for seed in range(3)]
    states = []
    how = {"method": "merge-many", "folds": found.folds}
    done = align(models, found.fitted, **how, progress=states.append)
    steps = [done.result.objective_before, *(state.objective for state in states)]
    assert len(states) > 2 and all(later >= now - 1e-9 for now, later in zip(steps, steps[1:], strict=False))
    assert done.result.objective_after == pytest.approx(steps[-1])
    on = align(models, found.fitted, **how, start=states[1])
    for one, other in zip(done.elements, on.elements, strict=True):
        assert all(torch.equal(map_, other.maps[word]) for word, map_ in one.maps.items())
    two = [align([models[0], m], found.fitted, folds=found.folds).models[1] for m in models[1:]]
    spread = [
        sum(float((x[n] - y[n]).square().sum()) for n in x if "norm" not in n)
        for x, y in ((done.models[1], done.models[2]), two)
    ]
    assert spread[0] < spread[1]  # models that met the reference alone lie farther from each other


def test_the_reference_of_many_models_stays_what_it_was_wherever_it_stood():
    """A search that goes on with all models, the reference too, in a frame drawn at random."""
    _, found = inferred(Gated)
    fitted, rng = found.fitted, torch.Generator().manual_seed(5)
    a = canonical(drawn(Gated(), 0), fitted, found.folds).tensors
    frame = acts.random(fitted, rng, of={word: "O" for word in fitted.groups if fitted.groups[word] == "O"})
    state = State((frame,) * 3, 1)
    done = align([a, a, a], fitted, method="merge-many", folds=found.folds, start=state)
    assert frame.maps and all(torch.allclose(done.models[2][name], a[name], atol=1e-6) for name in a)


@pytest.mark.parametrize("make", [Transformer, Gated, relu])
def test_a_search_asks_for_each_tensor_once_and_holds_what_it_compares(make):
    """Tensors in canonical form are made when they are asked for: twice would be twice the time."""
    net, found = inferred(make)
    asked = Counter()

    def counted(k):
        form = canonical(drawn(net, k), found.fitted, found.folds).tensors

        def get(name):
            asked[k, name] += 1
            return form[name]

        return LazyTensors(form.shapes, form.dtypes, get)

    search(counted(0), counted(1), found.fitted, wm.Options(max_sweeps=2, effort="fast"))
    assert asked == {(k, name): 1 for k in (0, 1) for name in found.fitted.tensors}


def test_words_whose_scales_are_balanced_are_searched_as_orders():
    """One of them took a search without duals, kicks and proofs, and ended far below permutations."""
    text = "tensors: {a: 'h .', b: 'g h~', c: 'f g', d: '. f'}"
    shapes = {"a": (20, 9), "b": (20, 20), "c": (20, 20), "d": (9, 20)}
    plain = fit(parse(text.replace("~", ""), name="plain"), shapes)
    scaled = fit(parse(text + "\ngroups: {h: scaled}", name="scaled"), shapes)
    rng = torch.Generator().manual_seed(0)
    a, b = ({n: torch.randn(s, generator=rng) for n, s in shapes.items()} for _ in range(2))
    for other in (b, dict(permutation.permuted(a, plain, permutation.random(plain.words, rng)))):
        both = [wm.match(Problem(fitted, (a, other))) for fitted in (plain, scaled)]
        assert both[0].objective_after == pytest.approx(both[1].objective_after)
