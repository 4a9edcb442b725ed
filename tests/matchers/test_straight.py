"""Straight-through estimation against a plain account of it, and what is kept of a search."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import rebasin_cli
from rebasin_cli import nets
from rebasin_cli.datasets import Data, Normalization, Samples, open_data
from rebasin_cli.datasets.held_out import held_out
from rebasin_cli.errors import DataError, NetworkError, UsageError
from rebasin_cli.matchers import Problem, State, ste, ste_mm, wm
from rebasin_cli.matchers.portfolio import in_turn
from rebasin_cli.matchers.straight_through import mixture, projection
from rebasin_cli.matchers.straight_through.mixture import Flat, Mixture
from rebasin_cli.matchers.straight_through.projection import Followers, Projection
from rebasin_cli.matchers.straight_through.search import Run
from rebasin_cli.matchers.straight_through.settings import Optimizer
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.networks import layout, load
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.runtime.signals import held_back, stoppable
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Word
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.permutation import permuted

SIZE, HIDDEN, CLASSES = 7, 6, 3


def network(**options):
    return nets.build("mlp", input_shape=(SIZE,), classes=CLASSES, **{"width": HIDDEN, "depth": 1, **options})


def model(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: tensor.clone() for name, tensor in network().state_dict().items()}


def batches(count=4, size=16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count * size, SIZE, generator=rng)
    targets = torch.randint(CLASSES, (count * size,), generator=rng)
    return list(zip(inputs.split(size), targets.split(size), strict=True))


def spec_of(tensors):
    return library.find({name: tuple(tensor.shape) for name, tensor in tensors.items()})


def problem(count=2, **options):
    models = tuple(model(seed) for seed in range(count))
    given = {"network": network(), "data": batches(), "seed": 3} | options
    return Problem(spec_of(models[0]), models, **given)


def states_of(module, task, options):
    """Every state, its tensors copied, and the result."""
    kept = []

    def keep(state):
        kept.append(State(**{**vars(state), "tensors": {n: t.clone() for n, t in state.tensors.items()}}))

    found = module.match(Problem(**{**vars(task), "progress": keep}), options)
    return kept, found


def slices(tensors, fitted, word):
    """Every unit's numbers (n, k), from all axes that carry the word."""
    found = [
        tensors[name].detach().movedim(d, 0).reshape(tensors[name].shape[d], -1)
        for name, axes in fitted.tensors.items()
        for d, axis in enumerate(axes)
        if axis == Word(word)
    ]
    return torch.cat(found, dim=1)


def plain(task, mixtures, step, epochs):
    """The dummies after every step, by the straight-through trick itself and scipy's cold assignments.

    Of networks with one word.
    """
    [word] = task.fitted.words
    reference, *others = task.models
    names = [name for name in reference]
    dummies = [{name: reference[name].clone().requires_grad_() for name in names} for _ in others]
    rest, _ = held_out(task.data, 0)
    net, done, account = task.network, 0, []
    for _ in range(epochs):
        for inputs, targets in rest:
            share = mixtures(done)
            standing = []
            for dummy, other in zip(dummies, others, strict=True):
                similar = slices(dummy, task.fitted, word) @ slices(other, task.fitted, word).T
                best = torch.from_numpy(linear_sum_assignment(similar.numpy(), maximize=True)[1])
                standing.append(permuted(other, task.fitted, {word: best}))
            point = {n: share[0] * reference[n] for n in names}
            for weight, dummy, other in zip(share[1:], dummies, standing, strict=True):
                point = {n: point[n] + weight * (dummy[n] + (other[n] - dummy[n]).detach()) for n in names}
            loss = F.cross_entropy(torch.func.functional_call(net, point, (inputs,)), targets)
            values = [dummy[n] for dummy in dummies for n in names]
            gradients = torch.autograd.grad(loss, values)
            with torch.no_grad():
                step(values, gradients)
            done += 1
            account.append((loss.item(), [{n: d[n].detach().clone() for n in names} for d in dummies]))
    return account


def descend(rate):
    """SGD with momentum 0.9, written out."""
    moving = {}

    def step(values, gradients):
        for k, (value, gradient) in enumerate(zip(values, gradients, strict=True)):
            moving[k] = gradient + 0.9 * moving[k] if k in moving else gradient.clone()
            value -= rate * moving[k]

    return step


def check(task, kept, account):
    """The search's dummies after every step are those of the plain account."""
    flat = Flat(task.network)
    steps = {state.sweep: state for state in kept}
    assert list(steps) == list(range(1, len(account) + 1))
    for state, (loss, dummies) in zip(steps.values(), account, strict=True):
        assert state.notes["loss"] == pytest.approx(loss, rel=1e-5)
        for k, dummy in enumerate(dummies):
            found = flat.views(state.tensors[f"dummy.{k}"])
            assert all(torch.allclose(found[name], dummy[name], atol=1e-5) for name in dummy)


def test_the_estimator_for_two_models_is_that_of_the_paper():
    """Every step against autograd with (π(B) − B̃) detached, all permutations solved cold."""
    task = problem()
    options = ste.Options(epochs=3, optimizer="sgd", learning_rate=0.3, share=1.0, init="wm")
    kept, _ = states_of(ste, task, options)
    account = plain(task, lambda _: (0.5, 0.5), descend(0.3), 3)
    assert len({tuple(state.tensors["at.0.h0"].tolist()) for state in kept}) > 1  # units did move
    check(task, kept, account)


