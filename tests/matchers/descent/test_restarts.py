"""Searches with groups that begin anew from random elements."""

from dataclasses import replace

import pytest
import torch

from rebasin_cli.matchers import Problem, wm
from rebasin_cli.matchers.descent.starts import drawn as drawn_balanced
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry.form import canonical, turned
from tests.matchers.descent.test_group_search import planted
from tests.transformers import Factored, OneLayer, Rotary, Transformer, inferred

FAR, NEAR = 0, 3  # pairs of which one search finds the planted element, and does not


def search(problem, restarts):
    return wm.match(problem, wm.Options(effort="fast", restarts=restarts))


def pair(seed):
    """A model in canonical form, and it again, moved by a random element and with some noise."""
    _, found, a, b = planted(OneLayer, 0.05, seed)
    form = canonical(b, found.fitted, found.folds)
    return Problem(found.fitted, (a.tensors, form.tensors)), form


def recovered(problem, form, result):
    moved = turned(form.tensors, problem.fitted, result.elements[0])
    own = problem.models[0]
    return all((own[name] - moved[name]).norm() <= 0.15 * own[name].norm().clamp_min(1) for name in own)


def test_restarts_find_what_one_search_misses():
    problem, form = pair(FAR)
    one, more = (search(problem, k) for k in (0, 4))
    assert not recovered(problem, form, one) and recovered(problem, form, more)
    assert more.objective_after > one.objective_after and more.objective_before == one.objective_before


def test_the_best_search_is_kept_and_no_restart_makes_it_worse():
    problem, form = pair(NEAR)
    one, more = (search(problem, k) for k in (0, 2))
    assert recovered(problem, form, one) and recovered(problem, form, more)
    assert more.objective_after >= one.objective_after * (1 - 1e-12) and more.solves > one.solves


@pytest.mark.sweep
def test_the_reported_objective_never_falls_and_a_kept_state_leads_to_the_same():
    problem, _ = pair(FAR)
    kept = []

    def keep(state):
        kept.append(replace(state, tensors={name: tensor.clone() for name, tensor in state.tensors.items()}))

    whole = search(replace(problem, progress=keep), 2)
    objectives = [state.objective for state in kept]
    assert all(later >= earlier - 1e-9 for earlier, later in zip(objectives, objectives[1:], strict=False))
    assert {state.notes.get("attempt", 0.0) for state in kept} >= {0.0, 1.0, 2.0}
    for at in (0.0, 1.0, 2.0):
        first = next(state for state in kept if state.notes.get("attempt", 0.0) == at)
        on = []
        again = search(replace(problem, start=first, progress=on.append), 2)
        assert all(state.notes.get("attempt", 0.0) >= at for state in on)
        assert again.objective_after == pytest.approx(whole.objective_after, abs=1e-9)
        for word, perm in whole.permutations[0].items():
            assert torch.equal(perm, again.permutations[0][word])
        for word, map_ in whole.elements[0].maps.items():
            assert torch.allclose(map_, again.elements[0].maps[word], atol=1e-9)


@pytest.mark.parametrize("make", [Transformer, Factored, Rotary])
def test_a_start_leaves_balances_as_they_are(make):
    _, found = inferred(make)
    element = drawn_balanced(found.fitted, generator(0, "test"))
    for word, map_ in element.maps.items():
        group = found.fitted.group(word)
        if group.matrix and group.permutes:
            square = map_ @ map_.transpose(-1, -2)
            assert torch.allclose(square, torch.eye(square.shape[-1]).double().expand_as(square), atol=1e-9)
        elif not group.matrix:
            assert (map_.abs() == 1).all()


def test_restarts_of_permutations_keep_the_best_too():
    fitted = fit(
        parse("tensors: {a: 'h .', b: 'g h', c: '. g'}", name="mlp"),
        {"a": (20, 9), "b": (20, 20), "c": (9, 20)},
    )
    rng = torch.Generator().manual_seed(0)
    a, b = ({n: torch.randn(s, generator=rng) for n, s in fitted.shapes.items()} for _ in range(2))
    one, more = (search(Problem(fitted, (a, b)), restarts) for restarts in (0, 4))
    assert more.objective_after > one.objective_after and more.solves > one.solves
