import pytest
import torch

from rebasin_cli.matchers import Problem, wm
from rebasin_cli.matchers.descent.baked import Baked
from rebasin_cli.matchers.descent.bound import upper_bound as bound_of
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.form import canonical
from tests.transformers import Gated, Rotary, Transformer, drawn, inferred, relu, tanh

NETS = [Transformer, Gated, Rotary, relu, tanh]


def forms(make):
    net, found = inferred(make)
    return found.fitted, *(canonical(drawn(net, s), found.fitted, found.folds).tensors for s in (0, 1))


def objective(a, b, fitted):
    pair = Baked(a, b, fitted)
    with pair.computing():
        return pair.objective(permutation.identity(pair.words))


def upper_bound(a, b, fitted):
    pair = Baked(a, b, fitted)
    with pair.computing():
        return bound_of(pair)


def reached(a, b, fitted):
    return wm.match(Problem(fitted, (a, b))).objective_after


def orthogonal(fitted, seed):
    """A random element that changes no norms: what the bound is over."""
    element = acts.random(fitted, torch.Generator().manual_seed(seed))
    maps = {}
    for word, map_ in element.maps.items():
        if map_.ndim == 1:
            maps[word] = map_.sign()
        else:
            u, _, v = torch.linalg.svd(map_)
            maps[word] = u @ v
    return acts.Elements(element.permutations, maps)


every_net = pytest.mark.parametrize(
    "make", [pytest.param(make, marks=[pytest.mark.sweep] * (make in (Rotary, Transformer))) for make in NETS]
)


@every_net
def test_no_element_reaches_more_than_the_bound(make):
    fitted, a, b = forms(make)
    most = upper_bound(a, b, fitted)
    for seed in range(3):
        moved = dict(acts.acted(b, fitted, orthogonal(fitted, seed)))
        assert objective(a, moved, fitted) <= most
    assert upper_bound(a, moved, fitted) == pytest.approx(most, abs=1e-6)  # of all that B could be
    assert reached(a, b, fitted) <= most < Baked(a, b, fitted).limit()


@every_net
def test_the_bound_is_reached_where_an_element_was_planted(make):
    fitted, a, _ = forms(make)
    b = dict(acts.acted(a, fitted, orthogonal(fitted, 3)))
    found = reached(a, b, fitted)
    assert found <= upper_bound(a, b, fitted) == pytest.approx(found, abs=2e-5)


@pytest.mark.parametrize(
    "axes, group, within",
    [("h .", "O", ""), ("h .", "O1", ""), ("h .", "signed", ""), ("(4 h*) .", "GL", ""),
     ("(heads h*) .", "GL", "sizes: {heads: 4}"), ("(heads h*) .", "halves", "sizes: {heads: 4}"),
     ("h .", "permutation", "")],
)  # fmt: skip
def test_the_bound_is_the_best_there_is_where_one_word_moves_alone(axes, group, within):
    text = f"tensors: {{x: '{axes}', y: '{axes}'}}\ngroups: {{h: {group}}}\n{within}"
    fitted = fit(parse(text, name="one"), {"x": (8, 5), "y": (8, 3)})
    rng = torch.Generator().manual_seed(0)
    for _ in range(8):  # the last bit goes either way
        a, b = ({n: torch.randn(s, generator=rng).double() for n, s in fitted.shapes.items()} for _ in "ab")
        found, most = reached(a, b, fitted), upper_bound(a, b, fitted)
        assert found <= most == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("make", [Gated, Transformer])
def test_the_bound_of_a_float32_model_and_itself_is_not_below_what_it_reaches(make):
    net, found = inferred(make)
    model = {name: tensor.float() for name, tensor in drawn(net, 0).items()}
    told = align([model, model], found.fitted, folds=found.folds, options={"bound": True}).result
    assert told.objective_after <= told.upper_bound <= told.objective_after * (1 + 2e-5)


def test_a_search_tells_its_bound_where_it_is_asked_for():
    net, found = inferred(Gated)
    models = [drawn(net, seed) for seed in (0, 1)]
    asked = align(models, found.fitted, folds=found.folds, options={"bound": True}).result
    assert asked.objective_after < asked.upper_bound < 8
    assert align(models, found.fitted, folds=found.folds).result.upper_bound is None
