"""Interpolating two models and averaging many."""

import math

import pytest
import torch

from rebasin_cli.averages.means import ARCS, average, interpolate, slerp, slerp_whole
from rebasin_cli.errors import UsageError


def model(seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(6, 5, generator=rng).to(dtype),
        "scale": torch.randn((), generator=rng).to(dtype),
        "count": torch.tensor(10 + 10 * seed),
        "ids": torch.arange(3) + 10 * seed,
        "pos": torch.randn(4, generator=rng).to(dtype),
    }


A, B, C = model(0), model(1), model(2)


def test_the_mean_of_many():
    mean = average([A, B, C])
    torch.testing.assert_close(mean["w"], (A["w"] + B["w"] + C["w"]) / 3)
    torch.testing.assert_close(mean["scale"], (A["scale"] + B["scale"] + C["scale"]) / 3)
    assert torch.equal(mean.rows("w", 2, 4), mean["w"][2:4])


def test_weights_are_used_as_they_are():
    torch.testing.assert_close(
        average([A, B, C], [0.5, 0.75, -0.25])["w"], A["w"] / 2 + 0.75 * B["w"] - C["w"] / 4
    )


@pytest.mark.parametrize(
    "weights, complaint",
    [
        ([1.0], "1 weights for 2 models"),
        ([0.5, 0.6], "add up to 1.1"),
        ([math.nan, 1.0], "nan"),
        ([math.inf, 0], "inf"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights, complaint):
    with pytest.raises(UsageError, match=complaint):
        average([A, B], weights)


def test_averaging_nothing_is_refused():
    with pytest.raises(UsageError):
        average([])


@pytest.mark.parametrize("join", [average, lambda m: interpolate(*m, 0.5), lambda m: slerp(*m, 0.5)])
def test_integers_and_kept_tensors_are_the_first_models(join):
    merged = join([A, B])
    assert torch.equal(merged["count"], A["count"]) and torch.equal(merged["ids"], A["ids"])
    assert merged["count"].dtype == torch.int64


def test_kept_tensors_are_the_first_models_along_the_way():
    for merged in (
        average([A, B], keep={"pos"}),
        interpolate(A, B, 0.3, keep={"pos"}),
        slerp(A, B, 0.3, keep={"pos"}),
    ):
        assert torch.equal(merged["pos"], A["pos"]) and not torch.equal(merged["w"], A["w"])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn], ids=str
)
@pytest.mark.parametrize("join", [average, lambda m: slerp(*m[:2], 0.5)], ids=["average", "slerp"])
def test_dtypes_are_kept_and_arithmetic_is_wider(join, dtype):
    models = [model(seed, dtype) for seed in range(3)]
    merged = join(models)
    assert merged["w"].dtype == merged.dtypes["w"] == dtype
    wide = join([{name: t.double() if t.is_floating_point() else t for name, t in m.items()} for m in models])
    # one rounding, at the end: three sums in the stored dtype would be off in many places
    off = merged["w"].double() != wide["w"].to(dtype).double()
    assert off.sum() <= 1


