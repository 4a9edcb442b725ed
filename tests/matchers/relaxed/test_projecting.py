"""Projections: exact where they claim it, against a quadratic program for n = 3."""

import numpy as np
import pytest
import torch
from scipy import optimize

from rebasin_cli.matchers.relaxed import matrices

every = pytest.mark.parametrize("how", matrices.PROJECTIONS)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def nearest(matrix, *, positive):
    """The nearest matrix whose rows and columns add up to 1, by a general solver."""
    n = len(matrix)
    sums = np.vstack([np.kron(np.eye(n), np.ones(n)), np.kron(np.ones(n), np.eye(n))])
    found = optimize.minimize(
        lambda x: ((x - matrix.numpy().ravel()) ** 2).sum(),
        np.full(n * n, 1 / n),
        jac=lambda x: 2 * (x - matrix.numpy().ravel()),
        bounds=[(0, None)] * (n * n) if positive else None,
        constraints={"type": "eq", "fun": lambda x: sums[:-1] @ x - 1, "jac": lambda x: sums[:-1]},
        options={"ftol": 1e-15, "maxiter": 500},
        method="SLSQP",
    )
    assert found.success
    return torch.from_numpy(found.x).view(n, n)


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_on_sums_is_the_nearest_and_idempotent(seed):
    matrix = drawn(3, 3, seed=seed)
    found = matrices.to_sums(matrix)
    torch.testing.assert_close(found, nearest(matrix, positive=False), atol=1e-6, rtol=0)
    torch.testing.assert_close(matrices.to_sums(found), found, atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_dykstra_comes_to_the_nearest_doubly_stochastic_matrix_and_alternating_does_not(seed):
    matrix = 2 * drawn(3, 3, seed=seed)
    exact = nearest(matrix, positive=True)
    far = {h: (matrices.projected(matrix, h, 2000) - exact).norm().item() for h in ("dykstra", "alternating")}
    assert far["dykstra"] < 1e-5
    assert far["alternating"] > 0.01


@every
def test_rows_and_columns_add_up_to_one_in_every_matrix_of_a_stack(how):
    found = matrices.projected(drawn(2, 5, 7, 7).abs(), how, 200)
    for dim in (-1, -2):
        sums = found.sum(dim)
        tolerance = 1e-6 if how == "sinkhorn" else 1e-12  # it divides them in turn
        torch.testing.assert_close(sums, torch.ones_like(sums), atol=tolerance, rtol=0)
    assert found.min() > -1e-6
    alone = matrices.projected(drawn(2, 5, 7, 7).abs()[1, 3], how, 200)
    torch.testing.assert_close(found[1, 3], alone, atol=1e-12, rtol=0)


@every
def test_a_permutation_is_projected_to_itself(how):
    matrix = torch.eye(6, dtype=torch.float64)[torch.randperm(6, generator=torch.Generator().manual_seed(1))]
    torch.testing.assert_close(matrices.projected(matrix, how, 20), matrix, atol=1e-12, rtol=0)


def test_the_sums_come_last_and_what_is_next_to_nothing_is_cleaned_away():
    matrix = torch.tensor([[0.9, 4e-4], [-1e-3, 6e-4]])
    assert matrices.cleaned(matrix).tolist() == [[pytest.approx(0.9), 0], [0, pytest.approx(6e-4)]]
    one_round = matrices.alternating(5 * drawn(4, 4), 1)
    assert one_round.min() < 0  # so the sums were last
    torch.testing.assert_close(one_round.sum(0), torch.ones(4, dtype=torch.float64), atol=1e-12, rtol=0)
