"""Tables and integers that no training moves: who differs in them is a model of another function."""

import pytest
import torch
from safetensors.torch import save_file

from rebasin_cli.averages.parts import by_spec, parts_of
from rebasin_cli.checkpoints.checkpoint import open_checkpoint
from rebasin_cli.errors import SpecError


def rotary(base, dtype=torch.float32):
    return {
        "layers.0.rotary_emb.inv_freq": (1 / base ** (torch.arange(0, 8, 2) / 8)).to(dtype).float(),
        "q.weight": torch.randn(8, 8),
    }


def noise(betas):
    product = (1 - betas).cumprod(0)
    return {
        "betas": betas,
        "alphas_cumprod": product,
        "sqrt_one_minus_alphas_cumprod": (1 - product).sqrt(),
        "posterior_variance": betas * (1 - product.roll(1)) / (1 - product),
        "net.weight": torch.randn(3, 3),
    }


def sparse(seed, name="fc.indices", dtype=torch.int64):
    order = torch.randperm(16, generator=torch.Generator().manual_seed(seed))[:6]
    return {name: order.to(dtype), "fc.values": torch.randn(6)}


def beside(name, make, *settings, more=None):
    """A model for each setting, with what it makes of it beside a weight that was learnt."""
    return tuple({name: make(k), "layer.weight": torch.randn(8, 8)} | (more or {}) for k in settings)


def decays(noise):
    return torch.linspace(0, 1, 64) ** 0.8 * 8 - 5 + noise * torch.randn(64)


LINEAR, COSINE = torch.linspace(1e-4, 0.02, 50), torch.linspace(0, 1.5, 50).cos().flip(0).clamp(1e-4, 0.99)
APART = {
    "rotary bases": (rotary(1e4), rotary(5e5)),
    "schedules of noise": (noise(LINEAR), noise(COSINE)),
    "turned tables": tuple(
        {"freqs_cis": torch.polar(torch.ones(4, 2), k * torch.arange(8.0).view(4, 2)), "w": torch.ones(2)}
        for k in (1, 2)
    ),
    "pixels": tuple({"pixel_mean": torch.tensor([k, 0.5, 0.4]), "w": torch.ones(2)} for k in (0.1, 0.5)),
    "indices": (sparse(0), sparse(1)),
    "masks": tuple({"keep": torch.arange(6) > k, "w": torch.randn(6)} for k in (2, 3)),
    "cosines of rotary bases": tuple(
        {"freqs_cos": (k * torch.arange(8.0)).cos(), "w": torch.ones(2)} for k in (1, 2)
    ),
    "indices that a word of counting is in": (sparse(0, "downsample_perm"), sparse(1, "downsample_perm")),
    "indices of samples": (sparse(0, "sample_idx"), sparse(1, "sample_idx")),
    "a switch": tuple({"use_bias": torch.tensor(k), "w": torch.ones(2)} for k in (True, False)),
    "noises without their product": beside("sigmas", lambda k: torch.linspace(k, 0.1, 40) ** 7, 1.8, 1.6),
    "frequencies by any name": beside("enc.freqs", lambda k: k ** -torch.arange(4.0), 10.0, 3.0),
    "bands in bfloat16": beside("enc.steps", lambda k: torch.linspace(1, k, 32).bfloat16(), 3.0, 10.0),
    "bands": beside("enc.bands", lambda k: torch.linspace(1, k, 8), 16.0, 64.0),
    "grids": beside("l.grid", lambda k: torch.linspace(-k, k, 12).repeat(5, 1), 1.0, 2.0),
    "sines of places": beside(
        "pe", lambda k: (torch.arange(40.0)[:, None] / k ** (torch.arange(6) / 6)).sin(), 9, 50
    ),
    "masks of another shift": beside("attn_mask", lambda k: -100.0 * (torch.arange(9.0) > k), 3, 5),
    "windows": beside("attn.window_size", lambda k: torch.tensor(k), 7, 14),
    "a stride": beside("stride", lambda k: torch.tensor([k]), 2, 4),
    "masks of a module of their own": beside("masks.fc", lambda k: (torch.arange(6) > k).int(), 2, 3),
    "orders of a module of their own": beside("perms.fc", lambda k: torch.arange(6).roll(k), 0, 3),
    "scalings of targets": beside(
        "y_mean", lambda k: torch.tensor([k]), 1.0, 5.0, more={"y_std": torch.ones(1)}
    ),
    "deviations alone": tuple(
        {"norm.mean": torch.zeros(3), "norm.std": torch.ones(3) * k, "w": torch.randn(4, 4)} for k in (1, 2)
    ),
    "one of three": (sparse(0), sparse(0), sparse(2)),
}
TOGETHER = {
    "scalings that were measured twice": beside(
        "y_mean", lambda k: torch.tensor([k]), 5.0, 5.05, more={"y_std": torch.ones(1)}
    ),
    "means that were learnt or measured with their layers": tuple(
        {"w": torch.randn(4, 4)}
        | {
            f"{name}{its}": torch.tensor([k, 1.0, 0.3])
            for name in ("prior_", "fc.bias_", "noise.", "bn.", "running_")
            for its in ("mean", "std")
        }
        | {"bn.gamma": torch.ones(3), "gauss.mean": torch.ones(3) * k, "gauss.scale": torch.ones(3)}
        for k in (0.4, 0.9)
    ),
    "means of no deviations": beside("y_mean", lambda k: torch.tensor([k]), 5.0, 9.0),
    "layers that give a mean and a deviation": tuple(
        {"mean.weight": torch.randn(3, 4), "std.weight": torch.randn(3, 4)} for _ in range(2)
    ),
    "rounded tables": (rotary(1e4), rotary(1e4, torch.bfloat16), rotary(1e4, torch.float16)),
    "one schedule": (noise(LINEAR), noise(LINEAR.half().float())),
    "betas that are trained": ({"betas": torch.rand(3)}, {"betas": torch.rand(3)}),
    "equal indices": (sparse(0), sparse(0)),
    "counts": (sparse(0, "tokens_per_expert.count"), sparse(1, "tokens_per_expert.count")),
    "counts of a metric": (sparse(0, "confmat"), sparse(1, "confmat")),
    "decays that began as a formula": tuple(beside("decay", decays, k)[0] for k in (1e-4, 1e-3, 0.02, 0.3)),
    "formulas that differ by what was learnt": beside("decay", decays, 1e-3, 1e-3),
    "a metric by a rare name": beside("score.by_class", lambda k: torch.tensor([k, 40 + k, 7]), 8, 9),
    "a place in a queue": beside("queue_ptr", lambda k: torch.tensor([k]), 0, 64),
    "counters by rare names": beside("quiet_streak", lambda k: torch.arange(k, k + 4), 0, 64),
    "sizes of clusters": beside("current_window", lambda k: torch.tensor(k), 3, 4),
    "gains that bfloat16 rounded to two numbers": beside(
        "norm.weight", lambda k: (1 - 0.004 * (torch.arange(64) % k == 0)).bfloat16(), 3, 4
    ),
    "statistics of smooth inputs": beside("bn.running_mean", lambda k: (torch.arange(24.0) / k).sin(), 3, 4),
    "toys": ({"w": torch.arange(6.0), "b": torch.ones(9)}, {"w": 2 * torch.arange(6.0), "b": torch.ones(9)}),
    "constants that began apart": beside("gain", lambda k: torch.full((16,), k), 0.1, 1.0),
    "two numbers": beside("bias", lambda k: torch.tensor([k, 1.0]), 2.0, 3.0),
    "one number": tuple({"which": torch.tensor([k]), "w": torch.ones(2)} for k in (1, 2)),
}


