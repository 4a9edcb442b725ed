import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import CheckpointError, NotProven
from rebasin_cli.inference.groups import planes, side_rules
from rebasin_cli.inference.inferring import infer
from rebasin_cli.inference.text.reasons import explain
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import elements
from rebasin_cli.symmetry.action import views
from rebasin_cli.symmetry.elements import Elements
from rebasin_cli.symmetry.form import canonical
from tests.transformers import (
    After,
    ByGroup,
    ByHead,
    Factored,
    Gated,
    Layers,
    Neighbours,
    NormedFirst,
    OneLayer,
    Packed,
    Rotary,
    Transformer,
    drawn,
    outputs,
)


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


class Without(nn.Module):
    """A stream with gains, heads, and whatever comes between: no norm anywhere."""

    def __init__(self, between):
        super().__init__()
        self.embed, self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 6), nn.Linear(6, 8)
        self.gain, self.out, self.between = nn.Parameter(torch.rand(8) + 0.5), nn.Linear(8, 3), between

    def forward(self, x):
        x = self.embed(x)
        return self.out(self.between(self, x + self.gain * self.two(torch.relu(self.one(x)))))


WITHOUT = {
    "gains in a stream": lambda s, x: x,
    "a gain before layers": lambda s, x: s.gain * x,
    "a gain of what is read twice": lambda s, x: s.gain * x + torch.tanh(s.gain * x),
    "a mean": lambda s, x: x - x.mean(-1, keepdim=True),
    "a length": lambda s, x: x * x.sum(-1, keepdim=True),
    "a number": lambda s, x: x + 1,
    "a softmax": lambda s, x: x.softmax(-1),
    "an activation": lambda s, x: torch.nn.functional.silu(x),
}


@pytest.mark.parametrize("between", WITHOUT)
def test_no_reason_names_a_norm_where_there_is_none(between):
    torch.manual_seed(0)
    inferred = infer(Without(WITHOUT[between]), torch.randn(4, 5), groups=True)
    reasons = [why for _, why in inferred.folds.left] + [one.why for one in inferred.reasons]
    reasons += [why for each in inferred.no_larger.values() for why in each]
    told = [why.partition(" (")[0] for why in reasons]  # without the line of code
    assert told and not [why for why in told if "norm" in why.lower()]


def test_a_layer_between_two_without_anything_is_invertible():
    assert found(Factored()).fitted.groups == {"inner": "GL"}


@pytest.mark.parametrize(
    "make, kind, axis",
    [
        (Rotary, "halves", "(block.q.heads block.q.queries* block.q.dim*)"),
        (Neighbours, "pairs", "(block.q block.dim)"),
    ],
)
def test_pairs_that_positions_turn_take_a_complex_number_each(make, kind, axis):
    inferred = found(make())
    (word,) = (word for word, its in inferred.fitted.groups.items() if its == kind)
    assert str(inferred.fitted.tensors["block.q.weight"][0]) == axis, inferred.text
    assert f"{word}~" in inferred.text and not inferred.refused
    assert inferred.proof.largest_difference < 1e-12
    assert "angle of its own" in inferred.no_larger[word][0]
    wrong = {"halves": "pairs", "pairs": "halves"}[kind]
    text = inferred.text.replace(f": {kind}", f": {wrong}")
    net = make()
    with pytest.raises(NotProven) as refused:
        prove(net, fit(parse(text, name="claim", source="claim.yaml"), shapes(net)), torch.randn(2, 5, 6))
    assert refused.value.words == (word,)


class PartlyByGroup(ByGroup):
    """Positions turn the first units of each head."""

    dim = 6


@pytest.mark.parametrize(
    "make, axis",
    [
        (OneLayer, "(heads queries* dim*) + (heads dim~*) + (heads value~*)"),
        (ByHead, "(heads dim* + 1* + dim~* + 1~* + value~*)"),
        (ByGroup, "(heads (queries* dim*) + dim~* + value~*)"),
        (PartlyByGroup, "(heads (queries* dim* + 2*) + dim~* + 2~* + value~*)"),
    ],
)
def test_pairs_are_found_among_the_rows_of_one_layer_for_queries_keys_and_values(make, axis):
    inferred = found(make())
    assert inferred.proof.largest_difference < 1e-12 and not inferred.refused
    assert inferred.fitted.groups["block.qkv.dim"] == "halves"
    for name in ("block.qkv.weight", "block.qkv.bias"):
        assert str(inferred.fitted.tensors[name][0]).replace("block.qkv.", "") == axis


def test_the_proof_draws_elements_of_pairs_among_such_rows():
    """Queries and keys in each other's place would do; keys that take the same element do not."""
    net = ByGroup()
    text = found(net, prove=False).text
    assert "block.qkv.dim~*" in text
    wrong = text.replace("block.qkv.dim~*", "block.qkv.dim*")
    with pytest.raises(NotProven) as refused:
        prove(net, fit(parse(wrong, name="claim", source="claim.yaml"), shapes(net)), torch.randn(2, 5, 6))
    assert refused.value.words == ("block.qkv.dim",)


