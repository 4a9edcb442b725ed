"""The library in memory: align, merge, barrier."""

from __future__ import annotations

import doctest
import functools
import types

import numpy as np
import pytest
import torch
from torch import nn

import rebasin_cli
from rebasin_cli import api, nets
from rebasin_cli.datasets import open_data
from rebasin_cli.errors import (
    CheckpointError,
    DataError,
    NetworkError,
    NotProven,
    RebasinError,
    SpecError,
    UsageError,
)
from rebasin_cli.matchers import State, registry
from rebasin_cli.measure import paths
from rebasin_cli.measure.settings import plan_rows
from rebasin_cli.networks import load
from rebasin_cli.networks.evaluation import evaluate
from rebasin_cli.repair import reset
from rebasin_cli.runtime.seeds import seeded
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation
from tests.transformers import drawn, transformer


def network(norm: str = "none", width: int = 12, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nets.build("mlp", input_shape=(6,), classes=3, width=width, depth=2, norm=norm)


def model(seed: int, norm: str = "none", width: int = 12) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in network(norm, width, seed).state_dict().items()}


def batches(count: int = 3, size: int = 20, seed: int = 0) -> list:
    rng = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 6, generator=rng), torch.randint(3, (size,), generator=rng)) for _ in range(count)
    ]


A, B, C = model(0), model(1), model(2)
TRAIN, TEST = batches(seed=1), batches(seed=2)
SPEC = library.find({name: tuple(tensor.shape) for name, tensor in A.items()})


def needed(method: str) -> dict:
    """The network and data, for methods that run it on them."""
    return {"network": network(), "data": batches(seed=3)} if registry.get(method).NEEDS else {}


def relabelled(tensors: dict, seed: int = 0, fitted=SPEC) -> dict[str, torch.Tensor]:
    perms = permutation.random(fitted.words, torch.Generator().manual_seed(seed))
    return dict(permutation.permuted(tensors, fitted, perms))


def same(one, other) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_the_examples_in_the_docstrings_run():
    torch.manual_seed(0)
    found = doctest.testmod(api)
    assert found.attempted >= 5 and found.failed == 0


# ------------------------------------------------------------------------------------------------ align


@pytest.mark.parametrize("spec", ["mlp", SPEC, SPEC.spec, None], ids=["name", "fitted", "parsed", "found"])
def test_a_relabelled_model_is_turned_back(spec):
    b = relabelled(A)
    before = {name: tensor.clone() for name, tensor in b.items()}
    aligned = rebasin_cli.align(A, b, spec)
    assert same(dict(aligned.tensors), A) and same(b, before)
    assert aligned.models[0] is A and aligned.method == "wm" and aligned.proof is None


def test_a_spec_may_be_left_out_or_be_a_file(tmp_path):
    assert same(dict(rebasin_cli.align(A, relabelled(A)).tensors), A)
    file = tmp_path / "mine.yaml"
    file.write_text(
        "tensors:\n  layers.{i}.weight: 'h{i} h{i-1|.}'\n  layers.{i}.bias: 'h{i}'\n"
        "  head.weight: '. h{last}'\n  head.bias: '.'\n"
    )
    assert same(dict(rebasin_cli.align(A, relabelled(A), file).tensors), A)


@pytest.mark.parametrize("method", registry.names())
def test_many_models_are_aligned_to_the_first(method):
    others = [relabelled(A, seed) for seed in (1, 2)]
    aligned = rebasin_cli.align(A, *others, None, method=method, **needed(method))
    assert len(aligned.models) == 3 and len(aligned.permutations) == 2
    if method != "pam":  # it goes by the loss, and this network knows nothing
        assert all(same(dict(moved), A) for moved in aligned.models[1:])


@functools.cache
def uninterrupted(method):
    """What an alignment of three finds, and how many states it shows: made once for all places to stop."""
    sweeps: list[State] = []
    options = {"method": method, "seed": 5, **needed(method)}
    return rebasin_cli.align(A, B, C, SPEC, **options, progress=sweeps.append), len(sweeps)


@pytest.mark.parametrize("stop", [2, *(pytest.param(stop, marks=pytest.mark.sweep) for stop in (1, 3, 5))])
@pytest.mark.parametrize("method", registry.names())
def test_an_alignment_of_many_that_was_interrupted_goes_on(method, stop):
    options = {"method": method, "seed": 5, **needed(method)}
    whole, sweeps = uninterrupted(method)
    kept: list[State] = []
    after: list[State] = []

    def progress(state: State) -> None:
        kept.append(state)
        if len(kept) == stop:
            raise KeyboardInterrupt

    try:
        rebasin_cli.align(A, B, C, SPEC, **options, progress=progress)
    except KeyboardInterrupt:
        assert len(kept) == stop
    resumed = rebasin_cli.align(A, B, C, SPEC, **options, start=kept[-1], progress=after.append)
    # what was finished is looked at once more, not searched again
    assert len(after) <= sweeps - len(kept) + 2
    for p, q in zip(resumed.permutations, whole.permutations, strict=True):
        assert all(torch.equal(p[word], q[word]) for word in q)


