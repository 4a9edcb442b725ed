"""Inference finds the symmetries of a network by itself, and never one that is not there."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import rebasin_cli
from rebasin_cli import nets
from rebasin_cli.errors import NetworkError
from rebasin_cli.inference import infer
from rebasin_cli.inference.axes.axes import Fixed, product, total
from rebasin_cli.inference.axes.units import Units
from rebasin_cli.inference.rules import rules, shapes
from rebasin_cli.nets import resnet_cifar
from rebasin_cli.runtime.seeds import generator
from rebasin_cli.spec import library
from rebasin_cli.symmetry import permutation


class Net(nn.Module):
    """`Net(lambda s, x: s.b(s.a(x)), a=…, b=…)`: a network in one line."""

    def __init__(self, function, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


def rand(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


IMAGES, ROWS, SEQUENCE = rand(2, 3, 8, 8), rand(4, 3), rand(2, 5, 3)


def lines_of(network, *inputs):
    """The inferred lines, after the proof held."""
    found = infer(network, inputs)
    assert found.proof is None or found.proof.largest_difference <= 1e-9
    assert found.proof is not None or not found.fitted.words
    assert not any("refused" in frozen.why for frozen in found.reasons)
    return {name: " ".join(map(str, axes)) for name, axes in found.fitted.tensors.items()}


def stays(text):
    """Whether an axis text moves nothing."""
    return not any(character.isalpha() for character in text)


# The networks of this project -------------------------------------------------------------------------


def test_stages_joined_by_zeros_have_more_freedom_than_the_built_in_spec_knows():
    network = resnet_cifar.build("resnet20", input_shape=(3, 8, 8), classes=5, width=0.5, join="pad")
    found = infer(network, rand(2, 3, 8, 8))
    known = library.find(found.fitted.shapes)
    assert found.proof.largest_difference <= 1e-9
    assert found.fitted.log10_symmetries() > known.log10_symmetries()


# Structures -------------------------------------------------------------------------------------------


def test_flattened_channels_own_consecutive_columns_and_channels_last_every_so_many():
    def network(flatten):
        return Net(flatten, c=nn.Conv2d(3, 6, 3, padding=1), b=nn.BatchNorm2d(6), h=nn.Linear(96, 4))

    pooled = lines_of(network(lambda s, x: s.h(F.max_pool2d(torch.relu(s.b(s.c(x))), 2).flatten(1))), IMAGES)
    assert pooled["h.weight"] == ". (c 16)".replace(".", "4", 1)
    assert pooled["b.running_mean"] == "c" and pooled["b.num_batches_tracked"] == ""
    last = lines_of(
        network(lambda s, x: s.h(F.max_pool2d(s.b(s.c(x)), 2).permute(0, 2, 3, 1).flatten(1))), IMAGES
    )
    assert last["h.weight"] == "4 (16 c)"


def test_everything_added_to_a_residual_stream_is_ordered_like_it():
    def block(s, x):
        x = s.stem(x)
        x = x + s.two(torch.relu(s.one(x)))
        return s.h((torch.relu(s.way(x)) + s.four(torch.relu(s.three(x)))).mean((2, 3)))

    c = nn.Conv2d
    lines = lines_of(
        Net(block, stem=c(3, 4, 1), one=c(4, 5, 1), two=c(5, 4, 1), way=c(4, 6, 1), three=c(4, 7, 1),
            four=c(7, 6, 1), h=nn.Linear(6, 3)), IMAGES)  # fmt: skip
    assert lines["two.weight"] == "stem one 1 1" and lines["four.weight"] == "way three 1 1"
    assert lines["h.weight"] == "3 way"


def test_concatenations_are_sums():
    def dense(s, x):
        a = torch.relu(s.c1(x))
        b = torch.relu(s.c2(a))
        return s.h(torch.cat([a, b, s.c3(torch.cat([a, b], 1))], 1).mean((2, 3)))

    modules = {"c1": nn.Conv2d(3, 6, 1), "c2": nn.Conv2d(6, 5, 1), "c3": nn.Conv2d(11, 4, 1)}
    lines = lines_of(Net(dense, **modules, h=nn.Linear(15, 4)), IMAGES)
    assert lines["c3.weight"] == "c3 c1 + c2 1 1" and lines["h.weight"] == "4 c1 + c2 + c3"


def test_a_u_net_with_upsampling_transposed_convolution_and_skips():
    def unet(s, x):
        a = torch.relu(s.d1(x))
        b = torch.relu(s.d2(F.max_pool2d(a, 2)))
        up = [F.interpolate(b, scale_factor=2, mode="bilinear"), F.interpolate(b, scale_factor=2), s.up(b)]
        return s.o(torch.cat([a, *up], 1))

    lines = lines_of(
        Net(unet, d1=nn.Conv2d(3, 6, 3, padding=1), d2=nn.Conv2d(6, 8, 3, padding=1),
            up=nn.ConvTranspose2d(8, 5, 2, 2), o=nn.Conv2d(27, 3, 1)), IMAGES)  # fmt: skip
    assert lines["up.weight"] == "d2 up 2 2" and lines["o.weight"] == "3 d1 + (2 d2) + up 1 1"


def test_squeeze_and_excite_gates_are_ordered_like_what_they_gate():
    def gate(s, x):
        a = torch.relu(s.c(x))
        return s.h((a * torch.sigmoid(s.e(torch.relu(s.q(a.mean((2, 3), keepdim=True)))))).mean((2, 3)))

    modules = {"c": nn.Conv2d(3, 8, 3), "q": nn.Conv2d(8, 2, 1), "e": nn.Conv2d(2, 8, 1)}
    assert lines_of(Net(gate, **modules, h=nn.Linear(8, 4)), IMAGES)["e.weight"] == "c q 1 1"


def test_depthwise_convolutions_keep_their_units_and_grouped_ones_move_groups():
    def chain(s, x):
        return s.h(torch.relu(s.p(F.relu6(s.d(F.relu6(s.e(x)))))).mean((2, 3)))

    def network(groups, out=12):
        return Net(chain, e=nn.Conv2d(3, 12, 1), d=nn.Conv2d(12, out, 3, groups=groups),
                   p=nn.Conv2d(out, 4, 1), h=nn.Linear(4, 5))  # fmt: skip

    depthwise = lines_of(network(12), IMAGES)
    assert depthwise["d.weight"] == "e 1 3 3" and depthwise["p.weight"] == "p e 1 1"
    grouped = lines_of(network(4, 8), IMAGES)
    assert grouped["d.weight"] == "(e.groups d*) e.channels* 3 3"
    assert grouped["e.weight"] == "(e.groups e.channels*) 3 1 1"
    transposed = Net(chain, e=nn.Conv2d(3, 6, 3), d=nn.ConvTranspose2d(6, 8, 2, groups=2),
                     p=nn.Conv2d(8, 4, 1), h=nn.Linear(4, 5))  # fmt: skip
    assert lines_of(transposed, IMAGES)["d.bias"] == "(e.groups d*)"


def test_a_channel_shuffle_is_followed():
    def shuffle(s, x):
        a, b = s.c(x).chunk(2, 1)
        x = torch.cat([a, torch.relu(s.b(b))], 1)
        x = x.view(2, 2, 4, 8, 8).transpose(1, 2).reshape(2, 8, 8, 8)
        return s.h(torch.relu(s.o(x)).mean((2, 3)))

    modules = {"c": nn.Conv2d(3, 8, 1), "b": nn.Conv2d(4, 4, 1), "o": nn.Conv2d(8, 6, 1)}
    lines = lines_of(Net(shuffle, **modules, h=nn.Linear(6, 4)), IMAGES)
    assert lines["o.weight"] == "o (c.0 2) 1 1" and lines["c.bias"] == "c.0 + c.1"


def test_what_is_looked_up_goes_through_along_the_other_dimensions():
    at = torch.tensor([3, 0, 1]).view(1, 3, 1)
    network = Net(lambda s, x: s.h(torch.relu(s.l(x)).gather(1, at.expand(2, 3, 6))), l=nn.Linear(3, 6),
                  h=nn.Linear(6, 2))  # fmt: skip
    assert lines_of(network, SEQUENCE)["h.weight"] == "2 l"
    network.function = lambda s, x: s.h(torch.relu(s.l(x)).gather(2, at.expand(2, 3, 6)))
    assert stays(lines_of(network, SEQUENCE)["h.weight"])
    network.function = lambda s, x: s.h(torch.relu(s.l(x)).gather(1, at).expand(2, 3, 6))
    assert stays(lines_of(network, SEQUENCE)["h.weight"])


def test_a_list_of_neighbouring_numbers_cuts_like_a_slice():
    def pair(s, x):
        x = torch.relu(s.l(x))
        return s.h(torch.cat([x[:, :3] + x[:, [-3, -2, -1]], x[:, [3]]], 1))

    lines = lines_of(Net(pair, l=nn.Linear(3, 7), h=nn.Linear(4, 2)), ROWS)
    assert lines["l.bias"] == "l + 1 + l" and lines["h.weight"] == "2 l + 1"


def test_a_fourier_transform_keeps_the_units_it_goes_along():
    network = Net(lambda s, x: s.h(torch.fft.rfft(s.l(x), dim=1).real), l=nn.Linear(3, 6), h=nn.Linear(6, 2))
    assert lines_of(network, SEQUENCE)["h.weight"] == "2 l"
    network = Net(lambda s, x: s.h(torch.fft.fft2(s.l(x)).real), l=nn.Linear(3, 6), h=nn.Linear(6, 2))
    assert stays(lines_of(network, SEQUENCE)["h.weight"])


def test_pairs_that_are_turned_as_complex_numbers_stay_in_their_places():
    """Rotary embeddings: queries and keys have no freedom within a head, values do."""
    turn = torch.polar(torch.ones(5, 1, 2), torch.rand(5, 1, 2))

    def turned(t):
        return torch.view_as_real(torch.view_as_complex(t.view(2, 5, 3, 2, 2)) * turn).flatten(3)

    def function(s, x):
        q, k, v = turned(s.q(x)), turned(s.k(x)), s.v(x).view(2, 5, 3, 4)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return s.o(y.transpose(1, 2).flatten(2))

    network = Net(function, **{name: nn.Linear(3, 12) for name in "qkv"}, o=nn.Linear(12, 2))
    lines = lines_of(network, SEQUENCE)
    assert lines["k.bias"] == "(q 4)" and lines["o.weight"] == "2 (q v*)"
    reasons = {place: frozen.why for frozen in infer(network, SEQUENCE).reasons for place in frozen.places}
    assert reasons["k.bias axis 0 (in part)"] == "it meets a table of constants"


def test_pixel_shuffle_keeps_blocks_of_channels():
    modules = {"c": nn.Conv2d(3, 24, 1), "p": nn.PixelShuffle(2), "o": nn.Conv2d(6, 2, 1)}
    assert lines_of(Net(lambda s, x: s.o(s.p(s.c(x))), **modules), IMAGES)["c.bias"] == "(c 4)"


@pytest.mark.parametrize(
    "norm", [nn.GroupNorm(2, 12), nn.GroupNorm(6, 12), nn.InstanceNorm2d(12, affine=True)]
)
def test_norms_over_groups_move_groups_and_the_units_within_each(norm):
    network = Net(lambda s, x: s.h(torch.relu(s.g(s.c(x))).mean((2, 3))), c=nn.Conv2d(3, 12, 1), g=norm,
                  h=nn.Linear(12, 2))  # fmt: skip
    count = getattr(norm, "num_groups", 12)
    assert lines_of(network, IMAGES)["g.weight"] == ("c" if count == 12 else "(c.groups c.channels*)")


def test_a_mixer_keeps_tokens_and_moves_channels_and_both_hidden_layers():
    def mixer(s, x):
        x = s.c(x).flatten(2).transpose(1, 2)
        x = x + s.t2(F.gelu(s.t1(s.n1(x).transpose(1, 2)))).transpose(1, 2)
        return s.h((x + s.m2(F.gelu(s.m1(s.n2(x))))).mean(1))

    lines = lines_of(
        Net(mixer, c=nn.Conv2d(3, 6, 4, 4), n1=nn.LayerNorm(6), t1=nn.Linear(4, 7), t2=nn.Linear(7, 4),
            n2=nn.LayerNorm(6), m1=nn.Linear(6, 9), m2=nn.Linear(9, 6), h=nn.Linear(6, 5)),
        IMAGES)  # fmt: skip
    assert lines["t1.weight"] == "t1 4" and lines["m2.weight"] == "c m1" and lines["n1.weight"] == "c"


def test_gated_units_move_together_packed_or_not():
    def swiglu(s, x):
        return s.d(F.silu(s.g(x)) * s.u(x))

    def packed(s, x):
        gate, up = s.w(x).chunk(2, -1)
        return s.d(F.silu(gate) * up)

    lines = lines_of(Net(swiglu, g=nn.Linear(3, 8), u=nn.Linear(3, 8), d=nn.Linear(8, 4)), SEQUENCE)
    assert lines["u.weight"] == "g 3" and lines["d.weight"] == "4 g"
    assert lines_of(Net(packed, w=nn.Linear(3, 16), d=nn.Linear(8, 4)), SEQUENCE)["w.bias"] == "(2 w)"


def attention(fused, causal=False):
    def function(s, x):
        x = s.i(x)
        q, k, v = (t.view(2, 5, 3, 4).transpose(1, 2) for t in s.qkv(s.n(x)).chunk(3, -1))
        if fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) / 2, -1) @ v
        return s.h((x + s.o(y.transpose(1, 2).reshape(2, 5, 12)))[:, 0])

    return Net(function, i=nn.Linear(3, 12), n=nn.LayerNorm(12), qkv=nn.Linear(12, 36),
               o=nn.Linear(12, 12), h=nn.Linear(12, 4))  # fmt: skip


@pytest.mark.parametrize(("fused", "causal"), [(True, False), (True, True), (False, False)])
def test_attention_moves_heads_and_within_each_what_queries_and_keys_share_and_the_values(fused, causal):
    lines = lines_of(attention(fused, causal), SEQUENCE)
    assert lines["qkv.weight"] == "(2 qkv.heads qkv.dim*) + (qkv.heads qkv.value*) i"
    assert lines["o.weight"] == "i (qkv.heads qkv.value*)"


def test_torchs_own_attention_and_transformer_block():
    own = nn.TransformerEncoderLayer(12, 3, 7, batch_first=True)
    lines = lines_of(
        Net(lambda s, x: s.h(s.a(s.i(x))), i=nn.Linear(3, 12), a=own, h=nn.Linear(12, 2)), SEQUENCE
    )
    heads, dim, value = (f"a.self_attn.{word}" for word in ("heads", "dim*", "value*"))
    assert lines["a.self_attn.in_proj_weight"] == f"(2 {heads} {dim}) + ({heads} {value}) i"
    assert lines["a.linear2.weight"] == "i a.linear1"


@pytest.mark.parametrize("repeat", [False, True])
def test_grouped_queries_move_with_their_keys(repeat):
    def function(s, x):
        q, k, v = (m(x).view(2, 5, -1, 3).transpose(1, 2) for m in (s.q, s.k, s.v))
        if repeat:
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=not repeat)
        return s.o(y.transpose(1, 2).reshape(2, 5, 12))

    modules = {name: nn.Linear(3, n) for name, n in (("q", 12), ("k", 6), ("v", 6))}
    lines = lines_of(Net(function, **modules, o=nn.Linear(12, 8)), SEQUENCE)
    assert lines["q.bias"] == "(q.heads q.queries* q.dim*)" and lines["k.bias"] == "(q.heads q.dim*)"
    assert lines["v.bias"] == "(q.heads v*)" and lines["o.weight"] == "8 (q.heads q.queries* v*)"


def test_heads_that_are_told_alike_within_have_one_order_within():
    """A norm of the queries has one weight for all heads; summing over heads mixes their units."""

    def normed(s, x):
        q, k, v = (m(x).view(2, 5, 3, 4).transpose(1, 2) for m in (s.q, s.k, s.v))
        y = F.scaled_dot_product_attention(s.n(q), k, v)
        return s.o(y.sum(1))

    modules = {name: nn.Linear(3, 12) for name in "qkv"}
    lines = lines_of(Net(normed, **modules, n=nn.RMSNorm(4), o=nn.Linear(4, 8)), SEQUENCE)
    assert lines["q.bias"] == lines["k.bias"] == "(q.heads q.dim)" and lines["n.weight"] == "q.dim"
    assert lines["v.bias"] == "(q.heads v)" and lines["o.weight"] == "8 v"


def test_heads_that_meet_each_other_have_one_order_within():
    """Every head is multiplied with every other one, not only with itself."""

    def crossed(s, x):
        y = torch.relu(s.l(x)).view(4, 3, 4)
        return s.h((y @ y.transpose(1, 2)).sum((1, 2))[:, None])

    lines = lines_of(Net(crossed, l=nn.Linear(3, 12), h=nn.Linear(1, 2)), ROWS)
    assert "*" not in lines["l.weight"] and lines["l.weight"].startswith("(l.")


@pytest.mark.parametrize("order", ["three heads dim", "heads three dim"])
def test_queries_keys_and_values_in_one_projection_are_told_apart_when_picked(order):
    def function(s, x):
        shape = (2, 5, 3, 2, 4) if order.startswith("three") else (2, 5, 2, 3, 4)
        qkv = s.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4) if order.startswith("three") else (
            s.qkv(x).reshape(shape).permute(3, 0, 2, 1, 4))  # fmt: skip
        q, k, v = qkv[0], qkv[1], qkv[2]
        return s.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    lines = lines_of(Net(function, qkv=nn.Linear(3, 24), o=nn.Linear(8, 3)), SEQUENCE)
    packed = {
        "three heads dim": "(2 qkv.heads qkv.dim*) + (qkv.heads qkv.value*)",
        "heads three dim": "(qkv.heads (2 qkv.dim*) + qkv.value*)",
    }
    assert lines["qkv.bias"] == packed[order] and lines["o.weight"] == "3 (qkv.heads qkv.value*)"


def test_query_key_and_value_taken_by_slices_have_orders_of_their_own():
    def function(s, x):
        stack = s.w(x).view(2, 5, 3, 3, 4)
        q, k, v = (stack[:, :, k : k + 1].squeeze(2).transpose(1, 2) for k in range(3))
        return s.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    lines = lines_of(Net(function, w=nn.Linear(3, 36), o=nn.Linear(12, 2)), SEQUENCE)
    assert lines["w.bias"] == "(2 w.heads w.dim*) + (w.heads w.value*)"


def test_a_stack_that_is_used_whole_is_ordered_alike():
    def function(s, x):
        stack = s.l(x).view(4, 2, 6)
        return s.h(stack[:, 0] * stack[:, 1] + stack.amax(1))

    lines = lines_of(Net(function, l=nn.Linear(3, 12), h=nn.Linear(6, 2)), ROWS)
    assert lines["l.bias"] == "(2 l)"


def test_sizes_that_no_axis_tells_are_written_down():
    found = infer(attention(True), (SEQUENCE,))
    assert found.fitted.within["qkv.dim"].size == 4 and "sizes:" in found.text


def test_rows_looked_up_by_one_of_several_results_stay_and_their_columns_move():
    network = Net(lambda s, x: s.h(torch.relu(s.e.weight[x.sort(dim=0)[0]])), e=nn.Embedding(9, 6),
                  h=nn.Linear(6, 3))  # fmt: skip
    lines = lines_of(network, torch.tensor([3, 1, 4, 1, 5]))
    assert lines["e.weight"] == "9 e" and lines["h.weight"] == "3 e"


def test_a_tied_embedding_moves_once_and_its_vocabulary_stays():
    network = Net(lambda s, x: s.h(torch.relu(s.m(s.e(x)))), e=nn.Embedding(11, 6), m=nn.Linear(6, 6),
                  h=nn.Linear(6, 11, bias=False))  # fmt: skip
    free = lines_of(network, torch.randint(0, 11, (2, 5)))
    assert free["e.weight"] == "11 e" and free["m.weight"] == "m e" and free["h.weight"] == "11 m"
    network.h.weight = network.e.weight
    tied = lines_of(network, torch.randint(0, 11, (2, 5)))
    assert len({tied[name] for name in ("e.weight", "h.weight")}) == 1 and tied["m.weight"] == "h h"


def test_a_module_used_twice_reads_what_it_writes():
    network = Net(lambda s, x: s.h(torch.relu(s.m(torch.relu(s.m(s.i(x)))))), i=nn.Linear(3, 6),
                  m=nn.Linear(6, 6), h=nn.Linear(6, 2))  # fmt: skip
    assert lines_of(network, ROWS)["m.weight"] == "i i"


@pytest.mark.parametrize(
    ("kind", "gates"), [pytest.param(nn.LSTM, 4, marks=pytest.mark.sweep), (nn.GRU, 3), (nn.RNN, 1)]
)
def test_recurrent_layers_are_unrolled_and_each_direction_has_its_own_units(kind, gates):
    layer = kind(3, 6, batch_first=True, num_layers=2, bidirectional=True)
    lines = lines_of(Net(lambda s, x: s.h(s.l(x)[0][:, -1]), l=layer, h=nn.Linear(12, 2)), SEQUENCE)
    first, second = (f"({gates} l.{k})" if gates > 1 else f"l.{k}" for k in (0, 2))
    assert lines["l.weight_hh_l0"] == f"{first} l.0" and lines["l.weight_ih_l1"] == f"{second} l.0 + l.1"


def test_what_the_example_leaves_without_effect_is_not_moved():
    """One step from a zero state does not show which units the recurrent matrix reads."""
    found = infer(Net(lambda s, x: s.h(s.l(x)[0]), l=nn.LSTMCell(3, 6), h=nn.Linear(6, 2)), ROWS)
    assert str(found.fitted.tensors["l.weight_hh"][1]) == "6"
    assert any(
        "no other axis" in frozen.why and frozen.places == ("l.weight_hh axis 1",) for frozen in found.reasons
    )


@pytest.mark.parametrize("space", [1, 2, 3])
def test_convolutions_of_any_dimension(space):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[space - 1]
    network = Net(lambda s, x: s.h(torch.relu(s.c(x)).flatten(2).mean(2)), c=kind(2, 6, 2, bias=False),
                  h=nn.Linear(6, 2, bias=False))  # fmt: skip
    assert lines_of(network, rand(2, 2, *[4] * space))["h.weight"] == "2 c"


def test_single_units_have_nothing_to_permute():
    assert stays(
        lines_of(Net(lambda s, x: s.h(s.c(x)), c=nn.Linear(3, 1), h=nn.Linear(1, 2)), ROWS)["c.weight"]
    )


class RMS(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return self.scale * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("module", [RMS(), nn.RMSNorm(6), nn.PReLU(6), nn.Softmax(-1), nn.Dropout()])
def test_what_treats_all_units_alike_keeps_them(module):
    network = Net(lambda s, x: s.h(s.m(s.l(x))), l=nn.Linear(3, 6), m=module, h=nn.Linear(6, 2))
    lines = lines_of(network, ROWS)
    assert lines["h.weight"] == "2 l" and {lines.get("m.weight", "l"), lines.get("m.scale", "l")} == {"l"}


def test_weight_norm_and_raw_parameters():
    normed = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 6))
    lines = lines_of(Net(lambda s, x: s.h(s.l(x)), l=normed, h=nn.Linear(6, 2)), ROWS)
    assert lines["l.parametrizations.weight.original0"] == "l 1" and lines["h.weight"] == "2 l"
    raw = Net(lambda s, x: torch.einsum("bi,ij->bj", torch.relu(x @ s.one), s.two),
              one=nn.Parameter(torch.rand(3, 6)), two=nn.Parameter(torch.rand(6, 2)))  # fmt: skip
    assert lines_of(raw, ROWS) == {"one": "3 one", "two": "one 2"}


def test_an_input_that_is_added_twice_lets_the_two_copies_change_places():
    network = Net(lambda s, x: s.h(s.l(x) + x.repeat(1, 2)), l=nn.Linear(3, 6), h=nn.Linear(6, 2))
    assert lines_of(network, ROWS)["l.weight"] == "(l 3) 3"


# What stays, and why ------------------------------------------------------------------------------------

FREEZING = {
    "flip": lambda s, x: s.h(s.l(x).flip(1)),
    "looked up by number": lambda s, x: s.h(s.l(x) * s.l(x).topk(6, dim=1)[1]),
    "cumsum": lambda s, x: s.h(s.l(x).cumsum(1)),
    "logcumsumexp": lambda s, x: s.h(s.l(x).logcumsumexp(1)),
    "cummax": lambda s, x: s.h(s.l(x).cummax(1)[0]),
    "looked up": lambda s, x: s.h(s.l(x)[:, [5, 4, 3, 2, 1, 0]]),
    "qr is not understood": lambda s, x: s.h(torch.linalg.qr(s.l(x).expand(4, 6).T.repeat(1, 2)[:, :6])[0]),
    "one in 2": lambda s, x: s.h(s.l(x)[:, 1:5:2].repeat(1, 3)),
    "picked by its number": lambda s, x: s.h(
        s.l(x) * s.l(x)[:, 2:3].select(1, 0)[:, None] + s.l(x).select(1, 1)[:, None]
    ),
    "arange": lambda s, x: s.h(s.l(x) * torch.arange(6)),
    "rand is not understood": lambda s, x: s.h(s.l(x) + torch.rand(6)),
    "a mask picks some of it": lambda s, x: s.h(s.l(x)[:, s.l(x)[0] > -99]),
    "input": lambda s, x: s.h(s.l(x) + torch.cat([x, 2 * x], 1)),
    "output": lambda s, x: (s.h(s.l(x)), s.l(x)),
}


@pytest.mark.parametrize("why", FREEZING)
def test_what_depends_on_the_order_of_units_stays_and_says_why(why):
    found = infer(Net(FREEZING[why], l=nn.Linear(3, 6), h=nn.Linear(6, 2)), ROWS)
    assert found.fitted.words == {}
    (told,) = [f.why for f in found.reasons if "l.weight axis 0" in f.places]
    assert why in told
    assert why in ("input", "output") or "test_infer.py:" in told


@pytest.mark.parametrize("name", ["cumprod", "logcumsumexp", "cummax", "cummin", "sort"])
def test_an_order_along_another_axis_leaves_units_free(name):
    def through(s, x):
        found = getattr(s.l(x[:, None] * torch.arange(1.0, 4.0)[:, None]), name)(1)
        return s.h(found if isinstance(found, torch.Tensor) else found[0] + found[1])

    assert set(infer(Net(through, l=nn.Linear(3, 6), h=nn.Linear(6, 2)), ROWS).fitted.words) == {"l"}


def test_logits_and_inputs_never_move():
    for network, inputs in (
        (nn.Sequential(nn.Linear(3, 4)), ROWS),
        (attention(True), SEQUENCE),
        (nets.build("resnet20", input_shape=(3, 8, 8), classes=4, width=0.25), IMAGES),
    ):
        lines = lines_of(network, inputs)
        last, first = list(lines)[-1], next(iter(lines))
        assert any(stays(line) for line in (lines[last], lines.get("h.bias", ""), lines.get("fc.bias", "")))
        assert stays(lines[first].split(" ", 1)[1]) and not {"fc", "h"} & set(
            infer(network, inputs).fitted.words
        )


def test_unused_tensors_stay():
    found = infer(
        Net(lambda s, x: s.h(s.l(x)), l=nn.Linear(3, 6), u=nn.Linear(6, 6), h=nn.Linear(6, 2)), ROWS
    )
    assert "u:" not in found.text and stays(str(found.fitted.tensors["u.weight"][0]))
    assert any(f.why == "not seen by any kept output" for f in found.reasons)


def test_a_rule_that_lies_is_caught_by_the_proof(monkeypatch):
    """Flipping is declared harmless; then the word it breaks is taken out, and the others stay."""
    monkeypatch.setitem(rules.RULES, "flip", shapes.pointwise)
    network = Net(
        lambda s, x: s.h(s.m(s.l(x)).flip(1)), l=nn.Linear(3, 6), m=nn.Linear(6, 5), h=nn.Linear(5, 2)
    )
    assert set(infer(network, ROWS, prove=False).fitted.words) == {"l", "m"}
    found = infer(network, ROWS)
    assert set(found.fitted.words) == {"l"} and found.proof.largest_difference < 1e-9
    assert any(
        f.why.startswith("the proof refused it") and "m.bias axis 0" in f.places for f in found.reasons
    )


def test_a_rule_that_fails_freezes_what_it_read(monkeypatch):
    monkeypatch.setitem(rules.RULES, "permute", lambda walk, arguments: 1 / 0)
    found = infer(Net(lambda s, x: s.h(s.l(x).permute(1, 0).T), l=nn.Linear(3, 6), h=nn.Linear(6, 2)), ROWS)
    assert found.fitted.words == {} and any("ZeroDivisionError" in f.why for f in found.reasons)


# Inputs and errors --------------------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.h = nn.Linear(3, 5), nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x, y=None, *, scale=1.0):
        return {"logits": self.h(torch.relu(self.a(x) + scale * self.b(y)))}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((ROWS, ROWS), {}), ((ROWS,), {"y": ROWS}), ((), {"x": ROWS, "y": ROWS, "scale": 2.0})],
)
def test_inputs_by_position_and_by_name(args, kwargs):
    found = infer(TwoInputs(), args, kwargs)
    assert found.fitted.words == {"a": 5} and found.proof.largest_difference < 1e-9


FLOWS = {  # → digits of what moves
    "if": (lambda s, x: s.h(s.l(x)) if x.sum() > 0 else s.h(s.l(-x)), 6),
    "if of what was computed": (lambda s, x: s.h(s.l(x) * (2 if s.l(x).sum().item() > 0 else 3)), 6),
    "if of one unit": (lambda s, x: s.h(s.l(x) * (2 if s.l(x)[0, 2] > 0 else 3)), 0),
    "rows of a mask": (lambda s, x: s.h(s.l(x)[x[:, 0] > -1]), 6),
    "a list": (lambda s, x: s.h(s.l(x) * sum(s.l(x).sum(1).tolist())), 6),
    "while": (lambda s, x: s.h(halved(s.l(x))), 6),
    "a number made beside it": (lambda s, x: s.h(s.l(x) * torch.tensor(2.0 if x.sum() > 0 else 3.0)), 6),
    "a table made beside it": (lambda s, x: s.h(s.l(x) + torch.tensor(SIX) * (2 if x.sum() > 0 else 3)), 0),
    "a table of what was looked at": (lambda s, x: s.h(s.l(x) * torch.tensor(s.l(x)[0].tolist())), 0),
    "what is in it": (lambda s, x: s.h(s.l(x) * (2 if 7 in x else 3)), 6),
}
SIX = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def halved(x):
    while x.norm() > 0.1:
        x = x / 2
    return x


@pytest.mark.parametrize("flow", FLOWS)
def test_values_may_decide_what_runs_and_what_is_looked_at_stays(flow):
    torch.manual_seed(0)
    forward, units = FLOWS[flow]
    found = infer(Net(forward, l=nn.Linear(3, 6), h=nn.Linear(6, 2)), ROWS)
    assert sum(found.fitted.words.values()) == units and (found.proof is not None) == bool(units)


def test_recurrent_layers_move_beside_values_that_decide():
    torch.manual_seed(0)
    network = Net(
        lambda s, x: s.h(s.r(s.l(x))[0] * (2 if x.sum() > 0 else 3)),
        l=nn.Linear(3, 6), r=nn.LSTM(6, 5), h=nn.Linear(5, 2),
    ).requires_grad_(False)  # fmt: skip
    found = infer(network, ROWS)
    assert sorted(found.fitted.words.values()) == [5, 6] and found.proof.largest_difference < 1e-9


ENDS = {
    "at once": lambda p: (p > 0.2).all(),
    "at once, but of strong weights": lambda p: (p > 1e-3).all(),
    "by a length": lambda p: len(p[p > 0.6]) > 1,
    "by places": lambda p: len((p.flatten() > 0.9).nonzero()) > 1,
    "never": lambda p: (p > 1).any(),
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_what_does_not_run_on_the_networks_own_weights_is_followed_on_others(ends):
    """A loop that ends before its first step has a weight that no graph of these weights shows."""

    def forward(s, x):
        h = s.l(x).relu()
        for _ in range(3):
            if ends(torch.sigmoid(s.stop(h))):
                break
            h = h + s.step(h).relu()
        return s.h(h)

    torch.manual_seed(0)
    network = Net(forward, l=nn.Linear(3, 6), step=nn.Linear(6, 6), stop=nn.Linear(6, 1), h=nn.Linear(6, 2))
    with torch.no_grad():
        network.stop.weight.mul_(0.1)
        network.stop.bias.zero_()
    found = infer(network, ROWS)
    moved = {name for name, axes in found.fitted.tensors.items() if {"l"} & {*map(str, axes)}}
    assert found.fitted.words == {"l": 6} and not found.refused and found.proof is not None
    assert moved == {"l.weight", "l.bias", "step.weight", "step.bias", "stop.weight", "h.weight"}


def test_a_network_without_values_is_told_from_one_that_fails():
    """On inputs that have none either it is inferred, and not proven; constants say nothing there."""
    network = Net(lambda s, x: s.h(s.l(x).relu()), l=nn.Linear(3, 6), h=nn.Linear(6, 2)).to("meta")
    network.register_buffer("ones", torch.ones(6, device="meta"), persistent=False)
    with pytest.raises(NetworkError, match="meta device, where tensors have no values"):
        infer(network, ROWS, prove=False)
    found = infer(network, ROWS.to("meta"), prove=False)
    assert found.fitted.words == {"l": 6} and found.proof is None
    with pytest.raises(NetworkError, match="meta device, where tensors have no values"):
        infer(network, ROWS.to("meta"))


def test_control_flow_that_cannot_be_followed_is_refused_quietly(capfd):
    network = Net(lambda s, x: s.l(x) if np.from_dlpack(s.l(x)).sum() > 0 else x, l=nn.Linear(3, 3))
    with pytest.raises(NetworkError, match="cannot be traced") as error:
        infer(network, ROWS)
    assert "test_infer.py:" in str(error.value) and capfd.readouterr() == ("", "")


def test_sequences_are_packed_by_their_lengths():
    def forward(s, x, lengths):
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, last = s.r(rows)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
        return s.h(padded.sum(1) + last[-1])

    network = Net(forward, r=nn.GRU(3, 5, num_layers=2, batch_first=True), h=nn.Linear(5, 2))
    found = infer(network, (torch.randn(3, 4, 3), torch.tensor([2, 4, 3])))
    assert list(found.fitted.words.values()) == [5, 5] and found.proof is not None


ONTO = {
    "rows added": lambda s, x: s.h(torch.zeros(4, 6).index_add(0, torch.tensor([2, 0]), s.l(x)) + s.m(x[:1])),
    "rows put": lambda s, x: s.h(torch.zeros(4, 6).index_put((torch.tensor([2, 0]),), s.l(x)) + s.m(x[:1])),
    "a norm of equal units": lambda s, x: s.h(s.n(torch.ones(2, 6)) + s.l(x) + s.m(x)),
}


@pytest.mark.parametrize("onto", ONTO)
def test_what_is_added_to_equal_units_gives_them_its_order(onto):
    network = Net(ONTO[onto], l=nn.Linear(3, 6), m=nn.Linear(3, 6), h=nn.Linear(6, 2), n=nn.LayerNorm(6))
    found = infer(network, ROWS[:2])
    assert list(found.fitted.words.values()) == [6] and found.proof is not None and not found.refused
    still = {name for name, axes in found.fitted.tensors.items() if {*map(str, axes)} <= {".", "2", "3", "6"}}
    assert still == {"h.bias"} | (set() if "norm" in onto else {"n.weight", "n.bias"})


ALONG = {  # words of six units, and how the second layer reads them
    "sorted": (lambda h: h.sort(-1).values, [6], "."),
    "read in the order that sorts": (lambda h: h.gather(-1, h.argsort(-1)), [6], "."),
    "less their median": (lambda h: h - h.median(-1, keepdim=True).values, [6], "l"),
    "less their second": (lambda h: h - h.kthvalue(2, -1, keepdim=True).values, [6], "l"),
    "shifted": (lambda h: h.roll(2, -1), [2, 4], "l.1 + l.0"),
    "shifted back": (lambda h: h.roll(-2, -1), [2, 4], "l.1 + l.0"),
    "shifted, then sorted": (lambda h: h.roll(2, -1).sort(-1).values, [6], "."),
    "shifted, then added up": (lambda h: h * h.roll(2, -1).sum(-1, keepdim=True), [6], "l"),
    "shifted and added": (lambda h: h.roll(3, -1) + h, [3], "(2 l)"),
    "shifted twice, and added": (lambda h: h.roll(2, -1) + h.roll(1, -1), [], "6"),
    "shifted by rows": (lambda h: h.roll(1, 0), [6], "l"),
    "shifted as one row": (lambda h: h.roll(1), [], "6"),
}


@pytest.mark.parametrize("along", ALONG)
def test_an_order_counts_only_for_who_needs_it(along):
    between, sizes, read = ALONG[along]
    found = infer(Net(lambda s, x: s.h(between(s.l(x).relu())), l=nn.Linear(3, 6), h=nn.Linear(6, 2)), ROWS)
    assert sorted(found.fitted.words.values()) == sizes and not found.refused
    assert (found.proof is not None) == bool(sizes)
    assert str(found.fitted.tensors["h.weight"][1]) in (read, "6")


LEFT = {  # what ends a loop leaves tensors, or says how much there is
    "list": lambda h: max(map(max, h.tolist())) > 2,
    "array": lambda h: h.detach().numpy().max() > 2,
    "places": lambda h: len(torch.relu(h - 0.5).nonzero()) > 9,
    "different": lambda h: len(h.unique()) > 90,
}


@pytest.mark.parametrize("left", LEFT)
def test_units_whose_numbers_leave_tensors_stay_and_others_move(left):
    network = Net(
        lambda s, x: s.h(s.l(x).relu()) * (2 if LEFT[left](s.m(x)) else 1),
        l=nn.Linear(3, 6), m=nn.Linear(3, 5), h=nn.Linear(6, 2),
    )  # fmt: skip
    found = infer(network, ROWS)
    assert list(found.fitted.words.values()) == [6] and found.proof is not None and not found.refused


def test_a_bilinear_layer_has_units_on_both_sides():
    network = Net(
        lambda s, x: s.h(s.b(s.l(x), s.m(x)).relu()),
        l=nn.Linear(3, 6), m=nn.Linear(3, 5), b=nn.Bilinear(6, 5, 7), h=nn.Linear(7, 2),
    )  # fmt: skip
    assert sorted(infer(network, ROWS).fitted.words.values()) == [5, 6, 7]


def test_inputs_that_do_not_fit_are_the_networks_own_error():
    with pytest.raises(NetworkError, match="fails on inputs"):
        infer(nn.Linear(4, 3), ROWS)


def test_the_network_is_left_as_it_was():
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    network[1].eval()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    infer(network, ROWS)
    assert network.training and not network[1].training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_numbers_as_module_names_make_words():
    found = infer(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), ROWS)
    assert found.fitted.words == {"h0": 4} and '"0.weight": "h0 ."' in found.text


def grouped_attention(repeat):
    def function(s, x):
        x = s.i(x)
        q, k, v = (m(x).view(2, 5, -1, 8).transpose(1, 2) for m in (s.q, s.k, s.v))
        if repeat:
            k, v = k.repeat_interleave(3, 1), v.repeat_interleave(3, 1)
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=not repeat)
        return s.h(x + s.o(y.transpose(1, 2).flatten(2)))

    return Net(function, i=nn.Linear(3, 64), q=nn.Linear(64, 96), k=nn.Linear(64, 32), v=nn.Linear(64, 32),
               o=nn.Linear(96, 64), h=nn.Linear(64, 8))  # fmt: skip


def grouped_convolution(s, x):
    return s.h(torch.relu(s.p(s.n(F.relu6(s.d(F.relu6(s.e(x))))))).mean((2, 3)))


PLANTED = {
    "mlp": lambda: (nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)), SEQUENCE),
    "attention": lambda: (attention(True), SEQUENCE),
    "grouped queries": lambda: (grouped_attention(False), SEQUENCE),
    "repeated keys": lambda: (grouped_attention(True), SEQUENCE),
    "transformer": lambda: (
        Net(lambda s, x: s.h(s.a(s.i(x))), i=nn.Linear(3, 32), h=nn.Linear(32, 2),
            a=nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 24, batch_first=True), 2)), SEQUENCE),
    "grouped convolution": lambda: (
        Net(grouped_convolution, e=nn.Conv2d(3, 48, 3), d=nn.Conv2d(48, 72, 3, groups=6),
            n=nn.GroupNorm(6, 72), p=nn.Conv2d(72, 14, 1), h=nn.Linear(14, 5)), IMAGES),
}  # fmt: skip


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_permutation_is_recovered_by_an_inferred_spec(name, noise):
    """Heads and groups with the orders within each; beside noise, too."""
    torch.manual_seed(0)
    network, inputs = PLANTED[name]()
    fitted, rng = infer(network, inputs).fitted, generator(3, "planted")
    a = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    planted = permutation.random(fitted.words, rng, within=fitted.within)
    b = {n: permutation.permute(t, fitted.tensors[n], planted, fitted.within) for n, t in a.items()}
    b = {n: t + noise * t.std() * torch.randn(t.shape, generator=rng) for n, t in b.items()}
    (found,) = rebasin_cli.align(a, b, fitted).permutations
    back = permutation.invert(planted)
    assert found.keys() == back.keys() and not permutation.is_identity(planted)
    assert all(torch.equal(found[word], back[word]) for word in back)


# The algebra ----------------------------------------------------------------------------------------------


def test_equations_between_axes_refine_and_never_forget():
    units = Units()
    whole, a, b = units.new(12), units.new(6), units.new(6)
    units.unify(whole, total([a, b]), "")
    units.unify(whole, product([units.new(2), units.new(6)]), "")  # so a and b are alike, and the 2 stays
    assert units.resolve(a) == units.resolve(b)
    units.unify(a, product([units.new(3), units.new(2)]), "")
    units.freeze(whole, "told")
    assert units.resolve(b) == Fixed(6) and units.resolve(b).why == "told"


def test_what_does_not_divide_is_frozen():
    units = Units()
    axis = units.new(12)
    units.split(axis, (2, 6), "")
    units.split(axis, (3, 4), "six does not divide by four")
    assert units.resolve(axis) == Fixed(12) and "six" in units.resolve(axis).why


def test_a_network_that_computes_in_float32_by_itself_is_proven_in_float64():
    network = Net(lambda s, x: s.h((s.l(x).float() * 2).softmax(-1).type_as(x)), l=nn.Linear(3, 6),
                  h=nn.Linear(6, 2))  # fmt: skip
    found = infer(network, ROWS)
    assert found.fitted.words == {"l": 6} and found.proof.largest_difference < 1e-12
