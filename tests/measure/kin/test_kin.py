"""Verdicts: copies in place and relabelled, strangers, strangers that were aligned, what is refused."""

from __future__ import annotations

import math

import pytest
import torch

import rebasin_cli
from rebasin_cli.errors import CheckpointError, SpecError, UsageError
from rebasin_cli.measure.kin import kin, sampled
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation

from .test_columns import images
from .test_orders import MLP, fitted_of, strangers

SIZES = (40, 48, 48, 10)


@pytest.fixture(scope="module")
def pair():
    return strangers(0, sizes=SIZES), strangers(1, sizes=SIZES)


def shuffled(model, seed=0):
    fitted = rebasin_cli.fit(MLP.spec, {name: tuple(t.shape) for name, t in model.items()})
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(seed))
    return dict(permutation.permuted(model, fitted, perms))


def near(a, noise, much):
    return {name: tensor + much * noise[name] for name, tensor in a.items()}


def test_strangers_copies_and_relabelled_copies(pair):
    a, other = pair
    data = images(values=40)
    cases = {
        "no evidence": other,
        "derived in place": near(a, other, 0.3),
        "derived relabelled": shuffled(near(a, other, 0.3)),
    }
    for verdict, b in cases.items():
        found = kin(a, b, data=data)
        assert found.verdict == verdict and found.derived == (verdict != "no evidence"), found.why
    assert kin(a, cases["derived relabelled"]).verdict == "undecided"
    assert kin(a, cases["derived in place"]).as_what == "as derived copies"


def test_the_same_values_are_told_first(pair):
    a, _ = pair
    assert (kin(a, dict(a)).verdict, kin(a, shuffled(a)).verdict) == (
        "derived in place",
        "derived relabelled",
    )


def test_a_copy_whose_signs_were_turned_is_not_called_a_stranger(pair):
    found = kin(pair[0], {name: -tensor for name, tensor in pair[0].items()})
    assert found.verdict == "undecided" and "each other's opposite" in found.why


def test_strangers_that_were_aligned_are_not_called_derived(pair):
    """Where their units stand was chosen by looking at A: whether that is recorded or not."""
    a, other = pair
    aligned = dict(rebasin_cli.align(a, other).tensors)
    found = kin(a, aligned)
    assert found.in_place.p == 0.001 and found.verdict == "undecided" and "aligned" in found.why
    assert kin(a, near(a, other, 0.3), aligned="b.pt was written by rebasin align").verdict == "undecided"


def test_a_faint_copy_is_told_from_aligned_strangers(pair):
    """What a matching finds has nothing to do with where the units of a tenth of a merge stand."""
    a, other = pair
    tenth = {name: 0.1 * a[name] + 0.9 * other[name] for name in a}
    found = kin(a, tenth)
    assert found.verdict == "derived in place" and found.effect < 0.25


def test_a_faint_copy_is_found_relabelled_though_strangers_share_large_directions(pair):
    """What both learned is larger than a third of A's first values, and would match its units to B's."""
    rng = torch.Generator().manual_seed(7)
    learned = {}
    for name, tensor in pair[0].items():
        left, right = (torch.randn(n, 4, generator=rng) for n in (len(tensor), tensor[0].numel()))
        learned[name] = left @ right.T if tensor.ndim > 1 else 0 * tensor
    learned["layers.0.weight"][:, -9:] = 0  # what no data move
    a = {name: tensor + learned[name] for name, tensor in pair[0].items()}
    moved = shuffled(learned, 3)
    other = {name: tensor + moved[name] for name, tensor in pair[1].items()}
    faint = shuffled({name: 0.35 * a[name] + 0.65 * other[name] for name in a})
    assert kin(a, faint, data=images(values=40)).verdict == "derived relabelled"
    assert kin(a, other, data=images(values=40)).verdict == "no evidence"


def test_large_models_are_judged_by_a_part_of_them(pair, monkeypatch):
    """What is compared in place is a part, and what is matched another one."""
    a, other = pair
    monkeypatch.setattr(sampled, "VALUES", 2_000)
    monkeypatch.setattr(sampled, "MATCHED", 4_000)
    monkeypatch.setattr(sampled, "BESIDE", 30)
    data = images(values=40)
    copy = near(a, other, 0.3)
    aligned = dict(rebasin_cli.align(a, other).tensors)
    found = {
        name: kin(a, b, data=data)
        for name, b in {"other": other, "aligned": aligned, "copy": copy, "moved": shuffled(copy)}.items()
    }
    assert {name: one.verdict for name, one in found.items()} == {
        "other": "no evidence",
        "aligned": "undecided",
        "copy": "derived in place",
        "moved": "derived relabelled",
    }
    assert all(math.isfinite(one.effect) and not one.relabelled.why for one in found.values())
    assert found["moved"].effect > 0.4
    faint = kin(a, {name: 0.2 * a[name] + 0.8 * other[name] for name in a})
    assert faint.verdict == "undecided" and "too large to tell" in faint.why


