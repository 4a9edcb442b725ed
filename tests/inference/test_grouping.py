import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import NotProven
from rebasin_cli.inference.inferring import infer
from rebasin_cli.inference.prove import prove
from rebasin_cli.spec.fitting import fit
from rebasin_cli.spec.parsing import parse
from tests.transformers import After, Factored, Gated, Layers, Packed, Transformer


def found(net, **how):
    return infer(net, torch.randn(2, *net.example_shape), groups=True, **how)


@pytest.mark.parametrize("net", [Transformer, Packed])
def test_a_pre_norm_transformer_has_rotations_and_invertible_heads(net):
    inferred = found(net())
    kinds = set(inferred.fitted.groups.values())
    assert kinds == {"O1", "GL"} and inferred.fitted.groups["stream"] == "O1"
    assert sum(kind == "GL" for kind in inferred.fitted.groups.values()) == 4  # two a block
    assert inferred.proof.largest_difference < 1e-12 and not inferred.refused
    assert len(inferred.folds.norms) == 5 and len(inferred.folds.keys) == len(inferred.folds.values) == 2
    assert "gelu" in inferred.no_larger["blocks.0.hidden"][0]


def test_norms_are_read_and_the_sides_of_a_product_written():
    text = found(Packed(), prove=False).text
    assert '"|stream|"' in text and "dim~*" in text and "groups:" in text
    read = fit(parse(text, name="inferred"), shapes(Packed()))
    assert read.groups == found(Packed(), prove=False).fitted.groups
    assert " ".join(map(str, read.tensors["blocks.1.attention.in_proj_bias"])).count("~*") == 1


def shapes(net):
    return {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize(
    "act, kind", [(torch.tanh, "signed"), (F.relu, "scaled"), (F.leaky_relu, "scaled"), (F.gelu, None)]
)
def test_an_activation_tells_what_hidden_units_may_take(act, kind):
    inferred = found(Layers(act))
    assert set(inferred.fitted.groups.values()) == ({kind} if kind else set())
    assert inferred.fitted.words == {"a": 8, "b": 7}


def test_a_gated_layer_may_scale_and_turn_what_it_gates():
    inferred = found(Gated())
    kinds = inferred.fitted.groups
    assert kinds["embed"] == "O" and sorted(kinds.values()) == ["O", "monomial"]
    assert '"|gate| embed"' in inferred.text
    assert inferred.proof.largest_difference < 1e-12


def test_a_stream_that_comes_out_of_a_norm_is_only_ordered():
    inferred = found(After())
    assert not inferred.fitted.groups and not inferred.folds.norms
    assert any("itself the stream" in why for _, why in inferred.folds.left)
    assert any("itself the stream" in why for why in inferred.no_larger["embed"])


def test_a_layer_between_two_without_anything_is_invertible():
    assert found(Factored()).fitted.groups == {"inner": "GL"}


class Changed(Transformer):
    """Keys are normed before they meet the queries."""

    def __init__(self):
        super().__init__(blocks=1)
        self.extra = nn.LayerNorm(4)

    def forward(self, x):
        x = self.embed(x) + self.place
        block = self.blocks[0]
        y = block.norm1(x)
        q, k, v = (f(y).unflatten(-1, (2, -1)).transpose(1, 2) for f in (block.q, block.k, block.v))
        y = F.scaled_dot_product_attention(q, self.extra(k), v).transpose(1, 2).flatten(2)
        return self.head(self.norm(x + block.o(y)).mean(1))


def test_keys_with_a_norm_keep_their_bias_and_their_order():
    inferred = found(Changed())
    kinds = inferred.fitted.groups
    assert [word for word, kind in kinds.items() if kind == "GL"] == ["blocks.0.value"]
    assert not inferred.folds.keys and "more than linear layers" in inferred.folds.unfolded["extra.weight"]


WRONG = [
    ('"stream": O1', "stream: O", "stream"),
    ("blocks.{i}.value: GL", "blocks.{i}.value: GL\n  blocks.{i}.hidden: signed", "blocks.0.hidden"),
    ("value~*", "value*", "blocks.0.value"),
    ('"|stream|"', '"stream"', "stream"),
]


@pytest.mark.parametrize("right, wrong, word", WRONG)
def test_a_group_that_does_not_hold_is_caught_with_its_words_name(right, wrong, word):
    net = Transformer()
    text = found(net, prove=False).text
    assert right in text
    fitted = fit(parse(text.replace(right, wrong), name="claim", source="claim.yaml"), shapes(net))
    with pytest.raises(NotProven, match="under the groups that it gives") as refused:
        prove(net, fitted, torch.randn(2, *net.example_shape))
    assert word in refused.value.words and refused.value.grouped
    assert any(word in problem for problem in refused.value.problems)


def test_the_walk_for_permutations_finds_what_it_found_before():
    net = Transformer()
    plain = infer(net, torch.randn(2, *net.example_shape))
    assert not plain.fitted.groups and "~" not in plain.text and "|" not in plain.text
    assert plain.fitted.words == found(net, prove=False).fitted.words
