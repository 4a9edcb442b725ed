"""Graphs of networks: traced once where that was asked for."""

import torch
from torch import nn

from rebasin_cli.inference import tracing


def test_graphs_are_kept_for_a_module_and_inputs_of_one_kind(monkeypatch):
    traced = []
    monkeypatch.setattr(tracing, "_export", lambda *given: traced.append(given) or len(traced))
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