class Convolved(torch.nn.Module):
    """A hidden layer of convolutions on either side."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(2, HIDDEN, 3)
        self.second = torch.nn.Conv2d(HIDDEN, CLASSES, (3, 2))

    def forward(self, inputs):
        return self.second(F.relu(self.first(inputs))).mean(dim=(2, 3))


def test_the_estimator_holds_for_convolutions():
    models = []
    for seed in range(3):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            models.append(dict(Convolved().state_dict()))
    text = (
        "tensors:\n  first.weight: h 2 3 3\n  first.bias: h\n  second.weight: 3 h 3 2\n  second.bias: '3'\n"
    )
    shapes = {name: tuple(tensor.shape) for name, tensor in models[0].items()}
    fitted = fit(parse(text, name="convolved"), shapes)
    rng = torch.Generator().manual_seed(1)
    data = [
        (torch.randn(16, 2, 6, 6, generator=rng), torch.randint(CLASSES, (16,), generator=rng))
        for _ in range(4)
    ]
    task = Problem(fitted, tuple(models), network=Convolved(), data=data, seed=3)
    options = ste_mm.Options(epochs=4, optimizer="sgd", learning_rate=1.5, share=1.0)
    kept, _ = states_of(ste_mm, task, options)

    def mixtures(done):
        return ste_mm.uniforms(generator(3, f"mixture {done}"), 3).tolist()

    assert len({tuple(state.tensors["at.0.h"].tolist()) for state in kept}) > 1  # units did move
    check(task, kept, plain(task, mixtures, descend(1.5), 4))


def test_a_step_multiplies_convolutions_as_they_lie():
    """Of a model's row no numbers are copied to make similarities, unless its units share an offset."""
    torch.manual_seed(0)  # whose units have none
    net = nets.build("resnet20", input_shape=(3, 32, 32), classes=10, width=1)
    states = [dict(net.state_dict()) for _ in range(2)]
    flat = Flat(net)
    rows = [flat.row(state) for state in states]
    moving, standing = (flat.views(row, state) for row, state in zip(rows, states, strict=True))
    pair = Projection(moving, standing, spec_of(states[0])).pair
    for word in pair.words:
        for atom in pair.single[word]:
            if len(atom.words) == 4:
                [slab] = pair._slabs(atom, atom.words.index(word), {})
                for side, row in zip(slab, rows, strict=True):
                    assert side.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()


def test_the_estimator_for_many_models_is_that_of_the_paper():
    task = problem(4)
    options = ste_mm.Options(epochs=3, optimizer="sgd", learning_rate=0.5, share=1.0, init="wm")
    kept, _ = states_of(ste_mm, task, options)

    def mixtures(done):
        return ste_mm.uniforms(generator(3, f"mixture {done}"), 4).tolist()

    check(task, kept, plain(task, mixtures, descend(0.5), 3))


def test_moving_the_midpoint_is_moving_the_model_by_longer_steps():
    """With M̃ = ½(A + B̃) the gradient of the midpoint is not halved, and B̃ = 2M̃ − A moves twice as far."""
    task = problem()
    kept, _ = states_of(
        ste, task, ste.Options(epochs=2, optimizer="sgd", learning_rate=0.1, share=1.0, parameter="midpoint")
    )

    def twice(values, gradients, own=descend(0.1)):  # noqa: B008
        halves = [value / 2 for value in values]
        own(halves, [2 * gradient for gradient in gradients])
        for value, half in zip(values, halves, strict=True):
            value.copy_(2 * half)

    check(task, kept, plain(task, lambda _: (0.5, 0.5), twice, 2))


@pytest.mark.parametrize(("optimizer", "rate"), [("adam", 1), ("sgd", 2)])
def test_the_midpoint_projected_by_inner_products_is_the_search_that_there_is(optimizer, rate):
    """Git Re-Basin, section 3.3, footnote 2: M̃ starts at A, B is matched to M̃ itself, and M̃ takes the step.

    It moves by the midpoint's gradient, twice that of B̃: Adam does not mind, SGD goes twice as far.
    """
    task = problem()
    options = ste.Options(epochs=2, optimizer=optimizer, learning_rate=0.02 * rate, share=1.0, init="wm")
    kept, _ = states_of(ste, task, options)
    reference, other = task.models
    middle = {name: tensor.clone().requires_grad_() for name, tensor in reference.items()}
    made = {"adam": torch.optim.Adam, "sgd": lambda *given: torch.optim.SGD(*given, momentum=0.9)}
    moves, account = made[optimizer](middle.values(), 0.02), []
    for inputs, targets in [*held_out(task.data, 0)[0]] * 2:
        similar = slices(middle, task.fitted, "h0") @ slices(other, task.fitted, "h0").T
        best = torch.from_numpy(linear_sum_assignment(similar.numpy(), maximize=True)[1])
        mean = {n: (reference[n] + t) / 2 for n, t in permuted(other, task.fitted, {"h0": best}).items()}
        point = {n: m + (mean[n] - m).detach() for n, m in middle.items()}
        loss = F.cross_entropy(torch.func.functional_call(task.network, point, (inputs,)), targets)
        moves.zero_grad()
        loss.backward()
        moves.step()
        account.append((loss.item(), [{n: m.detach().clone() for n, m in middle.items()}]))
    assert len({tuple(state.tensors["at.0.h0"].tolist()) for state in kept}) > 1  # units did move
    check(task, kept, account)