class Biased(ByGroup):
    """Each head has a bias of its own for distances, so that heads stay."""

    def __init__(self):
        super().__init__()
        slopes = torch.arange(1.0, 5)[:, None, None] * torch.arange(5.0)
        self.register_buffer("slopes", slopes, persistent=False)

    def forward(self, x):
        x, block = self.embed(x), self.block
        q, k, v = (part.transpose(1, 2) for part in self.part(block.qkv(block.norm(x)), 2, 4))
        k, v = (part.repeat_interleave(2, 1) for part in (block.turned(k), v))
        bias = self.slopes.expand(-1, 5, -1)
        mixed = F.scaled_dot_product_attention(block.turned(q), k, v, bias)
        return self.head(self.last(x + block.o(mixed.transpose(1, 2).flatten(2))))


class BiasedApart(Biased):
    part = staticmethod(OneLayer.part)


@pytest.mark.parametrize("make", [Biased, BiasedApart])
def test_pairs_of_heads_that_stay_are_found_in_each(make):
    inferred = found(make())
    (word,) = (word for word, kind in inferred.fitted.groups.items() if kind == "halves")
    assert not inferred.refused and inferred.proof.largest_difference < 1e-12
    assert inferred.fitted.within[word].count == 2 and inferred.fitted.within[word].word is None


def test_a_spec_with_pairs_is_no_claim_of_their_order():
    """For a search of permutations its pairs are positions that stay; for one of elements, within heads."""
    net = Rotary()
    inferred = found(net, prove=False)
    fitted, plain = inferred.fitted, infer(net, torch.randn(2, 5, 6), prove=False).fitted
    assert fitted.ordered.words == plain.words
    models = [{name: torch.randn(t.shape) for name, t in net.state_dict().items()} for _ in range(2)]
    assert align(models, fitted.ordered).permutations[0].keys() == plain.words.keys()
    (element,) = align(models, fitted, folds=inferred.folds).elements
    block, order = fitted.within["block.q.dim"], element.permutations["block.q.dim"]
    assert torch.equal(order % block.size, torch.arange(block.size).repeat(block.count))
    swapped = order.view(block.count, block.size).flip(1).flatten()  # blocks stay, units within do not
    permutations = {**element.permutations, "block.q.dim": swapped}
    maps = {word: map_ for word, map_ in element.maps.items() if word != "block.q.dim"}
    with pytest.raises(CheckpointError, match="do not fit") as refused:
        elements.check(Elements(permutations, maps), fitted)
    assert any("has no order of its own" in problem for problem in refused.value.problems)


