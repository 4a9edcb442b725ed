"""Statistics of channels are added up batch by batch, and no batch's part is kept."""

import torch
from torch import nn

from rebasin_cli.repair import moments
from rebasin_cli.repair.moments import Measured, Moments


def test_no_more_is_held_for_more_batches(monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    batches = [(torch.randn(8, 4) + k, torch.zeros(8).long()) for k in range(5)]
    events = []
    original = Moments.add
    monkeypatch.setattr(Moments, "add", lambda self, more: events.append("add") or original(self, more))
    fed = moments.fed
    monkeypatch.setattr(moments, "fed", lambda *given: events.append("batch") or fed(*given))
    with torch.no_grad():
        found = Measured(network, batches, "cpu", {}).moments(network.state_dict(), ["0.weight"], {})
    assert events == ["batch", "add"] * 5
    whole = network[0](torch.cat([inputs for inputs, _ in batches])).double()
    torch.testing.assert_close(found["0.weight"].mean, whole.mean(0).detach(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found["0.weight"].std, whole.std(0, correction=0).detach(), atol=1e-6, rtol=0)
    assert found["0.weight"].count == 40
