"""Kin or strangers by the tensors alone: no false ones of either, and undecided said as undecided."""

from __future__ import annotations

import math

import pytest
import torch

from rebasin_cli.averages.kinship import kinship
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.learning.initial import begin_alike
from rebasin_cli.measure.diagnosis import by_tensors
from rebasin_cli.measure.diagnosis.weights import weigh
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse

D, N = 48, 16


def mamba(seed, *, learned=0.0):
    """What a Mamba begins with, and what it has `learned` of its own, as a share of it."""
    rng = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=rng) / math.sqrt(shape[-1])

    state = {
        "norm.weight": torch.ones(D),
        "in_proj.weight": drawn(2 * D, D),
        "A_log": torch.arange(1.0, N + 1).log().repeat(D, 1),
        "D": torch.ones(D),
        "x_proj.weight": drawn(2 * N, D),
        "out_proj.weight": drawn(D, D),
        "eye": torch.eye(D),
        "gate": torch.full((D, D), 0.5),
    }
    return {n: t + learned * torch.randn(t.shape, generator=rng) * t.std() for n, t in state.items()}


def near(state, share, seed=9, only=""):
    rng = torch.Generator().manual_seed(seed)
    return {
        n: t + share * t.std() * torch.randn(t.shape, generator=rng) if t.ndim > 1 and only in n else t
        for n, t in state.items()
    }


def pruned(state, share):
    kept = {n: t.abs() >= t.abs().flatten().quantile(share) for n, t in state.items()}
    return {n: t * kept[n] if t.ndim > 1 else t for n, t in state.items()}


def masked(state, share, seed):
    """Of all tensors so many values, whichever: what is left says nothing of their sizes."""
    rng = torch.Generator().manual_seed(seed)
    return {n: t * (torch.rand(t.shape, generator=rng) < share) for n, t in state.items()}


def shuffled(state):
    rng = torch.Generator().manual_seed(3)
    return {n: t[torch.randperm(len(t), generator=rng)] for n, t in state.items()}


def drawn(seed):
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)).double()


def identities(seed):
    return {str(k): torch.eye(64) + 0.02 * drawn(seed + 10 * k) for k in range(3)}


def stepped(seed):
    return {str(k): torch.arange(64.0)[:, None] + drawn(seed + 10 * k) for k in range(3)}


A = mamba(1, learned=0.05)
LARGE, OTHER = ({str(k): drawn(seed + k).repeat(2, 3) for k in range(3)} for seed in (1, 50))
LARGE, OTHER = near(LARGE, 0.5), near(OTHER, 0.5, seed=8)
HEAD = mamba(5)["out_proj.weight"]
CASES = {
    "seeds, untrained": (mamba(1), mamba(2), "strangers"),
    "seeds, with norms, A_log and identities that moved": (A, mamba(2, learned=0.05), "strangers"),
    "units in another order, and noise": (A, near(shuffled(A), 0.01), "strangers"),
    "a fine-tune": (A, near(A, 0.1), "kin"),
    "a fine-tune that went far": (A, near(A, 1.0, only="proj"), "kin"),
    "of one layer alone": (A, near(A, 0.5, only="x_proj"), "kin"),
    "another type": (A, {n: t.bfloat16() for n, t in A.items()}, "kin"),
    "twice as large": (A, {n: 2 * t for n, t in A.items()}, "kin"),
    "an average of it and a stranger": (A, {n: (A[n] + t) / 2 for n, t in mamba(2).items()}, "kin"),
    "pruned": (A, pruned(A, 0.8), "kin"),
    "pruned to a hundredth": (LARGE, masked(LARGE, 0.01, 1), "kin"),
    "both pruned, each in its own way": (masked(LARGE, 0.1, 1), masked(LARGE, 0.1, 2), "kin"),
    "pruned strangers": (masked(LARGE, 0.2, 1), masked(OTHER, 0.2, 2), "strangers"),
    "pruned beyond telling": (masked(LARGE, 0.001, 1), masked(OTHER, 0.001, 2), "undecided"),
    "a new head": (A, near(A, 0.1) | {"out_proj.weight": HEAD}, "kin"),
    "noise thrice as large": (A, near(A, 3.0), "undecided"),
    "half of it another's": (
        A,
        A | {n: t for n, t in mamba(2, learned=0.05).items() if n.endswith("proj.weight")},
        "undecided",
    ),
    "identities that moved": (identities(1), identities(2), "strangers"),
    "rows that begin at steps of their own": (stepped(1), stepped(2), "strangers"),
    "two of five another's": (
        {str(k): drawn(k) for k in range(5)},
        {str(k): drawn(k + 9 * (k > 2)) + 0.01 for k in range(5)},
        "undecided",
    ),
    "numbers whose squares are none": ({"a": drawn(1) * 1e300}, {"a": drawn(2) * 1e-300}, "strangers"),
    "numbers of a byte": (
        {"a": drawn(1).to(torch.float8_e4m3fn)},
        {"a": drawn(2).to(torch.float8_e4m3fn)},
        "strangers",
    ),
    "nothing but constants": ({"a": torch.ones(9, 9)}, {"a": torch.full((9, 9), 2.0)}, "undecided"),
    "too small to tell": ({"a": torch.randn(3, 3)}, {"a": torch.randn(3, 3)}, "undecided"),
    "no tensor of both": ({"a": torch.randn(9, 9)}, {"b": torch.randn(9, 9)}, "undecided"),
    "values that are no numbers": (
        {"a": torch.full((9, 9), math.nan)},
        {"a": torch.full((9, 9), math.inf)},
        "undecided",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_kin_and_what_is_not(case):
    a, b, verdict = CASES[case]
    assert kinship(a, b).verdict == kinship(b, a).verdict == verdict


def test_strangers_of_a_few_units_are_never_kin():
    """Of rows that pixels next to one another make alike, as those of trained first layers are."""
    smooth = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))[0]
    smooth = smooth * torch.arange(1, 65).pow(-0.5)
    for units in (2, 4, 8, 16):
        rng = torch.Generator().manual_seed(units)
        nets = [{"w": torch.randn(units, 64, generator=rng) @ smooth} for _ in range(20)]
        verdicts = {kinship(a, b).verdict for k, a in enumerate(nets) for b in nets[:k]}
        assert "kin" not in verdicts, units
        assert kinship(nets[0], near(nets[0], 0.1)).verdict == ("kin" if units > 4 else "undecided")


