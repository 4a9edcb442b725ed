"""The convention, and everything that follows from it."""

import itertools

import pytest
import torch

from rebasin_cli.errors import CheckpointError
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import Fixed, length_of, parse_axes
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import Block
from rebasin_cli.symmetry import index_maps, permutation

SIZES = {"a": 4, "b": 3}


def drawn(seed: int = 4) -> dict[str, torch.Tensor]:  # with 4 and 1 no permutation is its own inverse
    return permutation.random(SIZES, torch.Generator().manual_seed(seed))


def spec_of(text: str, shapes: dict[str, tuple[int, ...]]):
    return fit(parse(text, name="test"), shapes)


def test_perm_holds_the_old_position_of_the_unit_that_is_now_there():
    moved = permutation.permute(torch.tensor([10, 20, 30]), parse_axes("b"), {"b": torch.tensor([2, 0, 1])})
    assert moved.tolist() == [30, 10, 20]


def test_every_axis_with_a_word_moves():
    tensor, p = torch.arange(24).reshape(4, 3, 2), drawn()
    moved = permutation.permute(tensor, parse_axes("a b 2"), p)
    for i in range(4):
        for j in range(3):
            assert torch.equal(moved[i, j], tensor[p["a"][i], p["b"][j]])


@pytest.mark.parametrize(
    "axis, index",
    [
        ("a", [3, 1, 0, 2]),
        ("5", [0, 1, 2, 3, 4]),
        ("(a 2)", [6, 7, 2, 3, 0, 1, 4, 5]),
        ("(2 a)", [3, 1, 0, 2, 7, 5, 4, 6]),
        ("(a b)", [10, 11, 9, 4, 5, 3, 1, 2, 0, 7, 8, 6]),
        ("a + b", [3, 1, 0, 2, 5, 6, 4]),
        ("b + 2 + a", [1, 2, 0, 3, 4, 8, 6, 5, 7]),
        ("(2 a + b)", [3, 1, 0, 2, 5, 6, 4, 10, 8, 7, 9, 12, 13, 11]),
        ("(b 2) + (2 b)", [2, 3, 4, 5, 0, 1, 7, 8, 6, 10, 11, 9]),
        ("(2 (b 2))", [2, 3, 4, 5, 0, 1, 8, 9, 10, 11, 6, 7]),
    ],
)
def test_composite_axes_permute_their_entries_row_major(axis, index):
    p = {"a": torch.tensor([3, 1, 0, 2]), "b": torch.tensor([1, 2, 0])}
    assert index_maps.axis_index(*parse_axes(axis), p).tolist() == index


def test_composing_is_applying_one_after_the_other():
    tensor, p, q = torch.randn(4, 3), drawn(1), drawn(2)
    axes = parse_axes("a b")
    after = permutation.permute(permutation.permute(tensor, axes, p), axes, q)
    assert torch.equal(permutation.permute(tensor, axes, permutation.compose(p, q)), after)


def test_inverting_undoes():
    p = drawn()
    assert not permutation.is_identity(p)
    assert permutation.is_identity(permutation.compose(p, permutation.invert(p)))
    assert permutation.is_identity(permutation.compose(permutation.invert(p), p))
    assert permutation.is_identity(permutation.identity(SIZES))


def test_random_permutations_depend_on_the_seed_and_not_on_the_order_of_words():
    backwards = permutation.random({"b": 3, "a": 4}, torch.Generator().manual_seed(4))
    assert all(torch.equal(backwards[word], perm) for word, perm in drawn().items())
    assert any(not torch.equal(drawn(1)[word], perm) for word, perm in drawn().items())


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.int64,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    ],
    ids=str,
)
def test_every_dtype_moves_bit_for_bit(dtype):
    tensor = torch.arange(12).reshape(4, 3).to(dtype)
    p = drawn()
    moved = permutation.permute(tensor, parse_axes("a b"), p)
    assert moved.dtype == dtype
    assert torch.equal(moved.double(), tensor.double()[p["a"]][:, p["b"]])


def test_a_tensor_that_stays_is_not_copied():
    tensor = torch.randn(4, 3)
    assert permutation.permute(tensor, parse_axes("a b"), permutation.identity(SIZES)) is tensor
    assert permutation.permute(tensor, parse_axes("4 3"), drawn()) is tensor


