"""The base of adapters with their sum in it: some rows of it are read alone."""

from pathlib import Path

import torch

from rebasin_cli.checkpoints.adapters import Adapter, Module
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.commands.merging import bases


def test_some_rows_of_the_sum_are_rows_of_the_whole():
    base = {"w.weight": torch.randn(6, 3), "norm": torch.ones(3)}
    model = LazyTensors(
        {name: tuple(its.shape) for name, its in base.items()},
        {name: its.dtype for name, its in base.items()},
        base.__getitem__,
        lambda name, start, stop: base[name][start:stop],
    )
    for turned in (False, True):
        m, n = (3, 6) if turned else (6, 3)
        factors = {"up": torch.randn(m, 2), "down": torch.randn(2, n)}
        module = Module("w", "down", "up", 2, 0.5)
        found = bases.onto(
            bases.Base(model, {"w": "w.weight"}, frozenset({"w"} if turned else ())),
            [Adapter(Path("a"), factors, "peft", {"w": module})],
            [1.0],
        )
        delta = 0.5 * factors["up"].double() @ factors["down"].double()
        wanted = base["w.weight"].double() + (delta.mT if turned else delta)
        torch.testing.assert_close(found["w.weight"], wanted)
        torch.testing.assert_close(found.rows("w.weight", 2, 5), wanted[2:5])
        assert found.rows("norm", 0, 2).tolist() == [1, 1]
