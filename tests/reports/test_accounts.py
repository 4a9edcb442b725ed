"""What a repair says of itself."""

from types import SimpleNamespace

import pytest

from rebasin_cli.repair import Repaired
from rebasin_cli.reports.accounts import say_repair


@pytest.mark.parametrize("method", ["refit", "repair", "reset"])
def test_one_sample_is_not_several(method):
    said = []
    done = Repaired(method, ("layer",), (), 0, 1, ("layer.weight",))
    say_repair(said.append, done, {"reset": SimpleNamespace(samples=1)}, asked=method)
    assert "on 1 sample" in said[0] and "samples" not in said[0]
