"""One list of promises for every matcher in the folder, and what weight matching promises by itself."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
import torch

from rebasin_cli import matchers, nets
from rebasin_cli.errors import CheckpointError, UsageError
from rebasin_cli.matchers import PROMISES, Problem, State, registry, wm
from rebasin_cli.matchers.accounts import Learned, Relaxed
from rebasin_cli.matchers.portfolio.align import align
from rebasin_cli.networks import load
from rebasin_cli.networks.forward import evaluating
from rebasin_cli.runtime.ranks import Ranks
from rebasin_cli.spec import library
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.notation import words_of
from rebasin_cli.spec.parser import parse
from rebasin_cli.spec.spec import FittedSpec
from rebasin_cli.symmetry import index_maps, permutation

NETS = {
    "mlp": {"width": 24, "input_shape": (1, 6, 6)},
    "vgg16": {"width": 1 / 8, "input_shape": (3, 32, 32)},
    "resnet20": {"width": 1 / 4, "input_shape": (3, 16, 16)},
    "resnet50": {"width": 1 / 8, "input_shape": (3, 32, 32)},
    "googlenet": {"width": 1 / 16, "input_shape": (3, 32, 32)},
}
MORE = {
    "tinyten": {"width": 1 / 4, "input_shape": (3, 16, 16)},
    "mlp wide": {"width": 300, "input_shape": (1, 6, 6)},  # wider than one tile of a product
}
Tensors = dict[str, torch.Tensor]

every_matcher = pytest.mark.parametrize("method", registry.names())
every_quick_matcher = pytest.mark.parametrize(
    "method", [pytest.param(n, marks=pytest.mark.sweep if n == "pam" else ()) for n in registry.names()]
)
by_weights = pytest.mark.parametrize("method", [n for n in registry.names() if not registry.get(n).NEEDS])
every_net = pytest.mark.parametrize(
    "net", [pytest.param(net, marks=() if net in ("mlp", "resnet20") else pytest.mark.sweep) for net in NETS]
)


def declaring(promise: str):
    names = [name for name in registry.names() if promise in registry.get(name).DECLARES]
    return pytest.mark.parametrize("method", names)


@every_matcher
def test_only_promises_that_there_are_are_declared(method):
    assert registry.get(method).DECLARES <= PROMISES.keys()  # what is misspelt would never be tested


def randomised(plan: Tensors, seed: int, dtype: torch.dtype = torch.float32) -> Tensors:
    """Random weights, norm statistics and affine parameters; all positive where variances may be."""
    rng = torch.Generator().manual_seed(seed)
    drawn = {}
    for name, tensor in plan.items():
        if not tensor.is_floating_point():
            drawn[name] = torch.tensor(seed).expand(tensor.shape).clone()
        elif tensor.ndim <= 1:
            drawn[name] = (torch.rand(tensor.shape, generator=rng, dtype=torch.float64) + 0.5).to(dtype)
        else:
            scale = math.sqrt(2 / tensor[0].numel())
            drawn[name] = (torch.randn(tensor.shape, generator=rng, dtype=torch.float64) * scale).to(dtype)
    return drawn


@cache
def setting(net: str) -> tuple[torch.nn.Module, FittedSpec, tuple[Tensors, ...]]:
    """A network, its spec and three models."""
    network = nets.build(net.split()[0], classes=5, **(NETS | MORE)[net])
    plan = network.state_dict()
    fitted = library.find({name: tuple(tensor.shape) for name, tensor in plan.items()})
    return network, fitted, tuple(randomised(plan, seed) for seed in range(3))


def several(method: str, models: tuple[Tensors, ...]) -> tuple[Tensors, ...]:
    return models if registry.get(method).MANY else models[:2]


def match(method: str, fitted: FittedSpec, models, *, net=None, effort="fast", sweeps=None, **problem):
    """A search; of at most so many sweeps, where its method counts them."""
    module, options = registry.get(method), {"effort": effort, "max_sweeps": sweeps}
    has = {name: v for name, v in options.items() if v is not None and hasattr(module.Options, name)}
    return module.match(
        Problem(fitted, tuple(models), **needed(method, net), **problem), module.Options(**has)
    )


def needed(method: str, net: str | None) -> dict:
    """The network and random inputs for a method that needs them."""
    if not registry.get(method).NEEDS:
        return {}
    rng = torch.Generator().manual_seed(7)
    shape = (NETS | MORE)[net]["input_shape"]
    inputs = [torch.randn(size, *shape, generator=rng) for size in (12, 12, 5)]
    return {"network": setting(net)[0], "data": [(x, torch.zeros(len(x), dtype=torch.int64)) for x in inputs]}


def planted(model: Tensors, fitted: FittedSpec, seed: int) -> tuple[Tensors, dict[str, torch.Tensor]]:
    perm = permutation.random(fitted.words, torch.Generator().manual_seed(seed))
    return dict(permutation.permuted(model, fitted, perm)), perm


def equal(p, q) -> bool:
    return p.keys() == q.keys() and all(torch.equal(p[word], q[word]) for word in p)


def digest(result: matchers.MatchResult) -> list[str]:
    total = hashlib.sha256()
    for perms in result.permutations:
        for word in sorted(perms):
            total.update(word.encode() + perms[word].numpy().tobytes())
    return [
        total.hexdigest(),
        result.objective_before.hex(),
        result.objective_after.hex(),
        str(result.sweeps),
    ]


def plain_objective(fitted: FittedSpec, models, sets) -> float:
    """Σ over pairs of models of ⟨π θ, π' θ'⟩ over evidence that moves, in float64, without any cleverness."""
    total = 0.0
    for name, axes in fitted.tensors.items():
        if name in fitted.statistics or not any(True for axis in axes for _ in words_of(axis)):
            continue
        moved = []
        for model, perms in zip(models, sets, strict=True):
            tensor = model[name].double()
            for dim, axis in enumerate(axes):
                tensor = tensor.index_select(dim, index_maps.axis_index(axis, perms))
            moved.append(tensor)
        total += sum((x * y).sum().item() for x, y in combinations(moved, 2))
    return total


# ---------------------------------------------------------------------------------- promised by all


@cache
def search(method: str, net: str) -> tuple[matchers.MatchResult, list[State]]:
    """Three sweeps over models that were drawn apart, and every state; searched once for all tests."""
    _, fitted, models = setting(net)
    module, states = registry.get(method), []
    problem = Problem(fitted, several(method, models), seed=3, progress=states.append, **needed(method, net))
    options = {"max_sweeps": 3} if hasattr(module.Options, "max_sweeps") and not module.NEEDS else {}
    options |= {"epochs": 2, "samples": 4} if hasattr(module.Options, "projections") else {}  # of long steps
    return module.match(problem, module.Options(**options)), states


# Of the methods on a network with blocks and norms, one of each kind; mlps for all of them.
OF_BLOCKS = "wm", "am", "merge-many"


@pytest.mark.parametrize(
    ("method", "net"),
    [
        pytest.param(
            method,
            net,
            marks=[pytest.mark.sweep] * (net != "mlp" and (net != "resnet20" or method not in OF_BLOCKS)),
        )
        for net in NETS
        for method in registry.names()
    ],
)
def test_permuted_networks_compute_the_same(method, net):
    _, fitted, models = setting(net)
    models = several(method, models)
    before = [{name: tensor.clone() for name, tensor in model.items()} for model in models]
    result, _ = search(method, net)
    for model, copy in zip(models, before, strict=True):
        assert equal(model, copy)  # inputs are untouched
    assert len(result.permutations) == len(models) - 1
    network = nets.build(net, classes=5, **NETS[net]).double()
    inputs = torch.rand(2, *NETS[net]["input_shape"], dtype=torch.float64)
    for model, perms in zip(models[1:], result.permutations, strict=True):
        permutation.check(perms, fitted.words)
        assert not permutation.is_identity(perms)
        with evaluating(network), torch.no_grad():
            expected = load(network, model)(inputs).clone()
            found = load(network, permutation.permuted(model, fitted, perms))(inputs)
        assert (found - expected).abs().max() <= 1e-10 * expected.abs().max()


_ANOTHER_PROCESS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.matchers import test_matchers
from tests.traced import trace_once
trace_once()
alone = test_matchers.answers(1)
test_matchers.search.cache_clear()
print(json.dumps([alone, test_matchers.answers(2)]))
"""


