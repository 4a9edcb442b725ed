import weakref
from dataclasses import replace

import pytest
import torch

from rebasin_cli.checkpoints.tensors import blocks
from rebasin_cli.errors import CheckpointError, SpecError
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import elements as acts
from rebasin_cli.symmetry import form as module
from rebasin_cli.symmetry.action import views
from rebasin_cli.symmetry.balanced import ONE_SIDED, _together, balance
from rebasin_cli.symmetry.form import canonical
from tests.transformers import (
    After,
    ByGroup,
    ByHead,
    Gated,
    Neighbours,
    NoBias,
    OneLayer,
    Packed,
    Rotary,
    Transformer,
    drawn,
    inferred,
    outputs,
    relu,
    tanh,
)

NETS = [Transformer, Packed, Gated, After, relu, tanh, Rotary, Neighbours, NoBias, OneLayer, ByHead, ByGroup]


def form_of(make, seed=0):
    net, found = inferred(make)
    tensors = drawn(net, seed)
    return net, tensors, found, canonical(tensors, found.fitted, found.folds)


@pytest.mark.parametrize("make", NETS)
def test_the_canonical_form_computes_the_same(make):
    net, tensors, _, form = form_of(make)
    before, after = outputs(net, tensors), outputs(net, form.tensors)
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()


@pytest.mark.parametrize("make", [Transformer, Packed])
def test_what_can_be_folded_is_gone(make):
    _, tensors, found, form = form_of(make)
    for name in ("blocks.0.norm1", "blocks.1.norm2", "norm"):
        assert torch.equal(form.tensors[f"{name}.weight"], torch.ones(8).double())
        assert not form.tensors[f"{name}.bias"].any()
    assert form.tensors["embed.weight"].mean(0).abs().max() < 1e-15
    assert form.tensors["blocks.1.down.weight"].mean(0).abs().max() < 1e-15
    biases = form.tensors["blocks.0.k.bias" if make is Transformer else "blocks.0.attention.in_proj_bias"]
    assert not biases.chunk(1 if make is Transformer else 3)[-1 if make is Packed else 0].any()
    assert not form.left


def test_both_sides_of_what_is_balanced_have_the_same_norms():
    _, _, found, form = form_of(Transformer)
    sides = {"": [], "~": []}
    for name, axes in found.fitted.tensors.items():
        for side, view in views(form.tensors[name], axes, found.fitted, "blocks.0.dim"):
            sides[side].append(view)
    x, q = (torch.cat(each, -1) for each in sides.values())
    assert torch.allclose(x @ x.mT, q @ q.mT, atol=1e-10)


@pytest.mark.parametrize("make", NETS)
def test_the_canonical_form_of_a_canonical_form_is_itself(make):
    _, _, found, form = form_of(make)
    again = canonical(form.tensors, found.fitted, found.folds)
    for name in form.tensors:
        assert torch.allclose(again.tensors[name], form.tensors[name], atol=1e-10)


@pytest.mark.parametrize("make", NETS)
def test_models_that_an_element_parts_differ_by_an_order_and_rotations_in_canonical_form(make):
    """Scales and invertible maps are balanced away: norms of all tensors agree."""
    _, tensors, found, form = form_of(make)
    element = acts.random(found.fitted, torch.Generator().manual_seed(5))
    other = canonical(dict(acts.acted(form.tensors, found.fitted, element)), found.fitted, found.folds)
    for name in form.tensors:
        assert torch.allclose(other.tensors[name].norm(), form.tensors[name].norm(), rtol=1e-9, atol=1e-12)


def test_a_singular_product_stays_and_says_so():
    net, found = inferred(Transformer)
    tensors = drawn(net, 0)
    tensors["blocks.0.v.weight"][0] = tensors["blocks.0.v.bias"][0] = 0
    element, left = balance(tensors, found.fitted)
    assert left.keys() == {"blocks.0.value"} and "singular" in left["blocks.0.value"]
    assert "blocks.0.value" not in element.maps and "blocks.1.value" in element.maps


def test_dead_units_are_not_scaled():
    _, tensors, found, _ = form_of(relu)
    tensors["a.weight"][3] = tensors["a.bias"][3] = 0
    element, left = balance(tensors, found.fitted)
    assert element.maps["a"][3] == 1 and not left and element.maps["a"].isfinite().all()


def test_a_product_of_which_one_side_is_there_stays_and_says_so():
    _, tensors, found, _ = form_of(relu)
    fitted = replace(found.fitted, tensors={n: its for n, its in found.fitted.tensors.items() if n[0] == "a"})
    element, left = balance(tensors, fitted)
    assert left["a"] == ONE_SIDED and "a" not in element.maps


def test_statistics_are_no_side_of_a_product():
    _, tensors, found, _ = form_of(relu)
    fitted = replace(found.fitted, statistics=frozenset({"a.bias"}))
    before = balance(tensors, fitted)[0].maps["a"]
    assert torch.equal(before, balance(tensors | {"a.bias": 100 * tensors["a.bias"]}, fitted)[0].maps["a"])


def test_gains_that_are_not_folded_are_no_matter_of_rotations():
    """Nothing is folded, so the rotated stream's gains differ along it."""
    _, tensors, found, _ = form_of(Transformer)
    with pytest.raises(SpecError, match="folded away") as refused:
        canonical(tensors, found.fitted)
    assert any(problem.startswith("blocks.0.norm1.weight") for problem in refused.value.problems)
    even = {name: torch.ones_like(t) if "norm" in name else t for name, t in tensors.items()}
    canonical(even, found.fitted)


