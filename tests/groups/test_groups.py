"""What every group promises, for all that are in the folder."""

import pytest
import torch

from rebasin_cli.errors import UsageError
from rebasin_cli.groups import find, is_known, names
from rebasin_cli.symmetry.projection import project

N = 12  # which pairs, threes, fours and sixes divide
MAPPED = [name for name in names() if find(name).drawn(N, torch.Generator()) is not None]


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def dense(map_):
    return torch.diag(map_) if map_.ndim == 1 else map_


@pytest.mark.parametrize("name", MAPPED)
def test_what_is_drawn_is_of_the_group_and_noise_is_not(name):
    group = find(name)
    for balanced in (False, True):
        drawn = group.drawn(N, rng(), balanced=balanced)
        assert drawn is None or group.wrong(drawn) == ""
    assert group.told and group.wrong(torch.zeros_like(group.drawn(N, rng()))) != ""
    assert group.unfit(N) == ""


@pytest.mark.parametrize("name", [name for name in MAPPED if name not in ("GL", "scaled", "monomial")])
def test_what_is_a_little_off_the_group_is_not_of_it(name):
    group = find(name)
    drawn = group.drawn(N, rng())
    off = drawn + 1e-3 * torch.randn(drawn.shape, generator=rng(2), dtype=torch.float64)
    assert group.wrong(off) != ""


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("O1", "O"),
        ("O", "GL"),
        ("signed", "monomial"),
        ("scaled", "signed"),
        ("pairs", "O"),
        ("halves", "pairs"),
    ],
)
def test_what_is_of_another_group_alone_is_not_of_it(name, other):
    assert find(name).wrong(find(other).drawn(N, rng())) != ""


@pytest.mark.parametrize("name", names())
def test_no_drawn_element_is_worth_more_than_the_nearest(name):
    group, still = find(name), torch.arange(N)
    similarity = torch.randn(N, N, generator=rng(1), dtype=torch.float64)
    best = project(similarity, name)
    found = torch.eye(N, dtype=torch.float64)[best.perm]
    if best.map is not None:
        found = dense(best.map) @ found
    assert float((found * similarity).sum()) == pytest.approx(best.value)
    for seed in range(20):
        order = torch.randperm(N, generator=rng(seed)) if group.ordered else still
        drawn = group.drawn(N, rng(seed), balanced=True)
        other = torch.eye(N, dtype=torch.float64)[order]
        other = other if drawn is None else dense(drawn) @ other
        assert float((other * similarity).sum()) <= best.value + 1e-9


@pytest.mark.parametrize("name", [name for name in names() if find(name).learnt(N) is not None])
def test_learned_maps_begin_at_the_identity_and_stay_in_the_group(name):
    group, shape = find(name), find(name).learnt(N)
    eye = torch.eye(N, dtype=torch.float64)
    begun, _ = group.learned(torch.zeros(shape, dtype=torch.float64))
    assert torch.allclose(dense(begun), eye, atol=1e-12)
    numbers = torch.randn(shape, generator=rng(2), dtype=torch.float64) / 3
    map_, dual = group.learned(numbers)
    assert group.wrong(map_) == "" and torch.allclose(dense(dual).T @ dense(map_), eye, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in names() if find(name).balances])
def test_a_balance_makes_both_sides_alike_is_of_the_group_and_outlasts_what_keeps_it(name):
    group = find(name)
    x, q = (torch.randn(N, 15, generator=rng(seed), dtype=torch.float64) for seed in (3, 4))
    map_ = group.balance(x, q)
    assert group.wrong(map_) == ""
    own = dense(map_)
    x, q = own @ x, torch.linalg.inv(own).T @ q
    eye = torch.eye(N, dtype=torch.float64)
    assert torch.allclose(dense(group.balance(x, q)), eye, atol=1e-8)
    drawn = group.drawn(N, rng(5), balanced=True)
    by = eye if drawn is None else dense(drawn)
    assert torch.allclose(dense(group.balance(by @ x, torch.linalg.inv(by).T @ q)), eye, atol=1e-8)


def test_a_group_that_nobody_has_is_refused_with_those_that_there_are():
    assert is_known("signed") and not is_known("sined")
    with pytest.raises(UsageError, match="sined"):
        find("sined")
