"""Every experiment in a moment: `TINY` has the smallest parameters that it takes."""

import pytest
import torch

from rebasin_cli.lab.engine.bench import Bench

NETWORKS = {"samples": 60, "width": 4, "depth": 1, "pairs": 2, "points": 3}
TINY = {
    "onset": NETWORKS | {"epochs": [0, 1, 2], "early": 1, "measured": 40},
    "split-data": NETWORKS | {"epochs": 1},
    "steepest-descent": NETWORKS | {"epochs": 1},
    "slerp": NETWORKS | {"epochs": 1},
    "curve-costs": NETWORKS | {"epochs": 1, "passes": 1},
    "as-published": {
        "models": 3,
        "width": 4,
        "depth": 1,
        "trials": 2,
        "epochs": 4,
        "step": 1500,
        "passes": 1,
    },
    "many-models": {
        "samples": 60,
        "width": 4,
        "depth": 1,
        "counts": [2, 3],
        "trials": 2,
        "epochs": 1,
        "passes": 1,
        "probes": 2,
    },
    "many-widths": {
        "samples": 60,
        "widths": [3, 4],
        "depth": 1,
        "models": 3,
        "trials": 2,
        "epochs": 1,
        "passes": 1,
    },
    "failures": NETWORKS | {"steps": 3, "early": 1, "vgg_pairs": 2, "vgg_width": 1 / 64, "vgg_epochs": 1},
    "halves": {"samples": 60, "width": 4, "depth": 1, "models": 3, "epochs": 1},
    "width": {
        "samples": 100,
        "widths": [2, 3, 4],
        "depths": [1, 2],
        "pairs": 2,
        "steps": 2,
        "points": 3,
        "until": [0.0, 100.0],
        "measured": 50,
    },
    "cnn-width": {
        "samples": 60,
        "widths": [1, 2, 3],
        "pairs": 2,
        "steps": 2,
        "points": 3,
        "measured": 40,
    },
    "counterexample": {"cells": 20, "lambdas": 5},
    "hardness": {"size": 3, "draws": 3},
    "overlap": {"teachers": [2, 5], "ratios": [1, 2], "draws": 50},
    "teacher-barrier": {"teachers": [2, 3], "ratios": [1, 2, 8, 10], "pairs": 6},
    "learning-rate": {
        "teacher": 2,
        "students": [3],
        "rates": [2, 5, 8],
        "spreads": [0.1],
        "runs": 3,
        "steps": 30,
    },
    "uniformity": {"teacher": 2, "runs": 12, "norms": 3, "steps": 300},
    "double-descent": {"teacher": 2, "ratios": [0.5, 1, 2, 3], "pairs": 3, "steps": 40, "noise": [0.0, 1.0]},
    "statements": {"models": 3, "draws": 100},
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
