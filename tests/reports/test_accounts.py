"""What a repair says of itself."""

from types import SimpleNamespace

import pytest

from rebasin_cli.repair import Repaired
from rebasin_cli.reports.accounts import rounded_in_words, say_repair


@pytest.mark.parametrize("method", ["refit", "repair", "reset"])
def test_one_sample_is_not_several(method):
    said = []
    done = Repaired(method, ("layer",), (), 0, 1, ("layer.weight",))
    say_repair(said.append, done, {"reset": SimpleNamespace(samples=1)}, asked=method)
    assert "on 1 sample" in said[0] and "samples" not in said[0]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [("a", "; with the pull to the start: b"), ("b", "; without the pull to the start: a")],
)
def test_what_the_other_reading_of_the_rounding_would_choose_is_told_by_its_name(chosen, told):
    done = {"chosen": chosen, "by_loss": "a", "by_penalised": "b", "loss_start": 0.5, "loss": 0.4, "draws": 3}
    done |= {"loss_nearest": 0.6, "draws_below_nearest": 2, "units_moved": 1, "units": 8}
    assert rounded_in_words(done).endswith(f"1 of 8 units moved{told}")
    assert rounded_in_words(done | {"by_loss": chosen, "by_penalised": chosen}).endswith("units moved")
