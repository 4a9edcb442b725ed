"""Two models and a job that passed, made once: what comes after begins with its cache."""

import pytest

from . import cases
from .models import pair
from .served import served


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    return pair(tmp_path_factory.mktemp("ci") / "models")


@pytest.fixture(scope="session")
def repository(models, tmp_path_factory):
    """The page's recipe and two models between which no barrier is."""
    return cases.checkout(tmp_path_factory.mktemp("repository"), models)


@pytest.fixture(scope="session")
def rebasin(tmp_path_factory):
    """The shell line that runs rebasin in a fork of a process that has imported it."""
    with served(tmp_path_factory.mktemp("served")) as line:
        yield line


@pytest.fixture(scope="session")
def passed(repository, tmp_path_factory):
    """The first run of a repository, which passes; in an interpreter of its own."""
    return cases.play(cases.CASES[0], tmp_path_factory.mktemp("passed"), repository, None)
