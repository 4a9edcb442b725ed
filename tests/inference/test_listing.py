"""Modules of a list that change places become one line, with what each has for itself within."""

import math

import pytest
import torch
from torch import nn

from rebasin_cli.inference import infer
from rebasin_cli.inference.rules.alike import Alike
from rebasin_cli.inference.text import reasons
from rebasin_cli.inference.text.lists import Lines, Unlisted, listed
from tests import mixtures
from tests.inference.test_infer import ROWS, Net

LOG10 = {n: math.lgamma(n + 1) / math.log(10) for n in range(20)}
TOKENS = torch.arange(14).view(2, 7) % mixtures.TOKENS


def experts(**how):
    torch.manual_seed(0)
    found = infer(mixtures.Mixture(sparse=False), TOKENS, **how)
    return found


def test_experts_of_a_top_k_router_are_a_word_and_their_units_lie_within():
    found = experts()
    within = mixtures.EXPERTS * LOG10[mixtures.HIDDEN]
    each = LOG10[mixtures.EXPERTS] + within
    assert found.fitted.log10_symmetries() == pytest.approx(LOG10[mixtures.WIDTH] + mixtures.LAYERS * each)
    assert found.proof.largest_difference < 1e-13 and found.missed == () and found.refused == ()
    line = 'layers.{i}.experts.{}.w2.weight: "layers.{i}.experts stream layers.{i}.experts.hidden*"'
    assert line in found.text and '  layers.{i}.experts.hidden: "layers.{i}.experts"' in found.text
    assert not any("gate.weight axis 0" in place for frozen in found.reasons for place in frozen.places)


def test_with_groups_the_stream_turns_and_experts_are_ordered():
    found = experts(groups=True)
    assert found.fitted.groups == {"stream": "O"} and found.proof is not None
    assert "layers.0.experts" in found.fitted.words and found.fitted.within["layers.0.experts.hidden"].count
    assert found.no_larger["layers.0.experts"] == ("modules of a list change places as they are",)


@pytest.mark.sweep
def test_where_tokens_are_picked_by_value_whole_experts_change_places_with_what_they_hold():
    torch.manual_seed(0)
    found = infer(mixtures.Mixture(), TOKENS)
    layers = ("layers.0.experts", "layers.1.experts")
    assert set(found.fitted.words) == {"stream", *layers, *(f"{layer}.hidden" for layer in layers)}
    assert found.proof is not None


def test_places_and_differences_are_told_by_the_line_of_the_list():
    found = experts()
    told = reasons.explain(found)
    assert "layers.0.experts.{}.w1.weight axis 0" in told["words"]["layers.0.experts"]["axes"]
    own = reasons.compare(found.fitted, found)
    assert not (own["keeps"] or own["moves"] or own["unlike"] or own["tied"] or own["split"])


def test_branches_without_a_router_are_a_list_as_well():
    def branch():
        return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 5))

    network = Net(
        lambda s, x: s.h(sum(b(s.i(x)) for b in s.b)), i=nn.Linear(3, 5), h=nn.Linear(5, 2),
        b=nn.ModuleList(branch() for _ in range(3)),
    )  # fmt: skip
    found = infer(network, ROWS)
    digits = 2 * LOG10[5] + LOG10[3] + 3 * LOG10[7]
    assert found.fitted.log10_symmetries() == pytest.approx(digits) and found.proof is not None


class Together(nn.Module):
    """Experts whose weights are put into one product, so that their hidden units have one order."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 5)) for _ in range(3))

    def forward(self, x):
        up, down = (torch.stack([expert[k].weight for expert in self.experts]) for k in range(2))
        hidden = torch.einsum("bd,ehd->beh", x, up).relu()
        return x + torch.einsum("beh,edh->bd", hidden, down)


def test_hidden_units_that_experts_share_are_those_of_their_layer():
    network = Net(lambda s, x: s.h(s.layers(s.i(x))), i=nn.Linear(3, 5), h=nn.Linear(5, 2),
                  layers=nn.Sequential(Together(), Together(), Together()))  # fmt: skip
    found = infer(network, ROWS)
    assert found.fitted.sizes.items() >= {"stream": 5, "layers.0.hidden": 7, "layers.2.hidden": 7}.items()
    assert "layers.{i}.hidden" in found.text and "layers.0.hidden" not in found.text


def test_units_of_one_module_that_another_tensor_reads_keep_the_list_apart():
    def read(s, x):
        first, second = s.b[0](x).relu(), s.b[1](x).relu()
        return s.h(s.o[0](first) + s.o[1](second))

    network = Net(read, b=nn.ModuleList(nn.Linear(3, 4) for _ in range(2)),
                  o=nn.ModuleList(nn.Linear(4, 5) for _ in range(2)), h=nn.Linear(5, 2))  # fmt: skip
    found = infer(network, ROWS)
    assert not found.fitted.stacks and found.proof is not None


def lines(**tensors):
    return Lines({name.replace("_", "."): text for name, text in tensors.items()}, {})


def alike(*suffixes, beside=()):
    return Alike("e.", {k: [f"e.{k}.{name}" for name in suffixes] for k in "01"}, beside)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (lines(e_0_w="a .", e_1_w="b .", out=". a"), "units of one of its modules are read elsewhere"),
        (lines(e_0_w="a b", e_1_w="b a"), "some of its modules share units"),
        (lines(e_0_w="a .", e_1_w=". b"), "its modules have units in unlike places"),
        (lines(e_0_w="(a d*)", e_1_w="(b c*)"), "would lie too deep"),
        (lines(e_0_w=". .", gate="x .", e_1_w=". ."), "the axes beside it move with something else"),
    ],
)
def test_what_the_notation_cannot_say_is_said(given, why):
    with pytest.raises(Unlisted, match=why):
        listed(given, alike("w", beside=(("gate", 0),) if "gate" in given.tensors else ()))


def test_copies_shared_words_and_names_that_are_taken():
    given = lines(e_0_w="(2 e.0.h) stream", e_1_w="(2 e.1.h) stream", x="e", y="e.h")
    found, made = listed(given, alike("w"))
    assert found.tensors == {"e.{}.w": "e.0 (2 e.h.0*) stream", "x": "e", "y": "e.h"}
    assert found.within == {"e.h.0": "e.0"} and made == {"e.0": (), "e.h.0": ("e.0.h", "e.1.h")}
