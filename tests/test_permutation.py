"""The convention, and everything that follows from it."""

import pytest
import torch

from rebasin_cli import permutation
from rebasin_cli.errors import CheckpointError, OutputExists
from rebasin_cli.spec.fitting import fit
from rebasin_cli.spec.notation import parse_axes
from rebasin_cli.spec.parsing import parse
from rebasin_cli.writing import write_safetensors

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
    assert permutation.axis_index(*parse_axes(axis), p).tolist() == index


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


def test_permutations_are_saved_with_their_metadata_and_read_back(tmp_path):
    path, p = tmp_path / "b.perm.safetensors", drawn()
    permutation.save(path, p, metadata={"rebasin.method": "wm"})
    found, metadata = permutation.load(path)
    assert all(torch.equal(found[word], p[word]) for word in SIZES) and found.keys() == p.keys()
    assert metadata["rebasin.method"] == "wm"
    with pytest.raises(OutputExists):
        permutation.save(path, p, metadata={})
    permutation.save(path, drawn(1), metadata={}, force=True)
    assert torch.equal(permutation.load(path)[0]["a"], drawn(1)["a"])


def test_another_file_is_no_permutation_file(tmp_path):
    write_safetensors(tmp_path / "w.safetensors", {"w": torch.zeros(2)}, metadata={})
    with pytest.raises(CheckpointError, match="is not a permutation file"):
        permutation.load(tmp_path / "w.safetensors")


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