@pytest.mark.parametrize("axes", ["a b", "a b a .", ". a b", "a . b", "(a 2) b"])
@pytest.mark.parametrize("given", [False, True])
def test_several_axes_move_at_once_block_by_block(axes, given, monkeypatch):
    monkeypatch.setattr(permutation, "BLOCK", 100)
    read, perms = parse_axes(axes), {"a": torch.randperm(7), "b": torch.randperm(5)}
    tensor = torch.rand([3 if axis == Fixed() else length_of(axis, {"a": 7, "b": 5}) for axis in read])
    one_by_one = tensor
    for dim, axis in enumerate(read):
        if axis != Fixed():
            one_by_one = one_by_one.index_select(dim, index_maps.axis_index(axis, perms))
    room = torch.empty_like(tensor) if given else None
    moved = permutation.permute(tensor, read, perms, room=room)
    assert torch.equal(moved, one_by_one) and (moved is room) == given


def test_gradients_go_through_what_is_permuted():
    tensor = torch.rand(3, 3, requires_grad=True)
    permutation.permute(tensor, parse_axes("a a"), {"a": torch.tensor([2, 0, 1])})[0].sum().backward()
    assert tensor.grad.tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]


@pytest.mark.parametrize("units", [1, 4, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_moving_units_in_place_is_permuting(dtype, units):
    sizes, rng = {"a": 40, "b": 80}, torch.Generator().manual_seed(units)
    p = permutation.identity(sizes)
    for word in p:
        some = torch.randperm(sizes[word], generator=rng)[:units]
        p[word][some] = p[word][some.roll(1)]
    for axes, shape in [("a b 3", (40, 80, 3)), ("5 (2 a + b)", (5, 240)), ("b", (80,)), ("b b", (80, 80))]:
        tensor = torch.randn(shape, generator=rng).to(dtype)
        expected = permutation.permute(tensor, parse_axes(axes), p).double()
        assert (units == 1) == torch.equal(expected, tensor.double())
        for first in range(tensor.ndim):  # of the axes, in memory
            lying = tensor.movedim(first, 0).clone(memory_format=torch.contiguous_format).movedim(0, first)
            permutation.permute_(lying, parse_axes(axes), p)
            assert torch.equal(lying.double(), expected)


def test_a_model_is_permuted_lazily_and_the_input_stays_untouched():
    tensors = {"w": torch.randn(4, 3), "n": torch.tensor(5), "pos": torch.arange(9)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    spec = spec_of(
        "ignore: [pos]\ntensors:\n  w: 'a b'\n  n: ''\n", {n: tuple(t.shape) for n, t in tensors.items()}
    )
    p = drawn()
    moved = permutation.permuted(tensors, spec, p)
    assert list(moved) == ["w", "n", "pos"] and moved.shapes["w"] == (4, 3)
    assert torch.equal(moved["w"], tensors["w"][p["a"]][:, p["b"]])
    assert torch.equal(moved.rows("w", 1, 3), moved["w"][1:3])
    assert torch.equal(moved["pos"], before["pos"]) and moved["n"] == 5
    assert all(torch.equal(tensors[name], before[name]) for name in tensors)


@pytest.mark.parametrize("axes", ["a b", "4 b", "a 3", "(a 2) b", "a + b b", "."])
def test_some_rows_are_the_rows_of_the_whole(axes):
    length = {"(a 2) b": 8, "a + b b": 7, ".": 5}.get(axes, 4)
    shape = (5,) if axes == "." else (length, 3)
    spec = spec_of(f"tensors:\n  w: '{axes}'\n  p: 'a b'\n", {"w": shape, "p": (4, 3)})
    moved = permutation.permuted({"w": torch.randn(shape), "p": torch.randn(4, 3)}, spec, drawn())
    for start, stop in [(0, 2), (1, 4), (3, length)]:
        assert torch.equal(moved.rows("w", start, stop), moved["w"][start:stop])


def test_checking_tells_everything_that_keeps_permutations_from_fitting():
    permutation.check(drawn(), SIZES)
    wrong = {
        "a": torch.tensor([0, 0, 1, 2]),
        "b": torch.arange(4),
        "c": torch.arange(3).float(),
        "e": torch.arange(2),
    }
    with pytest.raises(CheckpointError) as caught:
        permutation.check(wrong, {"a": 4, "b": 3, "c": 3, "d": 2})
    assert caught.value.problems == (
        '"a" is not a bijection',
        '"b" has (4,) torch.int64, expected (3,) int64',
        '"c" has (3,) torch.float32, expected (3,) int64',
        '"d" has no permutation',
        '"e" is not a word of the spec',
    )


# ------------------------------------------------------------------------------------------ starred words

WITHIN = {"d": Block("p", 3, 2), "r": Block("p", 3, 4), "n": Block(None, 3, 2)}
WORDS = {"p": 3, "d": 6, "r": 12, "n": 6}
P = torch.tensor([2, 0, 1])
D = torch.tensor([4, 5, 1, 0, 3, 2])  # unit 2 as it was, units 0 and 1 turned round
N = torch.tensor([1, 0, 2, 3, 5, 4])


def blocks(seed: int = 0) -> dict[str, torch.Tensor]:
    return permutation.random(WORDS, torch.Generator().manual_seed(seed), within=WITHIN)


@pytest.mark.parametrize(
    "axis, index",
    [
        ("(p d*)", [4, 5, 1, 0, 3, 2]),
        ("(p 2 d*)", [8, 9, 10, 11, 1, 0, 3, 2, 5, 4, 7, 6]),
        ("(2 p d*)", [4, 5, 1, 0, 3, 2, 10, 11, 7, 6, 9, 8]),
        ("((p 2) d*)", [8, 9, 10, 11, 1, 0, 3, 2, 5, 4, 7, 6]),
        ("(p d* 2)", [8, 9, 10, 11, 2, 3, 0, 1, 6, 7, 4, 5]),
        ("(p 1 + d*)", [6, 7, 8, 0, 2, 1, 3, 5, 4]),
        ("(3 n*)", [1, 0, 2, 3, 5, 4]),
        ("(3 (n* 2))", [2, 3, 0, 1, 4, 5, 6, 7, 10, 11, 8, 9]),
        ("2 + (3 n*)", [0, 1, 3, 2, 4, 5, 7, 6]),
        ("(3 1 + (2 n*))", [0, 2, 1, 4, 3, 5, 6, 7, 8, 9, 10, 12, 11, 14, 13]),
    ],
)
def test_a_starred_word_has_an_order_of_its_own_in_each_unit(axis, index):
    found = index_maps.axis_index(*parse_axes(axis), {"p": P, "d": D, "n": N}, WITHIN)
    assert found.tolist() == index


def old(perm: torch.Tensor, block: Block, outer: int, here: int) -> int:
    return (perm[outer * block.size + here] % block.size).item()


ACROSS = {  # axes: lengths of the parts, and where an entry was; `d(h, i)` is the old place of i in unit h
    "(p d*) r*": ((3, 2, 4), lambda p, d, r, h, i, j: (p[h], d(h, i), r(h, j))),
    "r* (p d*) 2": ((4, 3, 2, 2), lambda p, d, r, j, h, i, k: (r(h, j), p[h], d(h, i), k)),
    "d* 2 p": ((2, 2, 3), lambda p, d, r, i, k, h: (d(h, i), k, p[h])),
    "(d* 2) (2 p 2)": ((2, 2, 2, 3, 2), lambda p, d, r, i, k, m, h, n: (d(h, i), k, m, p[h], n)),
    "(p r* d*) 2": ((3, 4, 2, 2), lambda p, d, r, h, j, i, k: (p[h], r(h, j), d(h, i), k)),
    "(d* r*) p": ((2, 4, 3), lambda p, d, r, i, j, h: (d(h, i), r(h, j), p[h])),
}


@pytest.mark.parametrize("axes", ACROSS)
def test_a_starred_word_follows_what_it_lies_within_to_other_axes(axes):
    sizes, where = ACROSS[axes]
    spec = parse_axes(axes)
    perms = blocks(3)
    shape = [length_of(axis, {"p": 3, "d": 2, "r": 4}) for axis in spec]
    tensor = torch.arange(torch.tensor(sizes).prod()).reshape(shape)
    moved = permutation.permute(tensor, spec, perms, WITHIN)
    assert moved.shape == tensor.shape and moved.dtype == tensor.dtype
    moved = moved.reshape(sizes)
    inner = [lambda h, i, word=word: old(perms[word], WITHIN[word], h, i) for word in ("d", "r")]
    for entry in itertools.product(*map(range, sizes)):
        assert moved[entry] == tensor.reshape(sizes)[where(perms["p"], *inner, *entry)]
    permutation.permute_(tensor, spec, perms, WITHIN)
    assert torch.equal(tensor.reshape(sizes), moved)


@pytest.mark.parametrize("axes", [*ACROSS, "(p d*) 2", "(3 n*) p"])
def test_some_rows_of_starred_axes_are_the_rows_of_the_whole(axes):
    shape = tuple(length_of(a, {"p": 3, "d": 2, "r": 4, "n": 2}) for a in parse_axes(axes))
    text = f"sizes: {{p: 3, d: 2, r: 4, n: 2}}\ntensors:\n  w: '{axes}'\n  v: '(p d* r*)'\n  u: '(3 n*)'\n"
    spec = spec_of(text, {"w": shape, "v": (24,), "u": (6,)})
    tensors = {"w": torch.randn(shape), "v": torch.randn(24), "u": torch.randn(6)}
    moved = permutation.permuted(tensors, spec, blocks(1))
    assert not torch.equal(moved["w"], tensors["w"])
    for start in range(shape[0]):
        for stop in range(start + 1, shape[0] + 1):
            assert torch.equal(moved.rows("w", start, stop), moved["w"][start:stop])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.bool, torch.float8_e5m2], ids=str)
def test_starred_axes_of_every_dtype_move_bit_for_bit(dtype):
    tensor, axes = torch.arange(24).reshape(6, 4).to(dtype), parse_axes("(p d*) r*")
    moved = permutation.permute(tensor, axes, blocks(), WITHIN)
    assert moved.dtype == dtype
    assert torch.equal(moved.double(), permutation.permute(tensor.double(), axes, blocks(), WITHIN))
    assert permutation.permute(tensor, axes, permutation.identity(WORDS), WITHIN) is tensor


@pytest.mark.parametrize("axes", ["(p d*) r*", "(p r* d*)", "(3 n*)"])
def test_composing_and_inverting_hold_for_starred_words(axes):
    shape = [length_of(a, {"p": 3, "d": 2, "r": 4, "n": 2}) for a in parse_axes(axes)]
    tensor, p, q = torch.randn(shape), blocks(1), blocks(2)

    def moved(tensor, perms):
        return permutation.permute(tensor, parse_axes(axes), perms, WITHIN)

    together = permutation.compose(p, q)
    permutation.check(together, WORDS, within=WITHIN)
    permutation.check(permutation.invert(p), WORDS, within=WITHIN)
    assert torch.equal(moved(moved(tensor, p), q), moved(tensor, together))
    assert torch.equal(moved(moved(tensor, p), permutation.invert(p)), tensor)


def test_random_blocks_lie_as_the_outer_word_says_and_are_ordered_each_by_itself():
    drawn = blocks(1)
    permutation.check(drawn, WORDS, within=WITHIN)
    outer, inner = index_maps.split(drawn["r"], WITHIN["r"])
    assert torch.equal(outer, drawn["p"]) and not torch.equal(outer, torch.arange(3))
    assert len({tuple(row) for row in inner.tolist()}) > 1
    alone = permutation.random({"r": 12}, torch.Generator().manual_seed(1), within=WITHIN)
    assert torch.equal(index_maps.split(alone["r"], WITHIN["r"])[0], torch.arange(3))


def test_splitting_and_joining_are_one_anothers_inverse():
    outer, inner = index_maps.split(D, WITHIN["d"])
    assert outer.tolist() == [2, 0, 1] and inner.tolist() == [[0, 1], [1, 0], [1, 0]]
    assert torch.equal(index_maps.join(outer, inner), D)


def test_blocks_are_carried_along_with_their_order_within():
    before = {"p": P, "d": D}
    assert torch.equal(permutation.carried(before, WITHIN)["d"], D)
    after = permutation.carried(before | {"p": torch.tensor([0, 2, 1])}, WITHIN)
    assert after["d"].tolist() == [1, 0, 4, 5, 3, 2]
    assert before["d"] is D and torch.equal(after["p"], torch.tensor([0, 2, 1]))
    assert torch.equal(permutation.carried({"d": D}, WITHIN)["d"], D)  # nothing says otherwise


def test_checking_tells_blocks_that_do_not_stay_together():
    good = {"p": P, "d": D, "r": permutation.carried(blocks() | {"p": P}, WITHIN)["r"], "n": N}
    permutation.check(good, WORDS, within=WITHIN)
    wrong = good | {"d": D.roll(1), "n": D}
    permutation.check(wrong, WORDS)  # they are bijections
    with pytest.raises(CheckpointError) as caught:
        permutation.check(wrong, WORDS, within=WITHIN)
    assert caught.value.problems == (
        '"d" does not keep its 3 blocks of 2 units ordered as "p"',
        '"n" does not keep its 3 blocks of 2 units in place',
    )