def test_a_spec_is_proven_where_there_is_a_network():
    assert rebasin_cli.align(A, B, SPEC, network=network()).proof.largest_difference < 1e-8
    assert rebasin_cli.align(A, B, SPEC, network=network(), prove=False).proof is None
    axes = {
        name: "h0 ." if name == "layers.0.weight" else " ".join("." * tensor.ndim)
        for name, tensor in A.items()
    }
    lines = "".join(f"  {name}: '{text}'\n" for name, text in axes.items())
    wrong = fit(parse("tensors:\n" + lines, name="wrong"), SPEC.shapes)
    with pytest.raises(NotProven):
        rebasin_cli.align(A, B, wrong, network=network())
    with pytest.raises(NetworkError, match="is not the network of this checkpoint"):
        rebasin_cli.align(A, B, SPEC, network=network(width=13))


def test_models_of_different_architecture_are_refused_with_every_tensor():
    other = model(1, width=13) | {"extra": torch.zeros(())}
    del other["head.bias"]
    with pytest.raises(SpecError, match="do not have the same architecture") as caught:
        rebasin_cli.align(A, B, other, "mlp")
    assert caught.value.problems == (
        "layers.0.weight  is 12×6 in model 1, 13×6 in model 3",
        "layers.0.bias  is 12 in model 1, 13 in model 3",
        "layers.1.weight  is 12×12 in model 1, 13×13 in model 3",
        "layers.1.bias  is 12 in model 1, 13 in model 3",
        "head.weight  is 3×12 in model 1, 3×13 in model 3",
        "head.bias  is 3 in model 1, absent in model 3",
        "extra  is absent in model 1, a scalar in model 3",
    )


def test_a_spec_that_was_fitted_to_other_tensors_is_fitted_again():
    wide, other = model(0, width=13), model(1, width=13)
    assert rebasin_cli.align(wide, other, SPEC).fitted.words == {"h0": 13, "h1": 13}
    with pytest.raises(SpecError, match="does not fit"):
        rebasin_cli.align({"w": torch.ones(2)}, {"w": torch.ones(2)}, SPEC)


def test_one_model_is_too_few_and_names_are_checked():
    with pytest.raises(UsageError, match="at least two"):
        rebasin_cli.align(A, "mlp")
    with pytest.raises(UsageError, match="unknown method"):
        rebasin_cli.align(A, B, "mlp", method="wn")
    with pytest.raises(CheckpointError):
        rebasin_cli.align(A, {name: tensor * torch.nan for name, tensor in B.items()}, "mlp")


@pytest.mark.parametrize("method", ["wm", "ste", "ste-mm"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_models_may_be_parameters_and_the_caller_may_want_no_gradients(method, mode):
    a, b = ({name: nn.Parameter(tensor) for name, tensor in one.items()} for one in (A, B))
    options = {"method": method, "network": network(), "data": batches(), "prove": False}
    expected = rebasin_cli.align(A, B, "mlp", **options).permutations[0]
    with mode():
        found = rebasin_cli.merge([a, b], "mlp", repair_with="none", **options)
    assert not any(tensor.requires_grad for tensor in found.tensors.values())
    assert all(torch.equal(found.alignment.permutations[0][word], expected[word]) for word in expected)


def test_elements_of_groups_are_found_and_merged_in_memory():
    net = transformer()
    a, b = drawn(net, 0), drawn(net, 1)
    found = rebasin_cli.infer_spec(net, torch.randn(2, 5, 6).double(), groups=True)
    aligned = rebasin_cli.align(a, b, found.fitted, folds=found.folds)
    assert aligned.elements[0].maps
    given = {"permutations": aligned.elements, "folds": found.folds}
    merged = rebasin_cli.merge([a, b], found.fitted, **given).tensors
    for name, tensor in merged.items():
        mean = (aligned.models[0][name] + aligned.tensors[name]) / 2
        torch.testing.assert_close(tensor, mean, rtol=1e-9, atol=1e-9)


def test_rotations_without_what_the_canonical_form_folds_are_refused():
    net = transformer()
    a, b = drawn(net, 0), drawn(net, 1)
    found = rebasin_cli.infer_spec(net, torch.randn(2, 5, 6).double(), groups=True)
    elements = rebasin_cli.align(a, b, found.fitted, folds=found.folds).elements
    for given in ({}, {"permutations": elements}):
        with pytest.raises(SpecError, match="folded") as refused:
            rebasin_cli.merge([a, b], found.fitted, **given)
        assert "folds=found.folds" in refused.value.hint


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rebasin_cli.align("a.pt", "b.pt"), "model 1 is of type str, not a mapping"),
        (lambda: rebasin_cli.align(network(), network(), "mlp"), "model 1 is of type MLP, not a mapping"),
        (lambda: rebasin_cli.align(A, None, "mlp"), "model 2 is of type NoneType"),
        (lambda: rebasin_cli.merge([A, {"w": [1.0]}]), "w  is of type list"),
        (lambda: rebasin_cli.align(A, types.MappingProxyType({"w": "x"})), "w  is of type str"),
        (lambda: rebasin_cli.align(A, {1: A["head.weight"]}), "1  is no name"),
        (lambda: rebasin_cli.barrier(A, B, network=None, test=batches()), "the network is of type NoneType"),
        (lambda: rebasin_cli.merge({"a": A, "b": B}), "are one mapping"),
        (lambda: rebasin_cli.align(A, B, method=None), "unknown method None"),
        (lambda: rebasin_cli.barrier(A, "b.pt", network=network(), test=batches()), "model 2 is of type str"),
    ],
)
def test_what_is_no_model_is_refused_in_words(call, words):
    with pytest.raises(UsageError) as refused:
        call()
    assert words in str(refused.value)


