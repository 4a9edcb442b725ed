"""The descent of PAM and what it ends with, on a tiny network and samples made of numbers."""

from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import UsageError
from rebasin_cli.learning.curves.curve import Curve
from rebasin_cli.learning.loop import Passes, learn
from rebasin_cli.matchers import Problem, State, pam
from rebasin_cli.matchers.relaxed.search import Run
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

SPEC = "tensors:\n  0.weight: 'h .'\n  0.bias: 'h'\n  2.weight: '. h'\n  2.bias: '.'\n"


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


@cache
def trained(seed):
    """A tenth of a second of training: where units do nothing yet, their order says nothing either."""
    made, batches = network(seed), list(Batches())
    optimizer = torch.optim.Adam(made.parameters(), lr=0.03)
    for _ in range(15):
        for inputs, targets in batches:
            optimizer.zero_grad()
            F.cross_entropy(made(inputs), targets).backward()
            optimizer.step()
    return made.state_dict()


def tensors(seed):
    return {name: tensor.clone() for name, tensor in trained(seed).items()}


class Batches:
    """The same eight batches whenever they are asked for; which of three numbers is the largest."""

    def __iter__(self):
        rng = torch.Generator().manual_seed(7)
        for _ in range(8):
            inputs = torch.randn(16, 5, generator=rng)
            yield inputs, inputs[:, :3].argmax(1)


def problem_of(a=None, b=None, **more):
    a, b = a or tensors(1), b or tensors(2)
    fitted = fit(parse(SPEC, name="tiny"), {name: tuple(t.shape) for name, t in a.items()})
    return Problem(fitted, (a, b), network=network(0), data=Batches(), **more)


def search(problem, **options):
    return pam.match(problem, pam.Options(**{"init": "identity", "epochs": 2} | options))


def line_loss(problem, perms, points=8):
    """The mean loss along the straight line, by the definition: batch k at (k + ½)/8."""
    a, b = problem.models[0], dict(permutation.permuted(problem.models[1], problem.fitted, perms))
    losses = []
    for k, (inputs, targets) in enumerate(Batches()):
        t = (k + 0.5) / points
        here = {n: (1 - t) * a[n] + t * b[n] for n in a}
        losses.append(
            F.cross_entropy(torch.func.functional_call(network(0), here, (inputs,)), targets).item()
        )
    return sum(losses) / len(losses)


def test_a_curve_with_its_control_point_off_the_middle_is_the_line_and_a_bow():
    """(1−t)²A + t²PB + 2t(1−t)(½(A + PB) + θ̃) = (1−t)A + tPB + 2t(1−t)θ̃: at θ̃ = 0 the line itself."""
    a, b, off = ({"w": torch.randn(7, dtype=torch.float64)} for _ in range(3))
    curve = Curve("bezier", a, b, [{"w": (a["w"] + b["w"]) / 2 + off["w"]}])
    for t in (0.0, 0.2, 0.5, 0.9, 1.0):
        line = (1 - t) * a["w"] + t * b["w"]
        torch.testing.assert_close(curve.at(t)["w"], line + 2 * t * (1 - t) * off["w"])


def test_a_step_is_the_gradient_through_the_line_the_pull_and_the_projection():
    problem = problem_of()
    run = Run(problem, pam.Options(learning_rate=0.3, nu=2.0, projections=3))
    run.begin(State((permutation.identity(problem.fitted.words),)))
    inputs, targets = next(iter(Batches()))
    learn(run, Passes([(inputs, targets)]))
    matrix = torch.eye(6, requires_grad=True)
    a, b = problem.models
    moved = {
        "0.weight": matrix @ b["0.weight"],
        "0.bias": matrix @ b["0.bias"],
        "2.weight": b["2.weight"] @ matrix.T,
        "2.bias": b["2.bias"],
    }
    t = torch.rand((), generator=generator(problem.seed, "point 0")).item()
    here = {n: (1 - t) * a[n] + t * moved[n] for n in a}
    F.cross_entropy(torch.func.functional_call(network(0), here, (inputs,)), targets).backward()
    pull = 0.3 / 2.0
    found = (matrix.detach() - 0.3 * matrix.grad + pull * torch.eye(6)) / (1 + pull)
    for _ in range(3):
        found = found.clamp(min=0)
        total = found.sum()
        found = found + (1 + total / 6) / 6 - found.sum(1, keepdim=True) / 6 - found.sum(0, keepdim=True) / 6
    torch.testing.assert_close(run.matrices["h"].detach(), found, atol=1e-5, rtol=1e-5)


