"""Rounds of a permutation and a curve: what is kept of them, and when they end."""

from dataclasses import replace

import torch
from torch.nn import functional as F

from rebasin_cli.learning.curves import alternation
from rebasin_cli.learning.curves.curve import Curve
from rebasin_cli.learning.curves.training import Training, train
from rebasin_cli.matchers.relaxed.search import Descent, Run, line_loss
from rebasin_cli.symmetry import elements
from rebasin_cli.symmetry.elements import Elements
from rebasin_cli.symmetry.permutation import permuted

from .test_curve_training import Batches, network, problem, tensors  # noqa: F401 (a fixture)

DESCENT = Descent(epochs=8, learning_rate=1.0, samples=8)
HOW = Training(epochs=3, learning_rate=0.1)


def alternated(task, rounds, least=0.0):
    still = elements.identity(task.fitted)
    first = train(task, still, HOW)
    found = alternation.alternate(
        task, still, first, HOW, DESCENT, rounds=rounds, least=lambda *points: least
    )
    return first, found


def along(task, element, control):
    """The loss of every batch at its t, on a curve to B as given, permuted by `element`."""
    b = permuted(task.models[1], task.fitted, element.permutations)
    curve, total = Curve("bezier", task.models[0], b, [control]), 0.0
    batches = list(Run(task, DESCENT)._scored())
    for k, (inputs, targets) in enumerate(batches):
        outputs = torch.func.functional_call(network(0), dict(curve.at((k + 0.5) / len(batches))), (inputs,))
        total += F.cross_entropy(outputs, targets).item() / len(batches)
    return total


def test_the_loss_falls_by_what_rounds_say_and_the_element_is_that_of_b_as_it_was_given(problem):  # noqa: F811
    large = [{name: 3 * tensor for name, tensor in tensors(seed).items()} for seed in (1, 2)]
    given = problem(*large, seed=1)
    begun = elements.random(given.fitted, torch.Generator().manual_seed(3))
    task = replace(given, models=(large[0], permuted(large[1], given.fitted, begun.permutations)))
    first = train(task, begun, HOW)
    found = alternation.alternate(task, begun, first, HOW, DESCENT, rounds=2, least=lambda *points: 0.0)
    taken = [it for it in found.rounds if it.fall > 0]
    before = along(given, begun, first.controls[0])
    after = along(given, found.element, found.trained.controls[0])
    assert taken and sum(it.moved for it in taken) and after < before
    assert abs(before - sum(it.fall for it in taken) - after) < 1e-4
    assert found.trained.steps == first.steps * (1 + len(taken))


def test_a_round_that_makes_it_worse_is_not_taken(problem):  # noqa: F811
    task = problem(seed=1)
    still = elements.identity(task.fitted)
    first, wild = train(task, still, HOW), replace(HOW, learning_rate=300.0)
    found = alternation.alternate(task, still, first, wild, DESCENT, rounds=1, least=lambda *points: 0.0)
    assert found.rounds[0].fall < 0 and found.converged
    assert found.element is still and found.trained is first


def test_every_round_is_held_to_where_it_began_and_draws_anew(problem, monkeypatch):  # noqa: F811
    seen = []
    monkeypatch.setattr(
        alternation,
        "train",
        lambda task, *rest, nu, **more: seen.append((task.seed, nu)) or train(task, *rest, nu=nu, **more),
    )
    alternated(problem(seed=1), 3, least=-100.0)
    assert len({seed for seed, _ in seen}) == 3 and {nu for _, nu in seen} == {DESCENT.nu}
    assert DESCENT.nu is not None


def test_rounds_end_where_one_falls_too_little(problem):  # noqa: F811
    task = problem(seed=1)
    _, found = alternated(task, 3, least=100.0)
    assert len(found.rounds) == 1 and found.converged and found.rounds[0].least == 100
    _, found = alternated(task, 1, least=-100.0)
    assert len(found.rounds) == 1 and not found.converged


def test_a_bend_of_nothing_is_the_line_and_the_curve_is_the_curve(problem):  # noqa: F811
    task, still = problem(), elements.identity(problem().fitted).permutations
    a, b = task.models
    control = tensors(5)
    none = {name: torch.zeros_like(tensor) for name, tensor in a.items()}
    assert line_loss(task, DESCENT, still, none) == line_loss(task, DESCENT, still)
    bend = alternation._bend(a, b, control)
    expected = along(task, Elements(still), control)
    assert abs(line_loss(task, DESCENT, still, bend) - expected) < 1e-5
    assert all(
        torch.allclose(tensor, control[name], atol=1e-6)
        for name, tensor in alternation._control(a, b, control, bend).items()
    )


def test_a_strong_pull_leaves_the_control_point_where_it_was(problem):  # noqa: F811
    task = replace(problem(), data=Batches())
    control, still = tensors(5), elements.identity(task.fitted)
    free, held = (train(task, still, HOW, controls=[control], nu=nu).controls[0] for nu in (None, 1e-4))
    moved = [sum(float((its[n] - control[n]).abs().sum()) for n in control) for its in (free, held)]
    assert moved[1] < 0.05 * moved[0] and moved[0] > 0.1