def test_models_may_come_from_a_generator():
    found = rebasin_cli.merge((one for one in (A, B)), "mlp").tensors
    assert all(torch.equal(found[n], t) for n, t in rebasin_cli.merge([A, B], "mlp").tensors.items())


def test_what_the_documents_name_is_there():
    assert rebasin_cli.permutation.identity and rebasin_cli.pipeline.merge
    assert all(getattr(rebasin_cli, name) for name in rebasin_cli.__all__)


def test_the_seed_and_the_options_reach_the_method():
    options = registry.get("wm").Options(max_sweeps=1)
    assert rebasin_cli.align(A, B, SPEC, options=options).result.sweeps == 1
    rng = torch.Generator().manual_seed(0)
    plan = nets.build("mlp", input_shape=(16,), classes=4, width=24, depth=8).state_dict()
    a, b = ({name: torch.randn(t.shape, generator=rng) for name, t in plan.items()} for _ in range(2))
    found = [rebasin_cli.align(a, b, seed=seed).result for seed in range(8)]
    assert len({(result.sweeps, result.solves, result.objective_after) for result in found}) > 1


# ------------------------------------------------------------------------------------------------ merge


def test_merging_relabelled_models_gives_the_model():
    for interpolation in api.INTERPOLATIONS:
        merged = rebasin_cli.merge([A, relabelled(A)], "mlp", interpolation=interpolation)
        for name, tensor in A.items():
            torch.testing.assert_close(merged.tensors[name], tensor)
    assert merged.alignment.result.converged and merged.repaired == 0


def test_merging_without_a_method_is_the_plain_average():
    merged = rebasin_cli.merge([A, B, C], method="none", weights=[0.5, 0.25, 0.25])
    torch.testing.assert_close(
        merged.tensors["head.weight"], A["head.weight"] / 2 + B["head.weight"] / 4 + C["head.weight"] / 4
    )
    assert merged.alignment is None


def test_given_permutations_take_the_place_of_a_search():
    perms = permutation.random(SPEC.words, torch.Generator().manual_seed(0))
    merged = rebasin_cli.merge([A, B], "mlp", permutations=[perms])
    moved = permutation.permuted(B, SPEC, perms)
    torch.testing.assert_close(
        merged.tensors["layers.0.bias"], (A["layers.0.bias"] + moved["layers.0.bias"]) / 2
    )
    with pytest.raises(CheckpointError, match="do not fit the spec"):
        rebasin_cli.merge([A, B], "mlp", permutations=[perms | {"h0": torch.zeros(12, dtype=torch.int64)}])
    with pytest.raises(UsageError, match="1 permutations for 3 models"):
        rebasin_cli.merge([A, B, C], "mlp", permutations=[perms])


