"""Graphs of networks: traced once where that was asked for."""

import pytest
import torch
from torch import nn

from rebasin_cli.errors import NetworkError
from rebasin_cli.graph import tracing
from tests.traced import export


class Traced(int):
    """What stands for a graph."""

    general = True


def test_graphs_are_kept_for_a_module_and_inputs_of_one_kind(monkeypatch):
    traced = []
    monkeypatch.setattr(tracing, "_export", lambda *given: traced.append(given) or Traced(len(traced)))
    net, inputs = nn.Linear(3, 2), (torch.rand(4, 3),)
    assert [tracing.export(net, inputs, {}) for _ in range(2)] == [1, 2]  # nobody says that nothing changes
    with tracing.keeping_graphs():
        with torch.no_grad():
            net.weight.zero_()  # values are no part of a graph
        with tracing.keeping_graphs():
            assert [tracing.export(net, (torch.rand(4, 3),), {}) for _ in range(2)] == [3, 3]
        assert tracing.export(net, inputs, {}) == 3
        assert tracing.export(net, (torch.rand(5, 3),), {}) == 4
        assert tracing.export(net, (), {"input": inputs[0]}) == 5
        assert tracing.export(net.double(), inputs, {}) == 6
        assert tracing.export(nn.Linear(3, 2), inputs, {}) == 7
    assert tracing.export(net, inputs, {}) == 8


class Scaled(nn.Module):
    """Two layers, which may be one, and a constant between."""

    def __init__(self, scale=1.0, tied=False):
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(3, 3), nn.Linear(3, 3), torch.tensor(scale)
        if tied:
            self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x) * self.scale)


def test_tests_trace_a_network_anew_unless_nothing_but_its_weights_is_another(monkeypatch):
    """Or a test that shares graphs (see tests/traced.py) would be about another network than its own."""
    traced = []
    monkeypatch.setattr(tracing, "_export", lambda *given: traced.append(given) or Traced(len(traced)))
    monkeypatch.setattr("tests.traced._TRACED", {})
    x = torch.zeros(2, 3)
    assert [export(Scaled(), (x,), {}), export(Scaled(), (x,), {})] == [1, 1]
    assert export(Scaled(2.0), (x,), {}) == 2 and export(Scaled(tied=True), (x,), {}) == 3
    assert export(Scaled(), (x[:1],), {}) == 4 and export(Scaled().double(), (x.double(),), {}) == 5

    class Local(Scaled):
        pass

    assert [export(Local(), (x,), {}), export(Local(), (x,), {})] == [6, 7]
    monkeypatch.setattr(Scaled, "forward", lambda self, x: x)
    assert export(Scaled(), (x,), {}) == 8 and export(Scaled(), (x,), {}) == 8


def test_where_tracing_failed_is_told_by_the_line_of_forward(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError('no such thing\n  File "net.py", line 12, in forward\n    x.y()')

    monkeypatch.setattr(tracing, "exported_by_torch", fails)
    monkeypatch.setattr(tracing.dispatched, "record", fails)
    with pytest.raises(NetworkError) as refused:
        tracing.export(nn.Linear(3, 2), (torch.rand(4, 3),), {})
    assert refused.value.problems == ("RuntimeError: no such thing", "in net.py:12")
