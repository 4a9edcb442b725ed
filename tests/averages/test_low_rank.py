"""Sums of products of low rank, against the matrices that they stand for."""

import pytest
import torch

from rebasin_cli.averages.low_rank import Rank, best, distance, joined
from rebasin_cli.errors import UsageError


def factors(seed, m=20, n=14, r=3):
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=rng, dtype=torch.float64) for shape in ((m, r), (r, n)))


def product(pair):
    return pair[0] @ pair[1]


PARTS, WEIGHTS = [factors(0, r=2), factors(1), factors(2, r=5)], [0.5, -1.5, 2.0]
SUM = joined(PARTS, WEIGHTS)


def test_factors_side_by_side_are_the_weighted_sum():
    wanted = sum(w * product(pair) for w, pair in zip(WEIGHTS, PARTS, strict=True))
    torch.testing.assert_close(product(SUM), wanted)
    found = best(SUM, Rank())
    assert found.rank == 10 and found.cut == 0
    assert torch.linalg.norm(product(found.factors) - wanted) < 1e-13 * found.size


@pytest.mark.parametrize("rank", (1, 4, 9, 30))
def test_a_smaller_rank_is_the_best_one_and_its_error_is_the_told_one(rank):
    matrix, found = product(SUM), best(SUM, Rank(most=rank))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    wanted = u[:, :rank] * s[:rank] @ v[:rank]
    error = torch.linalg.norm(product(found.factors) - matrix)
    assert found.rank == min(rank, 10) and abs(found.cut - error) < 1e-9 * found.size
    torch.testing.assert_close(product(found.factors), wanted)
    assert abs(distance(found.factors, SUM) - error) < 1e-12 * found.size


def test_a_share_of_the_energy_is_kept_by_as_few_as_can():
    energy = torch.linalg.svdvals(product(SUM)).square()
    for share in (0.1, 0.5, 0.9, 0.99, 0.999999):
        rank = best(SUM, Rank(share=share)).rank
        held = energy[:rank].sum() / energy.sum()
        assert held >= share > held - energy[rank - 1] / energy.sum()


def test_the_basis_of_the_factors_does_not_matter():
    """B·G⁻¹ and G·A have the same product."""
    rng = torch.Generator().manual_seed(9)
    turned = []
    for up, down in PARTS:
        g = torch.randn(len(down), len(down), generator=rng, dtype=torch.float64) + 3 * torch.eye(len(down))
        turned.append((up @ torch.linalg.inv(g), g @ down))
    for rank in (Rank(), Rank(most=3), Rank(share=0.9)):
        one, other = best(SUM, rank), best(joined(turned, WEIGHTS), rank)
        torch.testing.assert_close(product(one.factors), product(other.factors))


def test_one_task_in_three_bases_has_the_rank_of_one_and_nothing_is_rank_1():
    up, down = PARTS[1]
    pairs = [(up @ torch.linalg.inv(g), g @ down) for g in (torch.eye(3).double() + k for k in range(3))]
    assert best(joined(pairs, [1 / 3] * 3), Rank()).rank == 3
    none = best(joined(PARTS, [0.0] * 3), Rank(share=0.9))
    assert none.rank == 1 and none.size == none.cut == 0 and not product(none.factors).any()


def test_longer_factors_than_the_matrix_is_wide_are_cut_to_it():
    found = best(factors(3, m=4, n=6, r=30), Rank())
    assert found.rank == 4 and distance(found.factors, factors(3, m=4, n=6, r=30)) < 1e-12 * found.size


@pytest.mark.parametrize("text", ("0", "-1", "1.0", "1.5", "nan", "", "all", "0.0", "9" * 30, "1e-1", "²"))
def test_what_is_no_rank_is_refused(text):
    with pytest.raises(UsageError, match="--rank"):
        Rank.parse(text)


def test_infinite_products_are_refused():
    huge = (torch.full((3, 1), 1e200, dtype=torch.float64), torch.full((1, 3), 1e200, dtype=torch.float64))
    with pytest.raises(OverflowError):
        best(huge, Rank())


def test_what_rounding_leaves_of_a_long_matrix_is_no_singular_value():
    small = torch.tensor([1.0, 2e-15, 1e-16], dtype=torch.float64)
    assert [Rank().of(small, longest) for longest in (1, 8, 20)] == [2, 2, 1]


@pytest.mark.parametrize("weights", [(1.0, -1.0), (0.7, -0.7), (1e-9, -1e-9), (0.1, 0.2, -0.3)])
def test_parts_that_cancel_out_leave_nothing(weights):
    generator = torch.Generator().manual_seed(3)
    part = torch.randn(40, 4, generator=generator).double(), torch.randn(4, 9, generator=generator).double()
    found = best(joined([part] * len(weights), weights), Rank())
    assert found.size == found.cut == 0.0 and found.rank == 1
    assert not any(bool(factor.any()) for factor in found.factors)
