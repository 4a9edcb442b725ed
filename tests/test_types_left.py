"""The list of what mypy has left to say, and values that only look like what a name says."""

import torch

from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.types import is_lazy

from . import types_left

SAID = """a.py:3: error: no  [misc]
a.py:3: note: more of it
b.py:1: error: no  [misc]
b.py:9: error: no  [misc]
"""


def test_a_file_may_have_as_many_errors_as_the_list_says():
    left = {"a.py": (1, 0), "b.py": (2, 1)}
    assert types_left.errors_of(SAID) == {"a.py": 1, "b.py": 2}
    assert types_left.differences(left, dict(left), SAID) == []
    new = types_left.differences({"a.py": (1, 0)}, left, SAID)
    assert new[0].startswith("b.py: 2 strict and 1 lax errors; 0 and 0 are left") and "  b.py:9" in new[2]
    fewer = types_left.differences(left | {"b.py": (3, 1), "gone.py": (1, 1)}, left, SAID)
    assert len(fewer) == 1 and "in 2 files" in fewer[0] and "b.py, gone.py" in fewer[0]


def test_only_what_knows_shapes_before_it_makes_tensors_is_lazy():
    tensors = {"w": torch.ones(2)}
    assert is_lazy(LazyTensors({"w": (2,)}, {"w": torch.float32}, tensors.__getitem__)) and not is_lazy(
        tensors
    )
