"""The statistic of many orders at once: as whole tensors give it, and evenly drawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rebasin_cli.measure.kin import draws, orders, sampled
from rebasin_cli.measure.kin.parts import inner, merged, parts_of
from rebasin_cli.symmetry import permutation

from .test_orders import CASES, SIZES, fitted_of, model


def parts_and_spec(lines, shapes, more=""):
    fitted = fitted_of(lines, shapes, more)
    found = sampled.sample(*(model(shapes, seed, common=9) for seed in range(2)), fitted)
    found = replace(found, matrices=tuple(shapes))
    parts, _ = parts_of(found, [*orders.atoms(found.fitted)], {}, found.fitted.within)
    return parts, fitted


def one_by_one(parts, perms):
    total = 0.0
    for part in parts:
        y = part.y
        for dim, word in enumerate(part.words, start=1):
            y = y.index_select(dim, perms[word])
        total += inner(part.x, y)
    return total


@pytest.mark.parametrize("case", [*CASES, "several starred words on one axis", "a word on two axes"])
@pytest.mark.parametrize("table", [0, draws.TABLE])
def test_many_orders_at_once_give_what_each_one_gives(case, table, monkeypatch):
    monkeypatch.setattr(draws, "TABLE", table)
    monkeypatch.setattr(draws, "AT_ONCE", 200)  # several times
    more = {
        "several starred words on one axis": (
            ({"w": "s (k e* d*)", "v": "(k d*) s"}, {"w": (6, 24), "v": (12, 6)}),
            "sizes: {k: 4, e: 2}\n",
        ),
        "a word on two axes": (({"w": "h h"}, {"w": (8, 8)}), ""),
    }
    (lines, shapes), sizes = more[case] if case in more else (CASES[case], SIZES.get(case, ""))
    parts, fitted = parts_and_spec(lines, shapes, sizes)
    if "starred words" in case:
        assert any(part.spread is not None for part in parts)
    known = []

    def kept(*given):
        known.append(real(*given))
        return known[-1]

    real = draws.orders
    monkeypatch.setattr(draws, "orders", kept)
    found = draws.by_draws(merged(parts), fitted.words, fitted.within, 23, 0)
    perms = [
        {word: its[k] for word, its in some.items()}
        for some in known
        for k in range(len(some[next(iter(some))]))
    ]
    for each in perms:
        permutation.check(each, fitted.words, within=fitted.within)
    assert found.tolist() == pytest.approx([one_by_one(parts, each) for each in perms], abs=1e-5)


def test_every_order_is_drawn_as_often_as_any_other():
    fitted = fitted_of({"w": "(k d*) h"}, {"w": (4, 3)}, "sizes: {k: 2}\n")
    found = draws.orders(fitted.words, fitted.within, 20_000, torch.Generator().manual_seed(0))
    rows = torch.cat([found[word] for word in sorted(found)], dim=1)
    counts = rows.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 2 * 2 * 2 * 6  # of heads, within two heads, of h
    assert float(((counts - 20_000 / 48) ** 2 / (20_000 / 48)).sum()) < 85  # χ² of 47, p .0006
