"""Statistics of channels are added up batch by batch, and no batch's part is kept."""

import torch
from torch import nn

from rebasin_cli.repair import moments
from rebasin_cli.repair.moments import Measured, Moments


def test_no_more_is_held_for_more_batches(monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    sites = {"0.weight": network[:1], "2.weight": network[:3]}  # several of a batch, and none of them lost
    batches = [(torch.randn(8, 4) + k, torch.zeros(8).long()) for k in range(5)]
    events = []
    original = Moments.add
    monkeypatch.setattr(Moments, "add", lambda self, more: events.append("add") or original(self, more))
    fed = moments.fed
    monkeypatch.setattr(moments, "fed", lambda *given: events.append("batch") or fed(*given))
    with torch.no_grad():
        found = Measured(network, batches, "cpu", {}).moments(network.state_dict(), sites, {})
        together = torch.cat([inputs for inputs, _ in batches])
        whole = {weight: part(together).double() for weight, part in sites.items()}
    assert events == ["batch", "add", "add"] * 5
    for weight, values in whole.items():
        torch.testing.assert_close(found[weight].mean, values.mean(0), atol=1e-6, rtol=0)
        torch.testing.assert_close(found[weight].std, values.std(0, correction=0), atol=1e-6, rtol=0)
        assert found[weight].count == 40