def test_a_few_rows_of_each_matrix_are_read():
    read = []

    def model(seed):
        def rows(name, start, stop):
            read.append(stop - start)
            rng = torch.Generator().manual_seed(seed * 1000 + int(name) + start)
            return torch.randn(stop - start, 1024, generator=rng)

        shapes = {str(k): (100_000, 1024) for k in range(500)}
        return LazyTensors(shapes, dict.fromkeys(shapes, torch.float32), lambda name: 1 / 0, rows)

    assert kinship(model(1), model(2)).verdict == "strangers"
    assert sum(read) * 1024 * 4 < 10e6


def test_the_verdict_without_a_spec_says_what_to_do():
    assert by_tensors(A, dict(A)).verdict == "identical"
    found = by_tensors(A, shuffled(A))
    assert found.verdict == "relabelled" and "another order" in found.advice
    found = by_tensors(A, near(A, 0.1))
    assert found.verdict == "kin" and "average them directly" in found.advice
    found = by_tensors(A, mamba(2))
    assert found.verdict == "strangers" and "align them first" in found.advice
    assert by_tensors({"a": torch.ones(2)}, {"a": torch.ones(2)}).verdict == "identical"
    (norms,) = (f for f in by_tensors(A, {n: 2 * t for n, t in A.items()}).facts if f.name == "norm_ratio")
    assert norms.warns and norms.value == pytest.approx(0.5)


# ------------------------------------------------------------------------------- with a spec, and a factory

SPEC = """
tensors:
  norm.weight: "."
  in_proj.weight: ". ."
  A_log: "d ."
  D: "d"
  x_proj.weight: ". d"
  out_proj.weight: ". d"
  eye: ". ."
  gate: ". ."
"""


def weighed(a, b, **more):
    return weigh(a, b, fit(parse(SPEC, name="m"), {n: tuple(t.shape) for n, t in a.items()}), **more)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.int8, torch.complex64])
def test_another_order_is_told_in_every_dtype(dtype):
    one = {"w": (100 * mamba(1)["in_proj.weight"]).to(dtype), "n": torch.tensor(3)}
    assert by_tensors(one, {"w": one["w"].flip(0), "n": torch.tensor(3)}).verdict == "relabelled"
    assert by_tensors(one, {"w": one["w"].flip(0), "n": torch.tensor(4)}).verdict != "relabelled"


def test_what_all_models_of_a_kind_begin_with_is_left_out():
    """As they are, A_log and the identities alone would give a cosine of 0.9."""
    a, b = mamba(1), mamba(2)
    found = weighed(a, b)
    assert abs(found.cosine) < 0.1 and {"A_log", "eye", "gate"} <= set(found.left_out)
    moved = [state | {"A_log": near(state, 0.05, k, only="A_log")["A_log"]} for k, state in enumerate((a, b))]
    assert abs(weighed(*moved).cosine) < 0.1 and "A_log" not in weighed(*moved).left_out
    assert abs(weighed(a, near(b, 0.1, only="eye")).cosine) > 0.2  # nothing tells, without the factory
    known = weighed(a, near(b, 0.1, only="eye"), begin_alike={"eye"})
    assert abs(known.cosine) < 0.1 and "eye" in known.left_out
    assert weighed(a, a | {"out_proj.weight": HEAD}).cosine > 0.5  # most are equal: kin, with a new head


def test_two_fresh_networks_tell_what_begins_alike():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.norm = torch.nn.Linear(3, 3), torch.nn.LayerNorm(3)

    before = torch.random.get_rng_state()
    assert begin_alike(Net) == {"norm.weight", "norm.bias"}
    assert torch.equal(torch.random.get_rng_state(), before)
