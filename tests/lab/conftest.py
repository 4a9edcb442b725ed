"""Every experiment in a moment: `TINY` has the smallest parameters that it takes."""

import pytest
import torch

from rebasin_cli.lab.engine.bench import Bench

TINY = {
    "counterexample": {"cells": 20, "lambdas": 5},
    "hardness": {"size": 3, "draws": 3},
    "statements": {"models": 3, "draws": 200},
}


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Networks this small are slower on two threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def bench(name, **values):
    """A bench for an experiment, with tiny parameters and those given."""
    return Bench(TINY[name] | values)
