"""Steps that processes share: two of them, started once, learn together what one learns by itself."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from rebasin_cli.errors import Lost
from rebasin_cli.learning.loop import Learner, Passes, learn
from rebasin_cli.matchers.straight_through.projection import shared
from rebasin_cli.networks.losses import Loss
from rebasin_cli.runtime.ranks import Ranks
from tests import processes

SIZE = 2
WORKER = Path(__file__).with_name("shares_worker.py")


def told_by(size, folder):
    """What every rank has found: {scenario: [rank 0's, rank 1's, …]}."""
    workers = [
        processes.script(WORKER, folder, log=folder / f"log{k}", RANK=str(k), WORLD_SIZE=str(size))
        for k in range(size)
    ]
    try:
        codes = [worker.wait(seconds=300) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert codes == [0] * size, [worker.err for worker in workers]
    lines = [dict(map(json.loads, worker.out.splitlines())) for worker in workers]
    return {name: [rank[name] for rank in lines] for name in lines[0]}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    return told_by(SIZE, tmp_path_factory.mktemp("shares"))


@pytest.fixture(scope="module", params=[3, 4])
def told_by_more(tmp_path_factory, request):
    return told_by(request.param, tmp_path_factory.mktemp("shares"))


# The largest difference to one process, in parts of the number: of float64, and of float32.
SHARED = {
    "norms": 1e-9,
    "loss means": 1e-10,
    "loss some left out": 1e-10,
    "loss unused": 1e-10,
    "train mlp": 1e-5,
    "train norms": 1e-4,
    "loss weights alike": 1e-10,
    "loss lengths": 1e-10,
    "train resumed": 1e-3,
    "ste resumed": 1e-6,
    "curve": 1e-5,
    "distill": 1e-4,
    "distill without memory": 1e-4,
    "fine-tuned": 1e-4,
    "ste": 1e-6,
    "ste few at a time": 1e-6,
    "ste-mm": 1e-6,
}


def check_shared(told, name):
    for together, alone, said in told[name]:
        assert said == []
        pairs = [*zip(numbers(together), numbers(alone), strict=True)]
        assert len(pairs) > 3 and any(b for _, b in pairs)
        for a, b in pairs:
            assert a == pytest.approx(b, rel=SHARED[name], abs=1e-2 * SHARED[name])


@pytest.mark.parametrize("name", SHARED)
def test_processes_learn_together_what_one_learns_up_to_rounding(told, name):
    check_shared(told, name)


@pytest.mark.sweep
@pytest.mark.parametrize("name", SHARED)
def test_so_do_more(told_by_more, name):
    check_shared(told_by_more, name)


def test_pam_chooses_what_one_process_chooses(told):
    (found, alone, said), _ = told["pam"]
    assert said == [] and found[4] == alone[4] and found[:2] == pytest.approx(alone[:2], rel=1e-5)


WHOLE = {
    "train dropout": "the network draws random numbers, as dropout does",
    "train attacked": "an attack goes up the loss of the whole batch",
    "loss sums": "the loss is no mean over samples, or a layer looks across them",
    "loss weighted": "the loss is no mean over samples, or a layer looks across them",
    "loss fixed size": "parts of one fail: RuntimeError: shape '[8, 4]' is invalid",
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_of_whole_batches_the_first_process_does_and_says_so(told, name):
    for together, alone, said in told[name]:
        assert together[0] == alone[0]  # the weights, bit for bit
        assert len(said) == 1 and said[0].startswith(f"batches are not shared, since {WHOLE[name]}")


LATER = ["loss weighted rarely", "loss weights in some batches", "loss targets unknown in some batches"]


@pytest.mark.parametrize("name", LATER)
def test_a_weight_that_only_a_later_batch_has_is_seen_there(told, name):
    for together, alone, said in told[name]:
        assert numbers(together) == pytest.approx(numbers(alone), rel=1e-10)
        assert len(said) == 1 and WHOLE["loss weighted"] in said[0]


def test_targets_of_other_lengths_are_no_reason_to_test_every_batch(told):
    for together, alone, said in told["asked"]:
        assert said == [] and alone == 48 < together < 48 + 48


def test_an_interrupted_training_of_several_is_what_it_had_been_to_the_last_bit(told):
    for together, alone, said in told["train interrupted"]:
        assert together == alone == [[True, True]] and said == []


@pytest.mark.parametrize(
    ("name", "kind", "message", "code"),
    [
        ("beside", "IndexError", "Target 6 is out of bounds", 6),
        ("before", "MemoryError", "no room on this rank", 5),
    ],
)
def test_an_error_of_one_process_ends_those_that_wait_for_it_within_a_norm(told, name, kind, message, code):
    ends = told[f"loss one rank fails {name} a norm"]
    (failed,) = (found for found in ends if found[0] == kind)
    (other,) = (found for found in ends if found[0] == "Lost")
    assert message in failed[1] and "stopped, because rank 1 failed: " in other[1] and other[2] == code


def test_an_error_in_the_samples_of_one_process_is_told_by_it_alone(told):
    kinds = [found[0] for found in told["loss one rank fails"]]
    assert sorted(kinds) == ["Elsewhere", "IndexError"]
    assert all("Target 6 is out of bounds" in found[1] for found in told["loss one rank fails"])


def numbers(value):
    if isinstance(value, dict):
        return [each for part in value.values() for each in numbers(part)]
    if isinstance(value, list):
        return [each for part in value for each in numbers(part)]
    return [] if isinstance(value, str) else [value]


# ---------------------------------------------------------------------------------------- without processes


class Gone(Ranks):
    """The first of two, of which the other is killed while this one does its part."""

    def __init__(self):
        super().__init__(0, 2)

    def shared(self, step, *args, **kwargs):
        step(*args, **kwargs)
        raise Lost("the connection to another rank is lost")


def test_a_process_whose_other_is_lost_ends_what_was_shared_by_itself():
    asked = []

    def step(some):
        asked.append(some)
        return {each: each * 10 for each in some}

    assert shared(Gone(), step, [1, 3], [1, 2, 3, 4]) == {1: 10, 2: 20, 3: 30, 4: 40}
    assert asked == [[1, 3], [2, 4]]  # its own part once


def test_of_one_process_a_step_is_one_pass_forward_and_one_back():
    class Plain(Learner):
        network, passes = nn.Linear(2, 1), 0

        def loss(self, inputs, targets):
            self.passes += 1
            return self.network(inputs).mean()

        def move(self):
            self.network.zero_grad()

    learner = Plain()
    learn(learner, Passes([(torch.ones(4, 2), torch.zeros(4))] * 3))
    assert learner.passes == learner.done == 3


def test_a_loss_says_what_its_mean_is_over():
    targets = torch.tensor([1, -100, 2, 0])
    own = Loss.of(lambda outputs, targets: outputs.mean())
    assert Loss().counted(targets, 4) == 3 and own.counted(targets, 4) == 0
    assert own.counted({"a": targets.clamp(min=0)}, 4) == 4
