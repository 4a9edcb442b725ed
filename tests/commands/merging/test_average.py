"""How models are averaged: in which order, with which weights, and what is refused."""

from pathlib import Path

import pytest

from rebasin_cli.commands.merging.average import Average
from rebasin_cli.errors import UsageError

PATHS = [Path(name) for name in ("a.pt", "b.pt", "c.pt")]


def test_the_reference_comes_first_and_every_weight_stays_with_its_model():
    paths, mean = Average(reference=Path("./b.pt"), weights=[0.5, 0.3, 0.2]).reference_first(PATHS)
    assert [path.name for path in paths] == ["b.pt", "a.pt", "c.pt"]
    assert mean.weights == [0.3, 0.5, 0.2]
    assert Average(reference=PATHS[0], weights=[0.5, 0.3, 0.2]).reference_first(PATHS)[1].weights == [
        0.5,
        0.3,
        0.2,
    ]
    paths, mean = Average(reference=PATHS[2]).reference_first(PATHS)
    assert [path.name for path in paths] == ["c.pt", "a.pt", "b.pt"] and mean.weights is None


@pytest.mark.parametrize(
    "mean, models, says",
    [
        (Average(), 1, "at least two models"),
        (Average(interpolation="cubic"), 2, "unknown interpolation"),
        (Average(interpolation="slerp"), 3, "slerp joins two models, not 3"),
        (Average(perm=Path("p")), 3, "--perm is for the second of two models"),
        (Average(weights=[0.5, 0.5]), 3, "2 weights for 3 models"),
        (Average(weights=[0.5, 0.6]), 2, "add up to 1.1"),
    ],
)
def test_what_cannot_be_averaged_so_is_refused(mean, models, says):
    with pytest.raises(UsageError, match=says):
        mean.check(models)
    Average().check(2)


def test_a_reference_that_is_no_model_is_refused():
    with pytest.raises(UsageError, match="is none of the models"):
        Average(reference=Path("d.pt")).reference_first(PATHS)
