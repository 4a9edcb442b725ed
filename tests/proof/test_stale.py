"""What a module computed in an earlier call neither hides what may move nor makes a proof."""

import pytest
from torch import nn

from rebasin_cli.errors import NotProven
from rebasin_cli.inference import infer
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from tests.networks.test_caches import WAYS, Doubling, X

WRONG = {"a.weight": "h .", "a.bias": ".", "b.weight": ". .", "b.bias": "."}


@pytest.mark.parametrize("way, learns", [("None at first", True), ("in a list", False)])
def test_a_network_that_was_run_is_inferred_as_if_it_had_not_been(way, learns):
    network = nn.Sequential(Doubling(way, learns))
    network(X)
    kept = network[0].kept
    found = infer(network, X)
    assert found.fitted.words == {"a": 5} and found.proof.without_effect == ()
    assert network[0].kept is kept


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_spec_of_a_network_that_was_run_is_refused(way):
    network = Doubling(way)
    network(X)
    with pytest.raises(NotProven, match="does not preserve"):
        prove(network, spec(WRONG, network), X)


@pytest.mark.parametrize("learns", [True, False])
def test_what_nobody_can_empty_is_named_and_makes_no_proof(learns):
    network = Doubling("behind a flag", learns)
    network(X)
    with pytest.raises(NotProven, match="what an earlier call left") as refused:
        prove(network, spec(WRONG, network), X)
    assert "kept" in refused.value.problems[0] and "a.weight" in refused.value.problems[0]
    found = infer(network, X)
    reasons = {place: frozen.why for frozen in found.reasons for place in frozen.places}
    assert not found.fitted.words and "kept" in reasons["a.bias axis 0"]
    if learns:
        assert reasons["a.weight axis 0"].startswith("evaluation does not use it but kept")


def spec(axes, network):
    text = "tensors:\n" + "".join(f"  {name}: '{line}'\n" for name, line in axes.items())
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    return fit(parse(text, name="test", source="test.yaml"), shapes)