def test_single_precision_is_rounded_once():
    net, found = inferred(Transformer)
    tensors = {name: tensor.float() for name, tensor in drawn(net, 0).items()}
    form = canonical(tensors, found.fitted, found.folds)
    assert all(tensor.dtype == torch.float32 for tensor in map(form.tensors.__getitem__, form.tensors))
    wide = {name: tensor.double() for name, tensor in form.wide.items()}
    before = outputs(net, {name: tensor.double() for name, tensor in tensors.items()})
    assert (before - outputs(net, wide)).abs().max() <= 1e-12 * before.abs().max()


def test_a_norms_bias_that_nobody_can_take_up_stays_and_turns():
    net, tensors, found, form = form_of(NoBias)
    assert found.fitted.groups["stream"] == "O1" and not form.left
    assert torch.allclose(
        form.tensors["blocks.0.norm1.bias"],
        tensors["blocks.0.norm1.bias"] / tensors["blocks.0.norm1.weight"],
        atol=1e-12,
    )
    assert not form.tensors["norm.bias"].any()  # the head has one of its own
    element = acts.random(found.fitted, torch.Generator().manual_seed(2))
    turned = acts.acted(form.tensors, found.fitted, element)
    before, after = outputs(net, tensors), outputs(net, turned)
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()
    tensors["blocks.0.norm1.weight"][2] = 0
    with pytest.raises(CheckpointError, match="it is 0 where blocks.0.norm1.bias is not"):
        canonical(tensors, found.fitted, found.folds)
    tensors["blocks.0.norm1.bias"][2] = 0
    again = canonical(tensors, found.fitted, found.folds).tensors
    before, after = outputs(net, tensors), outputs(net, again)
    assert (before - after).abs().max() <= 1e-12 * before.abs().max()


@pytest.mark.parametrize("make", NETS)
def test_a_model_is_as_it_was_and_each_of_its_tensors_the_same_whenever_it_is_asked_for(make):
    """In float64, where numbers need no copy to be converted."""
    _, tensors, _, form = form_of(make)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    for asked in (form.tensors, form.changed, form.wide):
        first = {name: asked[name].clone() for name in asked}
        for name in form.changed:
            asked[name].fill_(torch.nan)
        assert all(torch.equal(asked[name], first[name]) for name in asked)
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


@pytest.mark.parametrize("make", NETS)
def test_a_canonical_form_can_be_written_over_the_model_that_it_is_of(make):
    """A tensor is made of the one of its name, and of nothing else that is read later."""
    _, tensors, _, form = form_of(make)
    whole = {name: form.tensors[name].clone() for name in form.tensors}
    for name in form.tensors:
        tensors[name].copy_(form.tensors[name])
    assert all(torch.equal(tensors[name], whole[name]) for name in tensors)


def test_no_tensor_of_a_canonical_form_is_held():
    _, _, _, form = form_of(Gated)
    for asked in (form.tensors, form.changed):
        assert all(weakref.ref(asked[name])() is None for name in form.changed)


def test_words_that_share_no_tensor_are_balanced_as_if_alone():
    net, found = inferred(Transformer)
    tensors = drawn(net, 0)
    whole, _ = balance(tensors, found.fitted)
    assert list(whole.maps) == [w for w, kind in found.fitted.groups.items() if kind != "O1"]
    for word, map_ in whole.maps.items():
        layer = word.rsplit(".", 1)[0]
        others = {n: t if n.startswith(layer) else 3 * torch.randn_like(t) for n, t in tensors.items()}
        assert torch.equal(balance(others, found.fitted)[0].maps[word], map_)


def test_words_that_share_tensors_are_balanced_in_turns():
    assert _together({"a": ["x"], "b": ["y"], "c": ["z"], "d": ["y", "x"]}) == [["c"], ["a", "b", "d"]]


def test_what_overflows_in_half_precision_is_told_before_anything_is_asked_for():
    net, found = inferred(Transformer)
    tensors = {name: tensor.half() for name, tensor in drawn(net, 0).items()}
    tensors["norm.weight"].fill_(6e4)
    tensors["head.weight"].fill_(1e3)
    with pytest.raises(CheckpointError, match="more than float16 holds"):
        canonical(tensors, found.fitted, found.folds)


def test_a_tensor_that_is_read_in_parts_is_made_once(monkeypatch):
    _, _, _, form = form_of(Gated)
    made = []
    act = module.act
    monkeypatch.setattr(module, "act", lambda *given: made.append(None) or act(*given))
    for name in form.changed:
        parts, whole = list(blocks(form.tensors, name, size=64)), form.tensors[name]
        assert torch.equal(torch.cat(parts), whole)
        assert whole.ndim == 1 or len(parts) == len(whole)  # a row each
    assert len(made) == 2 * len(form.changed)  # once for all parts, once for the whole


def test_words_in_a_row_are_balanced_by_one_element_for_all_turns():
    shapes = {"a": (4, 5), "b": (4, 4), "c": (6, 4)}
    text = "tensors: {a: 'g .', b: 'h g~', c: '. h~'}\ngroups: {g: GL, h: GL}"
    fitted, rng = fit(parse(text, name="row"), shapes), torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}
    element, left = balance(tensors, fitted)
    again, _ = balance(dict(acts.acted(tensors, fitted, element)), fitted)
    assert not left and all(torch.allclose(its, torch.eye(len(its)).double()) for its in again.maps.values())