@pytest.mark.parametrize(
    "options, complaint",
    [
        ({"weights": [1.0]}, "1 weights for 2 models"),
        ({"weights": [0.5, 0.6]}, "expected 1"),
        ({"weights": [0.9, 0.9], "interpolation": "slerp"}, "expected 1"),
        ({"interpolation": "cubic"}, "unknown interpolation"),
        ({"method": "nothing"}, "unknown method"),
        ({"repair_with": "rest"}, "unknown repair"),
        ({"repair_with": "reset"}, "needs the network"),
        ({"repair_with": "reset", "network": network()}, "training data"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, complaint):
    with pytest.raises(UsageError, match=complaint):
        rebasin_cli.merge([A, B], "mlp", **options)


def test_slerp_joins_two_and_nothing_is_no_merge():
    with pytest.raises(UsageError, match="slerp joins two models, not 3"):
        rebasin_cli.merge([A, B, C], "mlp", interpolation="slerp")
    with pytest.raises(UsageError, match="no models"):
        rebasin_cli.merge([], "mlp")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_repair_measures_the_merged_models_statistics_and_leaves_its_weights(dtype):
    models = [
        {n: t.to(dtype) if t.is_floating_point() else t for n, t in model(seed, "batch").items()}
        for seed in (0, 1)
    ]
    own = network("batch")
    with pytest.raises(UsageError, match="repair needs the network"):  # never averaged in silence
        rebasin_cli.merge(models, "mlp")
    plain = rebasin_cli.merge(models, "mlp", repair_with="none").tensors
    merged = rebasin_cli.merge(models, "mlp", network=own, train=TRAIN)
    assert merged.repaired == 2 and list(merged.tensors) == list(models[0])
    by_hand = load(network("batch"), plain)
    reset(by_hand, TRAIN)
    for name, tensor in merged.tensors.items():
        assert tensor.dtype == models[0][name].dtype
        measured = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        assert torch.equal(tensor, by_hand.state_dict()[name].to(tensor.dtype) if measured else plain[name])
    assert merged.tensors["norms.0.num_batches_tracked"] == len(TRAIN)
    assert torch.equal(
        merged.tensors.rows("norms.0.running_mean", 2, 5), merged.tensors["norms.0.running_mean"][2:5]
    )


def test_ignored_tensors_are_the_first_models():
    spec = parse(
        "ignore: ['head.*']\ninclude: x\n",
        name="t",
        include=lambda _: parse(
            "tensors:\n  layers.{i}.weight: 'h{i} h{i-1|.}'\n  layers.{i}.bias: 'h{i}'\n", name="x"
        ),
    )
    assert torch.equal(
        rebasin_cli.merge([A, B], spec, method="none").tensors["head.weight"], A["head.weight"]
    )


# ---------------------------------------------------------------------------------------------- barrier


def test_a_figure_that_is_no_finite_number_is_told_without_a_gate():
    def endless(outputs, targets):
        return torch.full((len(targets),), torch.inf)

    def share(outputs, targets):
        return torch.full((len(targets),), torch.nan)

    options = {"repair_with": "none", "controls": False, "points": 3, "method": "none"}
    told = "is no finite number, and no gate on it can be met: of A, B, naive"
    report = rebasin_cli.barrier(
        A, B, network=network(), test=TEST, scores=functools.partial(evaluate, metric=share), **options
    )
    assert [note for note in report.notes if "no finite" in note] == [f"share {told}"]
    report = rebasin_cli.barrier(
        A, B, network=network(), test=TEST, scores=functools.partial(evaluate, loss=endless), **options
    )
    assert [note for note in report.notes if "no finite" in note] == [f"loss {told}"]
    report = rebasin_cli.barrier(A, B, network=network(), test=TEST, **options)
    assert not [note for note in report.notes if "no finite" in note]


def test_a_barrier_report_holds_every_row_and_the_known_floors():
    options = {"repair_with": "none", "controls": False}
    report = rebasin_cli.barrier(A, B, network=network(), train=TRAIN, test=TEST, points=5, **options)
    assert [row.name for row in report.rows] == ["naive", "aligned"]
    assert [row.shipped for row in report.rows] == [False, True]
    scores = {
        (k, s): evaluate(load(network(), m), d)
        for k, m in enumerate((A, B))
        for s, d in (("train", TRAIN), ("test", TEST))
    }
    for row in report.rows:
        for split in ("train", "test"):
            curve, barrier = row.curves[split], row.barriers[split]
            assert curve.lambdas == (0.0, 0.25, 0.5, 0.75, 1.0) and curve.samples == 60
            assert curve.loss[0] == scores[0, split].loss
            assert curve.loss[-1] == pytest.approx(scores[1, split].loss, rel=1e-6)
            assert barrier.chord >= 0 and barrier.metrics["accuracy"].chord >= 0
            assert barrier.midpoint >= abs(curve.loss[0] - curve.loss[-1]) / 2 - 1e-12
            middle = curve.loss[2] - (curve.loss[0] + curve.loss[-1]) / 2
            assert barrier.midpoint >= middle and barrier.chord >= middle - 1e-12
    naive = report.row("naive").curves["test"]
    half = {name: (A[name] + B[name]) / 2 for name in A}
    assert naive.loss[2] == pytest.approx(evaluate(load(network(), half), TEST).loss, rel=1e-6)
    assert report.proof["status"] == "proven" and report.match["method"] == "wm"
    assert report.endpoints[1]["test"]["accuracy"] == scores[1, "test"].accuracy


@pytest.mark.parametrize("norm", ["batch", None])
def test_what_rows_share_is_measured_once_and_no_figure_is_another(norm, monkeypatch):
    """Logits of both ends serve their ensemble, those of a row at λ = ½ the row with a temperature."""
    passes: list[int] = []

    def measured() -> str:
        with seeded(0, "three networks"):
            a, b, net = (
                nets.build("mlp", input_shape=(1, 8, 8), classes=10, width=8, norm=norm) for _ in "abn"
            )
        samples = {s: open_data("digits", s, limit=60, batch_size=20) for s in ("train", "test")}
        held = open_data("digits", "train", limit=40, seed=1, batch_size=20)
        net.register_forward_hook(lambda *_: passes.append(1))
        ends = [dict(module.state_dict()) for module in (a, b)]
        report = rebasin_cli.barrier(*ends, network=net, points=5, repaired_points=3, held=held, **samples)
        return repr(report.to_dict() | {"times": None})  # NaN is not equal to itself

    shared, once = measured(), len(passes)
    monkeypatch.setattr("rebasin_cli.measure.ready.once", lambda batches: batches)
    monkeypatch.setattr("rebasin_cli.measure.rows._same", lambda one, other: False)
    assert measured() == shared
    assert once < len(passes) - once


def test_a_relabelled_model_has_no_barrier_once_aligned():
    report = rebasin_cli.barrier(A, relabelled(A), network=network(), test=TEST, points=3)
    assert abs(report.row("aligned").barriers["test"].midpoint) < 1e-6
    naive, aligned = (report.row(name).curves["test"].loss for name in ("naive", "aligned"))
    assert abs(naive[1] - naive[0]) > 1e-4 and abs(aligned[1] - aligned[0]) < 1e-6
    assert report.rows[0].curves.keys() == {"test"}


def test_norms_add_the_repaired_rows_and_the_control_measured_against_the_ends_as_given():
    a, b = model(0, "batch"), model(1, "batch")
    for tensors, mean in ((a, 0.3), (b, -0.2)):
        tensors["norms.0.running_mean"] += mean
    report = rebasin_cli.barrier(
        a, b, network=network("batch"), train=TRAIN, test=TEST, points=3, repaired_points=5, controls=False
    )
    assert [(row.name, row.shipped, row.control) for row in report.rows] == [
        ("naive", False, False),
        ("aligned", False, False),
        ("aligned + reset", True, False),
        ("naive + reset", False, True),
    ]
    assert [len(row.curves["test"].lambdas) for row in report.rows] == [3, 3, 5, 5]
    ends = [evaluate(load(network("batch"), m), TEST).loss for m in (a, b)]
    for row in report.rows:
        assert row.curves["test"].loss[0] == ends[0]
        assert row.curves["test"].loss[-1] == pytest.approx(ends[1], rel=1e-6)
    mended = network("batch")
    load(mended, {name: (a[name] + b[name]) / 2 if a[name].is_floating_point() else a[name] for name in a})
    reset(mended, TRAIN)
    assert report.row("naive + reset").curves["test"].loss[2] == pytest.approx(
        evaluate(mended, TEST).loss, rel=1e-6
    )
    assert report.row("naive").curves["test"].loss[1] != report.row("naive + reset").curves["test"].loss[2]


def test_a_repair_is_done_inside_the_path_and_not_at_its_ends():
    class Recorded:
        def apply(self, network, weights):
            weights_seen.append(weights)

    weights_seen = []
    path = paths.Path("row", A, B, 4, repair=Recorded())
    row = paths.measure(path, network(), {"test": TEST})
    assert weights_seen == [[1 - t, t] for t in (1 / 3, 2 / 3)]
    assert row.curves["test"].lambdas == (0.0, 1 / 3, 2 / 3, 1.0)


def test_norms_without_training_data_are_refused_before_anything_is_measured():
    seen = []
    a, b = model(0, "batch"), model(1, "batch")
    with pytest.raises(UsageError, match="running statistics"):
        rebasin_cli.barrier(a, b, network=network("batch"), test=TEST, check=seen.append)
    assert not seen
    report = rebasin_cli.barrier(
        a, b, network=network("batch"), test=TEST, reset_batches=TRAIN, points=2, repaired_points=3
    )
    assert "aligned + reset" in [row.name for row in report.rows]


def test_the_row_that_is_shipped_follows_the_method_and_the_repair():
    def shipped(**options):
        return [row.name for row in plan_rows(**options) if row.shipped]

    assert shipped(aligned=True, word="reset", ship="none") == ["aligned"]
    assert shipped(aligned=False, word="reset", ship="reset") == ["naive + reset"]
    assert shipped(aligned=True, word="repair", ship=None, auto=True) == ["aligned + repair"]
    assert shipped(aligned=True, word="repair", ship="none", auto=True) == ["aligned"]
    report = rebasin_cli.barrier(A, B, network=network(), test=TEST, points=2, method="none")
    assert report.shipped.name == "naive" and report.match == {"method": "none"}
    assert report.proof["status"] == "unavailable"


@pytest.mark.parametrize("method", ["none", "wm"])
def test_a_keyword_that_nothing_takes_is_an_error_also_where_nothing_is_searched_for(method):
    with pytest.raises(TypeError, match="unexpected keyword argument 'points_'"):
        rebasin_cli.barrier(A, B, network=network(), test=TEST, points=2, method=method, points_=3)
    with pytest.raises(UsageError, match="metric: what a search goes by, and not what is measured"):
        rebasin_cli.barrier(A, B, network=network(), test=TEST, points=2, method=method, metric="f1")
    with pytest.raises(TypeError, match="unexpected keyword argument 'sed'"):
        rebasin_cli.merge([A, B], SPEC, method=method, sed=3)


def test_given_permutations_are_checked_and_used():
    b = relabelled(A)
    perms = rebasin_cli.align(A, b, SPEC).permutations[0]
    report = rebasin_cli.barrier(A, b, SPEC, network=network(), test=TEST, permutations=perms, points=3)
    assert abs(report.row("aligned").barriers["test"].midpoint) < 1e-6
    assert report.match == {"method": "given permutations"}
    with pytest.raises(CheckpointError):
        rebasin_cli.barrier(A, b, SPEC, network=network(), test=TEST, permutations={}, points=3)


def test_the_check_sees_the_endpoints_first_and_may_stop_everything():
    seen = []

    def check(scores) -> None:
        seen.append({split: len(ends) for split, ends in scores.items()})
        raise DataError("wrong data")

    with pytest.raises(DataError, match="wrong data"):
        rebasin_cli.barrier(
            A, B, network=network(), train=TRAIN, test=TEST, check=check, measured=lambda: seen.append(1)
        )
    assert seen == [{"train": 2, "test": 2}]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"points": 1}, UsageError),
        ({"repair_with": "rest"}, UsageError),
        ({"test": []}, DataError),
        ({"network": network(width=13)}, NetworkError),
        ({"method": "wn"}, UsageError),
        ({"permutations": {"h0": torch.arange(12)}}, CheckpointError),
    ],
)
def test_a_barrier_that_cannot_be_measured_is_refused(options, error):
    with pytest.raises(error):
        rebasin_cli.barrier(A, B, **({"network": network(), "test": TEST, "points": 3} | options))


