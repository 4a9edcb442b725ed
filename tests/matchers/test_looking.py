import pytest
import torch

from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.form import canonical
from tests.transformers import ByGroup, Neighbours, Rotary, drawn, inferred, outputs


@pytest.mark.parametrize("make", [Rotary, Neighbours, ByGroup])
def test_what_nothing_shows_is_matched_by_weights(make):
    """Rotary pairs, and the order of queries whose values are turned: the rest is told by activations."""
    net, found = inferred(make)
    a = canonical(drawn(net, 0), found.fitted, found.folds)
    element = acts.random(found.fitted, torch.Generator().manual_seed(3))
    b = dict(acts.acted(a.tensors, found.fitted, element))
    batches = [torch.randn(20, 5, 6, generator=torch.Generator().manual_seed(k)) for k in range(5)]
    data = [(batch, torch.zeros(20, dtype=torch.long)) for batch in batches]
    models = [{name: tensor.float() for name, tensor in model.items()} for model in (a.tensors, b)]
    how = {"network": net.float(), "data": data, "folds": found.folds, "prove": False}
    done = align(models, found.fitted, method="am", **how)
    for name, tensor in done.models[0].items():
        assert torch.allclose(tensor, done.tensors[name], atol=1e-4), name
    before, after = (outputs(net, {n: t.double() for n, t in m.items()}) for m in (b, done.tensors))
    assert (before - after).abs().max() < 1e-4 * before.abs().max()
