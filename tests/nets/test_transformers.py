"""vit and gpt: what they compute, their options, and how they are read back from tensors."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from rebasin_cli import nets
from rebasin_cli.errors import NetworkError, UsageError
from rebasin_cli.nets import _transformer, gpt, vit

SHAPES = {"vit": (3, 8, 12), "gpt": (10,)}
COMBINATIONS = list(
    itertools.product(("vit", "gpt"), ("layer", "rms"), ("gelu", "swiglu"), ("learned", "rope"))
)


def built(name, norm="layer", activation="gelu", positions="learned", **options):
    options = {"width": 24, "depth": 2, "heads": 3, "norm": norm, "activation": activation} | options
    if name == "vit":
        options = {"patch": 4} | options
    torch.manual_seed(0)
    return nets.build(name, input_shape=SHAPES[name], classes=7, positions=positions, **options).eval()


def inputs_for(name, batch=2):
    generator = torch.Generator().manual_seed(1)
    if name == "vit":
        return torch.rand(batch, *SHAPES[name], generator=generator)
    return torch.randint(7, (batch, *SHAPES[name]), generator=generator)


def shapes_of(network):
    return {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}


@pytest.mark.parametrize("combination", COMBINATIONS, ids=" ".join)
def test_every_combination_is_read_back_from_its_tensors_alone(combination):
    name = combination[0]
    network = built(*combination)
    again = {"vit": vit, "gpt": gpt}[name].from_shapes(shapes_of(network)).eval()
    assert shapes_of(again) == shapes_of(network)
    again.load_state_dict(network.state_dict())
    outputs = network(inputs_for(name))
    assert outputs.shape == ((2, 7) if name == "vit" else (2, 7, 10)) and outputs.std() > 0
    torch.testing.assert_close(again(inputs_for(name)), outputs)


def by_hand(tensors, x, *, causal):
    """The blocks as the papers write them: two layers, three heads, LayerNorm, GELU."""

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def linear(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    for i in range(2):
        read = norm(x, f"blocks.{i}.norm1")
        q, k, v = (linear(read, f"blocks.{i}.attn.{which}") for which in "qkv")
        heads = []
        for head in range(3):
            own = slice(8 * head, 8 * head + 8)
            scores = q[..., own] @ k[..., own].mT / math.sqrt(8)
            if causal:
                later = torch.ones_like(scores[0]).triu(1).bool()
                scores = scores.masked_fill(later, -math.inf)
            heads.append(scores.softmax(-1) @ v[..., own])
        x = x + linear(torch.cat(heads, -1), f"blocks.{i}.attn.out")
        hidden = F.gelu(linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.up"))
        x = x + linear(hidden, f"blocks.{i}.mlp.down")
    return norm(x, "norm"), linear


def test_a_vit_is_the_papers_with_the_mean_over_patches():
    network, images = built("vit"), inputs_for("vit")
    tensors = network.state_dict()
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
    x = patches @ tensors["patch_embed.weight"].flatten(1).T + tensors["patch_embed.bias"]
    x, linear = by_hand(tensors, x + tensors["pos_embed"], causal=False)
    torch.testing.assert_close(network(images), linear(x.mean(1), "head"))


def test_a_gpt_is_the_papers_with_logits_of_every_next_character():
    network, tokens = built("gpt"), inputs_for("gpt")
    tensors = network.state_dict()
    x = tensors["tok_embed.weight"][tokens] + tensors["pos_embed"]
    x, linear = by_hand(tensors, x, causal=True)
    torch.testing.assert_close(network(tokens), linear(x, "head").mT)


@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_a_gpt_sees_nothing_that_comes_later_and_all_that_came_before(positions):
    network, tokens = built("gpt", positions=positions), inputs_for("gpt", 1)
    changed = tokens.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 7
    moved = (network(tokens) - network(changed)).abs().amax(1)[0] > 1e-7
    assert moved.tolist() == [False] * 4 + [True] * 6


@pytest.mark.parametrize("name", ["vit", "gpt"])
@pytest.mark.parametrize("positions", ["learned", "rope"])
def test_the_order_of_inputs_counts(name, positions):
    network, inputs = built(name, positions=positions, depth=1), inputs_for(name)
    before = network(inputs)
    if name == "vit":
        swapped = torch.cat([inputs[..., 4:8], inputs[..., :4], inputs[..., 8:]], dim=-1)
        after = network(swapped)
        rows = network(torch.cat([inputs[..., 4:, :], inputs[..., :4, :]], dim=-2))
        assert not torch.allclose(rows, before, atol=1e-6)
    else:
        inputs[:, 2], inputs[:, 5] = 1, 2
        swapped = inputs.clone()
        swapped[:, 2], swapped[:, 5] = 2, 1
        before, after = network(inputs)[..., -1], network(swapped)[..., -1]
    assert not torch.allclose(after, before, atol=1e-6)


def test_rotary_scores_depend_on_the_distance_alone():
    rotary = _transformer.Rotary(8, axes=2, base=100.0).double()
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 8, generator=generator, dtype=torch.float64)

    def score(one, other):
        turned = (
            _transformer.turned(x, rotary(torch.tensor([at]).double())) for x, at in ((q, one), (k, other))
        )
        return torch.mul(*turned).sum()

    torch.testing.assert_close(score((5, 1), (3, 4)), score((2, 7), (0, 10)))
    assert not torch.isclose(score((5, 1), (3, 4)), score((1, 5), (4, 3)))  # a row is no column
    assert not torch.isclose(score((5, 1), (3, 4)), score((5, 1), (3, 5)))


def test_places_are_rows_and_columns_in_the_order_in_which_patches_are_flattened():
    grid = torch.arange(6.0).view(1, 1, 2, 3)
    places = vit._places(grid).long()
    assert [grid[0, 0, row, column].item() for row, column in places] == grid.flatten().tolist()


def test_a_gated_mlp_has_as_many_numbers_as_a_plain_one():
    plain, gated = (
        sum(t.numel() for n, t in built("gpt", activation=a, width=96).named_parameters() if "mlp" in n)
        for a in ("gelu", "swiglu")
    )
    assert gated == pytest.approx(plain, rel=0.02)


def test_patches_are_chosen_where_they_are_not_given():
    sides = [
        vit.build("vit", input_shape=(1, n, n), classes=2).patch_embed.kernel_size[0]
        for n in (8, 28, 32, 224)
    ]
    assert sides == [2, 4, 8, 32]


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("vit", {"heads": 5}, "5 heads do not divide a width of 24"),
        ("vit", {"heads": 4, "positions": "rope"}, "heads of 6 units; for RoPE expected a multiple of 4"),
        ("gpt", {"width": 15, "positions": "rope"}, "heads of 5 units; for RoPE expected a multiple of 2"),
        ("vit", {"patch": 3}, "patches of 3×3 do not divide images of 8×12"),
        ("gpt", {"activation": "relu"}, "activation 'relu'; choose gelu or swiglu"),
        ("gpt", {"norm": "batch"}, "norm 'batch'; choose layer or rms"),
        ("gpt", {"patch": 4}, "gpt has no option --patch"),
        ("gpt", {"heads": 1 << 30}, "heads of 1073741824 make no network"),
        ("vit", {"width": 24.5}, "a width of 24.5; expected a number of units"),
    ],
)
def test_options_that_make_no_network_are_refused(name, options, says):
    with pytest.raises(UsageError) as refused:
        built(name, **options)
    assert says in str(refused.value)


def test_all_that_is_wrong_with_the_options_is_said_at_once():
    with pytest.raises(UsageError) as refused:
        built("gpt", heads=5, norm="batch", activation="tanh", positions="none")
    assert len(refused.value.problems) == 4


def test_other_nets_refuse_the_options_of_transformers():
    with pytest.raises(UsageError, match="mlp has no option --heads or --positions"):
        nets.build("mlp", input_shape=(4,), classes=2, heads=2, positions="rope")


def test_more_characters_than_positions_are_refused():
    with pytest.raises(NetworkError, match="11 characters, and the network has learned 10 positions"):
        built("gpt")(torch.zeros(1, 11, dtype=torch.int64))
    assert built("gpt", positions="rope")(torch.zeros(1, 11, dtype=torch.int64)).shape == (1, 7, 11)


@pytest.mark.parametrize(
    ("drop", "says"),
    [
        ("blocks.0.attn.scale", "blocks.0.attn.scale is missing"),
        ("tok_embed.weight", "tok_embed.weight is missing"),
        ("head.weight", "head.weight is missing"),
    ],
)
def test_tensors_that_are_no_transformer_are_refused(drop, says):
    shapes = shapes_of(built("gpt"))
    del shapes[drop]
    with pytest.raises(NetworkError) as refused:
        gpt.from_shapes(shapes)
    assert says in str(refused.value)


def test_heads_that_do_not_divide_are_refused_when_read():
    shapes = shapes_of(built("gpt")) | {"blocks.0.attn.scale": (5,)}
    with pytest.raises(NetworkError, match="5 heads do not divide a width of 24"):
        gpt.from_shapes(shapes)