def test_what_looks_like_a_table_and_was_learnt_is_averaged_as_the_refusal_advises():
    a = {"w": torch.randn(3, 4), "anchors": torch.tensor([[10.0, 13.0], [16.0, 30.0]])}
    b = {"w": torch.randn(3, 4), "anchors": a["anchors"] + 2}
    with pytest.raises(SpecError, match="--learnt GLOB"):
        rebasin_cli.average([a, b])
    assert torch.equal(rebasin_cli.average([a, b], learnt=["anch*"])["anchors"], a["anchors"] + 1)
    with pytest.raises(UsageError, match="--learnt 'anker' names no tensor"):
        rebasin_cli.average([a, b], learnt=["anker"])
    order = torch.arange(4)  # of which no average is one
    with pytest.raises(SpecError, match="integers that say how weights are used") as caught:
        rebasin_cli.average([a | {"perm": order}, b | {"perm": order.flip(0)}], learnt=["*"])
    assert len(caught.value.problems) == 1


def test_models_are_averaged_as_they_are():
    """Without a spec, in memory: `rebasin_cli.average`."""
    a = {"w": torch.randn(3, 4), "steps_seen": torch.arange(3), "frozen": torch.ones(2)}
    b = {"w": torch.randn(3, 4), "steps_seen": torch.arange(3) + 1, "frozen": torch.zeros(2)}
    before = {name: tensor.clone() for name, tensor in a.items()}
    found = rebasin_cli.average([a, b], [0.25, 0.75], ignore=["froz*"])
    torch.testing.assert_close(found["w"], 0.25 * a["w"] + 0.75 * b["w"])
    assert torch.equal(found["steps_seen"], a["steps_seen"]) and torch.equal(found["frozen"], a["frozen"])
    found["steps_seen"] += 1
    assert all(torch.equal(a[name], before[name]) for name in a), "the result is nobody's input"
    decayed = rebasin_cli.average([a, b], "minus-sqrt")["w"]
    share = 0.5**0.5
    torch.testing.assert_close(decayed, share * a["w"] + (1 - share) * b["w"])
    norms = {"bn.running_mean": torch.zeros(2), "bn.running_var": torch.ones(2)}
    with pytest.raises(UsageError, match="makes a broken model"):
        rebasin_cli.average([a | norms, b | norms])
    assert "bn.running_var" in rebasin_cli.average([a | norms, b | norms], statistics=True)


