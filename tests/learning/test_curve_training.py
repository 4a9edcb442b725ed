"""Training of control points, on a tiny network and samples made of numbers."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.datasets import Data, Normalization, Samples
from rebasin_cli.errors import DataError, NetworkError, UsageError
from rebasin_cli.learning.curves import training
from rebasin_cli.learning.curves.curve import Curve, shares
from rebasin_cli.learning.curves.training import Training, train
from rebasin_cli.matchers import Problem
from rebasin_cli.networks.attacks import Attack, Attacker
from rebasin_cli.runtime.seeds import generator, uniform
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

SPEC = """
tensors:
  0.weight: "h ."
  0.bias: "h"
  2.weight: ". h"
  2.bias: "."
"""


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def tensors(seed):
    return {name: tensor.clone() for name, tensor in network(seed).state_dict().items()}


class Batches:
    """The same four batches whenever they are asked for; which of three numbers is the largest."""

    def __iter__(self):
        rng = torch.Generator().manual_seed(7)
        for _ in range(4):
            inputs = torch.randn(16, 5, generator=rng)
            yield inputs, inputs[:, :3].argmax(1)


@pytest.fixture
def problem():
    def problem(a=None, b=None, **more):
        a, b = a or tensors(1), b or tensors(2)
        fitted = fit(parse(SPEC, name="tiny"), {name: tuple(t.shape) for name, t in a.items()})
        return Problem(fitted, (a, b), network=network(0), data=Batches(), **more)

    return problem


def still(problem):
    return permutation.identity(problem.fitted.words)


def test_one_sample_is_too_few_for_norms_and_that_is_said():
    def normed(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))

    lines = [f'  1.{name}: "h"' for name in ("weight", "bias", "running_mean", "running_var")]
    text = "\n".join([SPEC.replace("2.", "3.").rstrip(), *lines, '  1.num_batches_tracked: ""'])
    a, b = (normed(seed).state_dict() for seed in (1, 2))
    fitted = fit(parse(text, name="normed"), {name: tuple(t.shape) for name, t in a.items()})
    few = Data("x", "train", Samples(torch.rand(1, 5), torch.zeros(1).long()), Normalization(), classes=3)
    of = Problem(fitted, (a, b), network=normed(0), data=few)
    with pytest.raises(DataError, match="two samples or more, which the network's norms need"):
        train(of, still(of), Training(epochs=1))


@pytest.mark.parametrize("kind", ["bezier", "chain"])
def test_a_step_is_the_gradient_through_the_formula(problem, kind):
    """One step of a curve with two bends against autograd through r(t), with weight decay on r(t)."""
    of = problem()
    how = Training(kind, bends=2, epochs=1, learning_rate=0.1, weight_decay=0.01, limit=16)
    found = train(of, still(of), how)
    a, b = of.models
    controls = [{n: (a[n] + (b[n] - a[n]) * k / 3).requires_grad_() for n in a} for k in (1, 2)]
    t = uniform(of.seed, "point 0")
    weights = shares(kind, t, 4)
    here = {n: sum(w * p[n] for w, p in zip(weights, [a, *controls, b], strict=True)) for n in a}
    inputs, targets = next(iter(Batches()))
    loss = F.cross_entropy(torch.func.functional_call(network(0), here, (inputs,)), targets)
    loss = loss + 0.005 * sum(tensor.square().sum() for tensor in here.values())
    loss.backward()
    for control, after in zip(controls, found.controls, strict=True):
        for name, tensor in control.items():
            step = 0.1 * 1.9 * tensor.grad  # Nesterov's first step: gradient and 0.9 of it once more
            torch.testing.assert_close(after[name], (tensor - step).detach(), atol=1e-6, rtol=1e-5)


def test_steps_are_those_of_torchs_own_optimizer(problem):
    """All of a training against torch's SGD with Nesterov's momentum, on gradients through the formula."""
    of, (a, b) = problem(), problem().models
    found = train(of, still(of), Training(epochs=2, learning_rate=0.1, schedule="constant"))
    control = {name: ((a[name] + b[name]) / 2).requires_grad_() for name in a}
    optimizer = torch.optim.SGD(control.values(), lr=0.1, momentum=0.9, nesterov=True)
    for number, (inputs, targets) in enumerate([*Batches(), *Batches()]):
        weights = shares("bezier", uniform(of.seed, f"point {number}"), 3)
        parts = list(zip(weights, [a, control, b], strict=True))
        here = {name: sum(w * model[name] for w, model in parts) for name in a}
        optimizer.zero_grad()
        F.cross_entropy(torch.func.functional_call(network(0), here, (inputs,)), targets).backward()
        optimizer.step()
    for name, tensor in found.controls[0].items():
        torch.testing.assert_close(tensor, control[name].detach(), atol=1e-6, rtol=1e-5)


def test_an_untrained_curve_between_a_model_and_itself_is_that_model_everywhere(problem):
    of = problem(a=tensors(1), b=tensors(1))
    search = training.Search(of, still(of), Training(bends=2))
    (inputs, targets), *_ = Batches()
    own = F.cross_entropy(torch.func.functional_call(network(0), tensors(1), (inputs,)), targets).item()
    for t in (0.0, 0.21, 0.5, 0.93, 1.0):
        search.mixture.mix(shares("bezier", t, 4))
        assert search.mixture.loss(inputs, targets, 0).item() == pytest.approx(own, abs=1e-6)


class Tied(nn.Module):
    """Reads and answers by one matrix, under two names."""

    def __init__(self):
        super().__init__()
        self.read, self.answer = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        self.answer.weight = self.read.weight

    def forward(self, inputs):
        return self.answer(torch.relu(self.read(inputs)))


def test_tied_tensors_stay_one_in_control_points_and_along_the_curve():
    made, rng = Tied(), torch.Generator().manual_seed(0)
    drawn = [torch.randn(5, 5, generator=rng) for _ in range(2)]
    models = tuple({name: weight.clone() for name in made.state_dict()} for weight in drawn)
    spec = "tensors:\n  read.weight: '. .'\n  answer.weight: '. .'\n  extra: 'h'\n"
    models = tuple(model | {"extra": torch.zeros(3)} for model in models)
    fitted = fit(parse(spec, name="tied"), {name: tuple(t.shape) for name, t in models[0].items()})
    of = Problem(fitted, models, network=made, data=Batches())
    (control,) = train(of, still(of), Training(epochs=2)).controls
    middle = Curve("bezier", *models, [control]).at(0.4)
    assert torch.equal(control["read.weight"], control["answer.weight"])
    assert torch.equal(middle["read.weight"], middle["answer.weight"])
    line = (models[0]["read.weight"] + models[1]["read.weight"]) / 2
    assert not torch.allclose(control["read.weight"], line)  # both uses moved it


@pytest.mark.parametrize("kind", ["bezier", "chain"])
def test_a_relabelled_pair_gets_the_relabelled_curve(problem, kind):
    of, how = problem(), Training(kind=kind, epochs=3)
    perm = permutation.random(of.fitted.words, torch.Generator().manual_seed(0))
    moved = problem(*(dict(permutation.permuted(model, of.fitted, perm)) for model in of.models))
    (one,), (other,) = train(of, still(of), how).controls, train(moved, still(of), how).controls
    for name, tensor in permutation.permuted(one, of.fitted, perm).items():
        torch.testing.assert_close(other[name], tensor, atol=1e-5, rtol=1e-5)


def test_training_lowers_the_loss_in_the_middle(problem):
    of = problem()
    a, b = of.models

    def middle(controls):
        here = dict(Curve("bezier", a, b, controls).at(0.5))
        outputs = [torch.func.functional_call(network(0), here, (inputs,)) for inputs, _ in Batches()]
        targets = [targets for _, targets in Batches()]
        return F.cross_entropy(torch.cat(outputs), torch.cat(targets)).item()

    line = [{name: (a[name] + b[name]) / 2 for name in a}]
    trained = train(of, still(of), Training(epochs=40, learning_rate=0.5))
    assert middle(trained.controls) < 0.6 * middle(line)
    assert trained.steps == 160 and len(trained.losses) == 40


@pytest.mark.parametrize("after", [1, 6, 11])
def test_an_interrupted_training_goes_on_to_the_same_bits(problem, after):
    states = []

    def keep(state):
        if state.sweep == after:
            copied = {name: tensor.clone() for name, tensor in state.tensors.items()}
            states.append(dataclasses.replace(state, tensors=copied))

    how, of = Training(epochs=3, bends=2, schedule="cosine"), problem(progress=keep)
    whole = train(of, still(of), how)
    rest = train(problem(start=states[0]), still(of), how)
    assert rest.steps == whole.steps == 12
    for one, other in zip(whole.controls, rest.controls, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_what_the_spec_ignores_is_no_part_of_a_control_point_and_stays_the_first_models(problem):
    of = problem()
    fitted = dataclasses.replace(of.fitted, ignored=frozenset({"2.bias"}))
    of = dataclasses.replace(of, fitted=fitted)
    search = training.Search(of, still(of), Training(epochs=2))
    (control,) = search.run().controls
    for row in search.mixture.rows:  # nor did it move while the others were trained
        assert torch.equal(search.mixture.flat.views(row)["2.bias"], of.models[0]["2.bias"])
    assert "2.bias" not in control and "2.weight" in control
    curve = Curve("bezier", *of.models, [control], fitted.ignored)
    assert torch.equal(curve.at(0.5)["2.bias"], of.models[0]["2.bias"])


def test_a_rate_that_is_too_large_is_told(problem):
    of = problem()
    with pytest.raises(NetworkError, match="the loss is .* at step"):
        train(of, still(of), Training(epochs=50, learning_rate=1e12))


def test_a_curve_that_the_last_step_broke_is_told(problem):
    of = problem()
    with pytest.raises(NetworkError, match="in the middle of the curve after the last step"):
        train(of, still(of), Training(epochs=1, limit=16, learning_rate=1e30))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "circle"}, "unknown kind of curve"),
        ({"schedule": "linear"}, "unknown schedule"),
        ({"bends": 0}, "bends is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
    ],
)
def test_what_trains_no_curve(wrong, says):
    with pytest.raises(UsageError, match=says):
        Training(**wrong)


def test_twelve_halvings_whatever_the_number_of_epochs(problem):
    search = training.Search(problem(), {}, Training(epochs=250, learning_rate=1.0))
    rates = []
    for epoch in range(250):
        with search.within(epoch):
            rates.append(search.now)
    assert rates[0] == rates[20] == 1 and rates[21] == 0.5 and rates[249] == 0.5**11


def test_under_attack_the_gradient_is_taken_where_the_attack_at_that_point_ended(problem):
    rng = torch.Generator().manual_seed(7)
    inputs = torch.rand(16, 5, 1, generator=rng)
    targets = inputs[:, :3, 0].argmax(1)
    data = Data("made", "train", Samples(inputs, targets), Normalization(), 3, batch_size=16)
    made = nn.Sequential(nn.Flatten(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))
    spec = SPEC.replace("2.", "3.").replace("0.", "1.")
    models = [{n.replace("2.", "3.").replace("0.", "1."): t for n, t in tensors(k).items()} for k in (1, 2)]
    fitted = fit(parse(spec, name="tiny"), {name: tuple(t.shape) for name, t in models[0].items()})
    of = Problem(fitted, tuple(models), network=made, data=data)
    how = Training(epochs=1, learning_rate=0.1, attack="0.2,steps=3")
    (found,) = train(of, still(of), how).controls
    t = uniform(of.seed, "point 0")
    control = {n: ((models[0][n] + models[1][n]) / 2).requires_grad_() for n in models[0]}
    weights = shares("bezier", t, 3)
    parts = list(zip(weights, [models[0], control, models[1]], strict=True))
    here = {n: sum(w * p[n] for w, p in parts) for n in control}
    still_here = {n: tensor.detach() for n, tensor in here.items()}

    def loss(x, y, at=still_here):
        return F.cross_entropy(torch.func.functional_call(made, at, (x,)), y)

    order = torch.randperm(16, generator=generator(of.seed, "order of epoch 0"))
    batch = inputs[order], targets[order]
    moved = Attacker(Attack.parse("0.2,steps=3"), data)(*batch, loss, generator(of.seed, "attack 0"))
    assert (moved - batch[0]).abs().max() > 0.1
    loss(moved, batch[1], here).backward()
    for name, tensor in control.items():
        torch.testing.assert_close(found[name], (tensor - 0.19 * tensor.grad).detach(), atol=1e-6, rtol=1e-5)
