"""Many models through the universe with groups: the mixtures, the search, and what it finds."""

import itertools
from dataclasses import replace

import pytest
import torch

from rebasin_cli.matchers import Problem, State
from rebasin_cli.matchers.descent.many import Many
from rebasin_cli.matchers.descent.mixtures import Mixtures
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.form import canonical
from tests.transformers import (
    Factored,
    Gated,
    Rotary,
    Transformer,
    drawn,
    inferred,
    outputs,
    relu,
    tanh,
)

NETS = [Transformer, Gated, relu, tanh, Rotary]
SLOW = pytest.mark.sweep  # many searches of networks with heads
HOW = {"method": "universe"}


def forms_of(make, count=3):
    net, found = inferred(make)
    return found, [canonical(drawn(net, seed), found.fitted, found.folds).tensors for seed in range(count)]


def in_groups(fitted, seed):
    """An element of what is left of the groups in canonical form: scales 1, invertible matrices rotations."""
    plain = {"GL": "O", "scaled": "permutation", "monomial": "signed"}
    of = {
        word: plain.get(kind, kind) for word, kind in fitted.groups.items() if kind not in ("pairs", "halves")
    }
    return acts.random(fitted, torch.Generator().manual_seed(seed), of=of)


def matrices_of(mixtures, element):
    """An element as matrices: all the way towards it."""
    return {place: mixtures.towards(by, place, element, 1.0) for place, by in mixtures.current[0].items()}


def mixtures_of(make):
    found, forms = forms_of(make)
    mixtures = Mixtures(forms, found.fitted, {n: 1.0 for n in found.fitted.tensors})
    return found.fitted, forms, mixtures


@pytest.mark.parametrize("make", NETS)
def test_a_model_at_a_corner_is_the_model_as_the_element_makes_it(make):
    fitted, forms, mixtures = mixtures_of(make)
    elements = [in_groups(fitted, seed) for seed in range(3)]
    mixtures.step(elements, 1.0)
    for k, element in enumerate(elements):
        moved = acts.acted(forms[k], fitted, element)
        for atom in mixtures.atoms:
            torch.testing.assert_close(mixtures.mixed(k, atom), atom.view(moved[atom.tensor].double()))


def test_what_a_signed_word_only_orders_has_a_say_in_its_order():
    fitted, _, mixtures = mixtures_of(Gated)
    wanted = torch.randperm(fitted.words["gate"], generator=torch.Generator().manual_seed(0))
    matrices = {place: torch.zeros_like(matrix) for place, matrix in mixtures.current[0].items()}
    matrices["gate", True] = torch.eye(len(wanted), dtype=torch.float64)[wanted]
    assert torch.equal(mixtures.nearest(matrices).permutations["gate"], wanted)


@pytest.mark.parametrize("make", [Transformer, Gated, tanh])
def test_the_line_is_the_objective_on_the_way_and_its_slope_that_of_the_gradient(make):
    fitted, _, mixtures = mixtures_of(make)
    mixtures.step([in_groups(fitted, seed) for seed in range(3)], 0.4)
    corners = [in_groups(fitted, seed + 9) for seed in range(3)]
    dense = [matrices_of(mixtures, corner) for corner in corners]
    line, gradients, begun = mixtures.line(corners), mixtures.gradients(), mixtures.current
    slope = sum(
        float((gradients[k][place] * (dense[k][place] - begun[k][place])).sum())
        for k in range(3)
        for place in mixtures.places
    )
    assert line.deriv()(0.0) == pytest.approx(slope)
    for share in (0.3, 0.8, 1.0):
        mixtures.stand(begun)
        mixtures.step(corners, share)
        assert mixtures.objective() == pytest.approx(line(share))


@pytest.mark.parametrize("make", NETS)
def test_no_element_is_worth_more_than_the_nearest(make):
    fitted, _, mixtures = mixtures_of(make)
    matrices = mixtures.gradients()[0]

    def worth(element):
        dense = matrices_of(mixtures, element)
        return sum(float((dense[place] * matrices[place]).sum()) for place in mixtures.places)

    best = mixtures.nearest(matrices)
    acts.check(best, fitted)
    assert all(worth(in_groups(fitted, seed)) <= worth(best) for seed in range(20))