ARRAYS = [{name: tensor.numpy() for name, tensor in one.items()} for one in (A, B)]


def test_arrays_are_averaged_as_tensors_are_and_come_back_as_arrays():
    expected = rebasin_cli.average([A, B])
    found = rebasin_cli.average(ARRAYS)
    assert all(isinstance(value, np.ndarray) for value in found.values())
    assert same({name: torch.from_numpy(value) for name, value in found.items()}, expected)
    listed = rebasin_cli.average([[*one.values()] for one in ARRAYS], names=[*A])  # as a flower client has it
    assert all(np.array_equal(one, other) for one, other in zip(listed, found.values(), strict=True))
    tensors = rebasin_cli.average(([*one.values()] for one in (A, B)), "1/2,1/2", names=iter(A))
    assert isinstance(tensors, list) and same(dict(zip(A, tensors, strict=True)), expected)
    mixed = rebasin_cli.average([A, ARRAYS[1]])
    assert same(mixed, expected), "the first model says what comes back"
    aligned = rebasin_cli.align(*ARRAYS, "mlp")
    assert same(dict(aligned.tensors), dict(rebasin_cli.align(A, B, "mlp").tensors))


def test_odd_arrays_are_read_and_left_alone():
    swapped = np.arange(6, dtype=">f4").reshape(2, 3)[::-1, ::-1]
    frozen = np.ones(2, dtype=np.float16)
    frozen.flags.writeable = False
    turned = np.arange(6, dtype="f4").reshape(2, 3)[::-1, ::-1]
    a = {
        "w": swapped,
        "turned": turned,
        "frozen": frozen,
        "scalar": np.float64(3),
        "n": np.array(7),
        "empty": np.zeros((0, 2)),
    }
    found = rebasin_cli.average([a, a])
    assert found["w"].dtype == np.float32 and found["w"].tolist() == swapped.tolist()
    assert found["turned"].tolist() == turned.tolist()
    assert found["scalar"] == 3 and found["n"] == 7 and found["empty"].shape == (0, 2)
    found["n"][...], found["frozen"][...] = 1, 5
    assert a["n"] == 7 and a["frozen"].tolist() == [1, 1]
    half = {"w": torch.arange(6.0).reshape(2, 3).T.to(torch.bfloat16), "s": nn.Parameter(torch.tensor(2.0))}
    found = rebasin_cli.average([half, half])
    assert torch.equal(found["w"], half["w"]) and found["s"] == 2 and not found["s"].requires_grad


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ([{"w": np.array(["x"])}] * 2, {}, "w  is an array of <U1"),
        ([{"w": np.array([None])}] * 2, {}, "w  is an array of object"),
        ([{"w": np.ones(2, np.longdouble)}] * 2, {}, "w  is an array of float128"),
        ([{"w": np.ma.array([1.0, 2.0], mask=[0, 1])}] * 2, {}, "w  is a masked array"),
        ([{"w": torch.zeros(2)}, {"w": torch.zeros(2, device="meta")}], {}, "model 2 has tensors without"),
        ([{"w": torch.eye(2).to_sparse()}] * 2, {}, "w  is sparse"),
        ([{"w": 1.0}] * 2, {}, "w  is of type float"),
        ([[np.ones(2)]] * 2, {}, "nothing says what its 1 values are"),
        ([[np.ones(2)], [np.ones(2)] * 2], {"names": ["w"]}, "model 2 has 2 values, and there are 1 names"),
        ([[np.ones(2)] * 2] * 2, {"names": ["w", "w"]}, "two of the names are 'w'"),
        ([{"w": np.ones(2)}] * 2, {"names": ["w"]}, "`names` are for lists"),
        ([np.ones(2)] * 2, {}, "model 1 is of type ndarray"),
        (np.ones((2, 2)), {}, "the models are one ndarray"),
        ([[np.ones(2)], [np.ones(3)]], {"names": ["w"], "heads": "drop"}, "no floating-point tensor"),
        ([[np.ones(1)] * 2, [np.ones(1), np.ones(2)]], {"names": "ab", "heads": "drop"}, "a list keeps all"),
    ],
)
def test_what_cannot_be_averaged_in_memory_is_one_error(models, options, words):
    with pytest.raises(RebasinError) as refused:
        rebasin_cli.average(models, **options)
    assert words in str(refused.value)


