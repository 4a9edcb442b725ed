"""rebasin list, and what other packages add to it."""

import importlib.metadata

import pytest


def test_everything_that_an_option_may_name(done):
    out = done("list").out
    for words in (
        "methods:\n",
        "  merge-many ",
        "specs:\n",
        "  mlp ",
        "nets:\n",
        "data:\n",
        "  npz ",
        "  html ",
    ):
        assert words in out
    assert "  wm                       Weight matching: align" in done("list", "methods").out


def test_one_kind(done, refused):
    assert "mnist" not in done("list", "methods").out
    refused(2, "list", "method", says="Did you mean methods?")


@pytest.fixture
def another_package(tmp_path, monkeypatch):
    """A package that brings a method and a data set through entry points."""
    (tmp_path / "theirs.py").write_text(
        '"""A method that moves nothing."""\n'
        "from dataclasses import dataclass\n"
        "from rebasin_cli import permutation\n"
        "from rebasin_cli.datasets import UNIT\n"
        "from rebasin_cli.datasets.sets import digits\n"
        "from rebasin_cli.matchers import MatchResult\n"
        "NEEDS, MANY, DECLARES = frozenset(), False, frozenset()\n"
        "NORMALIZATION, CLASSES, load = UNIT, 10, digits.load\n"
        "@dataclass(frozen=True)\nclass Options:\n    max_sweeps: int = 1\n"
        "def match(problem, options):\n"
        "    return MatchResult((permutation.identity(problem.fitted.words),), 0.0, 0.0, 1, 1, True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "theirs-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[rebasin_cli.matchers]\nstill = theirs\n[rebasin_cli.datasets]\nnumerals = theirs\n"
    )
    importlib.invalidate_caches()


def test_entry_points_are_listed_and_work(another_package, pair, done, trained):
    assert "still                    from theirs" in done("list", "methods").out
    assert "numerals" in done("list", "data").out
    told = done("align", *pair, "--method", "still", "--json", "-q").json()
    assert told["match"]["method"] == "still"
    assert done("eval", trained[0], "--data", "numerals", "--json", "-q").json()["accuracy"] > 0.6
