import pytest
import torch

from rebasin_cli.errors import CheckpointError, SpecError
from rebasin_cli.groups import PERMUTATION, find, names
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import action, permutation
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry.elements import Elements

ATTENTION = """
tensors:
  qkv: "(heads d*) + (heads d~*) + (heads v*) x"
  out: "x (heads v~*)"
  gain: "|x|"
  up: "h x"
  bias: "h"
  down: "x h~"
sizes: {heads: 3, d: 2, v: 2}
groups: {x: O, d: GL, v: GL, h: monomial}
"""
SHAPES = {"qkv": (18, 5), "out": (5, 6), "gain": (5,), "up": (4, 5), "bias": (4,), "down": (5, 4)}


@pytest.fixture
def fitted():
    return fit(parse(ATTENTION, name="attention"), SHAPES)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def model(seed=0):
    generator = rng(seed)
    return {n: torch.randn(s, generator=generator, dtype=torch.float64) for n, s in SHAPES.items()}


def products(tensors):
    """All that a network could see of these tensors, whatever the element."""
    q, k, v = tensors["qkv"].split(6)
    heads = [(q[s].T @ k[s], tensors["out"][:, s] @ v[s]) for s in (slice(i, i + 2) for i in range(0, 6, 2))]
    return heads, tensors["down"] @ tensors["up"], tensors["down"] @ tensors["bias"]


def test_each_place_of_a_word_takes_the_element_or_its_inverse(fitted):
    before, element = model(), acts.random(fitted, rng(1))
    after = dict(acts.acted(before, fitted, element))
    r = element.maps["x"]
    (heads, mlp, bias), (own, own_mlp, own_bias) = products(after), products(before)
    order = element.permutations["heads"]
    for k, (scores, values) in enumerate(heads):
        assert torch.allclose(scores, r @ own[order[k]][0] @ r.T)
        assert torch.allclose(values, r @ own[order[k]][1] @ r.T)
    assert torch.allclose(mlp, r @ own_mlp @ r.T) and torch.allclose(bias, r @ own_bias)
    assert torch.equal(after["gain"], before["gain"])


def test_composing_and_inverting_are_what_acting_does(fitted):
    before, p, q = model(), acts.random(fitted, rng(1)), acts.random(fitted, rng(2))
    twice = acts.acted(dict(acts.acted(before, fitted, p)), fitted, q)
    once = acts.acted(before, fitted, acts.compose(p, q, fitted))
    back = acts.acted(dict(acts.acted(before, fitted, p)), fitted, acts.invert(p, fitted))
    for name in before:
        assert torch.allclose(twice[name], once[name], atol=1e-12)
        assert torch.allclose(back[name], before[name], atol=1e-12)


def test_an_element_without_maps_is_the_permutation_bit_by_bit(fitted):
    before = {name: tensor.float() for name, tensor in model().items()}
    perms = permutation.random(fitted.words, rng(3), within=fitted.within)
    after = acts.acted(before, fitted, Elements(perms))
    for name in before:
        assert torch.equal(after[name], permutation.permuted(before, fitted, perms)[name])


@pytest.mark.parametrize("kind", [kind for kind in names() if kind != PERMUTATION])
def test_what_is_drawn_is_of_its_group(kind):
    text = f"tensors: {{a: 'h .', b: '. h~'}}\ngroups: {{h: {kind}}}"
    fitted = fit(parse(text, name="two"), {"a": (6, 3), "b": (3, 6)})
    acts.check(acts.random(fitted, rng(1)), fitted)


@pytest.mark.parametrize(
    "word, map_, told",
    [
        ("x", torch.eye(5, dtype=torch.float64) * 2, "no rotation"),
        ("h", torch.ones(4).to(torch.float8_e4m3fn), "expected (4,) of float16 or wider"),
        ("d", torch.zeros(3, 2, 2, dtype=torch.float64), "singular"),
        ("d", torch.eye(2, dtype=torch.float64), "expected (3, 2, 2)"),
        ("h", torch.tensor([1.0, 0, 1, 1]), "not monomial"),
        ("h", torch.full((4,), torch.nan), "NaN"),
        ("heads", torch.ones(3), "permutations only"),
        ("nobody", torch.ones(3), "no word"),
    ],
)
def test_what_is_not_of_its_group_is_refused_by_name(fitted, word, map_, told):
    with pytest.raises(CheckpointError) as refused:
        acts.check(Elements(acts.identity(fitted).permutations, {word: map_}), fitted)
    assert word in refused.value.problems[0] and told in refused.value.problems[0]


def test_a_rotation_that_moves_the_ones_is_no_element_of_o1():
    fitted = fit(parse("tensors: {a: 'h .'}\ngroups: {h: O1}", name="one"), {"a": (3, 2)})
    turned = torch.linalg.qr(torch.randn(3, 3, generator=rng(), dtype=torch.float64)).Q
    with pytest.raises(CheckpointError, match="do not fit") as refused:
        acts.check(Elements({"h": torch.arange(3)}, {"h": turned}), fitted)
    assert "vector of ones" in refused.value.problems[0]


@pytest.mark.parametrize("kind", ["pairs", "halves"])
def test_a_complex_number_a_pair_commutes_with_what_positions_do(kind):
    fitted = fit(parse(f"tensors: {{a: 'h .'}}\ngroups: {{h: {kind}}}", name="one"), {"a": (6, 2)})
    turn, drawn = (acts.random(fitted, rng(seed)).maps["h"] for seed in (1, 2))
    assert torch.allclose(turn @ drawn, drawn @ turn) and torch.linalg.matrix_rank(drawn) == 6
    other = {"pairs": "halves", "halves": "pairs"}[kind]
    wrong = find(other).turning(find(kind).numbers_of(drawn))
    with pytest.raises(CheckpointError) as refused:
        acts.check(Elements({"h": torch.arange(6)}, {"h": wrong}), fitted)
    assert "no complex number a pair" in refused.value.problems[0]


