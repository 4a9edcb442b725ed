"""Inference on what larger networks are made of: each structure keeps all the freedom that it has."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import NetworkError
from rebasin_cli.inference import infer
from rebasin_cli.inference.axes.axes import product, total
from rebasin_cli.inference.axes.units import Units
from rebasin_cli.inference.text import reasons
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import Block
from tests.inference.test_infer import IMAGES, ROWS, SEQUENCE, Net, attention, lines_of, rand, stays


def heads(x, count):
    """(batch, length, count · dim) → (batch, count, length, dim)"""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def stacked(*shape):
    return nn.Parameter(torch.randn(shape))


def why(network, inputs, place):
    """The reasons for what stays on an axis."""
    return " ".join(frozen.why for frozen in infer(network, inputs).reasons if place in frozen.places)


def test_experts_in_a_list_have_hidden_units_of_their_own_and_change_places_with_their_router():
    def mixture(s, x):
        gate = torch.softmax(s.router(x), -1)
        return s.h(sum(gate[:, k : k + 1] * expert(x) for k, expert in enumerate(s.experts)))

    experts = nn.ModuleList(nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 5)) for _ in range(3))
    network = Net(mixture, router=nn.Linear(3, 3), experts=experts, h=nn.Linear(5, 2))
    found, lines = infer(network, ROWS).fitted, lines_of(network, ROWS)
    assert [lines[f"experts.{k}.0.bias"] for k in range(3)] == ["experts.hidden*"] * 3
    assert found.within["experts.hidden"] == Block("experts", 3, 6) and lines["router.bias"] == "experts"
    assert len({lines[f"experts.{k}.2.bias"] for k in range(3)}) == 1


def test_stacked_experts_change_places_and_have_hidden_units_in_an_order_of_their_own_each():
    def mixture(s, x):
        hidden = torch.relu(torch.einsum("nd,edh->neh", x, s.up) + s.bias)
        return s.h(torch.einsum("neh,ehd,ne->nd", hidden, s.down, s.gate(x).softmax(-1)))

    found = infer(
        Net(mixture, up=stacked(3, 3, 4), down=stacked(3, 4, 5), bias=stacked(3, 4), gate=nn.Linear(3, 3),
            h=nn.Linear(5, 2)), ROWS
    ).fitted  # fmt: skip
    told = {name: " ".join(map(str, axes)) for name, axes in found.tensors.items()}
    experts, _, hidden = told["up"].split()
    assert told["gate.bias"] == experts and hidden.endswith("*")
    assert told["down"].split()[:2] == told["bias"].split() == [experts, hidden]
    assert found.within[hidden[:-1]] == Block(experts, 3, 4)


def test_heads_as_an_axis_of_their_own_have_orders_of_their_own():
    def attend(s, x):
        q, k, v = (torch.einsum("btd,dhk->bhtk", x, part) for part in (s.q, s.k, s.v))
        return s.h(torch.einsum("bhtk,dhk->btd", (q @ k.mT).softmax(-1) @ v, s.o))

    parts = {name: stacked(3, 2, 4) for name in "qkv"}
    found = infer(Net(attend, **parts, o=stacked(5, 2, 4), h=nn.Linear(5, 2)), SEQUENCE).fitted
    assert sorted(block.size for block in found.within.values()) == [4, 4]
    assert {block.count for block in found.within.values()} == {2}


@pytest.mark.parametrize("how", ["weight_norm", "standardised"])
def test_channels_of_a_group_have_an_order_of_their_own_behind_a_weight_that_is_normed(how):
    conv = nn.Conv2d(8, 6, 3, groups=2)
    if how == "weight_norm":
        conv = nn.utils.parametrizations.weight_norm(conv)

    def function(s, x):
        weight = s.c.weight
        if how == "standardised":
            weight = F.batch_norm(weight.reshape(1, 6, -1), None, None, training=True).reshape_as(weight)
        x = F.conv2d(s.i(x), weight, s.c.bias, groups=2)
        return s.h(x.relu().mean((2, 3)))

    found = infer(Net(function, i=nn.Conv2d(3, 8, 1), c=conv, h=nn.Linear(6, 2)), IMAGES).fitted
    assert sorted((block.count, block.size) for block in found.within.values()) == [(2, 3), (2, 4)]


def test_a_reason_is_that_of_the_factor_and_not_of_its_neighbour():
    """Slopes of a head each, joined with the batch: heads stay for them, and not since the batch does."""

    def function(s, x):
        q, k, v = (heads(part(s.i(x)), 2) for part in (s.q, s.k, s.v))
        slopes = (0.5 ** torch.arange(1, 3))[:, None, None] * torch.arange(5.0)
        scores = slopes.repeat(len(x), 1, 1) + (q @ k.mT).flatten(0, 1)
        mixed = scores.softmax(-1) @ v.flatten(0, 1)
        return s.h(mixed.view(len(x), 2, 5, -1).transpose(1, 2).flatten(2))

    parts = {name: nn.Linear(4, 8) for name in "qkv"}
    reason = why(
        Net(function, i=nn.Linear(3, 4), **parts, h=nn.Linear(8, 2)), SEQUENCE, "q.bias axis 0 (in part)"
    )
    assert "arange numbers its units" in reason and "input" not in reason


@pytest.mark.parametrize("packed", ["side by side", "head by head"])
@pytest.mark.parametrize("joined", [False, True])
def test_heads_that_slopes_hold_keep_orders_of_their_own_within(packed, joined):
    """Units of queries and keys are on one axis of one tensor, and are matched by its other axis alone."""

    def attend(s, x):
        x = s.i(x)
        parts = s.qkv(x).unflatten(-1, (3, 3, 4)).unbind(-3 if packed == "side by side" else -2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        slopes = (0.5 ** torch.arange(1, 4))[:, None, None] * torch.arange(5.0)
        if joined:  # with the batch, as BLOOM does
            q, k, v = (part.flatten(0, 1) for part in (q, k, v))
            slopes = slopes.repeat(len(x), 1, 1)
        mixed = (slopes + q @ k.mT).softmax(-1) @ v
        mixed = mixed.unflatten(0, (len(x), 3)) if joined else mixed
        return s.h(x + s.o(mixed.transpose(1, 2).flatten(2)))

    found = infer(
        Net(attend, i=nn.Linear(3, 6), qkv=nn.Linear(6, 36, bias=False), o=nn.Linear(12, 6),
            h=nn.Linear(6, 2)), SEQUENCE
    )  # fmt: skip
    by_hand = math.factorial(6) * math.factorial(4) ** (2 * 3)
    assert found.fitted.log10_symmetries() == pytest.approx(math.log10(by_hand))
    assert found.proof is not None and not found.missed


def test_heads_that_are_cut_from_one_projection_have_orders_of_their_own():
    """Queries and one key that are turned by their position, and a value that is not."""

    def function(s, x):
        found = s.p(s.i(x)).unflatten(-1, (4, 4)).transpose(1, 2)
        q, k, v = found[:, :-2], found[:, [-2]], found[:, [-1]]
        table = torch.arange(1.0, 5.0)
        mixed = ((q * table) @ (k * table).mT).softmax(-1) @ v
        return s.h(mixed.transpose(1, 2).flatten(2))

    network = Net(function, i=nn.Linear(3, 5), p=nn.Linear(5, 16), h=nn.Linear(8, 2))
    assert sorted(infer(network, SEQUENCE).fitted.words.values()) == [2, 4, 5]


def test_what_complex_weights_cost_is_counted():
    def function(s, x):
        wide = torch.fft.rfft(s.i(x).mT)[..., :3]
        mixed = torch.fft.irfft(torch.einsum("bil,iol->bol", wide, s.w), n=x.shape[1]).mT
        return s.h(torch.relu(s.c(mixed)))

    network = Net(
        function, i=nn.Linear(3, 4), w=nn.Parameter(torch.randn(4, 5, 3, dtype=torch.cfloat)),
        c=nn.Linear(5, 6), h=nn.Linear(6, 2),
    )  # fmt: skip
    found = infer(network, SEQUENCE)
    (missed,) = found.missed
    assert found.fitted.words == {"c": 6} and "complex" in missed.what
    assert missed.log10 == pytest.approx(torch.lgamma(torch.tensor([5.0, 6.0])).sum().item() / math.log(10))


def test_cross_attention_ties_its_queries_to_keys_of_another_stream():
    own = nn.MultiheadAttention(8, 2, kdim=6, vdim=6, batch_first=True)
    network = Net(
        lambda s, x, y: s.h(s.a(s.i(x), s.j(y), s.j(y))[0]),
        i=nn.Linear(3, 8), j=nn.Linear(3, 6), a=own, h=nn.Linear(8, 2),
    )  # fmt: skip
    lines = lines_of(network, SEQUENCE, rand(2, 4, 3))
    assert (
        lines["a.q_proj_weight"] == "(a.heads a.dim*) i" and lines["a.k_proj_weight"] == "(a.heads a.dim*) j"
    )
    assert lines["a.v_proj_weight"] == "(a.heads a.value*) j"
    assert lines["a.out_proj.weight"].endswith("(a.heads a.value*)")


def test_rotary_embeddings_hold_queries_and_keys_in_place_and_say_so():
    def rotated(x):
        angles = torch.outer(torch.arange(5.0), 10.0 ** -torch.arange(2.0)).repeat(1, 2)
        a, b = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-b, a], -1) * angles.sin()

    def function(s, x):
        q, k, v = (heads(m(x), 3) for m in (s.q, s.k, s.v))
        y = F.scaled_dot_product_attention(rotated(q), rotated(k), v)
        return s.o(y.transpose(1, 2).flatten(2))

    network = Net(function, **{name: nn.Linear(3, 12) for name in "qkv"}, o=nn.Linear(12, 2))
    lines = lines_of(network, SEQUENCE)
    assert lines["q.bias"] == lines["k.bias"] == "(q 4)" and lines["v.bias"] == "(q v*)"
    assert "arange numbers its units (test_infer_structures.py:" in why(
        network, (SEQUENCE,), "q.bias axis 0 (in part)"
    )


def test_shifted_windows_and_a_table_of_relative_positions_leave_heads_free():
    class Window(nn.Module):
        def __init__(self):
            super().__init__()
            self.i, self.qkv, self.o, self.h = (nn.Linear(*n) for n in ((3, 8), (8, 24), (8, 8), (8, 2)))
            self.bias = nn.Parameter(torch.rand(49, 2))
            near = torch.arange(16)
            self.register_buffer("index", (near[:, None] - near[None]) % 49)

        def forward(self, x):
            x = self.i(x.permute(0, 2, 3, 1))
            y = torch.roll(x, (-2, -2), (1, 2)).view(-1, 2, 4, 2, 4, 8).permute(0, 1, 3, 2, 4, 5)
            q, k, v = self.qkv(y.reshape(-1, 16, 8)).reshape(-1, 16, 3, 2, 4).permute(2, 0, 3, 1, 4)
            mask = self.bias[self.index.view(-1)].view(16, 16, 2).permute(2, 0, 1)
            y = torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v
            y = self.o(y.transpose(1, 2).reshape(-1, 16, 8)).view(-1, 2, 2, 4, 4, 8)
            y = torch.roll(y.permute(0, 1, 3, 2, 4, 5).reshape(-1, 8, 8, 8), (2, 2), (1, 2))
            return self.h((x + y).mean((1, 2)))

    lines = lines_of(Window(), IMAGES)
    assert lines["qkv.bias"] == "(2 qkv.heads qkv.dim*) + (qkv.heads qkv.value*)"
    assert lines["bias"] == "49 qkv.heads" and lines["o.weight"] == "i (qkv.heads qkv.value*)"


def test_an_encoder_and_a_decoder():
    network = Net(
        lambda s, x, y: s.h(s.t(s.i(x), s.j(y))), i=nn.Linear(3, 8), j=nn.Linear(3, 8), h=nn.Linear(8, 2),
        t=nn.Transformer(8, 2, 1, 1, 6, batch_first=True),
    )  # fmt: skip
    lines = lines_of(network, SEQUENCE, rand(2, 4, 3))
    crossed = lines["t.decoder.layers.0.multihead_attn.in_proj_weight"]
    assert crossed.count("*") == 2  # rows of q, k and v; the columns are two streams, packed into one tensor
    assert not stays(lines["t.encoder.layers.0.linear1.bias"]) and not stays(lines["i.bias"])


@pytest.mark.parametrize(
    ("cell", "gates"), [(nn.LSTMCell, 4), pytest.param(nn.GRUCell, 3, marks=pytest.mark.sweep)]
)
def test_cells_unrolled_by_hand(cell, gates):
    def unrolled(s, x):
        state = None
        for step in x.unbind(1):
            state = s.c(step, state)
        return s.h(state[0] if gates == 4 else state)

    lines = lines_of(Net(unrolled, c=cell(3, 6), h=nn.Linear(6, 2)), SEQUENCE)
    assert lines["c.weight_hh"] == f"({gates} c) c" and lines["h.weight"] == "2 c"


@pytest.mark.filterwarnings("ignore:TF32")
@pytest.mark.parametrize(("cell", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3)])
def test_cells_beside_values_that_decide(cell, gates):
    def halting(s, x):
        state = None
        for step in x.unbind(1):
            state = s.c(step, state)
            hidden = state[0] if gates == 4 else state
            if torch.sigmoid(s.g(hidden)).mean() > 0.9:
                break
        return s.h(hidden)

    lines = lines_of(Net(halting, c=cell(3, 6), g=nn.Linear(6, 1), h=nn.Linear(6, 2)), SEQUENCE)
    assert (
        lines["c.weight_hh"] == f"({gates} c) c" and lines["h.weight"] == "2 c" and lines["g.weight"] == "1 c"
    )


def plain(s, h):
    return s.c(torch.relu(s.b(torch.relu(h))))


def flipped(s, x):
    h = s.a(x)
    return plain(s, h.flip(-1) if h.abs().mean() > 1e6 else h)


def rolled_by_number(s, x):
    h = s.a(x)
    return plain(s, h.roll(int(h.mean() * 1e-6), -1))


def in_halves(s, x):
    h = s.a(x)
    if (h > 1e6).any().item():
        h = torch.cat([h[:, :4], 2 * h[:, 4:]], -1)
    return plain(s, h)


def by_number(s, x):
    h = s.a(x)
    y = plain(s, h)
    return y if torch.isfinite(y).all() else y + h[:, 3:4]


def looped(s, x):
    h, k = s.a(x), 0
    while float(h.norm()) > 1e6 and k < 5:
        h, k = h.view(-1, 2, 4).mT.flatten(1), k + 1
    return plain(s, h)


def nested(s, x):
    h = s.a(x)
    if h.max() > 1e6:
        h = h / h.max()
        if h.min() < -1e6:
            h = h.flip(-1)
    return plain(s, h)


def listed(s, x):
    h = s.a(x)
    if [row for row in (h.mean(1) > 1e6).tolist() if row]:
        h = h.flip(-1)
    return plain(s, h)


def counted(s, x):
    h = s.a(x)
    return plain(s, h.flip(-1) if len(h[h.sum(-1) > 1e6]) else h)


@pytest.mark.filterwarnings("ignore:TF32", "ignore:Converting a tensor with")
@pytest.mark.parametrize(
    "forward", [flipped, rolled_by_number, in_halves, by_number, looped, nested, listed, counted]
)
def test_what_no_value_here_lets_run_is_followed_and_said_to_be_not_proven(forward):
    network = Net(forward, a=nn.Linear(3, 8), b=nn.Linear(8, 5), c=nn.Linear(5, 2))
    torch.manual_seed(0)
    found = infer(network, ROWS)
    assert found.fitted.sizes.get("a") != 8 and found.fitted.sizes["b"] == 5
    assert found.proof.decided_at and all("test_infer_structures.py:" in at for at in found.proof.decided_at)


@pytest.mark.filterwarnings("ignore:TF32")
def test_units_stay_that_a_tensor_may_read_which_did_not_run_since_values_decide():
    layers = {"a": nn.Linear(3, 8), "more": nn.Linear(8, 8), "b": nn.Linear(8, 5), "c": nn.Linear(5, 2)}

    def branching(s, x):
        h = torch.relu(s.a(x))
        return plain(s, h + s.more(h) if x[0, 0] > 100 else h)

    def by_a_number(s, x):  # one that nobody tries
        h = torch.relu(s.a(x))
        return plain(s, h + s.more(h) if x[0, 0].item() == 100.25 else h)

    def unused(s, x):
        return plain(s, s.a(x) * 2 if x[0, 0] > 100 else s.a(x))

    def refused(s, x):
        if x[0, 0] > 100:
            raise ValueError("too large")
        return plain(s, s.a(x))

    for forward, moves in ((branching, "a a"), (unused, "8 8"), (refused, "8 8")):
        lines = lines_of(Net(forward, **layers), ROWS)
        assert lines["a.weight"] == "a 3" and lines["more.weight"] == moves
    lines = lines_of(Net(by_a_number, **layers), ROWS)
    assert stays(lines["a.weight"]) and lines["b.weight"] == "b 8" and lines["c.weight"] == "2 b"
    assert "whether more.weight reads such units" in why(Net(by_a_number, **layers), ROWS, "a.weight axis 0")
    large = ROWS.clone()
    large[0, 0] = 100.25
    assert lines_of(Net(by_a_number, **layers), large)["more.weight"] == "a a"

    def experts(s, x):
        h = torch.relu(s.a(x))
        if x[0, 0].item() == 100.25:
            return s.c(s.one(h))
        return s.c(s.two(h))

    def expert():
        return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))

    network = Net(experts, a=nn.Linear(3, 8), one=expert(), two=expert(), c=nn.Linear(4, 2))
    lines = lines_of(network, ROWS)
    assert lines["two.2.weight"] == "4 two.0" and stays(lines["a.weight"])  # what is inside is read inside


def test_windows_along_one_axis_leave_the_others_free():
    def unfolded(s, x):
        h = torch.relu(s.a(x)).unfold(1, 3, 2)  # batch, windows, units, places
        return s.b(h.mean((1, 3)))

    def in_strides(s, x):
        h = torch.relu(s.a(x))  # (2, 5, 6): windows of 3 that overlap by one
        return s.b(h.as_strided((2, 2, 3, 6), (30, 12, 6, 1)).amax((1, 2)))

    def across(s, x):
        h = torch.relu(s.a(x))
        return s.b(h.as_strided((2, 2, 6), (30, 7, 1)).amax(1))  # the second begins at the second unit

    for function, moves in ((unfolded, True), (in_strides, True), (across, False)):
        lines = lines_of(Net(function, a=nn.Linear(3, 6), b=nn.Linear(6, 2)), SEQUENCE)
        assert (lines["b.weight"] == "2 a") is moves


def test_rows_put_by_several_numbers():
    def put(s, x):
        h = torch.relu(s.a(x))
        out = torch.zeros(3, 4, 6)
        out[torch.tensor([0, 2, 1]), torch.tensor([1, 3, 0])] = h[:3]
        return s.b(out.amax((0, 1)))

    assert lines_of(Net(put, a=nn.Linear(3, 6), b=nn.Linear(6, 2)), ROWS)["b.weight"] == "2 a"


def test_a_sparse_tensor_is_told_with_the_next_step():
    network = Net(lambda s, x: s.b(torch.sparse.mm(s.adj, s.a(x))), a=nn.Linear(3, 6), b=nn.Linear(6, 2))
    network.register_buffer("adj", torch.eye(4).to_sparse())
    with pytest.raises(NetworkError, match="adj is a sparse tensor") as caught:
        infer(network, ROWS)
    assert "to_dense" in caught.value.hint


def test_heads_that_are_cut_apart_share_the_orders_within_no_longer():
    """Two of three heads are summed: these have one order within, as their sum has no place for two."""

    def function(s, x):
        y = torch.relu(s.l(x)).view(4, 3, 4)
        return s.h(y[:, :2].sum(1)) + s.g(y[:, 2])

    lines = lines_of(Net(function, l=nn.Linear(3, 12), h=nn.Linear(4, 2), g=nn.Linear(4, 2)), ROWS)
    assert "*" not in lines["l.bias"] and not stays(lines["l.bias"])


def test_orders_that_depend_on_two_words_are_common_to_the_inner_one():
    network = Net(
        lambda s, x: s.h(torch.relu(s.l(x)).view(4, 2, 3, 4).flatten(1)),
        l=nn.Linear(3, 24),
        h=nn.Linear(24, 2),
    )
    assert lines_of(network, ROWS)["h.weight"] == "2 (l.0 l.1* l.2*)"
    found = infer(network, (ROWS,)).fitted.within
    assert {(block.word, block.count) for block in found.values()} == {("l.0", 2)}


def test_a_sum_over_heads_has_one_order_within_whatever_reads_it():
    network = Net(
        lambda s, x: s.h(torch.relu(s.l(x)).view(4, 3, 4).sum(1).amax(1, keepdim=True)),
        l=nn.Linear(3, 12), h=nn.Linear(1, 2),
    )  # fmt: skip
    lines = lines_of(network, ROWS)
    assert "*" not in lines["l.bias"] and not stays(lines["l.bias"])


# The algebra of orders that depend on places --------------------------------------------------------------


def blocks(units, count, size):
    outer = units.new(count)
    return outer, units.new(size, [outer])


def test_an_axis_split_in_two_has_an_order_for_each_block():
    units = Units()
    whole = units.new(12)
    outer, inner = units.split(whole, (3, 4), "")
    assert units.parents(inner) == {outer} and not units.parents(outer)
    deepest = units.split(inner, (2, 2), "")[1]
    assert len(units.parents(deepest)) == 2


def test_what_has_no_blocks_makes_the_orders_one():
    units = Units()
    outer, inner = blocks(units, 3, 4)
    units.unify(inner, units.new(4), "")
    assert not units.parents(units.resolve(inner))


def test_orders_stay_apart_where_blocks_are_the_same_and_not_where_they_are_others():
    units = Units()
    one, two = blocks(units, 3, 4), blocks(units, 3, 4)
    units.unify(product(one), product(two), "")
    assert units.parents(units.resolve(one[1])) == {units.resolve(one[0])}
    units = Units()
    one, two = blocks(units, 3, 4), blocks(units, 3, 4)
    units.unify(one[1], two[1], "")
    assert not units.parents(units.resolve(one[1]))


def test_what_one_order_is_made_of_depends_on_no_more_than_it_did():
    units = Units()
    other = units.new(3)
    outer = units.new(2, [other])
    inner = units.new(2, [other, outer])
    assert len(units.parents(inner)) == 2
    units.unify(units.new(4), product([outer, inner]), "", along=frozenset({other}))
    assert not units.parents(outer) and units.parents(inner) == {outer}


def test_a_divided_parent_tells_nothing_apart_and_one_that_stays_does():
    units = Units()
    outer, inner = blocks(units, 3, 4)
    units.cut(outer, 1, "")
    assert not units.parents(inner)
    units = Units()
    outer, inner = blocks(units, 3, 4)
    units.freeze(outer, "")
    assert units.parents(inner) == {outer} and not units.parents(outer)


def test_a_tensor_without_the_parents_axis_or_with_it_twice_takes_it_away():
    units = Units()
    outer, inner = blocks(units, 3, 4)
    units.ground([units.new(5), outer, inner])
    assert units.parents(inner) == {outer}
    units.ground([outer, outer, inner])
    assert not units.parents(inner)
    outer, inner = blocks(units, 3, 4)
    units.ground([inner])
    assert not units.parents(inner)


def test_only_axes_at_the_same_place_align():
    units = Units()
    a, b, c = units.new(3), units.new(3), units.new(4)
    assert units.aligned([(a, b, c), (a, c, b)]) == {a}
    assert units.aligned([(a, a, c), (a, a, c)]) == {c}
    assert units.aligned([(total([a, b]), c), (total([a, b]), c)], at=1) == frozenset()


def test_free_units_take_whatever_order_is_asked_of_them():
    units = Units()
    outer, inner = blocks(units, 3, 4)
    units.unify(inner, units.free(4), "", along=frozenset({outer}))
    assert units.parents(units.resolve(inner)) == {outer}


# Structures that few networks have ------------------------------------------------------------------------

LOOKED_UP = {  # → the words that it has
    "distances": (
        lambda s, x: s.h(torch.exp(-(torch.cdist(s.l(x), s.centres) ** 2))),
        {"l": 6, "centres": 7},
        {"centres": stacked(7, 6), "h": nn.Linear(7, 2)},
    ),
    "the nearest of a table": (
        lambda s, x: s.h(F.embedding(torch.cdist(s.l(x), s.centres).argmin(-1), s.centres)),
        {"l": 6},  # a unit that has an axis alone stays, and is named
        {"centres": stacked(7, 6), "h": nn.Linear(6, 2)},
    ),
    "rows of two tables by one choice": (
        lambda s, x: s.h(s.values.index_select(0, (s.l(x) @ s.keys).argmax(-1))),
        {"l": 6, "keys": 7, "values": 5},
        {"keys": stacked(6, 7), "values": stacked(7, 5), "h": nn.Linear(5, 2)},
    ),
    "rows of one table by the nearest of another": (
        lambda s, x: s.h(s.values.index_select(0, torch.cdist(s.l(x), s.centres).argmin(-1))),
        {"l": 6, "centres": 7, "values": 5},
        {"centres": stacked(7, 6), "values": stacked(7, 5), "h": nn.Linear(5, 2)},
    ),
    "rows put into nothing": (
        lambda s, x: s.h(put(torch.zeros(len(x), 6), x[:, 0] > 0, s.l(x))),
        {"l": 6},
        {"h": nn.Linear(6, 2)},
    ),
    "rows put where a mask is true": (
        lambda s, x: s.h(put(torch.zeros(len(x), 6), x[:, 0] > 0, s.l(x)) + s.l(x)),
        {"l": 6},
        {"h": nn.Linear(6, 2)},
    ),
}


def put(onto, mask, rows):
    onto = onto.to(rows.dtype)
    onto[mask] = rows[mask]
    return onto


@pytest.mark.parametrize("name", LOOKED_UP)
def test_what_is_nearest_chosen_or_masked_moves(name):
    forward, words, layers = LOOKED_UP[name]
    torch.manual_seed(0)
    layers = {key: nn.Parameter(it.clone()) if torch.is_tensor(it) else it for key, it in layers.items()}
    found = infer(Net(forward, l=nn.Linear(3, 6), **layers), ROWS)
    assert found.fitted.words == words and found.proof is not None and not found.refused


# Compared with a spec that somebody wrote -----------------------------------------------------------------


def test_a_spec_that_keeps_the_orders_within_heads_is_told_apart_from_one_that_moves_them():
    network = attention(True)
    found = infer(network, (SEQUENCE,))
    shapes = found.fitted.shapes
    assert reasons.compare(fit(parse(found.text, name="own"), shapes), found)["unlike"] == []
    timid = re.sub(r" qkv\.(dim|value)\*", " 4", found.text)
    told = reasons.compare(fit(parse(timid, name="timid"), shapes), found)["unlike"]
    assert {place["axis"] for place in told} == {"qkv.weight axis 0", "qkv.bias axis 0", "o.weight axis 1"}


@pytest.mark.parametrize("drop", [F.dropout, lambda x: F.dropout(x, 0.2, training=True)])
def test_dropout_that_drops_in_evaluation_keeps_no_unit_in_its_place(drop):
    network = Net(lambda s, x: s.h(drop(s.a(x).relu())), a=nn.Linear(3, 6), h=nn.Linear(6, 2))
    assert lines_of(network, ROWS)["a.bias"] == "a"
    drops = Net(
        lambda s, x: s.h(
            F.scaled_dot_product_attention(*(heads(f(x), 2) for f in s.f), dropout_p=0.1).flatten(1)
        ),
        f=nn.ModuleList(nn.Linear(3, 8) for _ in range(3)),
        h=nn.Linear(8 * SEQUENCE.shape[1], 2),
    )
    assert len(infer(drops, SEQUENCE).fitted.words) >= 2


def test_one_number_put_by_a_mask_of_the_units_keeps_none_in_its_place():
    def cut(s, x):
        hidden = s.a(x)
        hidden[hidden < 0] = 0
        return s.h(hidden)

    def masked(s, x):
        hidden = s.a(x)
        hidden[:, s.mask] = 0
        return s.h(hidden)

    def picked(s, x):
        hidden = s.a(x)
        hidden[hidden < 0] = hidden[hidden < 0] * torch.linspace(0, 1, int((hidden < 0).sum()))
        return s.h(hidden)

    own = {"a": nn.Linear(3, 6), "h": nn.Linear(6, 2)}
    assert lines_of(Net(cut, **own), ROWS)["a.bias"] == "a"
    network = Net(masked, **own)
    network.mask = torch.arange(6) < 2
    assert "a mask picks" not in why(network, ROWS, "a.bias axis 0")
    assert why(Net(picked, **own), ROWS, "a.bias axis 0")


@pytest.mark.parametrize("size", [6, (5, 6)])
def test_what_one_mask_of_chance_drops_in_two_layers_stays(size):
    def masked(s, x):
        mask = F.dropout(torch.ones(size), 0.5, training=True)
        return s.h(s.a(x) * mask) + s.g(s.b(x) * mask)

    linears = {"a": nn.Linear(3, 6), "b": nn.Linear(3, 6), "h": nn.Linear(6, 2), "g": nn.Linear(6, 2)}
    found = infer(Net(masked, **linears), torch.randn(5, 3))
    assert not found.fitted.words and any("same chance" in frozen.why for frozen in found.reasons)


def test_rows_of_one_query_that_attention_drops_stay():
    def attended(s, x):
        query = s.query.expand(5, 1, 6, 4)
        rows = F.scaled_dot_product_attention(query, *(heads(f(x), 1) for f in s.f), dropout_p=0.5).sum(
            (1, 3)
        )
        return s.h(s.a(x[:, 0]) * rows) + s.g(s.b(x[:, 0]) * rows)

    linears = {"a": nn.Linear(3, 6), "b": nn.Linear(3, 6), "h": nn.Linear(6, 2), "g": nn.Linear(6, 2)}
    network = Net(
        attended, query=stacked(1, 1, 1, 4), f=nn.ModuleList(nn.Linear(3, 4) for _ in "kv"), **linears
    )
    found = infer(network, torch.randn(5, 4, 3))
    assert not found.fitted.words and any("same chance" in frozen.why for frozen in found.reasons)