def answers(threads: int) -> dict[str, list[str]]:
    """What is learned is reproducible as training is: on one number of threads."""
    torch.set_num_threads(threads)
    return {
        f"{method} {net}": digest(search(method, net)[0])
        for method in registry.names()
        for net in ("mlp wide", "resnet20")
        if threads == 1 or not hasattr(registry.get(method).Options, "learning_rate")
    }


@pytest.mark.sweep
def test_the_same_seed_gives_the_same_answer_in_a_new_process_whatever_its_threads():
    """A process, for its hashes and its memory are other ones; with one thread first, then with two."""
    found = subprocess.run(
        [sys.executable, "-c", _ANOTHER_PROCESS, str(Path(__file__).parents[2])],
        capture_output=True,
        text=True,
        check=True,
    )
    alone, together = json.loads(found.stdout)
    wanted = answers(1)
    assert alone == wanted and len(wanted) == 2 * len(registry.names())
    assert together == {name: wanted[name] for name in together} and len(together) >= 8


@by_weights
def test_another_seed_gives_another_answer(method):
    _, fitted, models = setting("tinyten")
    some = models[:4] if registry.get(method).MANY else models[:2]
    found = (digest(match(method, fitted, some, seed=seed)) for seed in range(3))
    first = next(found)
    assert any(other != first for other in found)  # mostly the second


