"""Endpoints that do not do what they were trained for stop a run."""

from types import SimpleNamespace

import pytest

from rebasin_cli.commands.verbs import endpoints
from rebasin_cli.errors import DataError
from rebasin_cli.networks.evaluation import Scores
from rebasin_cli.session.subjects import Data


def judge(model, accuracy, *, count=10_000, classes=10, reference="digits", **options):
    test = SimpleNamespace(name=reference, classes=classes)
    check = endpoints.check_of([model], test, Data(**options))
    check({"test": [Scores(1.0, {"accuracy": accuracy}, count, 0.0)]})


def test_endpoints_at_chance_or_below_their_record_stop_the_run(record):
    model = record(data="digits", test_accuracy="0.9000")
    judge(model, 0.86)
    for accuracy, said in ((0.84, "it records 0.9000"), (0.105, "chance is 0.1000")):
        with pytest.raises(DataError) as caught:
            judge(model, accuracy)
        assert said in str(caught.value)
        judge(model, accuracy, skip_checks=True)
        judge(model, accuracy, metric="mine.py:metric")


def test_small_samples_scatter_and_other_data_is_no_comparison(record):
    model = record(data="digits", test_accuracy="0.9000")
    judge(model, 0.80, count=50)
    judge(model, 0.50, reference="mnist")
    judge(record(data="digits", test_accuracy="high"), 0.5)
