"""One linear assignment, exactly."""

import itertools

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from rebasin_cli import assignment
from rebasin_cli.errors import CheckpointError


def random_matrix(n: int, seed: int) -> torch.Tensor:
    return torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("n", range(7))
@pytest.mark.parametrize("seed", range(3))
def test_no_permutation_is_better_than_the_one_found(n, seed):
    similarity = random_matrix(n, seed)
    best = max(
        sum(similarity[i, j].item() for i, j in enumerate(p)) for p in itertools.permutations(range(n))
    )
    perm = assignment.solve(similarity)
    assert perm.dtype == torch.int64 and sorted(perm.tolist()) == list(range(n))
    assert assignment.total(similarity, perm) == pytest.approx(best, abs=1e-12)


def test_large_ones_are_as_good_as_scipys():
    similarity = random_matrix(200, 0)
    rows, columns = linear_sum_assignment(similarity.numpy(), maximize=True)
    assert assignment.total(similarity, assignment.solve(similarity)) == pytest.approx(
        similarity.numpy()[rows, columns].sum()
    )


def test_rows_are_reference_units_and_columns_model_units():
    assert assignment.solve(torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])).tolist() == [1, 2, 0]


def test_ties_are_broken_alike_every_time():
    similarity = torch.ones(50, 50)
    assert torch.equal(assignment.solve(similarity), assignment.solve(similarity.clone()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_values_that_are_no_numbers_are_refused(bad):
    similarity = random_matrix(4, 0)
    similarity[2, 1] = bad
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        assignment.solve(similarity)
    similarity[3, 3] = -bad  # infinities of both signs do not hide each other
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        assignment.solve(similarity)


def test_the_matrix_is_negated_in_place_only_where_that_is_allowed():
    similarity = random_matrix(5, 0)
    before = similarity.clone()
    perm = assignment.solve(similarity)
    assert torch.equal(similarity, before)
    assert torch.equal(assignment.solve(similarity, overwrite=True), perm)
    assert torch.equal(similarity, -before)
    single = before.float()
    assignment.solve(single, overwrite=True)  # solved in float64, hence on a copy
    assert torch.equal(single, before.float())