@every_matcher
def test_progress_is_reported_after_every_sweep(method):
    _, fitted, models = setting("mlp")
    states: list[State] = []
    some = models[:2] if method == "auto" else several(method, models)  # by wm, one pair after the other
    result = match(method, fitted, some, net="mlp", progress=states.append)
    seen = dict.fromkeys(state.sweep for state in states)  # once more where held-out samples were looked at
    assert list(seen) == list(range(1, result.sweeps + 1))
    assert [state.sweep for state in states] == sorted(state.sweep for state in states)
    for state in states:
        for perms in state.permutations:
            permutation.check(perms, fitted.words)
    assert states[-1].objective == pytest.approx(result.objective_after)
    if isinstance(result.account, Learned):  # what was learnt is at least as good as where it began
        assert result.objective_after == max(-row["held_out_loss"] for row in result.account.history)
    elif isinstance(result.account, Relaxed):  # where it began is among what is chosen from
        assert result.objective_after >= result.objective_before
    else:
        assert result.objective_after > result.objective_before
    assert result.converged and result.solves >= len(fitted.words)


@every_quick_matcher
@pytest.mark.parametrize("net", ["mlp", pytest.param("tinyten", marks=pytest.mark.sweep)])
@pytest.mark.parametrize("after", ["first or last", pytest.param("every", marks=pytest.mark.sweep)])
def test_an_interrupted_search_goes_on_to_the_same_result(method, net, after):
    _, fitted, models = setting(net)
    models = several(method, models)
    reported: dict[int, State] = {}  # copies, as a file keeps them

    def keep(state: State) -> None:
        reported[state.sweep] = deepcopy(state)

    whole = match(method, fitted, models, net=net, effort="normal", seed=3, progress=keep)
    assert whole.sweeps >= 2 or registry.get(method).NEEDS  # one pass over the data
    stops = range(1, max(whole.sweeps, 2))
    few = stops[:: len(stops) // 6 + 1]
    for stop in few if after == "every" else {stops[0], stops[-1]}:
        kept: list[State] = []

        def interrupt(state: State, stop: int = stop, kept: list = kept) -> None:
            kept.append(state)
            if state.sweep == stop:
                raise KeyboardInterrupt

        if stop != stops[0]:  # which takes up to as long as the whole search, and is what that one reported
            kept.append(reported[stop])
        else:
            with pytest.raises(KeyboardInterrupt):
                match(method, fitted, models, net=net, effort="normal", seed=3, progress=interrupt)
        frozen = [{word: perm.clone() for word, perm in perms.items()} for perms in kept[-1].permutations]
        resumed = match(method, fitted, models, net=net, effort="normal", seed=3, start=kept[-1])
        assert len(resumed.permutations) == len(whole.permutations)
        for p, q in zip(resumed.permutations, whole.permutations, strict=True):
            assert equal(p, q)
        assert resumed.objective_after == whole.objective_after
        assert resumed.objective_before == whole.objective_before
        assert all(equal(p, q) for p, q in zip(kept[-1].permutations, frozen, strict=True))


@by_weights
def test_too_few_sweeps_are_said_not_to_have_converged(method):
    module = registry.get(method)
    if not hasattr(module.Options, "max_sweeps"):
        pytest.skip("it has no sweeps of its own")
    _, fitted, models = setting("mlp")
    problem = Problem(fitted, several(method, models))
    for limit in (0, 1):
        result = module.match(problem, module.Options(max_sweeps=limit))
        assert not result.converged and result.sweeps == limit
    assert all(map(permutation.is_identity, module.match(problem, module.Options(max_sweeps=0)).permutations))


@by_weights
def test_running_statistics_are_no_evidence(method):
    _, fitted, models = setting("tinyten")
    models = several(method, models)
    changed = [
        {name: torch.full_like(t, 50 * k) if name in fitted.statistics else t for name, t in model.items()}
        for k, model in enumerate(models, start=1)
    ]
    found, expected = (digest(match(method, fitted, those, sweeps=2)) for those in (changed, models))
    assert found == expected  # the objective that it begins with, too


@every_quick_matcher
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float16, marks=pytest.mark.sweep),
        torch.bfloat16,
        pytest.param(torch.float64, marks=pytest.mark.sweep),
        torch.float8_e4m3fn,
    ],
    ids=str,
)
def test_every_floating_point_dtype_is_matched_like_the_same_values_in_float32_or_better(method, dtype):
    network, fitted, _ = setting("mlp")
    models = several(method, tuple(randomised(network.state_dict(), seed, dtype) for seed in range(3)))
    wide = [
        {name: t.double() if t.is_floating_point() else t for name, t in model.items()} for model in models
    ]
    found, expected = (match(method, fitted, those, net="mlp", sweeps=2) for those in (models, wide))
    assert all(equal(p, q) for p, q in zip(found.permutations, expected.permutations, strict=True))
    assert found.objective_after == pytest.approx(expected.objective_after, rel=1e-6)


