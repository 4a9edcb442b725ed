"""Families of lines: fewer of them, and never another spec."""

import pytest
import torch
import yaml
from torch import nn

from rebasin_cli import nets
from rebasin_cli.inference import infer
from rebasin_cli.inference.text.axis_text import spec_text
from rebasin_cli.inference.text.families import compact, compact_words
from rebasin_cli.proof.prove import prove
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Fixed
from rebasin_cli.spec.parser import parse


class UNet(nn.Module):
    """Three levels down, three up, each joined by a concatenation with its counterpart."""

    def __init__(self, width=4):
        super().__init__()
        sizes = [3, width, 2 * width, 4 * width]
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.bottom = self.block(sizes[-1], 2 * sizes[-1])
        below = [8 * width, 4 * width, 2 * width]
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(a, b, 2, 2) for a, b in zip(below, sizes[:0:-1], strict=True)
        )
        self.join = nn.ModuleList(self.block(2 * size, size) for size in sizes[:0:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def block(self, a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), kept.pop()], 1))
        return self.head(x)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.Sequential(nn.Linear(6, 16), nn.TransformerEncoder(layer, 4), nn.Linear(16, 3))


def built(name, shape, **options):
    return lambda: nets.build(name, input_shape=shape, classes=5, **options)


IMAGE = (3, 32, 32)
NETWORKS = {  # how to make it, an input, lines without and with families
    "mlp": (built("mlp", (1, 4, 4), depth=6, width=8), (1, 4, 4), 14, 4),
    "vgg16_bn": (built("vgg16_bn", IMAGE, width=0.05), IMAGE, 93, 8),
    "resnet20": (built("resnet20", IMAGE, width=0.25), IMAGE, 128, 40),
    "resnet50": (built("resnet50", IMAGE, width=0.05), IMAGE, 320, 35),
    "googlenet": (built("googlenet", (3, 64, 64), width=0.1), (3, 64, 64), 344, 29),
    "encoder": (encoder, (5, 6), 52, 14),
    "u-net": (UNet, (3, 16, 16), 57, 26),
}


def lines_of(fitted):
    """One line a tensor, without the sizes of axes that stay."""
    return {
        tensor: " ".join("." if isinstance(axis, Fixed) else str(axis) for axis in axes)
        for tensor, axes in fitted.tensors.items()
    }


@pytest.fixture(scope="module")
def expanded():
    """One line a tensor of each network, as inferred: made once."""
    made = {}

    def expanded(name):
        if name not in made:
            make, shape, *_ = NETWORKS[name]
            found = infer(make(), torch.rand(2, *shape), prove=False).fitted
            lines = lines_of(found)
            told = {t: line for t, line in lines.items() if t not in found.statistics}
            counted = {t: line for t, line in lines.items() if t in found.statistics}
            blocks = {found.within[w].word for w in found.within}
            sizes = {word: found.words[word] for word in found.words if word in blocks}
            made[name] = told, counted, sizes, found.shapes
        return made[name]

    return expanded


LARGE = {"resnet50", "googlenet"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.sweep if name in LARGE else ()) for name in NETWORKS]
)
def test_families_say_what_the_lines_said_in_fewer(expanded, name):
    tensors, statistics, sizes, shapes = expanded(name)
    plain = spec_text(tensors, statistics, sizes=sizes, description="plain")
    short = spec_text(tensors, statistics, sizes=sizes, description="short", shapes=shapes)
    one, other = (fit(parse(text, name=name), shapes) for text in (plain, short))
    assert list(one.words.items()) == list(other.words.items())
    assert (one.tensors, one.statistics, one.within) == (other.tensors, other.statistics, other.within)
    assert lines_in(plain) == NETWORKS[name][2] == len(shapes)
    assert lines_in(short) == NETWORKS[name][3]


def lines_in(text):
    said = yaml.safe_load(text)
    return len(said["tensors"]) + len(said.get("statistics", {}))


def test_a_chain_looks_for_the_layer_before():
    lines = {"a.0.weight": "a.0 .", "a.1.weight": "a.1 a.0", "a.2.weight": "a.2 a.1", "head.weight": ". a.2"}
    assert compact(lines, {}) == ({"a.{i}.weight": "a.{i} a.{i-1|.}", "head.weight": ". a.2"}, {})


def test_numbers_with_gaps_count_by_what_is_found():
    lines = {f"f.{k}.weight": f"f.{k} f.{j} . ." for j, k in [(0, 3), (3, 7), (7, 10)]}
    lines = {"f.0.weight": "f.0 . . ."} | lines | {f"f.{k + 1}.weight": f"f.{k}" for k in (0, 3, 7, 10)}
    found, _ = compact(lines, {})
    assert found == {"f.{i}.weight[4]": "f.{i} f.{i-1|.} . .", "f.{i}.weight[1]": "f.{i-1}"}