def test_float64_models_are_averaged_in_float64():
    models = [model(seed, torch.float64) for seed in range(2)]
    assert torch.equal(average(models)["w"], models[0]["w"] * 0.5 + models[1]["w"] * 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("join", [interpolate, *ARCS.values()])
def test_the_ends_are_exactly_the_models(join, dtype):
    a, b = model(0, dtype), model(1, dtype)
    for t, end in ((0.0, a), (1.0, b)):
        for name in ("w", "scale", "pos"):
            assert torch.equal(join(a, b, t)[name].double(), end[name].double())


def test_the_far_end_of_a_line_is_the_other_model_in_everything():
    end = interpolate(A, B, 1.0, keep={"pos"})
    assert all(torch.equal(end[name], B[name]) for name in B)


def test_interpolation_is_a_straight_line():
    torch.testing.assert_close(interpolate(A, B, 0.25)["w"], 0.75 * A["w"] + 0.25 * B["w"])


def test_spherical_interpolation_keeps_equal_norms_and_halves_the_angle():
    a, b = ({"w": m["w"].double() / m["w"].double().norm()} for m in (A, B))
    middle = slerp(a, b, 0.5)["w"]
    assert middle.norm().item() == pytest.approx(1)
    assert (middle * a["w"]).sum().item() == pytest.approx((middle * b["w"]).sum().item())
    third = slerp(a, b, 1 / 3)["w"]
    angle = math.acos((a["w"] * b["w"]).sum())
    assert math.acos((third * a["w"]).sum()) == pytest.approx(angle / 3)


@pytest.mark.parametrize("cosine", [0.9, 0.0, -0.9, -0.999])
def test_norms_on_the_sphere_lie_between_the_models(cosine):
    x = torch.tensor([1.0, 0.0], dtype=torch.float64)
    y = 3 * torch.tensor([cosine, math.sqrt(1 - cosine**2)], dtype=torch.float64)
    for t in (0.1, 0.5, 0.9):
        assert slerp({"w": x}, {"w": y}, t)["w"].norm().item() == pytest.approx(1 + 2 * t)


def test_one_angle_for_all_is_the_formula_on_the_whole_vector():
    a, b = (
        {name: tensor.double() for name, tensor in model(seed).items() if name != "ids"} for seed in (0, 1)
    )
    names = ["w", "scale", "pos"]
    x, y = (torch.cat([m[name].flatten() for name in names]) for m in (a, b))
    angle = torch.acos(x @ y / (x.norm() * y.norm()))
    expected = (torch.sin(0.7 * angle) * x + torch.sin(0.3 * angle) * y) / torch.sin(angle)
    found = slerp_whole(a, b, 0.3, straight={"count"})
    torch.testing.assert_close(torch.cat([found[name].flatten() for name in names]), expected)
    apart = slerp(a, b, 0.3)["w"]
    assert not torch.allclose(apart, found["w"])  # a tensor by itself has another angle


@pytest.mark.parametrize("join", [slerp, slerp_whole])
def test_what_goes_straight_has_no_part_in_the_turn(join):
    a, b = ({name: m[name].double() for name in ("w", "pos")} for m in (A, B))
    found, alone = (join(x, y, 0.3, straight={"pos"}) for x, y in ((a, b), ({"w": a["w"]}, {"w": b["w"]})))
    torch.testing.assert_close(found["pos"], interpolate(a, b, 0.3)["pos"])
    assert torch.equal(found["w"], alone["w"])


@pytest.mark.parametrize("factor", [2.0, -2.0, 0.0])
def test_parallel_opposite_and_zero_models_go_straight_as_a_whole(factor):
    a = {"v": A["w"].double(), "w": A["pos"].double()}
    found = slerp_whole(a, {name: factor * tensor for name, tensor in a.items()}, 0.25)
    for name, tensor in a.items():
        torch.testing.assert_close(found[name], (0.75 + factor / 4) * tensor)


@pytest.mark.parametrize("factor", [2.0, -2.0, 0.0])
def test_parallel_opposite_and_zero_tensors_go_straight(factor):
    torch.testing.assert_close(
        slerp(A, {"w": factor * A["w"]} | B | {"w": factor * A["w"]}, 0.25)["w"], (0.75 + factor / 4) * A["w"]
    )


def test_the_result_has_the_first_models_names_order_and_dtypes_and_inputs_stay():
    before = {name: tensor.clone() for name, tensor in A.items()}
    b = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in reversed(B.items())
    }
    for merged in (average([A, b]), slerp(A, b, 0.5), slerp(A, b, 1.0), slerp_whole(A, b, 0.5)):
        assert list(merged) == list(A)
        assert all(merged[name].dtype == merged.dtypes[name] == A[name].dtype for name in A)
    assert all(torch.equal(A[name], before[name]) for name in A)
