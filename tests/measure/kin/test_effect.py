"""Matrices without what is large in them, by which units are matched."""

import pytest
import torch

from rebasin_cli.measure.kin.effect import white


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (12, 5, 6)])
def test_all_directions_of_a_white_matrix_are_equally_large_and_stand_as_they_did(shape):
    torch.manual_seed(0)
    left, _, right = torch.linalg.svd(torch.randn(shape).flatten(1), full_matrices=False)
    sizes = torch.tensor([100.0, *[1.0] * 9, 1e-9, 0.0])  # the last two are rounding
    found = white((left * sizes @ right).reshape(shape))
    assert found.shape == shape and found.dtype == torch.float32
    torch.testing.assert_close(found.flatten(1), left[:, :10] @ right[:10], atol=1e-4, rtol=0)


def test_what_is_no_matrix_tells_nothing():
    assert white(torch.ones(5)).tolist() == [0.0] * 5
