"""Two models and a job that passed, made once: what comes after begins with its cache."""

import pytest

from . import cases
from .models import pair


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return pair(tmp_path_factory.mktemp("ci") / "models")


@pytest.fixture(scope="session")
def repository(models, tmp_path_factory):
    """The page's recipe and two models between which no barrier is."""
    return cases.checkout(tmp_path_factory.mktemp("repository"), models)


@pytest.fixture(scope="session")
def passed(repository, tmp_path_factory):
    """The first run of a repository, which passes."""
    return cases.play(cases.CASES[0], tmp_path_factory.mktemp("passed"), repository, None)
