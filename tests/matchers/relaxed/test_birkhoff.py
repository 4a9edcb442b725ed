"""Doubly stochastic matrices as mixtures of permutations."""

from collections import Counter

import pytest
import torch

from rebasin_cli.matchers.relaxed.matrices import dykstra, mixture_of, nearest


def eye(perm):
    return torch.eye(len(perm), dtype=torch.float64)[perm]


def perms(size, count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return [torch.randperm(size, generator=rng) for _ in range(count)]


@pytest.mark.parametrize("size", [2, 5, 9])
def test_all_terms_make_the_matrix_again(size):
    rng = torch.Generator().manual_seed(size)
    matrix = dykstra(torch.rand(size, size, generator=rng, dtype=torch.float64), 5000).clamp(min=0)
    found = mixture_of(matrix)
    assert len(found.shares) <= (size - 1) ** 2 + 1
    torch.testing.assert_close(found.matrix(), matrix, atol=1e-12, rtol=0)
    assert found.shares.min() > 0 and found.shares.sum() == pytest.approx(1, abs=1e-12)


def test_a_permutation_is_one_term():
    (perm,) = perms(8, 1)
    found = mixture_of(eye(perm))
    assert torch.equal(found.permutations, perm[None]) and found.shares.tolist() == [1]


@pytest.mark.parametrize("terms", [10, 11])
def test_so_many_terms_are_kept_and_their_shares_add_up(terms):
    matrix = sum(eye(perm) for perm in perms(12, 30)) / 30
    found = mixture_of(matrix, terms)
    assert len(found.shares) == terms and found.shares.sum() == pytest.approx(1)


def test_every_term_lies_within_what_is_there():
    matrix = 0.6 * eye(perms(6, 1)[0]) + 0.4 * eye(perms(6, 2)[1])
    for perm in mixture_of(matrix).permutations:
        assert (matrix[torch.arange(6), perm] > 0).all()


def test_a_matrix_in_which_no_permutation_fits_gives_its_nearest():
    matrix = torch.tensor([[0.9, 0.1, 0], [0.8, 0.2, 0], [0.5, 0.5, 0]])
    found = mixture_of(matrix)
    assert found.shares.tolist() == [1] and torch.equal(found.permutations[0], nearest(matrix))


def test_draws_come_as_often_as_their_shares():
    first, second = torch.arange(4), torch.tensor([1, 0, 3, 2])
    found, rng = mixture_of(0.8 * eye(first) + 0.2 * eye(second)), torch.Generator().manual_seed(0)
    count = Counter(tuple(found.draw(rng).tolist()) for _ in range(500))
    assert count.keys() == {tuple(first.tolist()), tuple(second.tolist())}
    assert 350 < count[tuple(first.tolist())] < 450