@pytest.mark.parametrize(("mixture", "least", "width"), [("uniform", 0.0, 1.0), ("near", 0.4, 0.2)])
def test_a_random_mixture_is_another_one_in_each_step(mixture, least, width):
    task = problem()
    options = ste.Options(epochs=2, optimizer="sgd", learning_rate=0.3, share=1.0, mixture=mixture)
    kept, _ = states_of(ste, task, options)

    def mixtures(done):
        share = least + width * torch.rand((), generator=generator(3, f"mixture {done}")).item()
        return 1 - share, share

    assert len({mixtures(k) for k in range(4)}) == 4
    check(task, kept, plain(task, mixtures, descend(0.3), 2))


@pytest.mark.parametrize(("prior", "spread"), [("uniforms", 0.058), ("dirichlet", 0.090)])
def test_mixtures_spread_as_the_paper_and_its_program_draw_them(prior, spread):
    rng = torch.Generator().manual_seed(0)
    drawn = torch.stack([ste_mm.PRIORS[prior](rng, 10) for _ in range(4000)])
    assert torch.allclose(drawn.sum(1), torch.ones(4000, dtype=torch.float64))
    assert drawn.mean(0).sub(0.1).abs().max() < 0.005 and (drawn > 0).all()
    assert drawn.std().item() == pytest.approx(spread, abs=0.001)


@pytest.mark.parametrize(
    ("count", "of", "halfway"), [(3, "wm", False), (3, "others", True), (2, "others", False)]
)
def test_dummies_begin_where_they_do_not_undo_the_start(count, of, halfway):
    task = problem(count)
    pairs = [replace(task, models=(task.models[0], m), data=None, network=None) for m in task.models[1:]]
    start = [wm.match(pair).permutations[0] for pair in pairs]
    if of == "others":  # matched to something else than the reference
        start = [{word: perm.roll(2) for word, perm in perms.items()} for perms in start]
    run = Run(task, ste_mm.Options(), ste_mm.uniforms, 1.0)
    run.begin(State(tuple(start)))
    reference = run.mixture.flat.row(task.models[0])
    own = [permuted(m, task.fitted, p) for m, p in zip(task.models[1:], start, strict=True)]
    mean = sum([reference, *map(run.mixture.flat.row, own)]) / count
    for dummy in run.dummies:
        assert torch.allclose(dummy, (reference + mean) / 2 if halfway else reference)
    stands = zip(run.followers.permutations, start, strict=True)
    assert all(torch.equal(now[word], perm) for now, perms in stands for word, perm in perms.items())
    run.close()


def test_logits_of_too_many_numbers_have_no_best_temperature_of_their_own(monkeypatch):
    task = problem(3)
    mean = Mixture(task, "fp32")
    found = mean.held_out(task.data)
    assert found.calibrated < found.loss
    monkeypatch.setattr(mixture, "MOST", 16 * CLASSES * 4 - 1)
    assert mean.held_out(task.data) == found._replace(calibrated=found.loss)


def test_held_out_accuracy_is_of_the_targets_that_count():
    data = batches()
    some = [(x, torch.where(torch.arange(len(y)) < 8, y, -100)) for x, y in data]
    first = [(x[:8], y[:8]) for x, y in data]
    mean = Mixture(problem(), "fp32")
    whole, part = mean.held_out(some), mean.held_out(first)
    assert whole.accuracy == pytest.approx(part.accuracy) and part.accuracy > 0
    assert whole.loss == pytest.approx(part.loss)


def test_classes_that_are_masked_out_leave_the_loss_as_it_is():
    class Masked(MLP):
        def forward(self, inputs):
            return super().forward(inputs).index_fill(1, torch.tensor([0]), -torch.inf)

    data = [(inputs, targets.clamp(min=1)) for inputs, targets in batches()]
    held = Mixture(problem(network=Masked([SIZE, HIDDEN, CLASSES]), data=data), "fp32").held_out(data)
    assert 0 < held.loss < torch.inf and held.calibrated == held.loss


def test_what_is_kept_is_the_best_by_held_out_loss_at_the_best_temperature():
    task = problem(3)
    _, found = states_of(ste_mm, task, ste_mm.Options(epochs=6, learning_rate=0.1))
    rows = found.account.history
    losses, calibrated = ([row[f"held_out_{how}"] for row in rows] for how in ("loss", "calibrated"))
    best = calibrated.index(min(calibrated))
    assert len(set(losses)) > 3 and best < len(losses) - 1  # not the last one
    assert losses.index(min(losses)) != best  # as it is another one loses less
    assert found.objective_after == -losses[best]
    moved = [permuted(m, task.fitted, p) for m, p in zip(task.models[1:], found.permutations, strict=True)]
    mean = {n: sum(m[n] for m in (task.models[0], *moved)) / 3 for n in task.models[0]}
    inputs, targets = next(iter(held_out(task.data, 0)[1]))
    logits = load(task.network, mean)(inputs).detach()
    assert F.cross_entropy(logits, targets).item() == pytest.approx(losses[best], rel=1e-5)
    each = [F.cross_entropy(logits / t, targets).item() for t in torch.logspace(-2, 2, 2001).tolist()]
    assert min(each) == pytest.approx(min(calibrated), rel=1e-5)