def test_a_word_of_pairs_has_no_order():
    text = "tensors: {a: '(heads h*) x', b: 'x'}\nsizes: {heads: 2}\ngroups: {h: pairs, x: O}"
    fitted = fit(parse(text, name="one"), {"a": (8, 3), "b": (3,)})
    assert fitted.words == {"heads": 2, "h": 8, "x": 3} and fitted.ordered.words == {"heads": 2, "x": 3}
    assert str(fitted.ordered.tensors["a"][0]) == "(heads 4)" and fitted.ordered.groups == {}
    assert fitted.log10_symmetries() == fitted.ordered.log10_symmetries()


def test_an_odd_number_of_units_is_no_pairs():
    with pytest.raises(SpecError) as refused:
        fit(parse("tensors: {a: 'h .'}\ngroups: {h: halves}", name="one"), {"a": (5, 2)})
    assert refused.value.problems == ('groups  "h" is halves, and 5 units are no pairs',)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_integers_and_quantised_numbers_are_permuted_and_not_rotated(fitted, dtype):
    before = model() | {"up": torch.ones(4, 5).to(dtype)}
    perms = permutation.random(fitted.words, rng(3), within=fitted.within)
    assert acts.acted(before, fitted, Elements(perms))["up"].dtype == dtype
    with pytest.raises(CheckpointError, match="not rotated or scaled") as refused:
        acts.acted(before, fitted, acts.random(fitted, rng()))
    assert refused.value.problems == (f'up  {str(dtype)[6:]}, and "h", "x" is more than an order',)


def test_places_of_a_word_have_their_units_first(fitted):
    tensors = model()
    (side, view), (other, dual) = action.views(tensors["qkv"], fitted.tensors["qkv"], fitted, "d")
    assert (side, other, view.shape) == ("", "~", (3, 2, 5)) and torch.equal(view[1], tensors["qkv"][2:4])
    assert torch.equal(dual[2], tensors["qkv"][10:12])


BY_GROUP = """
tensors:
  qkv: "(heads (queries* d*) + d~* + v*) x"
  bias: "(heads (queries* d*) + d~* + v*)"
sizes: {heads: 2, queries: 2, d: 4}
groups: {d: halves, v: GL}
"""


def test_pairs_of_one_layer_for_all_three_turn_the_rows_of_queries_and_keys_by_hand():
    """Unit j and j + 2 of a head are one complex number: queries times z, keys times 1 / z̄, values left."""
    shapes = {"qkv": (32, 3), "bias": (32,)}
    fitted = fit(parse(BY_GROUP, name="one layer"), shapes)
    before = {n: torch.randn(s, generator=rng(4), dtype=torch.float64) for n, s in shapes.items()}
    element = acts.random(fitted, rng(1), of={"d": "halves"})
    after, numbers = acts.acted(before, fitted, element), find("halves").numbers_of(element.maps["d"]) / 2
    for name, tensor in before.items():
        rows = tensor.reshape(2, 4, 2, 2, -1)  # head, its two queries, key and value, real or imaginary
        wanted = torch.complex(rows[:, :, 0], rows[:, :, 1])
        wanted[:, :2] *= numbers[:, None, :, None]
        wanted[:, 2] /= numbers.conj()[:, :, None]
        found = after[name].reshape(2, 4, 2, 2, -1)
        assert torch.allclose(torch.complex(found[:, :, 0], found[:, :, 1]), wanted, atol=1e-12)


def test_elements_of_one_layer_for_all_three_compose_and_invert():
    shapes = {"qkv": (32, 3), "bias": (32,)}
    fitted = fit(parse(BY_GROUP, name="one layer"), shapes)
    before = {n: torch.randn(s, generator=rng(4), dtype=torch.float64) for n, s in shapes.items()}
    p, q = acts.random(fitted, rng(1)), acts.random(fitted, rng(2))
    acts.check(acts.compose(p, q, fitted), fitted)
    twice = acts.acted(dict(acts.acted(before, fitted, p)), fitted, q)
    once = acts.acted(before, fitted, acts.compose(p, q, fitted))
    back = acts.acted(dict(acts.acted(before, fitted, p)), fitted, acts.invert(p, fitted))
    for name in before:
        assert not torch.allclose(once[name], before[name])
        assert torch.allclose(twice[name], once[name], atol=1e-12)
        assert torch.allclose(back[name], before[name], atol=1e-12)


def test_a_map_within_heads_turns_every_one_of_three_copies_alike():
    """`(3 heads d*)`: heads are the second of three factors, in front of units that turn."""
    spec = "schema: 1\ntensors: {{w: '{} .'}}\ngroups: {{d: O}}\nsizes: {{heads: 2}}\n"
    whole = fit(parse(spec.format("(3 heads d*)"), name="three"), {"w": (18, 5)})
    one = fit(parse(spec.format("(heads d*)"), name="one"), {"w": (6, 5)})
    element, w = acts.random(whole, rng(1)), torch.randn(18, 5, generator=rng(2), dtype=torch.float64)
    thirds = [acts.acted({"w": part}, one, element)["w"] for part in w.split(6)]
    assert torch.allclose(acts.acted({"w": w}, whole, element)["w"], torch.cat(thirds), atol=1e-12)