@by_weights
def test_float64_is_not_rounded(method):
    """Two units whose inner products differ by less than float32 can tell are told apart."""
    fitted = fit(parse("tensors:\n  w: 'h .'\n", name="test"), {"w": (2, 2)})
    a = {"w": torch.tensor([[1.0, 2.0**13], [2.0, 2.0**13]], dtype=torch.float64)}
    b = {"w": a["w"][[1, 0]].clone()}
    module = registry.get(method)
    exact = {"tolerance": 0} if hasattr(module.Options, "tolerance") else {}
    (perms,) = module.match(Problem(fitted, (a, b)), module.Options(**exact)).permutations
    assert torch.equal(b["w"][perms["h"]], a["w"])


@every_quick_matcher
def test_models_of_different_dtypes_are_matched(method):
    _, fitted, models = setting("mlp")
    models = several(method, models)
    mixed = [
        models[0],
        {name: t.double() if t.ndim == 1 else t for name, t in models[1].items()},
        *models[2:],
    ]
    for order in (mixed, mixed[::-1]):
        same = [{name: t.float() for name, t in model.items()} for model in order]
        found, expected = (match(method, fitted, those, net="mlp", sweeps=2) for those in (order, same))
        assert all(equal(p, q) for p, q in zip(found.permutations, expected.permutations, strict=True))


@every_matcher
def test_weights_that_are_no_numbers_are_refused(method):
    _, fitted, models = setting("mlp")
    models = [dict(model) for model in several(method, models)]
    models[1]["layers.1.weight"] = torch.full_like(models[1]["layers.1.weight"], torch.nan)
    with pytest.raises(CheckpointError, match="NaN"):
        match(method, fitted, models, net="mlp")


# --------------------------------------------------------------------------------- declared promises


@declaring("identity")
@every_net
def test_identical_models_get_the_identity(method, net):
    _, fitted, models = setting(net)
    result = match(method, fitted, [models[0]] * len(several(method, models)), net=net)
    assert all(map(permutation.is_identity, result.permutations))
    assert result.converged


@declaring("planted")
@every_net
def test_a_planted_permutation_is_recovered(method, net):
    _, fitted, models = setting(net)
    others = [planted(models[0], fitted, k) for k in range(len(several(method, models)) - 1)]
    result = match(method, fitted, [models[0], *(model for model, _ in others)], net=net)
    for found, (model, perm) in zip(result.permutations, others, strict=True):
        assert equal(found, permutation.invert(perm))
        assert equal(dict(permutation.permuted(model, fitted, found)), models[0])