def test_exceptions_are_exact_lines_below_their_family():
    lines = {f"b.{k}.{part}.weight": f"b.{k} {part}" for k in range(5) for part in ("up", "down")}
    lines |= {"b.3.up.weight": "b.3 other", "out.weight": ". up"}
    found, _ = compact(lines, {})
    assert list(found.items()) == [
        ("b.{i}.up.weight", "b.{i} up"),
        ("b.3.up.weight", "b.3 other"),
        ("b.{i}.down.weight", "b.{i} down"),
        ("out.weight", ". up"),
    ]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_layers_that_alternate_make_no_family(count):
    """Couplings of a flow: one more would be of the other kind."""
    lines = {f"nets.{k}.weight": f"nets.{k} half.{k % 2}" for k in range(count)}
    lines |= {"in.weight": "half.0 + half.1 ."}
    assert compact(lines, {}) == (lines, {})


def test_what_most_do_not_share_and_what_may_be_chance_is_written_out():
    few = {f"b.{k}.weight": f"{word} ." for k, word in enumerate("pqrstt")}
    assert compact(few, {}) == (few, {})
    chance = {f"join.{k}.weight": f"join.{k} ." for k in range(3)}
    chance |= {"up.1.weight": ". join.0", "up.2.weight": ". join.1"}
    found, _ = compact(chance, {})
    assert found == {"join.{i}.weight": "join.{i} ."} | {name: chance[name] for name in list(chance)[3:]}


def test_a_family_of_one_is_a_line():
    lines = {"a.0.weight": "a.0 .", "b.weight": "b a.0", "a.1.bias": "b"}
    assert compact(lines, {}) == (lines, {})


def test_words_within_units_keep_their_star_and_sizes_are_families_too():
    lines = {f"b.{k}.qkv.weight": f"(3 b.{k}.heads b.{k}.dim*) stream" for k in range(3)}
    assert compact(lines, {})[0] == {"b.{i}.qkv.weight": "(3 b.{i}.heads b.{i}.dim*) stream"}
    words = ["b.0.heads", "b.1.heads", "b.0.dim", "b.1.dim", "stream"]
    assert compact_words({"b.0.heads": 4, "b.1.heads": 4}, words) == {"b.{i}.heads": 4}
    assert compact_words({"b.0.heads": 4, "b.1.heads": 2}, words) == {"b.0.heads": 4, "b.1.heads": 2}
    assert compact_words({"b.0.heads": 4, "b.1.heads": 4}, [*words, "b.x.heads"]) == {
        "b.0.heads": 4,
        "b.1.heads": 4,
    }


def test_a_tensor_that_two_families_would_claim_gets_a_line_of_its_own():
    names = ["l0", "l1", "l0_reverse", "l1_reverse"]
    lines = {f"w_{name}": f"{name} ." for name in names} | {f"v_{name}": f". {name}" for name in names}
    shapes = {name: (3, 3) for name in lines}
    text = spec_text(lines, {}, description="short", shapes=shapes)
    found = fit(parse(text, name="short"), shapes)
    assert lines_of(found) == lines
    exact = {name for name in lines if name.endswith("_reverse")}
    assert compact(lines, {})[0].keys() == {"w_l{i}", "v_l{i}"} | exact


def test_where_families_would_say_something_else_the_lines_stay(monkeypatch):
    lines = {f"a.{k}.weight": f"a.{k} ." for k in range(3)}
    lines |= {f"b.{k}.weight": f". a.{k}" for k in range(3)}
    shapes = {name: (4, 4) for name in lines}
    wrong = {"a.{i}.weight": "a.{i} .", "b.{i}.weight": ". a.0"}
    monkeypatch.setattr("rebasin_cli.inference.text.axis_text.compact", lambda *_: (wrong, {}))
    text = spec_text(lines, {}, description="short", shapes=shapes)
    assert yaml.safe_load(text)["tensors"] == lines


def test_what_an_exact_line_writes_is_not_looked_for():
    """All of `b` read the one before, but no family finds `a.5`: lines are read back as `fit` does."""
    lines = {f"a.{k}.weight": f"a.{k} ." for k in range(3)} | {"z.weight": "a.5 ."}
    lines |= {f"b.{k + 1}.weight": f". a.{k}" for k in (0, 1, 2, 5)}
    assert compact(lines, {})[0] == {
        "a.{i}.weight": "a.{i} .",
        "z.weight": "a.5 .",
        "b.{i}.weight": ". a.{i-1}",
        "b.6.weight": ". a.5",
    }
    lines = {name: line for name, line in lines.items() if name[0] != "b"}
    two = {"a.1.out": ". a.0", "a.6.out": ". a.5"}
    assert compact(lines | two, {})[0].items() > two.items()


def test_the_short_text_is_proven_on_the_network():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
    found = infer(network, torch.rand(2, 4), prove=False)
    lines = lines_of(found.fitted)
    text = spec_text(lines, {}, description="short", shapes=found.fitted.shapes)
    assert '"{i}.weight": "h{i} h{i-1|.}"' in text
    fitted = fit(parse(text, name="short"), found.fitted.shapes)
    assert prove(network, fitted, torch.rand(2, 4)).largest_difference < 1e-9