def test_fewer_permutations_a_step_are_all_solved_in_turn():
    deep = nets.build("mlp", input_shape=(SIZE,), classes=CLASSES, width=HIDDEN, depth=4)
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append({name: torch.randn_like(tensor) for name, tensor in deep.state_dict().items()})
    task = Problem(spec_of(models[0]), tuple(models), 0, network=deep, data=batches(9))
    every = ste_mm.match(task, ste_mm.Options(epochs=2, share=1.0, init="identity"))
    assert every.solves == every.sweeps * 2 * 4
    some = ste_mm.match(task, ste_mm.Options(epochs=2, share=0.25, init="identity"))
    assert 0.2 * every.solves <= some.solves <= 0.3 * every.solves
    assert all(not permutation.is_identity(perms) for perms in some.permutations)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("share", [pytest.param(1.0, marks=pytest.mark.sweep), 0.3])
def test_a_search_goes_on_from_any_step_to_the_same_bits(optimizer, share):
    options = ste_mm.Options(epochs=3, optimizer=optimizer, share=share, learning_rate=0.1)
    kept, whole = states_of(ste_mm, problem(3), options)
    for state in kept:
        after, again = states_of(ste_mm, problem(3, start=state), options)
        assert again.account.history == whole.account.history
        assert (
            again.objective_after == whole.objective_after
            and again.account.init == whole.account.init == "wm"
        )
        assert again.solves == whole.solves
        for p, q in zip(again.permutations, whole.permutations, strict=True):
            assert torch.equal(p["h0"], q["h0"])
        if after:
            last, expected = after[-1].tensors, kept[-1].tensors
            assert last.keys() == expected.keys()
            assert all(torch.equal(last[n], expected[n]) for n in last if n != "history")


@pytest.mark.parametrize("lacking", ["init", "dummy.1", "history", "optimizer.1.exp_avg"])
def test_a_state_that_lacks_something_is_refused(lacking):
    kept, _ = states_of(ste_mm, problem(3), ste_mm.Options(epochs=1))
    state = kept[-1]
    notes, tensors = (
        {name: value for name, value in part.items() if name != lacking}
        for part in (state.notes, state.tensors)
    )
    damaged = State(state.permutations, state.sweep, state.objective, notes, tensors)
    with pytest.raises(
        UsageError, match=f"what was kept of it lacks '{lacking.removeprefix('optimizer.1.')}'"
    ):
        ste_mm.match(problem(3, start=damaged), ste_mm.Options(epochs=1))


def test_a_history_of_other_figures_is_refused():
    kept, _ = states_of(ste_mm, problem(3), ste_mm.Options(epochs=1))
    before = kept[-1].tensors | {"history": kept[-1].tensors["history"][:, :4]}
    with pytest.raises(UsageError, match="what was kept of it lacks 'held_out_calibrated'"):
        ste_mm.match(problem(3, start=replace(kept[-1], tensors=before)), ste_mm.Options(epochs=1))


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_optimizers_move_as_those_of_pytorch_do(kind):
    dummy, options = torch.rand(50), ste.Options(optimizer=kind, learning_rate=0.01)
    leaf, ours = dummy.clone().requires_grad_(), Optimizer(dummy, options, 3.0)
    more = {"momentum": 0.9} if kind == "sgd" else {}
    theirs = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[kind]([leaf], lr=3.0 * 0.01, **more)
    for _ in range(4):
        gradient = torch.randn(50)
        leaf.grad = gradient.clone()
        theirs.step()
        ours.step(gradient)
        assert torch.equal(dummy, leaf)
        assert all(torch.equal(value, theirs.state[leaf][name]) for name, value in ours.state.items())


