"""Garbage collection while much is made that stays."""

import gc

import pytest
import torch
from torch import nn

from rebasin_cli.inference.tracing import export
from rebasin_cli.runtime.memory import uncollected


def test_garbage_is_collected_again_afterwards_also_after_an_error():
    assert gc.isenabled()
    with pytest.raises(KeyError), uncollected():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()


def test_who_collects_none_is_left_alone():
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_none_is_collected_while_a_network_is_traced():
    seen = []

    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(gc.isenabled())
            return x + 1

    export(Net(), (torch.zeros(1),), {})
    assert seen and not any(seen) and gc.isenabled()