def test_values_that_are_no_numbers_are_laid_to_their_model():
    bad = {"w": torch.tensor([1.0, float("nan")]), "v": torch.ones(2)}
    good = {"w": torch.ones(2), "v": torch.ones(2)}
    says = "model 3 cannot be used\n  w  1 NaN of 2 values, first at \\[1\\]"
    with pytest.raises(CheckpointError, match=says):
        rebasin_cli.average([good, good, bad])
    assert rebasin_cli.average([good, bad], ignore=["w"])["w"].tolist() == [1, 1], "copied, never looked at"
    with pytest.raises(UsageError, match="w: the average is beyond the range of torch.float16"):
        rebasin_cli.average([{"w": torch.full((2,), x).half()} for x in (6e4, -6e4)], [2, -1])
    broken = {name: torch.full_like(tensor, torch.inf) for name, tensor in A.items()}
    merged = rebasin_cli.merge([A, broken], "mlp", method="none")
    with pytest.raises(CheckpointError, match="model 2 cannot be used"):
        dict(merged.tensors)


def test_weights_stored_apart_are_aligned_and_averaged_as_what_they_stand_for():
    """A spec permutes lengths and directions; what is averaged is their product."""
    wn = torch.nn.utils.parametrizations.weight_norm
    g, v = "parametrizations.weight.original0", "parametrizations.weight.original1"
    axes = {f"0.{g}": "h .", f"0.{v}": "h .", "0.bias": "h", "1.weight": ". h", "1.bias": "."}
    lines = "".join(f'  "{name}": "{axes}"\n' for name, axes in axes.items())
    spec = parse(f"schema: 1\ntensors:\n{lines}", name="normed")
    made = [nn.Sequential(wn(nn.Linear(4, 8)), nn.Linear(8, 3)).state_dict() for _ in range(2)]
    order = torch.randperm(8)
    moved = made[0] | {n: made[0][n][order] for n in (f"0.{g}", f"0.{v}", "0.bias")}
    moved |= {"1.weight": made[0]["1.weight"][:, order]}
    found = rebasin_cli.merge([made[0], moved], spec).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in made[0].items())
    found = rebasin_cli.merge(made, spec, method="none").tensors
    wanted = sum(torch._weight_norm(model[f"0.{v}"], model[f"0.{g}"], 0) for model in made) / 2
    torch.testing.assert_close(torch._weight_norm(found[f"0.{v}"], found[f"0.{g}"], 0), wanted)


