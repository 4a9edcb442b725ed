"""A few drawn inputs of every target, the same each time; `make fuzz` draws others."""

from collections import Counter
from dataclasses import replace

import pytest

from rebasin_cli.spec.notation import Fixed

from . import networks
from .fuzz import test_of as fuzz_test
from .targets import TARGETS, Finding, left_behind, watched


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_that_is_drawn_breaks_it(name):
    tried = Counter()
    fuzz_test(name, tried, examples=10, number=1)()
    assert tried[name] >= 10


@pytest.mark.sweep
@pytest.mark.parametrize("name", TARGETS)
def test_nothing_of_many_breaks_it(name):
    tried = Counter()
    examples = 100 if name == "network" else 300
    fuzz_test(name, tried, examples=examples, number=2)()
    assert tried[name] >= 5 * examples // 6


def test_what_counts_as_a_finding(tmp_path, monkeypatch):
    """The checks above would be worth nothing if they saw nothing."""
    monkeypatch.setattr("tests.fuzz.targets.SECONDS", -1.0)
    with pytest.raises(Finding, match="took"):
        with watched(1):
            pass
    monkeypatch.undo()
    with pytest.raises(ZeroDivisionError):
        with watched(1):
            1 / 0  # noqa: B018
    (tmp_path / "x").write_text("")
    left_behind(tmp_path, {"x"})
    with pytest.raises(Finding, match="left behind"):
        left_behind(tmp_path, set())
    monkeypatch.setattr("tests.fuzz.targets.SPARE", -(1 << 40))
    with pytest.raises(Finding, match="MB for an input"):
        with watched(1):
            pass


def test_a_wrong_spec_of_a_network_is_a_finding(monkeypatch):
    drawn, infer = [("linear", 1, 1), ("tanh", 1, 1), ("linear", 1, 1), ("relu", 1, 1)], networks.infer
    assert networks.farthest(drawn) < networks.WRONG

    def wrong(*given):
        found = infer(*given)
        tensors = found.fitted.tensors | {"steps.0.one.bias": (Fixed(),)}
        return replace(found, fitted=replace(found.fitted, tensors=tensors))

    monkeypatch.setattr(networks, "infer", wrong)
    with pytest.raises(Finding, match="changes outputs"):
        TARGETS["network"][1](drawn)
