"""The loop: which batches a step is taken of, and what it tells."""

import os
import signal

import pytest
import torch

from rebasin_cli.errors import DataError, NetworkError
from rebasin_cli.learning.loop import Learner, Passes, a_pass, learn
from rebasin_cli.runtime.seeds import generator

SIZES = (3, 2, 1)
BATCHES = [(torch.full((size, 1), float(size)), torch.zeros(size, dtype=torch.int64)) for size in SIZES]


class Noting(Learner):
    """Its loss is the first input of a batch; what the loop does is written down."""

    def __init__(self, done=0, most=None):
        self.done, self.most, self.weight = done, most, torch.ones((), requires_grad=True)
        self.taken, self.means, self.steps = [], [], []

    def over(self):
        return self.most is not None and self.done >= self.most

    def loss(self, inputs, targets):
        self.taken.append(len(inputs))
        return self.weight * inputs.flatten()[0]

    def move(self):
        self.steps.append(len(self.taken))

    def ended(self, epoch, mean):
        self.means.append(mean)


@pytest.mark.parametrize(
    ("limit", "least", "sizes"),
    [(None, 1, [3, 2, 1]), (None, 2, [3, 2]), (5, 2, [3, 2]), (4, 1, [3, 1]), (4, 2, [3]), (3, 1, [3])],
)
def test_a_pass_is_of_so_many_samples_in_batches_that_are_large_enough(limit, least, sizes):
    found = a_pass(BATCHES, generator(0, "order"), limit=limit, least=least)
    assert [len(inputs) for inputs, targets in found] == sizes


@pytest.mark.parametrize("done", range(8))
def test_what_was_done_is_passed_over_and_nothing_else(done):
    learner = Noting(done)
    learn(learner, Passes(BATCHES, epochs=2))
    assert learner.taken == [3, 2, 1, 3, 2, 1][done:] and learner.steps == [*range(1, 7 - min(done, 6))]


def test_the_mean_of_a_pass_is_of_its_samples():
    learner = Noting()
    learn(learner, Passes(BATCHES, epochs=2))
    assert learner.means == [pytest.approx((3 * 3 + 2 * 2 + 1) / 6)] * 2


@pytest.mark.parametrize("most", [0, 1, 4])
def test_it_ends_where_it_is_over(most):
    learner = Noting(most=most)
    learn(learner, Passes(BATCHES, epochs=None))
    assert learner.taken == [3, 2, 1, 3][:most]


def test_passes_in_which_no_batch_is_large_enough_are_told_and_not_repeated_without_end():
    with pytest.raises(DataError, match="no batch of two samples"):
        learn(Noting(), Passes(BATCHES[2:], epochs=None, least=2))


def test_a_loss_that_is_no_number_ends_it_before_it_moves():
    learner = Noting()
    learner.weight = torch.tensor(torch.inf, requires_grad=True)
    with pytest.raises(NetworkError, match="training diverged: the loss is inf at step 1"):
        learn(learner, Passes(BATCHES))
    assert learner.steps == []


def test_a_signal_is_answered_between_steps_and_never_within_one():
    class Struck(Noting):
        def move(self):
            os.kill(os.getpid(), signal.SIGINT)
            super().move()

        def tell(self, loss):
            self.told = self.done

    learner = Struck()
    with pytest.raises(KeyboardInterrupt):
        learn(learner, Passes(BATCHES))
    assert learner.steps == [1] and learner.done == learner.told == 1