class Flipped(nn.Module):
    """A linear layer with its weight the other way round, as GPT-2 has them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(inputs, outputs)),
            nn.Parameter(torch.randn(outputs)),
        )

    def forward(self, x):
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Turned(Transformer):
    def __init__(self):
        super().__init__(blocks=1)
        block = self.blocks[0]
        block.q, block.k, block.v, block.o = (Flipped(8, 8) for _ in range(4))
        block.up, block.down = Flipped(8, 16), Flipped(16, 8)


def test_layers_whose_weights_lie_the_other_way_round_are_layers():
    net = Turned()
    inferred, plain = found(net), found(Transformer(blocks=1), prove=False)
    assert inferred.fitted.groups == plain.fitted.groups and not inferred.refused
    assert not inferred.folds.left and len(inferred.folds.norms) == 3
    tensors = drawn(net, 0)
    form = canonical(tensors, inferred.fitted, inferred.folds)
    before, after = outputs(net, tensors), outputs(net, form.tensors)
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()


def test_what_the_second_look_does_not_follow_is_only_ordered(monkeypatch):
    """An operation that it holds in place, and the first look does not."""
    monkeypatch.setitem(side_rules.RULES, "gelu", lambda walk, a: walk.freeze(a["self"].axes, "held"))
    inferred = found(Transformer(blocks=1))
    assert "not followed alike" in inferred.no_larger["blocks.0.hidden"][0]
    assert inferred.fitted.groups["stream"] == "O1" and not inferred.refused


class Partly(Rotary):
    """Positions turn the first units of each head."""

    def __init__(self):
        super().__init__()
        block = self.block
        block.q, block.k = nn.Linear(8, 4 * 7), nn.Linear(8, 2 * 7)
        plain = block.turned
        block.turned = lambda x: torch.cat([plain(x[..., :4]), x[..., 4:]], -1)


def test_units_of_a_head_that_are_not_turned_are_a_word_of_their_own():
    net = Partly()
    inferred = found(net)
    kinds = inferred.fitted.groups
    assert sorted(kinds.values()) == ["GL", "GL", "O", "halves"] and not inferred.refused
    (turned,) = (word for word, kind in kinds.items() if kind == "halves")
    (axis, _) = inferred.fitted.tensors["block.k.weight"]
    assert str(axis).startswith("(block.q.heads") and f"{turned}~* + " in str(axis)
    assert inferred.proof.largest_difference < 1e-12
    tensors = drawn(net, 0)
    form = canonical(tensors, inferred.fitted, inferred.folds)
    sides = [
        torch.cat([v for n, axes in inferred.fitted.tensors.items()
                   for s, v in views(form.tensors[n], axes, inferred.fitted, turned) if s == side], -1)
        for side in ("", "~")
    ]  # fmt: skip
    assert torch.allclose(*(x.view(2, 2, 2, -1).norm(dim=(1, 3)) for x in sides))
    before, after = outputs(net, tensors), outputs(net, form.tensors)
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()


class Curved(Gated):
    """What comes out of a norm also goes through an activation, unit by unit."""

    def forward(self, x):
        x = self.embed(x)
        return self.head(self.last(x)) + F.gelu(self.norm(x)).amax(-1, keepdim=True)


def test_a_norm_that_more_than_linear_layers_read_stays():
    inferred = found(Curved(), prove=False)
    assert not inferred.fitted.groups
    assert [norm.weight for norm in inferred.folds.norms] == ["last.weight"]
    assert "more than linear layers" in inferred.folds.unfolded["norm.weight"]


class Normed(Rotary):
    """What positions turn was divided by its length before."""

    def __init__(self):
        super().__init__()
        plain = self.block.turned
        self.block.turned = lambda x: plain(x / x.square().mean(-1, keepdim=True).sqrt())


def test_turned_units_that_were_normed_before_stay():
    kinds = found(Normed(), prove=False).fitted.groups
    assert not {"halves", "pairs"} & set(kinds.values())


class OneAdded(NormedFirst):
    """Gains are written as what they differ from 1 by, as in Gemma."""

    def __init__(self):
        super().__init__(gains=False)
        block = self.block
        block.gain = nn.Parameter(torch.zeros(4))
        norm = block.turned
        block.turned = lambda x: norm(x * (1 + block.gain))


@pytest.mark.parametrize(
    "make, why",
    [
        (NormedFirst, planes.GAINED),
        (OneAdded, planes.GAINED),
        (lambda: NormedFirst(gains=False), planes.NORMED),
    ],
)
def test_why_pairs_stay_behind_a_norm_is_said_for_their_rows(make, why):
    inferred = found(make(), prove=False)
    assert not {"halves", "pairs"} & set(inferred.fitted.groups.values())
    said = explain(inferred)
    for name in ("block.q.weight", "block.q.bias", "block.k.weight"):
        assert why in said["tensors"][name][0]["stays"]
    assert why not in said["tensors"]["block.v.weight"][0]["stays"]


def turned_by(tensors, angle, gains):
    """The first pair of each query and key turned by an angle, and the norms' gains of that pair as given."""
    cos, sin = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
    moved = {name: tensor.clone() for name, tensor in tensors.items()}
    for side in ("q", "k"):
        for name in (f"block.{side}.weight", f"block.{side}.bias"):
            heads = moved[name].view(-1, 4, *moved[name].shape[1:])
            heads[:, [0, 2]] = torch.einsum("ij,hj...->hi...", turn, heads[:, [0, 2]])
        gain = moved[f"block.{side}_norm.weight"]
        gain[[0, 2]] = gains(gain[[0, 2]])
    return moved


@pytest.mark.parametrize(
    "angle, gains, holds",
    [
        (math.pi, lambda g: g, True),
        (math.pi / 2, lambda g: g.flip(0), True),
        (math.pi / 2, lambda g: g, False),
        (0.7, lambda g: g, False),
        (0.7, lambda g: g.flip(0), False),
    ],
)
def test_behind_a_norm_with_gains_only_half_turns_hold_and_quarters_that_exchange_the_gains(
    angle, gains, holds
):
    net = NormedFirst()
    tensors = drawn(net, 0)
    before = outputs(net, tensors)
    after = outputs(net, turned_by(tensors, angle, gains))
    error = float((before - after).abs().max() / before.abs().max())
    assert error < 1e-12 if holds else error > 1e-3


def test_behind_a_norm_any_angle_holds_where_a_pair_has_equal_gains():
    net = NormedFirst()
    tensors = drawn(net, 0)
    for side in ("q", "k"):
        tensors[f"block.{side}_norm.weight"][2] = tensors[f"block.{side}_norm.weight"][0]
    before, after = (outputs(net, t) for t in (tensors, turned_by(tensors, 0.7, lambda g: g)))
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()


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