def test_adapters_are_refused_before_it_is_said_that_no_spec_fits():
    factors = [{"q.lora_A": torch.randn(2, 4), "q.lora_B": torch.randn(4, 2)} for _ in range(2)]
    measured = functools.partial(rebasin_cli.barrier, network=network(), train=TRAIN, test=TEST)
    for call in (rebasin_cli.merge, lambda models: measured(*models)):
        with pytest.raises(SpecError, match="adapter tensors differ"):
            call(factors)
    with pytest.raises(SpecError, match="no built-in spec"):
        rebasin_cli.align(*factors)


def test_the_repair_of_a_merge_is_chosen_by_the_loss_that_is_given():
    """Cross-entropy cannot be measured on numbers; nothing would be repaired."""
    models, x = [], torch.linspace(-1, 1, 2_400).view(400, 6)
    for seed in (1, 2):
        torch.manual_seed(seed)
        network = nets.build("mlp", input_shape=(6,), classes=3, width=16, depth=2)
        models.append({name: tensor.clone() for name, tensor in network.state_dict().items()})
    with torch.no_grad():
        train = [(part, network.eval()(part)) for part in x.split(50)]
    given = {"network": network, "train": train, "prove": False}
    merged = rebasin_cli.merge(models, "mlp", loss=torch.nn.functional.mse_loss, **given)
    assert merged.choice is not None and not merged.choice.why
    assert {*merged.choice.losses} == {"none", "repair"}
