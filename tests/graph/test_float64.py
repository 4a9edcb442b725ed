"""A network is computed in float64 throughout, whatever precision it asks for itself."""

import pytest
import torch
from torch.nn import functional as F

from rebasin_cli.graph.float64 import in_float64

X = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TABLE = torch.arange(6).float() / 7

LOSING = {
    "float": lambda x: x.float(),
    "to": lambda x: x.to(torch.float32) + x.to(dtype=torch.bfloat16),
    "type as": lambda x: x.type_as(TABLE),
    "softmax": lambda x: F.softmax(x, -1, dtype=torch.float32),
    "sum": lambda x: x.sum(-1, dtype=torch.float32),
    "empty": lambda x: torch.empty(4, 6, dtype=torch.float32).copy_(x),
    "zeros": lambda x: torch.zeros(4, 6).add_(x),
    "a table": lambda x: x @ TABLE,
    "complex": lambda x: torch.view_as_complex(x.float().reshape(4, 3, 2)).to(torch.complex64),
    "autocast": lambda x: _autocast(x),
}


def _autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x.T


@pytest.mark.parametrize("name", LOSING)
def test_no_digits_are_lost_where_a_network_asks_for_less(name):
    """Inputs that differ by one in 1e12 give results that do."""
    with in_float64():
        one, two = LOSING[name](X), LOSING[name](X * (1 + 1e-12))
    assert one.dtype in (torch.float64, torch.complex128)
    assert 0 < ((two - one).abs() / one.abs()).max() < 1e-11


def test_integers_and_truths_stay_what_they_are():
    with in_float64():
        assert (X > 0.5).dtype is torch.bool and torch.arange(3).dtype is torch.int64
        assert X.long().dtype is torch.int64 and (torch.arange(3) / 2).dtype is torch.float64
        assert TABLE.dtype is torch.float32 and (2 * TABLE).dtype is torch.float64
        assert torch.stack([TABLE, TABLE]).dtype is torch.float64


def test_what_is_written_into_is_the_tensor_itself():
    kept = torch.zeros(2, dtype=torch.float32)
    with in_float64():
        kept[:1].add_(1)
    assert kept.tolist() == [1, 0] and kept.dtype is torch.float32


def test_the_default_precision_comes_back():
    with pytest.raises(ZeroDivisionError), in_float64():
        raise ZeroDivisionError
    assert torch.get_default_dtype() is torch.float32 and X.float().dtype is torch.float32
