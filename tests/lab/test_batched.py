"""Stacks of networks: each does what it would do alone."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from rebasin_cli.datasets import open_data
from rebasin_cli.errors import NetworkError, UsageError
from rebasin_cli.lab import cnn_width, slerp, steepest_descent, width
from rebasin_cli.lab.batched import matching, samples, stacks, training
from rebasin_cli.lab.engine import peaks
from rebasin_cli.lab.engine.bench import Bench
from rebasin_cli.nets.mlp import MLP
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.symmetry.permutation import permuted, random


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def stack():
    return stacks.fresh(3, [6, 8, 8, 4], generator())


@pytest.fixture
def data():
    inputs = torch.randn(40, 6, generator=generator(1))
    return inputs, torch.randint(4, (40,), generator=generator(2))


def network(stack, number):
    made = MLP([stack[0][0].shape[2], *(w.shape[1] for w, _ in stack)])
    made.load_state_dict(stacks.tensors(stack, number))
    return made


def test_a_stack_computes_what_its_networks_do(stack, data):
    logits = stacks.outputs(stack, data[0])
    found = stacks.measured(stack, *data)
    for number in range(3):
        alone = network(stack, number)
        assert torch.allclose(logits[number], alone(data[0]), atol=1e-6)
        scores = evaluate(alone, [data])
        assert found.loss[number].item() == pytest.approx(scores.loss, abs=1e-6)
        assert found.accuracy[number].item() == pytest.approx(scores.accuracy)


def test_slabs_change_nothing(stack, data, monkeypatch):
    whole = stacks.measured(stack, *data).loss
    monkeypatch.setattr(stacks, "SLAB", 1)
    assert torch.allclose(stacks.measured(stack, *data).loss, whole, atol=1e-12)


@pytest.mark.parametrize("optimizer", training.OPTIMIZERS)
def test_networks_of_a_stack_are_trained_as_if_alone(stack, data, optimizer):
    """One batch is all samples, so their order does not matter."""
    how = {"steps": 5, "batch": 40, "rate": 0.05, "optimizer": optimizer, "momentum": 0.9}
    ends = training.trained(stack, *data, generator=generator(), **how)[5]
    alone = network(stack, 1)
    kind = (
        torch.optim.Adam(alone.parameters(), 0.05)
        if optimizer == "adam"
        else torch.optim.SGD(alone.parameters(), 0.05, 0.9)
    )
    for _ in range(5):
        kind.zero_grad()
        nn.functional.cross_entropy(alone(data[0]), data[1]).backward()
        kind.step()
    for name, tensor in stacks.tensors(ends, 1).items():
        assert torch.allclose(tensor, alone.state_dict()[name], atol=1e-5), name


def test_a_pass_takes_each_chosen_sample_once(stack, data, monkeypatch):
    seen = []
    outputs = stacks.outputs
    monkeypatch.setattr(
        stacks, "outputs", lambda layers, x: seen.append(x.detach().clone()) or outputs(layers, x)
    )
    chosen = torch.stack([torch.arange(20), torch.arange(20, 40), torch.arange(10, 30)])
    training.trained(stack, *data, steps=8, batch=5, generator=generator(), chosen=chosen)
    for number in range(3):
        for first in (0, 4):  # two passes
            taken = torch.cat([batch[number] for batch in seen[first : first + 4]])
            wanted = data[0][chosen[number]]
            assert torch.equal(taken[taken[:, 0].argsort()], wanted[wanted[:, 0].argsort()])
    assert not torch.equal(seen[0][0], seen[4][0])


def test_what_is_kept_is_the_state_after_those_steps(stack, data):
    kept = training.trained(stack, *data, steps=4, batch=10, generator=generator(5), keep=(0, 2))
    assert sorted(kept) == [0, 2, 4] and torch.equal(kept[0][0][0], stack[0][0])
    two = training.trained(stack, *data, steps=2, batch=10, generator=generator(5))[2]
    assert torch.equal(kept[2][1][0], two[1][0]) and not torch.equal(kept[4][1][0], two[1][0])


def test_a_training_that_diverges_says_so(stack, data):
    with pytest.raises(NetworkError, match="diverged"):
        training.trained(stack, *data, steps=100, rate=1e20, optimizer="sgd", generator=generator())


def test_kaiming_has_hes_spread_and_no_biases():
    made = stacks.fresh(20, [50, 100, 10], generator(), "kaiming")
    assert made[0][0].std().item() == pytest.approx(math.sqrt(2 / 50), rel=0.02)
    assert not made[1][1].any()


def test_permuted_networks_are_brought_back(stack, data):
    spec = matching.fitted(stack)
    moved = [
        dict(permuted(stacks.tensors(stack, k), spec, random(spec.words, generator(k)))) for k in range(3)
    ]
    others = stacks.stacked(moved)
    assert torch.allclose(stacks.outputs(others, data[0]), stacks.outputs(stack, data[0]), atol=1e-6)
    assert not torch.equal(others[0][0], stack[0][0])
    back = matching.aligned(stack, others)
    assert all(
        torch.equal(x, y)
        for one, other in zip(back, stack, strict=True)
        for x, y in zip(one, other, strict=True)
    )


def test_heights_over_both_definitions():
    midpoint, chord = stacks.heights(torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 1.0]]))
    assert midpoint.tolist() == [1.0, 4.5] and chord.tolist() == [0.0, 4.5]


def test_a_path_ends_at_its_ends(stack, data):
    one, other = stacks.part(stack, slice(0, 1)), stacks.part(stack, slice(1, 2))
    found = stacks.path(one, other, *data, 5)
    both = stacks.measured(stack, *data)
    assert found.loss.shape == (1, 5)
    assert found.loss[0, [0, -1]].tolist() == pytest.approx(both.loss[:2].tolist())


def test_halves_are_drawn_for_each_network():
    found = samples.halves(3, 10, 0.5, generator())
    assert found.shape == (3, 5) and all(len(set(row.tolist())) == 5 for row in found)
    assert len({tuple(sorted(row.tolist())) for row in found}) > 1


def test_some_samples_are_drawn_and_noise_is_added_where_asked(data):
    every = samples.Samples(*data)
    few = every.some(7, generator())
    assert len(few.targets) == 7 and all((every.inputs == row).all(1).any() for row in few.inputs)
    assert every.some(0, generator()) is every and every.some(40, generator()) is every
    noisy = samples.noisy(every, 0.5, generator())
    assert (noisy.inputs - every.inputs).std().item() == pytest.approx(0.5, rel=0.15)
    assert samples.noisy(every, 0.0, generator()) is every


def test_training_ends_behind_the_pass_in_which_all_losses_were_low(stack, data):
    how = {"steps": 400, "batch": 10, "rate": 0.01, "generator": generator(3)}
    kept = training.trained(stack, *data, until=1.0, **how)
    (last,) = kept
    assert last % 4 == 0 and 0 < last < 400
    at_end = stacks.measured(kept[last], *data).loss
    assert (at_end < 1.1).all()
    assert list(training.trained(stack, *data, until=1e-9, **how | {"steps": 8})) == [8]
    ahead = stacks.joined([stacks.part(kept[last], slice(0, 1)), stacks.part(stack, slice(1, 3))])
    assert max(training.trained(ahead, *data, until=1.0, **how)) > 4  # it waits for the others


def test_pairs_share_no_network(data):
    kept = training.pairs(2, [6, 5, 4], samples.Samples(*data), steps=2, generator=generator(), keep=(0,))
    one, other = kept[2]
    assert sorted(kept) == [0, 2] and len(one[0][0]) == len(other[0][0]) == 2
    assert not torch.equal(one[0][0], other[0][0])


def test_all_are_matched_to_the_first_or_together(stack, data):
    spec = matching.fitted(stack)
    moved = [
        dict(permuted(stacks.tensors(stack, 0), spec, random(spec.words, generator(k)))) for k in range(3)
    ]
    copies = stacks.stacked(moved)
    for found in (
        matching.to_first(copies),
        matching.together(copies, matching.by("merge-many")),
    ):
        for layer in found:
            for tensor in layer:
                assert torch.allclose(tensor, tensor[:1].expand_as(tensor))
    assert torch.equal(found[0][0][0], copies[0][0][0])


def test_no_order_of_one_hidden_layer_begins_more_steeply(data):
    stack = stacks.fresh(2, [6, 5, 4], generator())
    one, other = stacks.part(stack, slice(0, 1)), stacks.part(stack, slice(1, 2))
    slope = steepest_descent.gradient(one, *data)
    best = matching.aligned([(-w, -b) for w, b in slope], other)
    least = steepest_descent.inner(slope, best).item()
    (w, b), (v, c) = other
    for _ in range(200):
        order = torch.randperm(5)
        moved = [(w[:, order], b[:, order]), (v[:, :, order], c)]
        assert steepest_descent.inner(slope, moved).item() >= least - 1e-6


def test_the_gradient_of_a_stack_is_that_of_each_network(stack, data):
    slope = steepest_descent.gradient(stack, *data)
    alone = network(stack, 2)
    nn.functional.cross_entropy(alone(data[0]), data[1]).backward()
    assert torch.allclose(slope[1][0][2], alone.layers[1].weight.grad, atol=1e-7)


@pytest.mark.parametrize("whole", [True, False])
def test_an_arc_ends_at_its_ends_and_keeps_norms(stack, whole):
    one, other = stacks.part(stack, slice(0, 1)), stacks.part(stack, slice(1, 2))
    for t, end in ((0.0, one), (1.0, other)):
        made = slerp.arc(one, other, t, whole=whole)
        assert all(
            torch.allclose(x, y, atol=1e-6)
            for a, b in zip(made, end, strict=True)
            for x, y in zip(a, b, strict=True)
        )
    twice = [(2 * w, 2 * b) for w, b in one]
    turned = [(w[:, torch.randperm(w.shape[1], generator=generator())], b) for w, b in one]
    made = slerp.arc(one, turned, 0.5, whole=False)
    assert made[0][0].norm().item() == pytest.approx(one[0][0].norm().item(), rel=1e-5)
    straight = slerp.arc(one, twice, 0.5, whole=whole)
    assert straight[0][0].norm().item() == pytest.approx(1.5 * one[0][0].norm().item(), rel=1e-3)


def test_the_rank_correlation_of_widths_and_barriers():
    from scipy.stats import spearmanr

    means = torch.rand(5, 7, generator=generator(), dtype=torch.float64)
    wanted = [spearmanr(range(7), row).statistic for row in means.numpy()]
    assert peaks._order(means).tolist() == pytest.approx(wanted)


def test_the_peak_of_barriers_and_whether_depth_moves_it():
    """Two depths with their peaks at 8 and at 16: the ratio of all draws is 2."""
    bench = Bench({"widths": [4, 8, 16, 32], "data": ["x"], "noise": [0.0], "until": [0.0], "depths": [1, 2]})

    def barriers(at):
        made = torch.zeros(3, 4, 6, dtype=torch.float64)
        made[:, at, 1] = 1.0
        return peaks.Sweep("", bench.p.widths, made)

    every = {("x", 0.0, 0.0, 1): barriers(1), ("x", 0.0, 0.0, 2): barriers(2)}
    (claim,) = width._comparisons(every, bench)
    assert (claim.estimate, claim.interval, claim.verdict) == (2.0, (2.0, 2.0), "refuted")
    rows = peaks.peaks(list(every.values()), bench.seed).rows
    assert [row[1] for row in rows] == [8.0, 16.0] and rows[0][3] == 1.0


def convolutional(count=4, images=(2, 9, 8), seed=0):
    data = torch.randn(6, *images, generator=generator(seed + 1)), torch.tensor([0, 1, 2, 0, 1, 2])
    shapes = cnn_width.shapes(samples.Samples(*data), 3, 3)
    return stacks.of_shapes(count, shapes, generator(seed), "kaiming"), data


def test_a_stack_of_convolutions_computes_what_its_networks_do(monkeypatch):
    stack, data = convolutional()
    assert [weight.shape[1:] for weight, _ in stack] == [(3, 2, 3, 3), (6, 3, 3, 3), (3, 24)]
    logits, losses = stacks.outputs(stack, data[0]), stacks.measured(stack, *data).loss
    names = {"layers.0": "0", "layers.1": "3", "head": "7"}
    for number in range(4):
        alone = nn.Sequential(
            *(nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Conv2d(3, 6, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(24, 3)),
        )
        held = [(name.rpartition("."), tensor) for name, tensor in stacks.tensors(stack, number).items()]
        alone.load_state_dict({f"{names[layer]}.{kind}": tensor for (layer, _, kind), tensor in held})
        assert torch.allclose(logits[number], alone(data[0]), atol=1e-5)
    monkeypatch.setattr(stacks, "SLAB", 1)
    assert torch.allclose(stacks.measured(stack, *data).loss, losses, atol=1e-12)


def test_aligned_convolutions_compute_the_same_and_lie_nearer():
    stack, data = convolutional()
    ones, others = stacks.halved(stack)
    moved = matching.aligned(ones, others)
    assert torch.allclose(stacks.outputs(moved, data[0]), stacks.outputs(others, data[0]), atol=1e-5)

    def distance(a, b):
        return sum((w - v).square().sum().item() for (w, _), (v, _) in zip(a, b, strict=True))

    assert distance(ones, moved) < distance(ones, others)


def test_convolutions_train_as_if_alone():
    stack, data = convolutional()
    how = {"steps": 3, "batch": 6, "rate": 0.05, "optimizer": "sgd"}
    ends = training.trained(stack, *data, generator=generator(), **how)[3]
    alone = training.trained(stacks.part(stack, slice(2, 3)), *data, generator=generator(), **how)[3]
    assert torch.allclose(ends[0][0][2], alone[0][0][0], atol=1e-6)
    assert not torch.allclose(ends[0][0], stack[0][0])


def test_images_are_asked_for_and_text_is_refused(monkeypatch):
    train, _, classes = samples.opened("digits", None, limit=20, images=True)
    flat = samples.opened("digits", None, limit=20)[0]
    assert train.inputs.shape == (20, 1, 8, 8) and classes == 10
    assert torch.equal(train.inputs.flatten(1), flat.inputs)
    with pytest.raises(UsageError, match="alice: text"):
        samples.opened("alice", None, limit=4)
    digits = open_data("digits", "train")
    numbers = replace(digits, source=replace(digits.source, inputs=digits.source.inputs.flatten(1)))
    monkeypatch.setattr(samples, "open_data", lambda *given, **more: numbers)
    with pytest.raises(UsageError, match="numbers: its samples are 64, images are channels×height×width"):
        samples.opened("numbers", None, images=True)