def _passes(mixture, inputs):
    """As PyTorch itself counts them."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        mixture.network(inputs)
    return 1.5 * counter.get_total_flops()


def test_attention_is_counted_as_pytorch_counts_it():
    net = nets.build("vit", input_shape=(3, 8, 8), classes=10, patch=4, width=16, heads=2, depth=1)
    tensors = dict(net.state_dict())
    mixture = Mixture(Problem(spec_of(tensors), (tensors, tensors), network=net, data=[]), "fp32")
    inputs = torch.rand(9, 3, 8, 8)
    assert mixture.passes(inputs, 9) == _passes(mixture, inputs) > 0


@pytest.mark.parametrize("norm", [False, True])
def test_a_few_samples_tell_the_multiplications_of_a_batch(norm):
    net = nets.build("vgg11_bn" if norm else "vgg11", input_shape=(3, 32, 32), classes=10)
    tensors = dict(net.state_dict())
    task = Problem(spec_of(tensors), (tensors, tensors), network=net, data=[])
    mixture, inputs = Mixture(task, "fp32"), torch.rand(7, 3, 32, 32)
    assert mixture.passes(inputs, 7) == _passes(mixture, inputs) > 0


def test_a_network_that_runs_on_no_few_samples_is_counted_on_the_whole():
    class Fixed(MLP):
        def forward(self, x):
            return super().forward(x.view(16, SIZE))

    net = network()
    net.__class__ = Fixed
    mixture, inputs = Mixture(problem(network=net), "fp32"), torch.rand(16, SIZE)
    assert mixture.passes(inputs, 16) == _passes(mixture, inputs) > 0


@torch.no_grad()
def test_held_out_samples_in_parts_give_the_same_bits(monkeypatch):
    def coarse(numbers):  # eighths, whose products and sums are exact on every processor, in any order
        return (numbers * 8).round() / 8

    task, held = problem(), [(coarse(inputs), targets) for inputs, targets in batches()]
    task = replace(task, models=tuple({n: coarse(t) for n, t in m.items()} for m in task.models))
    whole = Mixture(task, "fp32").held_out(held)
    monkeypatch.setattr(layout, "PART", 4 * HIDDEN * 4)  # bytes: four samples
    sizes, mixture = [], Mixture(task, "fp32")
    mixture.network.register_forward_hook(lambda module, args, outputs: sizes.append(len(args[0])))
    assert mixture.held_out(held) == whole
    assert max(sizes[-3:]) < 16


def test_where_permutations_start():
    still = ste.match(problem(), ste.Options(epochs=1, init="identity", learning_rate=1e-9))
    matched = ste.match(problem(), ste.Options(epochs=1, init="wm", learning_rate=1e-9))
    looked = ste.match(problem(), ste.Options(epochs=1, init="am", learning_rate=1e-9))
    for found in (still, matched, looked):  # before is where it started
        assert found.account.history[0]["held_out_loss"] == -found.objective_before
    firsts = {result.account.history[0]["held_out_loss"] for result in (still, matched, looked)}
    assert len(firsts) == 3
    order = permutation.identity({"h0": HIDDEN})["h0"].flip(0)
    given = ste.match(problem(start=State(({"h0": order},))), ste.Options(epochs=1, init="am"))
    assert given.account.history[0]["held_out_loss"] not in firsts
    assert [found.account.init for found in (still, matched, looked, given)] == [
        "identity",
        "wm",
        "am",
        "given",
    ]


def test_every_one_of_several_models_may_start_from_permutations_of_its_own():
    options, still = ste.Options(epochs=1, learning_rate=1e-9), torch.arange(HIDDEN)
    given = tuple({"h0": still.roll(k)} for k in (1, 2))
    found = in_turn.search(ste, problem(3), options, State(given))
    assert found.account.init == "given"
    for k, row in ((2, 0), (3, len(found.account.history) // 2)):
        alone = problem(3)
        alone = Problem(**{**vars(alone), "models": (alone.models[0], alone.models[k - 1])})
        first = ste.match(
            Problem(**{**vars(alone), "start": State((given[k - 2],))}), options
        ).account.history[0]
        assert found.account.history[row] == {"model": k, **first}
    some = in_turn.search(ste, problem(3), options, State(given[:1]))
    assert some.account.init is None  # the other one starts from wm
    assert some.account.history[0] == found.account.history[0]


def test_networks_with_running_statistics_start_from_activations(monkeypatch):
    def first_look(norm, init=None):
        networks = []
        for seed in range(2):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                networks.append(network(norm=norm))
        models = tuple(dict(net.state_dict()) for net in networks)
        task = Problem(spec_of(models[0]), models, network=networks[0], data=batches(), seed=3)
        found = ste.match(task, ste.Options(epochs=1, learning_rate=1e-9, init=init))
        return found.account.init, found.account.history[0]["held_out_loss"]

    assert first_look("batch") == first_look("batch", "am") != first_look("batch", "wm")
    assert first_look("none") == first_look("none", "wm") != first_look("none", "am")
    assert (first_look("batch")[0], first_look("none")[0]) == ("am", "wm")

    def unseen(problem):
        raise NetworkError("no graph")

    monkeypatch.setattr("rebasin_cli.matchers.am.match", unseen)
    assert first_look("batch") == first_look("batch", "wm")
    with pytest.raises(NetworkError, match="no graph"):
        first_look("batch", "am")


def test_samples_to_choose_by_are_not_trained_on():
    data = open_data("digits", "train")
    rest, held = held_out(data, seed=5)
    assert len(held.source) == len(data.source) // 10
    rows = [{tuple(row.flatten().tolist()) for row in part.source.inputs} for part in (rest, held)]
    twins = len(data.source) - len({tuple(row.flatten().tolist()) for row in data.source.inputs})
    assert len(rows[0] & rows[1]) <= twins
    assert len(rest.source) + len(held.source) == len(data.source)
    assert not torch.equal(held_out(data, seed=6)[1].source.inputs, held.source.inputs)
    own = [(torch.tensor([k]), torch.tensor([k])) for k in range(25)]
    parts = [[int(inputs) for inputs, _ in part] for part in held_out(own, 0)]
    assert parts[1] == [0, 10, 20] and sorted(parts[0] + parts[1]) == list(range(25))
    alone = [list(part) for part in held_out(own[:1], 0)]
    assert alone[0] == alone[1] == own[:1]


def test_a_search_chooses_by_two_thousand_samples_at_most_and_trains_on_all_others():
    source = Samples(torch.zeros(25_000, SIZE), torch.zeros(25_000, dtype=torch.int64))
    data = Data("many", "train", source, Normalization((0.0,), (1.0,)), CLASSES, 500)
    run = Run(problem(data=data), ste.Options(), None, 1.0)
    assert (len(run.held.source), len(run.train.source)) == (2_000, 23_000)
    run.close()


def test_of_a_loader_two_thousand_samples_are_looked_at():
    seen = []
    mixture = Mixture(problem(), "fp32")
    mixture.network.register_forward_hook(lambda module, args, outputs: seen.append(len(args[0])))
    mixture.held_out(batches(count=12, size=250))
    assert sum(seen[2:]) == 2_000  # the first two tell how large a sample is


def test_a_loader_that_never_ends_is_read_as_far_as_the_limit():
    def forever():
        yield from batches()
        while True:  # the first of every ten is held out: few of these are 2,000 samples
            yield from batches(count=1, size=500)

    class Endless:
        def __iter__(self):
            return forever()

    sizes = []

    def counted(outputs, targets):
        sizes.append(len(targets))
        return F.cross_entropy(outputs, targets)

    found = ste.match(problem(data=Endless(), loss=counted), ste.Options(epochs=2, limit=40))
    assert found.sweeps == 2 * 3 and sizes.count(8) == 2  # 16 + 16 + 8 an epoch


def test_another_loss():
    def squared(outputs, targets):
        return F.mse_loss(outputs, F.one_hot(targets, CLASSES).float())

    found = ste.match(problem(loss=squared), ste.Options(epochs=1))
    assert (
        0
        < found.account.history[0]["held_out_loss"]
        != pytest.approx(ste.match(problem(), ste.Options(epochs=1)).account.history[0]["held_out_loss"])
    )
    with pytest.raises(NetworkError, match="expected a tensor with one number"):
        ste.match(problem(loss=lambda outputs, targets: 1.0), ste.Options(epochs=1))


def test_a_projection_follows_weights_that_are_changed_in_place():
    """Vectors of one word lie in a copy together, which must not grow old."""
    rng = torch.Generator().manual_seed(0)
    fitted = fit(
        parse("tensors:\n  w: 'h .'\n  bias: 'h'\n  scale: 'h'\n", name="norm"),
        {"w": (HIDDEN, 2), "bias": (HIDDEN,), "scale": (HIDDEN,)},
    )

    def drawn():
        return {name: torch.randn(shape, generator=rng) for name, shape in fitted.shapes.items()}

    moving, given = drawn(), drawn()
    projection = Projection(moving, {name: tensor.clone() for name, tensor in given.items()}, fitted)
    seen = set()
    for _ in range(6):
        projection.solve("h")
        similar = sum(moving[n].reshape(HIDDEN, -1) @ given[n].reshape(HIDDEN, -1).T for n in moving)
        best = torch.from_numpy(linear_sum_assignment(similar.numpy(), maximize=True)[1])
        assert torch.equal(projection.permutations["h"], best)
        assert all(torch.equal(projection.standing[n], given[n][best]) for n in given)
        seen.add(tuple(best.tolist()))
        for tensor in moving.values():
            tensor += torch.randn(tensor.shape, generator=rng)
    assert len(seen) > 3


def test_words_that_do_not_touch_are_solved_together_as_if_one_by_one(monkeypatch):
    torch.manual_seed(0)
    moving, given = (
        nets.build("resnet20", input_shape=(3, 8, 8), classes=3, width=0.25).state_dict() for _ in range(2)
    )
    moving, given = ({n: torch.randn(t.shape) for n, t in m.items()} for m in (moving, given))
    fitted = library.find({name: tuple(tensor.shape) for name, tensor in moving.items()})
    together, alone = (
        Projection(moving, {name: tensor.clone() for name, tensor in given.items()}, fitted) for _ in range(2)
    )
    touching, room = together.pair.neighbours, projection.TOGETHER
    for seed in range(4):
        order = [together.names[k] for k in torch.randperm(len(together.names)).tolist()]
        sets = list(together._side_by_side(order))
        assert sorted(word for some in sets for word in some) == together.names
        assert len(sets) <= 5 < len(order) and sets[0][0] == order[0]
        assert not any(touching[word] & {*some} for some in sets for word in some)
        moved = together.solve(order)
        monkeypatch.setattr(projection, "TOGETHER", 0)
        assert all(len(some) == 1 for some in alone._side_by_side(order))
        assert alone.solve(order) == moved and (moved or seed)
        monkeypatch.setattr(projection, "TOGETHER", room)
        for word, perm in together.permutations.items():
            assert torch.equal(perm, alone.permutations[word])
        assert all(torch.equal(tensor, alone.standing[name]) for name, tensor in together.standing.items())
        for tensor in moving.values():
            tensor += 0.5 * torch.randn(tensor.shape)


def test_tied_weights_are_moved_once():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(SIZE, HIDDEN, bias=False)
            self.second = torch.nn.Linear(SIZE, HIDDEN, bias=False)
            self.second.weight = self.first.weight

        def forward(self, inputs):
            return (self.first(inputs).relu() @ self.second.weight)[:, :CLASSES]

    spec = parse("tensors:\n  first.weight: 'h .'\n  second.weight: 'h .'\n", name="tied")
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        weight = torch.randn(HIDDEN, SIZE)
        models.append({"first.weight": weight, "second.weight": weight.clone()})
    fitted = fit(spec, {name: (HIDDEN, SIZE) for name in models[0]})
    task = Problem(fitted, tuple(models), 1, network=Tied(), data=batches())
    found = ste.match(task, ste.Options(epochs=2, init="identity", optimizer="sgd", share=1.0))
    similar = models[0]["first.weight"] @ models[1]["first.weight"].T
    best = linear_sum_assignment(similar.numpy(), maximize=True)[1]
    kept, _ = states_of(
        ste, task, ste.Options(epochs=1, init="identity", optimizer="sgd", learning_rate=1e-9, share=1.0)
    )
    assert np.array_equal(kept[0].tensors["at.0.h"].numpy(), best)
    assert len(found.account.history) > 1
    standing = models[1]["first.weight"].clone()
    projection = Projection(models[0], {"first.weight": standing, "second.weight": standing}, fitted)
    assert projection.solve("h") > 0
    assert torch.equal(standing, models[1]["first.weight"][torch.from_numpy(best)])


def test_the_given_network_and_models_are_left_alone():
    task = problem(3)
    before = {name: tensor.clone() for name, tensor in task.network.state_dict().items()}
    copies = [{name: tensor.clone() for name, tensor in m.items()} for m in task.models]
    ste_mm.match(task, ste_mm.Options(epochs=2, learning_rate=0.1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in task.network.state_dict().items())
    assert all(p.grad is None for p in task.network.parameters())
    assert all(torch.equal(m[n], copy[n]) for m, copy in zip(task.models, copies, strict=True) for n in m)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "lion"}, "lion"),
        ({"epochs": 0}, "--epochs 0"),
        ({"learning_rate": -1.0}, "learning rate of -1"),
        ({"share": 1.5}, "1.5 is no share"),
        ({"init": "random"}, "random"),
        ({"precision": "fp8"}, "fp8"),
        ({"limit": 0}, "--limit 0"),
        ({"mixture": "third"}, "third"),
        ({"parameter": "c"}, "parameter"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, words):
    with pytest.raises(UsageError, match=words):
        ste.Options(**options)


def test_what_is_missing_is_said():
    with pytest.raises(UsageError, match="needs the network and data"):
        ste.match(problem(network=None))
    with pytest.raises(UsageError, match="ste matches two models, not 3"):
        ste.match(problem(3))
    with pytest.raises(UsageError, match="at least two models"):
        ste_mm.match(problem(1))
    with pytest.raises(DataError, match="no samples"):
        ste.match(problem(data=[]))
    with pytest.raises(DataError, match="targets lie in"):
        ste.match(problem(data=[(torch.randn(8, SIZE), torch.full((8,), CLASSES))] * 3))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_for_the_end_of_what_must_not_be_left_half_done(number):
    done, before = [], signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stoppable(), held_back():
        os.kill(os.getpid(), number)
        done.append("after the signal")
    assert done and signal.getsignal(number) is before
    with held_back():
        pass
    other = threading.Thread(target=lambda: held_back().__enter__() or done.append("in a thread"))
    other.start()
    other.join()
    assert done[-1] == "in a thread"


def test_who_ignores_sigterm_to_tell_of_a_failure_goes_on_doing_so():
    before = signal.getsignal(signal.SIGTERM)
    try:
        with stoppable():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_short_last_batch_does_not_change_what_a_search_goes_on_to():
    """How many permutations a step solves is decided once, by the first batch of all."""
    rng = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(76, SIZE, generator=rng), torch.randint(CLASSES, (76,), generator=rng)
    data = list(zip(inputs.split(16), targets.split(16), strict=True))  # 16, 16, 16, 16, 12
    deep = network(depth=4, width=16)
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        models.append({name: torch.randn_like(tensor) for name, tensor in deep.state_dict().items()})
    task = Problem(spec_of(models[0]), tuple(models), 0, network=deep, data=data)
    options = ste_mm.Options(epochs=3, learning_rate=0.05)
    kept, whole = states_of(ste_mm, task, options)
    assert whole.solves < whole.sweeps * 8  # not all of them in each step
    for state in kept:
        again = ste_mm.match(Problem(**{**vars(task), "start": state}), options)
        assert again.account.history == whole.account.history


def test_permutations_are_solved_where_nobody_counts_what_the_network_does():
    class Uncounted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = torch.nn.Linear(SIZE, HIDDEN), torch.nn.Linear(HIDDEN, CLASSES)

        def forward(self, inputs):  # sums of products that are no matrix product
            hidden = (inputs[:, None] * self.first.weight).sum(-1) + self.first.bias
            return (hidden.relu()[:, None] * self.head.weight).sum(-1) + self.head.bias

    axes = {"first.weight": "h .", "first.bias": "h", "head.weight": ". h", "head.bias": "."}
    spec = parse("tensors:\n" + "".join(f"  {k}: '{v}'\n" for k, v in axes.items()), name="uncounted")
    models = []
    for seed in range(2):
        torch.manual_seed(seed)
        models.append({n: torch.randn_like(t) for n, t in Uncounted().state_dict().items()})
    fitted = fit(spec, {name: tuple(t.shape) for name, t in models[0].items()})
    found = ste.match(
        Problem(fitted, tuple(models), 0, network=Uncounted(), data=batches()), ste.Options(epochs=2)
    )
    assert found.solves == found.sweeps  # the only one, in every step


def test_a_loss_that_is_no_number_ends_the_search_with_its_step():
    with pytest.raises(NetworkError, match="the loss is nan at step 1"):
        ste.match(problem(loss=lambda outputs, targets: outputs.sum() * torch.nan), ste.Options(epochs=1))


def test_nothing_is_chosen_where_no_held_out_loss_is_finite():
    seen = []

    def loss(outputs, targets):
        seen.append(torch.is_grad_enabled())
        return F.cross_entropy(outputs, targets) + (0 if seen[-1] else torch.inf)

    with pytest.raises(NetworkError, match="no finite number"):
        ste.match(problem(loss=loss), ste.Options(epochs=1))
    assert {*seen} == {True, False}


def test_no_accuracy_is_told_for_a_loss_of_ones_own():
    kept, found = states_of(
        ste, problem(loss=lambda outputs, targets: outputs.square().mean()), ste.Options(epochs=1)
    )
    known = {"step", "loss", "held_out_loss", "held_out_calibrated"}
    assert all(row.keys() <= known for row in found.account.history)
    assert all(row["held_out_calibrated"] == row["held_out_loss"] for row in found.account.history)
    assert all("held_out_accuracy" not in state.notes for state in kept)


def test_another_network_than_the_models_is_refused():
    with pytest.raises(NetworkError, match="is not the network of this checkpoint"):
        rebasin_cli.align(
            *problem().models,
            None,
            method="ste",
            network=network(width=HIDDEN + 1),
            data=batches(),
            prove=False,
        )


def test_the_published_algorithm_is_a_plain_account_of_it():
    """STE-MM, Algorithm 1, B.2; with one hidden layer matching to convergence is one solve."""
    task = _of_digits()
    found = ste_mm.match(task, ste_mm.Options(as_published=True))
    reference, *others = ({n: t.clone() for n, t in model.items()} for model in task.models)
    dummies = [{n: t.clone() for n, t in reference.items()} for _ in others]
    adams = [torch.optim.Adam(dummy.values(), lr=1e-3) for dummy in dummies]
    steps = 0
    for epoch in range(10):
        rng = generator(task.seed, f"order of epoch {epoch}")
        for inputs, targets in task.data.with_batch_size(256).shuffled(rng):
            drawn = torch.rand(3, generator=generator(task.seed, f"mixture {steps}"), dtype=torch.float64)
            shares = (drawn / drawn.sum()).tolist()
            orders = [_plainly_matched(*pair) for pair in zip(dummies, others, strict=True)]
            stand = [_reordered(model, order) for model, order in zip(others, orders, strict=True)]
            mixed = {
                name: sum(
                    share * model[name] for share, model in zip(shares, [reference, *stand], strict=True)
                )
                for name in reference
            }
            point = {name: tensor.float().requires_grad_() for name, tensor in mixed.items()}
            outputs = torch.func.functional_call(task.network, point, (inputs,))
            gradients = torch.autograd.grad(F.cross_entropy(outputs, targets), list(point.values()))
            for dummy, adam, share in zip(dummies, adams, shares[1:], strict=True):
                for tensor, gradient in zip(dummy.values(), gradients, strict=True):
                    tensor.grad = share * gradient
                adam.step()
            steps += 1
    assert steps == found.sweeps == 10 * 2  # all 300 samples, 256 a batch
    last = [_plainly_matched(*pair) for pair in zip(dummies, others, strict=True)]
    for perms, order, model in zip(found.permutations, last, task.models[1:], strict=True):
        assert torch.equal(perms["h0"], order) and not torch.equal(order, torch.arange(len(order)))
        assert not torch.equal(order, _plainly_matched(reference, model)), "the search moved nothing"
    told = {it.name: (it.value, it.place) for it in found.account.published}
    assert told["batch_size"] == (256, "B.2") and told["epochs"] == (10, "B.2")
    assert told["training_samples"] == ("all", "Algorithm 1")
    assert found.objective_after == pytest.approx(-found.account.history[-1]["held_out_loss"])


def _plainly_matched(dummy, model):
    one, two = (
        torch.cat([its["layers.0.weight"], its["layers.0.bias"][:, None], its["head.weight"].T], 1).double()
        for its in (dummy, model)
    )
    return torch.as_tensor(linear_sum_assignment((one.detach() @ two.T).numpy(), maximize=True)[1])


def _reordered(model, order):
    moved = {name: tensor[order] for name, tensor in model.items() if name.startswith("layers.")}
    return moved | {"head.weight": model["head.weight"][:, order], "head.bias": model["head.bias"]}


def test_the_published_algorithm_fixes_its_settings():
    for changed in ({"epochs": 3}, {"share": 0.5}, {"init": "wm"}, {"optimizer": "sgd"}, {"limit": 9}):
        with pytest.raises(UsageError, match="--as-published fixes"):
            ste_mm.Options(as_published=True, **changed)
    with pytest.raises(UsageError, match="batches of 256 samples, and the first of this loader has 16"):
        ste_mm.match(problem(count=3), ste_mm.Options(as_published=True))


def test_the_published_algorithm_matches_from_the_identity_in_every_step(monkeypatch):
    placed = []
    place = Followers.place
    monkeypatch.setattr(Followers, "place", lambda self, found: placed.append(found) or place(self, found))
    found = ste_mm.match(_of_digits(), ste_mm.Options(as_published=True))
    same = [
        torch.equal(perm, torch.arange(len(perm))) for sets in placed for s in sets for perm in s.values()
    ]
    assert len(placed) == found.sweeps + 2 and all(same)  # and where it begins
    assert found.account.init == "identity"


def _of_digits():
    networks = []
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        networks.append(MLP([64, 24, 10]))
    models = tuple(network.state_dict() for network in networks)
    fitted = fit(library.load("mlp"), {name: tuple(tensor.shape) for name, tensor in models[0].items()})
    data = open_data("digits", "train", limit=300).with_batch_size(100)
    return Problem(fitted, models, network=networks[0], data=data)