def test_the_objective_is_the_mean_loss_of_the_line_and_never_falls():
    problem = problem_of()
    still = permutation.identity(problem.fitted.words)
    found = search(problem, learning_rate=0.5, scored=128)
    assert -found.objective_before == pytest.approx(line_loss(problem, still), rel=1e-5)
    assert -found.objective_after == pytest.approx(line_loss(problem, found.permutations[0]), rel=1e-5)
    assert found.objective_after > found.objective_before
    assert found.account.rounding.chosen != "start" and found.sweeps == 16


def test_where_it_began_is_given_back_when_nothing_is_better():
    problem = problem_of(b=tensors(1))
    found = search(problem, learning_rate=1.0, epochs=3)
    assert found.account.rounding.chosen == "start" and permutation.is_identity(found.permutations[0])
    assert found.objective_after == found.objective_before
    assert found.account.rounding.loss_nearest >= found.account.rounding.loss_start


def test_the_two_readings_of_what_is_minimised_differ_by_the_pull():
    """With a strong pull, 1/ν a unit that is elsewhere outweighs what the loss gains."""
    problem = problem_of()
    options = {"learning_rate": 0.5, "nu": 0.01}
    # the descent itself would stay: it begins where a weak pull had ended
    weak = Run(problem, pam.Options(learning_rate=0.5))
    weak.begin(State((permutation.identity(problem.fitted.words),)))
    learn(weak, weak.passes)

    def rounded(choose):
        weak.options = pam.Options(**options, choose=choose)
        return weak.rounded()

    by_loss, penalised = rounded("loss"), rounded("penalised")
    assert by_loss.account.rounding.by_loss == by_loss.account.rounding.chosen != "start"
    assert penalised.account.rounding.by_penalised == penalised.account.rounding.chosen == "start"
    assert by_loss.account.rounding.by_penalised == "start"
    moved = by_loss.account.rounding.units_moved
    gain = by_loss.account.rounding.loss_start - by_loss.account.rounding.loss
    assert moved > 0 and gain < moved / options["nu"]


def test_the_pull_keeps_the_matrices_where_they_began():
    problem = problem_of()
    far = []
    for nu in (1e6, 1e-3):
        run = Run(problem, pam.Options(learning_rate=0.5, epochs=1, nu=nu))
        run.begin(State((permutation.identity(problem.fitted.words),)))
        learn(run, run.passes)
        far.append((run.matrices["h"].detach() - torch.eye(6)).norm().item())
    assert far[1] < 0.05 < 0.1 < far[0]


@pytest.mark.parametrize("projection", ["alternating", "dykstra", "sinkhorn"])
@pytest.mark.parametrize("terms", [10, 11])
def test_every_projection_and_count_of_terms_finds_permutations(projection, terms):
    problem = problem_of()
    found = search(problem, learning_rate=0.5, projection=projection, terms=terms)
    permutation.check(found.permutations[0], problem.fitted.words)
    assert found.objective_after >= found.objective_before and found.solves <= 1 + terms


def test_a_planted_permutation_is_nearer_than_nothing():
    """How often all of it is found the page reports; here the loss falls well below the start's."""
    rng = torch.Generator().manual_seed(3)
    problem = problem_of()
    model = tensors(1)
    perms = permutation.random(problem.fitted.words, rng)
    planted = problem_of(a=model, b=dict(permutation.permuted(model, problem.fitted, perms)))
    found = search(planted, learning_rate=1.0, epochs=10)
    best = line_loss(planted, permutation.invert(perms))
    start = line_loss(planted, permutation.identity(problem.fitted.words))
    assert -found.objective_after < start - 0.3 * (start - best)


def test_ignored_tensors_are_the_first_ones_throughout():
    text = SPEC.replace("  2.bias: '.'\n", "ignore:\n  - 2.bias\n")
    a, b = tensors(1), tensors(2)
    b["2.bias"] += 100  # would decide every output
    fitted = fit(parse(text, name="tiny"), {name: tuple(t.shape) for name, t in a.items()})
    problem = Problem(fitted, (a, b), network=network(0), data=Batches())
    assert -search(problem).objective_after < 5


@pytest.mark.parametrize(
    "options, says",
    [({"nu": 0.0}, "nu"), ({"terms": 0}, "terms"), ({"choose": "prox"}, "choose"), ({"epochs": 0}, "epochs")],
)
def test_options_that_make_no_search_are_refused(options, says):
    with pytest.raises(UsageError, match=says):
        pam.Options(**options)