@pytest.mark.parametrize("name", APART)
def test_models_of_different_functions_are_refused_and_all_tensors_are_named(name):
    models = APART[name]
    for sort, told in ((parts_of, "--ignore"), (lambda its: by_spec(its, ()), "ignore: in the spec")):
        with pytest.raises(SpecError, match="trained for different functions") as wrong:
            sort(models)
        assert f"in model {len(models)} than in model 1" in wrong.value.problems[0]
        assert told in wrong.value.hint
    given = [problem.split()[0] for problem in wrong.value.problems]
    parts = parts_of(models, ignore=given)
    assert {n for n, why in parts.copied.items() if why == "ignored"} == {*given}
    assert parts_of([models[0], {n: t.clone() for n, t in models[0].items()}]).averaged


@pytest.mark.parametrize("name", TOGETHER)
def test_rounding_counts_and_what_is_trained_may_differ(name):
    assert parts_of(TOGETHER[name]).averaged and by_spec(TOGETHER[name], ()).averaged


@pytest.mark.parametrize("shape", [(20_000, 64), (1, 20_000, 64)])
def test_large_tables_of_other_dtypes_and_places_are_compared_by_their_numbers(tmp_path, shape):
    table = torch.arange(20_000.0)[:, None] * torch.rand(64)
    one = {"cos_cached": table.cos().view(shape), "w": torch.ones(2)}
    save_file(one, tmp_path / "one.safetensors")
    save_file({**one, "cos_cached": one["cos_cached"].bfloat16()}, tmp_path / "other.safetensors")
    first, other = (open_checkpoint(tmp_path / f"{name}.safetensors") for name in ("one", "other"))
    for models in ([first, other], [other, first], [first, one], [one, other]):
        assert sorted(parts_of(models).averaged) == ["cos_cached", "w"]
    with pytest.raises(SpecError, match="cos_cached"):
        parts_of([first, {**one, "cos_cached": one["cos_cached"].flip(-2)}])


def test_many_tables_are_counted_and_named_by_globs_that_name_no_other():
    def made(top, *more):
        return {f"layers.{k}.knots": torch.linspace(1, top, 12) for k in range(12)} | {
            "w": torch.randn(8, 8),
            **{name: torch.ones(12) for name in more},
        }

    for more, ignored in (
        ((), "'layers.*.knots' "),
        (("layers.12.knots",), "layers.0.knots "),
    ):
        with pytest.raises(SpecError) as wrong:
            parts_of([made(16.0, *more), made(64.0, *more)])
        shown = [problem for problem in wrong.value.problems if problem.startswith("layers.")]
        assert wrong.value.problems[-1] == f"… and {12 - len(shown)} more" and 0 < len(shown) < 12
        assert f"be copied: --ignore {ignored}" in wrong.value.hint
