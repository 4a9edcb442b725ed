from itertools import permutations, product

import pytest
import torch

from rebasin_cli.groups.kinds.O1 import around_ones
from rebasin_cli.spec.spec import Block
from rebasin_cli.symmetry import projection
from rebasin_cli.symmetry.projection import project


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inner(found, similarity):
    n = len(similarity)
    rows = torch.arange(n)
    map_ = torch.eye(n, dtype=torch.float64) if found.map is None else found.map
    order = torch.zeros(n, n, dtype=torch.float64)
    order[rows, found.perm] = 1
    whole = (torch.diag(map_) if map_.ndim == 1 else map_) @ order
    return float((whole * similarity).sum())


@pytest.mark.parametrize("seed", range(5))
def test_signed_permutations_are_the_best_of_all(seed):
    c = draw(4, 4, seed=seed)
    best = max(
        sum(s * c[i, p] for i, (p, s) in enumerate(zip(perm, signs, strict=True)))
        for perm in permutations(range(4))
        for signs in product((-1, 1), repeat=4)
    )
    found = project(c, "signed")
    assert found.value == pytest.approx(float(best)) and inner(found, c) == pytest.approx(float(best))


@pytest.mark.parametrize("seed", range(5))
def test_what_only_orders_counts_for_the_order_and_not_for_the_signs(seed):
    c, order = draw(4, 4, seed=seed), 3 * draw(4, 4, seed=seed + 9)
    best = max(
        sum(s * c[i, p] + order[i, p] for i, (p, s) in enumerate(zip(perm, signs, strict=True)))
        for perm in permutations(range(4))
        for signs in product((-1, 1), repeat=4)
    )
    assert project(c, "signed", order=order).value == pytest.approx(float(best))


@pytest.mark.parametrize("kind", ["O", "GL", "O1"])
def test_a_rotation_is_the_best_of_many_and_of_its_group(kind):
    c = draw(6, 6)
    found = project(c, kind)
    r = found.map
    assert torch.allclose(r @ r.T, torch.eye(6, dtype=torch.float64), atol=1e-12)
    assert inner(found, c) == pytest.approx(found.value)
    if kind == "O1":
        assert torch.allclose(r.sum(1), torch.ones(6, dtype=torch.float64))
    for seed in range(200):
        q = torch.linalg.qr(draw(6 - (kind == "O1"), 6 - (kind == "O1"), seed=seed)).Q
        if kind == "O1":
            q = around_ones(6) @ q @ around_ones(6).T + 1 / 6
        assert float((q * c).sum()) <= found.value + 1e-9
        skew = 1e-3 * (draw(6, 6, seed=seed) - draw(6, 6, seed=seed).T)
        if kind == "O1":
            skew = around_ones(6) @ around_ones(6).T @ skew @ around_ones(6) @ around_ones(6).T
        assert float((torch.matrix_exp(skew) @ r * c).sum()) <= found.value + 1e-9


def test_two_dimensions_have_no_better_angle():
    c = draw(2, 2, seed=3)
    angles = torch.linspace(0, 2 * torch.pi, 20_001, dtype=torch.float64)
    turned = [
        torch.stack([angles.cos(), -angles.sin() * flip, angles.sin(), angles.cos() * flip], -1)
        for flip in (1, -1)
    ]
    best = max(float((t @ c.flatten()).max()) for t in turned)
    assert project(c, "O").value == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("kind", ["pairs", "halves"])
def test_each_pair_has_the_best_of_all_angles(kind):
    c = draw(6, 6, seed=4)
    found = project(c, kind)
    assert torch.allclose(found.map @ found.map.T, torch.eye(6, dtype=torch.float64))
    assert inner(found, c) == pytest.approx(found.value)
    angles = torch.linspace(0, 2 * torch.pi, 2001, dtype=torch.float64)
    best = 0.0
    for j in range(3):
        a, b = (2 * j, 2 * j + 1) if kind == "pairs" else (j, j + 3)
        cos, sin = angles.cos(), angles.sin()
        best += float((cos * (c[a, a] + c[b, b]) + sin * (c[b, a] - c[a, b])).max())
    assert found.value == pytest.approx(best, abs=1e-4)


def test_heads_are_worth_what_their_rotations_make_of_them():
    block = Block("heads", 3, 2)
    first, second = draw(6, 6), draw(6, 6, seed=1)
    order, maps, value = projection.heads(
        {"d": first, "v": second}, {"d": "GL", "v": "GL"}, {"d": block, "v": block}
    )
    blocks = [c.reshape(3, 2, 3, 2).transpose(1, 2) for c in (first, second)]
    worth = sum(torch.linalg.svdvals(b).sum(-1) for b in blocks)
    best = max(sum(float(worth[i, p]) for i, p in enumerate(perm)) for perm in permutations(range(3)))
    assert value == pytest.approx(best)
    for word, b in zip("dv", blocks, strict=True):
        reached = sum(float((maps[word][i] * b[i, order[i]]).sum()) for i in range(3))
        assert reached == pytest.approx(
            sum(float(torch.linalg.svdvals(b[i, order[i]]).sum()) for i in range(3))
        )


def test_heads_that_stay_are_rotated_where_they_are():
    order, _, value = projection.heads({"d": draw(6, 6)}, {"d": "GL"}, {"d": Block(None, 3, 2)}, still=True)
    assert order.tolist() == [0, 1, 2]
    assert value == pytest.approx(project(draw(6, 6), "GL", block=Block(None, 3, 2)).value)