def test_a_rank_among_models_that_are_known_to_be_apart(pair):
    a, other = pair
    apart = [strangers(seed, sizes=SIZES) for seed in range(2, 6)]
    found = kin(a, shuffled(near(a, other, 0.3)), references=apart)
    assert len(found.references) == 4 and found.rank == 0.2
    assert math.isnan(kin(a, other).rank)


def test_other_shapes_and_names_are_left_out_and_told(pair):
    a, other = pair
    b = near(a, other, 0.3) | {"head.weight": torch.randn(12, 48), "head.bias": torch.randn(12)}
    found = kin(a, b | {"extra": torch.randn(3)})
    assert found.verdict == "derived in place"
    assert found.left_out["head.weight"] == "[10, 48] in A, [12, 48] in B"
    assert found.left_out["extra"] == "only in B" and found.left_out["layers.0.bias"] == "a norm or a bias"


def test_running_statistics_are_left_out():
    shapes = {"w": (64, 3), "mean": (64,)}
    spec = parse("tensors:\n  w: 'h .'\nstatistics:\n  mean: h\n", name="with statistics")
    a, b = ({name: torch.randn(shape) for name, shape in shapes.items()} for _ in range(2))
    matrices, _, left = sampled.comparable(a, b, fit(spec, shapes))
    assert matrices == ["w"] and left == {"mean": "a running statistic"}


def test_vectors_are_compared_where_there_is_nothing_else():
    fitted = fitted_of({"gain": "h"}, {"gain": (64,)})
    a, other = ({"gain": torch.randn(64, generator=torch.Generator().manual_seed(k))} for k in range(2))
    assert kin(a, near(a, other, 0.3), fitted).verdict == "derived in place"
    assert kin(a, other, fitted).verdict == "no evidence"


def test_where_no_unit_differs_from_another_that_is_said_and_not_that_models_are_large(pair):
    a, _ = pair
    found = kin(a, {name: torch.zeros_like(tensor) for name, tensor in a.items()})
    assert found.verdict == "undecided" and math.isnan(found.effect)
    assert found.notes == ("ρ is not measured: no tensor is left to compare.",)


def test_a_copy_whose_units_were_rotated_is_not_called_a_stranger():
    shapes = {"embed": (90, 48), "head": (90, 48)}
    fitted = fitted_of({name: ". s" for name in shapes}, shapes)
    a, other = (
        {n: torch.randn(shape, generator=torch.Generator().manual_seed(k)) for n, shape in shapes.items()}
        for k in range(2)
    )
    turn = torch.linalg.qr(torch.randn(48, 48, generator=torch.Generator().manual_seed(2)))[0]
    found = kin(a, {name: (a[name] + 0.1 * other[name]) @ turn for name in a}, fitted)
    assert found.in_place.p > 0.001 and found.rotated > 0.9
    assert found.verdict == "undecided" and "rotation" in found.why
    found = kin(a, other, fitted)
    assert abs(found.rotated) < 0.15 and found.verdict == "no evidence"


def test_what_has_too_few_orders_or_one_direction_is_undecided():
    """Two units have two orders; of constant tensors only rounding lies outside their direction."""
    a, other = (strangers(k, sizes=(40, 2, 10)) for k in range(2))
    found = kin(a, other)
    assert found.verdict == "undecided" and "2 orders" in found.why
    flat = [{name: k * torch.ones_like(tensor) for name, tensor in a.items()} for k in (1.1, 2.3)]
    found = kin(*flat)
    assert found.verdict == "undecided" and math.isnan(found.effect)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_no_scale_makes_strangers_kin_or_copies_strangers(pair, scale):
    a, other = pair
    large = {name: tensor * scale for name, tensor in other.items()}
    assert kin(a, large).verdict == kin(large, a).verdict == "no evidence"
    copy = {name: tensor * scale for name, tensor in near(a, other, 0.3).items()}
    assert kin(a, copy).verdict == "derived in place" and math.isfinite(kin(a, copy).effect)


def test_refusals(pair):
    a, other = pair
    codes = other | {"layers.0.weight": other["layers.0.weight"].to(torch.int8)}
    with pytest.raises(CheckpointError, match="plain numbers"):
        kin(a, codes)
    with pytest.raises(CheckpointError, match="NaN"):
        kin(a, other | {"layers.1.weight": other["layers.1.weight"] * math.nan})
    with pytest.raises(SpecError, match="no tensor in common"):
        kin(a, {name: tensor[:-1] for name, tensor in other.items()})
    with pytest.raises(SpecError, match="reference 2") as caught:
        kin(a, other, references=[other, {name: tensor[:-1] for name, tensor in other.items()}])
    assert "layers.0.weight  [48, 40] in A, [47, 40] in reference 2" in caught.value.problems
    with pytest.raises(UsageError, match="at least 0.0099"):
        kin(a, other, draws=100)
