"""Attacks on images: where they may go, what they must do, and what they leave alone."""

import pytest
import torch
from torch import nn

from rebasin_cli import nets, networks
from rebasin_cli.datasets import Data, Normalization, Samples, open_data
from rebasin_cli.errors import UsageError
from rebasin_cli.learning.training import train
from rebasin_cli.networks.attacks import Attack, Attacker, attacked, each_loss, statistics_kept
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.runtime.seeds import generator

COLOURS = Normalization((0.5, 0.4), (0.25, 0.1))


def data(normalization=COLOURS, samples=60, channels=2, seed=0):
    """Images of two channels whose class shows in their mean."""
    rng = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, 2, (samples,), generator=rng)
    inputs = torch.rand(samples, channels, 3, 3, generator=rng) * 0.7 + 0.3 * targets.view(-1, 1, 1, 1)
    return Data("made", "test", Samples(inputs.float(), targets), normalization, 2, batch_size=20)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(18, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def learnt(network):
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        for inputs, targets in data():
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
    return network


def accuracy(network, text, **more):
    return evaluate(network, attacked(data(), network, Attack.parse(text), **more)).accuracy


@pytest.mark.parametrize(
    "text, found",
    [
        ("0.1", (0.1, 0.025, 5, 1)),
        ("8/255", (8 / 255, 2 / 255, 5, 1)),
        ("eps=8/255,step=2/255,steps=20,restarts=2", (8 / 255, 2 / 255, 20, 2)),
        ("0.2,steps=7", (0.2, 0.05, 7, 1)),
        ("0", (0, 0, 5, 1)),
    ],
)
def test_an_attack_is_read_and_written(text, found):
    attack = Attack.parse(text)
    assert (attack.epsilon, attack.alpha, attack.steps, attack.restarts) == pytest.approx(found)
    again = Attack.parse(str(attack))
    assert str(again) == str(attack) and again.account()["epsilon"] == pytest.approx(attack.epsilon, rel=1e-5)


@pytest.mark.parametrize(
    "text, label",
    [
        ("0.1", "pgd-5@0.1"),
        ("8/255", "pgd-5@0.0313725"),
        ("0.1,steps=20,restarts=2", "pgd-20x2@0.1"),
        ("0.1,step=0.05", "pgd-5@0.1:0.05"),
        ("0.1,step=0.05,steps=7,restarts=3", "pgd-7x3@0.1:0.05"),
    ],
)
def test_rows_are_called_by_what_an_attack_is(text, label):
    """All that makes two attacks different is in it: two rows of one name would be one."""
    assert Attack.parse(text).label == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "big",
        "2",
        "-0.1",
        "eps=0.1,steps=0",
        "eps=0.1,steps=1.5",
        "step=0.1",
        "0.1,eps=0.2",
        "1/0",
        "0.1,x=3",
    ],
)
def test_what_is_no_attack_is_refused(text):
    with pytest.raises(UsageError, match="--attack"):
        Attack.parse(text)


@pytest.mark.parametrize("normalization", [Normalization(), COLOURS])
def test_pixels_stay_within_epsilon_and_within_0_and_1_whatever_the_normalisation(learnt, normalization):
    its, attack = data(normalization), Attack.parse("0.1,steps=9")
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (normalization.mean, normalization.std))
    reached = 0.0
    for (clean, _), (moved, _) in zip(its, attacked(its, learnt, attack), strict=True):
        before, after = clean * std + mean, moved * std + mean
        assert (after - before).abs().max() <= 0.1 + 1e-5
        assert -1e-5 <= after.min() and after.max() <= 1 + 1e-5
        reached = max(reached, (after - before).abs().max().item())
    assert reached > 0.09


def test_one_step_is_the_sign_of_the_gradient_from_the_random_start(learnt):
    its, attack = data(UNIT), Attack(0.1, 0.03, steps=1)
    inputs, targets = next(iter(its))
    moved = Attacker(attack, its)(inputs, targets, each_loss(learnt), generator(5, "attack"))
    start = torch.rand(inputs.shape, generator=generator(5, "attack")) * 2 - 1
    start = (inputs + 0.1 * start).clamp(0, 1).requires_grad_()
    nn.functional.cross_entropy(learnt(start), targets).backward()
    wanted = (start.detach() + 0.03 * start.grad.sign()).clamp(inputs - 0.1, inputs + 0.1).clamp(0, 1)
    torch.testing.assert_close(moved, wanted)


UNIT = Normalization()


def test_nothing_moves_at_epsilon_0_and_all_is_lost_at_1(learnt):
    clean = evaluate(learnt, data())
    none = evaluate(learnt, attacked(data(), learnt, Attack.parse("0")))
    assert (none.loss, none.accuracy) == (clean.loss, clean.accuracy) and clean.accuracy > 0.9
    assert accuracy(learnt, "1,steps=20") < 0.1


def test_more_steps_and_restarts_find_no_less(learnt):
    few, many, more = (
        accuracy(learnt, f"0.08,{of}") for of in ("steps=5", "steps=20", "steps=20,restarts=3")
    )
    assert more <= many <= few < evaluate(learnt, data()).accuracy


def test_of_restarts_each_sample_keeps_its_worst(learnt):
    its = data()
    inputs, targets = next(iter(its))
    loss = each_loss(learnt)
    worst = Attacker(Attack(0.2, 0.01, 1, restarts=4), its)(inputs, targets, loss, generator(0, "a"))
    rng, single = generator(0, "a"), Attacker(Attack(0.2, 0.01, 1), its)
    every = torch.stack([loss(single(inputs, targets, loss, rng), targets) for _ in range(4)])
    torch.testing.assert_close(loss(worst, targets), every.max(0).values)


def test_an_attack_leaves_network_gradients_and_statistics_alone():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    its = data()
    inputs, targets = next(iter(its))
    with statistics_kept(network):
        Attacker(Attack.parse("0.1"), its)(inputs, targets, each_loss(network.train()), generator(0, "a"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    network.train()(inputs)  # and are moved without
    assert not torch.equal(network[1].running_mean, before["1.running_mean"])


def test_the_same_seed_gives_the_same_attack(learnt):
    def first(seed):
        return next(iter(attacked(data(), learnt, Attack.parse("0.1"), seed=seed)))[0]

    assert torch.equal(first(1), first(1)) and not torch.equal(first(1), first(2))


def test_batches_of_a_loader_are_refused(learnt):
    with pytest.raises(UsageError, match="what a pixel is"):
        attacked([next(iter(data()))], learnt, Attack.parse("0.1"))


@pytest.mark.sweep
def test_training_under_attack_is_worth_it_and_says_so():
    """A training, of a second: what it is worth under attack is what is claimed."""
    how = {"epochs": 12, "width": 24, "depth": 2, "learning_rate": 1e-2, "seed": 1}
    plain = train("mlp", "digits", **how)
    robust = train("mlp", "digits", attack="0.1", schedule="late", **how)
    assert robust.metadata["rebasin.attack"] == "eps=0.1,step=0.025,steps=5,restarts=1"
    assert "rebasin.attack" not in plain.metadata and "rebasin.attacked_accuracy" not in plain.metadata

    def worth(result):
        made = nets.registry.get("mlp").from_shapes({n: tuple(t.shape) for n, t in result.tensors.items()})
        networks.load(made, result.tensors)
        return evaluate(made, attacked(open_data("digits", "test"), made, Attack.parse("0.1"))).accuracy

    assert worth(robust) > worth(plain) + 0.1
    assert float(robust.metadata["rebasin.attacked_accuracy"]) == pytest.approx(worth(robust), abs=0.05)