@pytest.mark.parametrize(
    "make, count",
    [
        (tanh, 4),
        (Gated, 3),
        pytest.param(Transformer, 3, marks=SLOW),
        *(pytest.param(make, 4, marks=SLOW) for make in (Transformer, Gated, relu, Factored, Rotary)),
    ],
)
def test_models_that_are_one_but_for_noise_are_brought_together(make, count):
    net, found = inferred(make)
    a, noise = canonical(drawn(net, 0), found.fitted, found.folds).tensors, 0.02
    rng = torch.Generator().manual_seed(3)
    models = [
        {
            name: t + noise * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 else t
            for name, t in acts.acted(a, found.fitted, acts.random(found.fitted, rng)).items()
        }
        for _ in range(count)
    ]
    done = align(models, found.fitted, **HOW, folds=found.folds)
    for model, before in zip(done.models, models, strict=True):
        for name, tensor in done.models[0].items():
            assert (model[name] - tensor).norm() <= 6 * noise * tensor.norm().clamp_min(1), name
        wanted = outputs(net, before)
        assert (wanted - outputs(net, model)).abs().max() <= 1e-11 * wanted.abs().max()


@pytest.mark.sweep
@pytest.mark.parametrize(
    "make, first, effort", [*((tanh, first, "normal") for first in range(4)), (Transformer, 2, "fast")]
)
def test_the_objective_is_no_lower_than_that_of_merge_many(make, first, effort):
    found, forms = forms_of(make, 4)
    how = {"folds": found.folds, "options": {"effort": effort}}
    models = [*forms[first:], *forms[:first]]
    ends = [
        align(models, found.fitted, method=method, **how).result.objective_after
        for method in ("universe", "merge-many")
    ]
    assert ends[0] >= ends[1] * (1 - 1e-9)


@pytest.mark.sweep
@pytest.mark.parametrize("effort", ["fast", "normal"])
def test_who_is_named_first_is_no_matter_but_for_the_frame(effort):
    """Of several starts the best end is as good, to where sweeps stop: which of equals it is may differ."""
    found, forms = forms_of(Gated)
    how, ends = HOW | {"options": {"effort": effort}}, []
    for order in ((0, 1, 2), (2, 0, 1)):
        done = align([forms[k] for k in order], found.fitted, **how, folds=found.folds)
        lie = {k: done.models[place] for place, k in enumerate(order)}
        pairs = itertools.combinations(range(3), 2)
        apart = [sum(float((lie[i][n] - lie[j][n]).square().sum()) for n in lie[0]) for i, j in pairs]
        ends.append([done.result.objective_after, *(apart if effort == "fast" else ())])
        assert all(torch.allclose(done.models[0][n], t) for n, t in forms[order[0]].items())
    for end in ends[1:]:
        assert end == pytest.approx(ends[0], rel=1e-9 if effort == "fast" else 1e-8)


def kept(state):
    """As a file keeps it: copies."""
    return replace(state, tensors={name: tensor.clone() for name, tensor in state.tensors.items()})


@pytest.mark.sweep
def test_a_search_goes_on_from_each_of_its_states_to_the_same_end():
    found, forms = forms_of(tanh)
    forms = forms[::-1]  # so that the order of names is another than that of norms, and a start of its own
    how, states = HOW | {"folds": found.folds, "options": {"gain": 0.2}}, []
    done = align(forms, found.fitted, **how, progress=lambda state: states.append(kept(state)))
    mixing = [state.objective for state in states if "steps" in state.tensors]
    rounds = [state.objective for state in states if "steps" not in state.tensors]
    begun = {state.notes.get("start") for state in states}
    assert len(mixing) > 1 and begun >= {None, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0}
    for heights in (mixing, rounds):
        assert all(later >= now - 1e-9 for now, later in itertools.pairwise(heights))
    assert done.result.objective_after == rounds[-1] and done.result.converged
    assert done.result.sweeps == len(states) == states[-1].sweep
    for state in states[::3]:
        on = align(forms, found.fitted, **how, start=state)
        assert on.result.objective_after == done.result.objective_after and on.result.sweeps == len(states)
        for one, other in zip(done.elements, on.elements, strict=True):
            assert all(torch.equal(perm, other.permutations[word]) for word, perm in one.permutations.items())
            assert all(torch.equal(map_, other.maps[word]) for word, map_ in one.maps.items())


def test_a_search_ends_where_its_sweeps_do():
    found, forms = forms_of(tanh)
    how = HOW | {"folds": found.folds}
    for sweeps in (1, 2):
        result = align(forms, found.fitted, **how, options={"max_sweeps": sweeps}).result
        assert result.sweeps == sweeps and not result.converged


def test_without_rounds_the_mixtures_are_rounded():
    found, forms = forms_of(Transformer)
    states: list[State] = []
    how = HOW | {"folds": found.folds, "options": {"ascent": False}}
    done = align(forms, found.fitted, **how, progress=states.append)
    assert done.result.converged and all("steps" in state.tensors for state in states)
    there = Many(Problem(found.fitted, tuple(dict(model) for model in done.models)), "test", 0.0)
    assert done.result.objective_after == pytest.approx(there.objective())
