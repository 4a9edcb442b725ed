"""Experts that a router picks change places with its rows, and have hidden units in orders of their own."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rebasin_cli.errors import NotProven
from rebasin_cli.inference import infer
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import Block

EXPERTS, HIDDEN = 3, 4


@torch.library.custom_op("rebasin_tests::grouped_mm_fallback", mutates_args=())
def grouped_mm(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    start, found = 0, x.new_zeros(len(x), weight.shape[2])
    for matrix, end in zip(weight, ends.tolist(), strict=True):
        found[start:end], start = x[start:end] @ matrix, end
    return found


@grouped_mm.register_fake
def _(x, weight, ends):
    return x.new_empty(len(x), weight.shape[2])


class Routed(nn.Module):
    """Two experts for each token, by the function that mixes them."""

    def __init__(self, mix, ranked=True):
        super().__init__()
        self.ranked = ranked
        self.i, self.gate, self.h = nn.Linear(3, 5), nn.Linear(5, EXPERTS), nn.Linear(5, 2)
        self.up = nn.Parameter(torch.randn(EXPERTS, 5, HIDDEN))
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, 5))
        self.mix = mix

    def forward(self, x):
        x = self.i(x)
        weights, ids = self.gate(x).softmax(-1).topk(2, -1, sorted=self.ranked)
        return self.h(x + self.mix(self, x, weights, ids))


def dense(s, x, gates):
    hidden = torch.einsum("nd,edh->neh", x, s.up).relu()
    return torch.einsum("neh,ehd,ne->nd", hidden, s.down, gates)


def one_hot(s, x, weights, ids):
    return dense(s, x, (F.one_hot(ids, EXPERTS) * weights[..., None]).sum(1))


def scattered(s, x, weights, ids):
    return dense(s, x, torch.zeros(len(x), EXPERTS).scatter(1, ids, weights))


def in_groups(s, x, weights, ids, back=True):
    """As large mixtures do it: rows sorted by expert, one product of matrices a group."""
    flat = ids.flatten()
    order = flat.argsort()
    ends = torch.histc(flat.float(), len(s.up), 0, len(s.up) - 1).cumsum(0, dtype=torch.int32)
    rows = grouped_mm(grouped_mm(x[order // 2], s.up, ends).relu(), s.down, ends)
    rows = rows * weights.flatten()[order][:, None]
    if back:
        return rows[order.argsort()].view(len(x), 2, -1).sum(1)
    return torch.zeros_like(x).index_add(0, order // 2, rows)


def added_up(s, x, weights, ids):
    return in_groups(s, x, weights, ids, back=False)


def gathered(s, x, weights, ids):
    hidden = torch.einsum("nd,nkdh->nkh", x, s.up[ids]).relu()
    return torch.einsum("nkh,nkhd,nk->nd", hidden, s.down[ids], weights)


def numbered(s, x, weights, ids):
    """The numbers themselves count."""
    return one_hot(s, x, weights, ids) * ids.sum(1, keepdim=True)


def in_order(s, x, weights, ids):
    """How rows lie once they are sorted counts."""
    order = ids.flatten().argsort()
    rows = x[order // 2] * torch.arange(1.0, len(order) + 1)[:, None]
    return torch.zeros_like(x).index_add(0, order // 2, rows) + one_hot(s, x, weights, ids)


def one_after_another(s, x, weights, ids):
    """The first, then the first of the others; the numbers of both side by side."""
    scores = s.gate(x)
    first, one = scores.max(-1, keepdim=True)
    second, two = scores.scatter(-1, one, -math.inf).max(-1, keepdim=True)
    return in_groups(s, x, torch.cat([first, second], -1), torch.cat([one, two], -1))


def largest(s, x, weights, ids):
    """Which number is the largest counts."""
    return one_hot(s, x, weights, ids) * ids.max(1, keepdim=True).values


INPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def inferred(mix, ranked=True):
    torch.manual_seed(0)
    return infer(Routed(mix, ranked), INPUTS)


def digits(*orders):
    return sum(math.log10(math.factorial(n)) for n in orders)


def words(found, name):
    return [str(axis) for axis in found.fitted.tensors[name]]


@pytest.mark.parametrize("mix", [one_hot, scattered, in_groups, added_up, one_after_another])
def test_experts_move_with_the_routers_rows_and_have_hidden_units_in_orders_of_their_own(mix):
    found = inferred(mix)
    (experts,) = words(found, "gate.bias")
    hidden = words(found, "up")[2]
    assert words(found, "up")[0] == experts and words(found, "down")[:2] == [experts, hidden]
    assert found.fitted.within[hidden.removesuffix("*")] == Block(experts, EXPERTS, HIDDEN)


@pytest.mark.parametrize("mix", [one_hot, scattered, in_groups, added_up])
def test_experts_that_a_top_k_picks_in_no_promised_order_move_alike(mix):
    found = inferred(mix, ranked=False)
    assert found.fitted.log10_symmetries() == pytest.approx(digits(5, EXPERTS, *[HIDDEN] * EXPERTS))
    assert not found.missed and not found.refused


def by_rank(s, x, weights, ids):
    return one_hot(s, x, weights * torch.tensor([1.0, 2.0]), ids)


def by_mean_rank(s, x, weights, ids):
    """Every row has an order of its own, so that the mean over rows depends on it."""
    return one_hot(s, x, weights, ids) * weights.mean(0).square().sum()


def by_last_row(s, x, weights, ids):
    return one_hot(s, x, weights, ids) * (weights * weights.roll(1, 0)).sum(1, keepdim=True)


def by_pairs_of_rows(s, x, weights, ids):
    return one_hot(s, x, weights, ids) * (weights[:, None] * weights).sum(2).max(1, keepdim=True).values


def of_two_lists(s, x, weights, ids):
    """Those of one list with those of another."""
    both = weights * s.gate(x).tanh().topk(2, -1, sorted=False)[0]
    return one_hot(s, x, weights, ids) * both.sum(1, keepdim=True)


def of_two_lists_for_all_rows(s, x, weights, ids):
    scores = s.gate(x).mean(0)
    both = scores.topk(2, sorted=False)[0] * scores.tanh().topk(2, sorted=False)[0]
    return one_hot(s, x, weights, ids) * both.square().sum()


def by_flat_place(s, x, weights, ids):
    return one_hot(s, x, weights, ids) * weights.flatten()[::3].sum()


@pytest.mark.parametrize(
    "mix",
    [
        by_rank,
        by_mean_rank,
        by_last_row,
        by_pairs_of_rows,
        of_two_lists,
        of_two_lists_for_all_rows,
        by_flat_place,
    ],
)
def test_where_the_order_of_a_top_k_that_is_not_sorted_counts_experts_stay(mix):
    found = inferred(mix, ranked=False)
    assert words(found, "gate.bias") == words(found, "up")[:1] == [str(EXPERTS)] and not found.refused
    assert any("top-k that is not sorted" in one.what for one in found.missed)


class Limited(nn.Module):
    """Two of six experts for each token, from two of three groups of two; groups by their two best."""

    def __init__(self, groups=3, kept=2):
        super().__init__()
        self.groups, self.kept = groups, kept
        self.i, self.gate, self.h = nn.Linear(3, 5), nn.Linear(5, 6), nn.Linear(5, 2)
        self.up, self.down = nn.Parameter(torch.randn(6, 5, HIDDEN)), nn.Parameter(torch.randn(6, HIDDEN, 5))

    def forward(self, x):
        x = self.i(x)
        scores = self.gate(x).sigmoid()
        best = scores.view(len(x), self.groups, -1).topk(2, -1)[0].sum(-1)
        chosen = torch.zeros_like(best).scatter(1, best.topk(self.kept, -1, sorted=False)[1], 1)
        chosen = chosen[..., None].expand(-1, -1, 6 // self.groups).reshape(len(x), 6)
        ids = scores.masked_fill(chosen == 0, -math.inf).topk(2, -1, sorted=False)[1]
        return self.h(x + in_groups(self, x, scores.gather(1, ids), ids))


@pytest.mark.parametrize("groups, kept", [(3, 2), (3, 1), (1, 1)])
def test_groups_of_experts_change_places_and_experts_within_each(groups, kept):
    torch.manual_seed(0)
    found = infer(Limited(groups, kept), torch.randn(6, 3))
    each, alike = (
        6 // groups,
        groups if groups > 1 else 6,
    )  # the notation has no order within one within another
    expected = digits(5, groups, *[each] * groups, *[HIDDEN] * alike)
    assert found.fitted.log10_symmetries() == pytest.approx(expected) and not found.refused
    assert [one.log10 for one in found.missed] == pytest.approx([digits(*[HIDDEN] * 3)] if groups > 1 else [])


def test_matrices_that_are_looked_up_share_one_order_of_hidden_units():
    found = inferred(gathered)
    assert words(found, "up")[0] == words(found, "gate.bias")[0] != str(EXPERTS)
    assert words(found, "up")[2] == words(found, "down")[1] != str(HIDDEN) and not found.fitted.within


@pytest.mark.parametrize("mix", [numbered, in_order, largest])
def test_where_numbers_or_the_order_of_sorted_rows_count_experts_stay(mix):
    found = inferred(mix)
    assert words(found, "gate.bias") == words(found, "up")[:1] == [str(EXPERTS)] and not found.refused


def test_a_router_that_stays_while_its_experts_move_is_refused():
    found, network = inferred(in_groups), Routed(in_groups)
    experts = words(found, "gate.bias")[0]
    text = found.text.replace(f'gate.bias: "{experts}"', 'gate.bias: "."')
    assert text != found.text
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    with pytest.raises(NotProven):
        prove(network, fit(parse(text, name="x"), shapes), INPUTS)


class Streamed(Routed):
    """An RMSNorm before the mixture, another before the end: a stream, and gains that experts read."""

    def __init__(self, mix):
        super().__init__(mix)
        self.norm, self.last = nn.RMSNorm(5), nn.RMSNorm(5)
        self.gate, self.h = nn.Linear(5, EXPERTS, bias=False), nn.Linear(5, 2, bias=False)

    def forward(self, x):
        x = self.i(x)
        y = self.norm(x)
        weights, ids = self.gate(y).softmax(-1).topk(2, -1)
        return self.h(self.last(x + self.mix(self, y, weights, ids)))


def test_the_stream_of_a_mixture_is_turned_and_its_gains_go_into_the_experts():
    torch.manual_seed(0)
    found = infer(Streamed(in_groups), INPUTS, groups=True)
    assert found.fitted.groups["i"] == "O" and not found.refused, found.no_larger
    (norm, *_) = found.folds.norms
    assert {(reader.weight, reader.axis) for reader in norm.readers} == {("gate.weight", 1), ("up", 1)}
    (experts,) = {words(found, "gate.weight")[0], words(found, "up")[0]}
    assert "|" not in experts and found.fitted.groups.get(experts) is None
