"""Units matched softly: the two forms of one formula, any order of B, clear copies, faint ones, strangers."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from rebasin_cli.measure import kin
from rebasin_cli.measure.kin import likely
from rebasin_cli.measure.kin.columns import Still
from rebasin_cli.symmetry import permutation

from .test_orders import fitted_of

SHAPES = {"in": (48, 400), "out": (10, 48)}
FITTED = fitted_of({"in": "h .", "out": ". h"}, SHAPES)


def model(seed, much=1.0):
    """First values, and what all of these learned alike: a few large directions."""
    own, common = (torch.Generator().manual_seed(k) for k in (seed, 1_000))
    learned = torch.randn(4, 400, generator=common)
    learned[:, -60:] = 0
    found = {name: torch.randn(shape, generator=own) for name, shape in SHAPES.items()}
    found["in"] += much * torch.randn(48, 4, generator=own) @ learned
    return found


STILL = [Still("in", 1, torch.arange(340, 400), torch.zeros(60))]


@pytest.mark.parametrize("wide", [20, 60, 90])
def test_both_forms_of_what_units_share_are_one(wide):
    """By columns where these are fewer than both models' units, else by units."""
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randn(24, wide, generator=rng, dtype=torch.float64) for _ in range(2))
    found = likely._alike(x, y)
    squares = torch.linalg.svdvals(x).square()
    ridge = likely.RIDGE * squares[squares > 1e-6 * squares[0]].median()
    plain = x @ torch.linalg.inv(x.T @ x + y.T @ y + ridge * torch.eye(wide, dtype=torch.float64)) @ y.T
    torch.testing.assert_close(found / found.norm(), plain / plain.norm())


def test_any_order_of_b_gives_the_same_matrix_in_that_order():
    a, b = model(0), model(1)
    perms = permutation.random(FITTED.words, torch.Generator().manual_seed(3))
    moved = dict(permutation.permuted(b, FITTED, perms))
    one, other = (likely.units(a, its, FITTED, ["h"])["h"] for its in (b, moved))
    torch.testing.assert_close(other, one[:, perms["h"]])
    torch.testing.assert_close(one.sum(0), torch.ones(48, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_clear_copy_has_one_order():
    a, noise = model(0), model(1, much=0)
    (found,) = likely.units(a, {n: t + 0.3 * noise[n] for n, t in a.items()}, FITTED, ["h"]).values()
    assert found.diagonal().min() > 0.99


def test_what_has_no_values_is_likely_everywhere():
    nothing = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    (found,) = likely.units(model(0), nothing, FITTED, ["h"]).values()
    torch.testing.assert_close(found, torch.full_like(found, 1 / 48))


def test_words_that_are_alone():
    lines = {"embed": ". s", "qkv": "(3 k d*) s", "mlp": "m s", "two": "(k d*) .", "gain": "s"}
    shapes = {"embed": (30, 8), "qkv": (36, 8), "mlp": (16, 8), "two": (12, 5), "gain": (8,)}
    fitted = fitted_of(lines, shapes, "sizes: {k: 3}\n")
    assert [likely.word_alone(fitted, name) for name in lines] == ["s", None, None, None, None]


def test_a_faint_copy_is_found_where_no_order_is_sure():
    """Few units are matched; by one order of them nothing would be found."""
    found = []
    for k in range(8):
        a, other = model(2 * k), model(2 * k + 1)
        faint = {name: 0.1 * a[name] + 0.9 * other[name] for name in a}
        perms = permutation.random(FITTED.words, torch.Generator().manual_seed(k))
        faint = dict(permutation.permuted(faint, FITTED, perms))
        found.append(kin.by_columns(a, faint, FITTED, STILL).z)
    assert sum(found) / len(found) > 2


@pytest.mark.parametrize("count", [24, pytest.param(60, marks=pytest.mark.sweep)])
def test_p_of_strangers_is_uniform_whatever_units_are_likely(count):
    found = [
        kin.by_columns(model(2 * k), model(2 * k + 1), FITTED, STILL, draws=99, seed=k) for k in range(count)
    ]
    assert kstest([(each.p * 100 - 0.5) / 100 for each in found], "uniform").pvalue > 0.01
    assert 0.75 < torch.tensor([each.z for each in found]).std() < 1.25