@declaring("monotone")
@every_net
def test_the_objective_never_falls(method, net):
    _, fitted, models = setting(net)
    models = several(method, models)
    result, states = search(method, net)
    still = permutation.identity(fitted.words)
    objectives = [plain_objective(fitted, models, [still] * len(models))]
    for state in states:
        sets = state.permutations if len(state.permutations) == len(models) else (still, *state.permutations)
        objectives.append(plain_objective(fitted, models, sets))
        assert state.objective == pytest.approx(objectives[-1], rel=1e-6)
    assert all(later >= earlier for earlier, later in zip(objectives, objectives[1:], strict=False))
    assert result.objective_before == pytest.approx(objectives[0])
    assert result.objective_after == pytest.approx(
        plain_objective(fitted, models, [still, *result.permutations])
    )
    assert len(states) > 1


# ------------------------------------------------------------------------------- one by one


@pytest.mark.parametrize("net", ["mlp", "resnet20"])
def test_the_first_sweep_alone_recovers_a_planted_permutation_whatever_the_seed(net):
    _, fitted, (model, *_) = setting(net)
    hidden, _ = planted(model, fitted, seed=4)
    for seed in range(4):
        result = wm.match(Problem(fitted, (model, hidden), seed), wm.Options(max_sweeps=1))
        assert equal(dict(permutation.permuted(hidden, fitted, result.permutations[0])), model)


@pytest.mark.parametrize(("offset", "noise"), [(10.0, 0.01), (10.0, 0.001), (100.0, 0.01), (1000.0, 0.1)])
def test_round_off_of_a_common_offset_neither_lowers_the_objective_nor_keeps_the_search_alive(offset, noise):
    network = nets.build("mlp", input_shape=(20,), classes=5, width=24)
    fitted = library.find({name: tuple(t.shape) for name, t in network.state_dict().items()})
    rng = torch.Generator().manual_seed(0)
    models = tuple(
        {name: offset + noise * torch.randn(shape, generator=rng) for name, shape in fitted.shapes.items()}
        for _ in range(2)
    )
    states = [State((permutation.identity(fitted.words),))]
    result = wm.match(Problem(fitted, models, progress=states.append))
    heights = [
        plain_objective(fitted, models, [permutation.identity(fitted.words), *s.permutations]) for s in states
    ]
    assert result.converged and result.sweeps < 20
    assert all(later >= earlier for earlier, later in zip(heights, heights[1:], strict=False))
    assert heights[-1] > heights[0]


def test_weight_matching_takes_two_models_and_says_what_takes_more():
    _, fitted, models = setting("mlp")
    with pytest.raises(UsageError, match="wm matches two models, not 3") as caught:
        match("wm", fitted, models)
    assert "merge-many" in caught.value.hint


def test_merge_many_takes_two_models_at_least():
    _, fitted, models = setting("mlp")
    with pytest.raises(UsageError):
        match("merge-many", fitted, models[:1])


def test_dead_units_leave_the_others_where_they_belong():
    _, fitted, models = setting("mlp")
    dead = {name: tensor.clone() for name, tensor in models[0].items()}
    for name in ("layers.0.weight", "layers.0.bias"):
        dead[name][5:9] = 0
    dead["layers.1.weight"][:, 5:9] = 0
    other, _ = planted(dead, fitted, 4)
    found = match("wm", fitted, (dead, other)).permutations[0]
    assert equal(dict(permutation.permuted(other, fitted, found)), dead)
    assert permutation.is_identity(match("wm", fitted, (dead, dead)).permutations[0])


RECURRENT = """
tensors:
  input: "h ."
  recurrent: "h h"
  bias: "h"
  output: ". h"
"""


def recurrent(seed: int, units: int = 24, strength: float = 1.0) -> Tensors:
    rng = torch.Generator().manual_seed(seed)
    return {
        "input": torch.randn(units, 3, generator=rng),
        "recurrent": strength * torch.randn(units, units, generator=rng),
        "bias": torch.randn(units, generator=rng),
        "output": torch.randn(2, units, generator=rng),
    }


def fit_recurrent(units: int = 24) -> FittedSpec:
    return fit(
        parse(RECURRENT, name="rnn"), {name: tuple(t.shape) for name, t in recurrent(0, units).items()}
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_word_on_two_axes_of_one_tensor_is_recovered(seed):
    fitted, model = fit_recurrent(), recurrent(seed)
    other, perm = planted(model, fitted, seed + 100)
    found = match("wm", fitted, (model, other), seed=seed)
    assert equal(found.permutations[0], permutation.invert(perm)) and found.converged


@pytest.mark.parametrize("strength", [0.3, 3.0, 30.0])
def test_a_word_on_two_axes_of_one_tensor_never_loses_objective(strength):
    fitted, still = fit_recurrent(), permutation.identity({"h": 24})
    gains = []
    for seed in range(8):
        models = recurrent(seed, strength=strength), recurrent(seed + 50, strength=strength)
        sets = [still]
        result = match(
            "wm", fitted, models, seed=seed, progress=lambda s, sets=sets: sets.append(s.permutations[0])
        )
        objectives = [plain_objective(fitted, models, (still, perms)) for perms in sets]
        assert all(later >= earlier for earlier, later in zip(objectives, objectives[1:], strict=False))
        assert result.objective_after == pytest.approx(objectives[-1], rel=1e-6)
        gains.append(objectives[-1] - objectives[0])
    assert all(gain >= 0 for gain in gains) and sum(gain > 0 for gain in gains) >= 4


def test_concatenated_and_flattened_axes_are_matched_part_by_part():
    text = "tensors:\n  u: 'a .'\n  v: 'b .'\n  w: 'c (a + b + 2 3)'\n  x: '. c'\n"
    rng = torch.Generator().manual_seed(0)
    shapes = {"u": (6, 1), "v": (5, 1), "w": (7, 39), "x": (2, 7)}
    model = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    fitted = fit(parse(text, name="test"), shapes)
    other, perm = planted(model, fitted, 1)
    assert equal(match("wm", fitted, (model, other)).permutations[0], permutation.invert(perm))


def test_large_tensors_are_cut_into_slabs_without_a_difference(monkeypatch):
    _, fitted, models = setting("tinyten")
    whole = wm.match(Problem(fitted, models[:2]))
    monkeypatch.setattr("rebasin_cli.matchers.descent.blocks.SLAB", 500)
    cut = wm.match(Problem(fitted, models[:2]))
    assert equal(cut.permutations[0], whole.permutations[0])
    assert cut.objective_after == pytest.approx(whole.objective_after)


def test_a_spec_without_permutations_is_matched_at_once():
    fitted = fit(parse("tensors:\n  w: '. .'\n  one: 'h'\n", name="test"), {"w": (2, 3), "one": (1,)})
    model = {"w": torch.ones(2, 3), "one": torch.ones(1)}
    for method in (name for name in registry.names() if not registry.get(name).NEEDS):
        result = match(method, fitted, (model, model))
        assert result.converged and permutation.is_identity(result.permutations[0])


def test_threads_are_given_back_also_after_an_error():
    _, fitted, models = setting("mlp")
    torch.set_num_threads(2)
    try:

        def stop(state: State) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            match("wm", fitted, models[:2], progress=stop)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


class Second(Ranks):
    """The second of two ranks, which gets what the first one found."""

    def first(self, step, *given, **more):
        return self.found


@pytest.mark.parametrize("method", ["wm", "universe"])
def test_all_ranks_go_on_with_what_the_first_one_found(method):
    """Each writes a share of the tensors: two orders would be mixed in one file, and no message."""
    models = [dict(nets.build("mlp", classes=10, **NETS["mlp"]).state_dict()) for _ in range(2)]
    fitted = library.find({name: tuple(tensor.shape) for name, tensor in models[0].items()})
    alone = align(models, fitted, method=method)
    other = permutation.random(fitted.words, torch.Generator().manual_seed(1))
    second = Second(1, 2)
    object.__setattr__(second, "found", replace(alone.result, elements=(other,)))
    found = align(models, fitted, method=method, ranks=second)
    expected = permutation.permuted(models[1], fitted, other)
    assert all(torch.equal(found.tensors[name], expected[name]) for name in expected)
