"""Weights and activations together: one descent on the sum of both similarities."""

from __future__ import annotations

from dataclasses import replace

import pytest

import rebasin_cli
from rebasin_cli.checkpoints.tensors import LazyTensors
from rebasin_cli.errors import UsageError
from rebasin_cli.matchers import Problem, am, dual, wm
from rebasin_cli.matchers.activations import options as looking
from rebasin_cli.matchers.activations.similarities import similarities
from rebasin_cli.spec.notation import words_of
from rebasin_cli.symmetry import assignment, permutation
from tests.matchers.test_am import batches, built, inferred, setting, shuffled, transformer
from tests.matchers.test_matchers import equal, plain_objective, randomised


def problem(name="mlp", **kwargs):
    network, fitted, data = setting(name)
    models = tuple(randomised(network.state_dict(), seed) for seed in range(2))
    return Problem(fitted, models, network=network, data=data, **kwargs)


def both_parts(given, perms, similar):
    """What the permutations are worth by activations and by weights, each as its definition says."""
    still = permutation.identity(given.fitted.words)
    value = best = 0.0
    for word, matrix in similar.items():
        matrix = matrix.double()
        mean = matrix.mean() * len(matrix)  # of all permutations
        value += assignment.total(matrix, perms[word]) - mean.item()
        best += assignment.total(matrix, assignment.solve(matrix).perm) - mean.item()
    norms = [0.0, 0.0]
    for name, axes in given.fitted.tensors.items():
        if name in given.fitted.statistics or not any(True for axis in axes for _ in words_of(axis)):
            continue
        for k, model in enumerate(given.models):
            tensor = model[name].double()
            if tensor.ndim == 1:
                tensor = tensor - tensor.mean()
            norms[k] += tensor.square().sum().item()
    weights = plain_objective(given.fitted, given.models, [still, perms])
    return value / best, weights / (norms[0] * norms[1]) ** 0.5


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_a_mix_of_nothing_is_weight_matching_and_of_everything_activation_matching(name):
    given = problem(name, seed=3)
    for mix, method in ((0, wm), (1, am)):
        found, alone = dual.match(given, dual.Options(mix=mix)), method.match(given)
        assert equal(found.permutations[0], alone.permutations[0])
        assert found.objective_after == alone.objective_after
    assert not equal(wm.match(given).permutations[0], am.match(given).permutations[0])


def test_nearly_nothing_and_nearly_everything_are_nearly_that():
    """The sum itself, and not only its ends, goes over into either method."""
    given = problem(seed=3)
    little, much = (dual.match(given, dual.Options(mix=mix)).permutations[0] for mix in (1e-7, 1 - 1e-7))
    assert equal(little, wm.match(given).permutations[0])
    similar = similarities(given, am.Options())["post"]
    for word, perm in am.match(given).permutations[0].items():
        assert assignment.total(similar[word], much[word]) == pytest.approx(
            assignment.total(similar[word], perm), rel=1e-5
        )


@pytest.mark.parametrize("cost", looking.COSTS)
@pytest.mark.parametrize("mix", [0.2, 0.7])
def test_the_objective_is_the_sum_of_both_parts_and_never_falls(cost, mix):
    options, states = dual.Options(mix=mix, cost=cost), []
    given = problem("resnet20" if mix > 0.5 and cost == "correlation" else "mlp")
    found = dual.match(replace(given, progress=states.append), options)
    similar = similarities(given, options)["post"]
    sets = [permutation.identity(given.fitted.words), *(state.permutations[0] for state in states)]
    heights = []
    for perms in sets:
        seen, weighed = both_parts(given, perms, similar)
        heights.append(mix * seen + (1 - mix) * weighed)
    told = [found.objective_before, *(state.objective for state in states)]
    assert told == pytest.approx(heights, rel=1e-4, abs=1e-5)
    assert all(later >= earlier - 1e-9 for earlier, later in zip(heights, heights[1:], strict=False))
    assert heights[-1] > heights[0] + 0.1 and len(states) > 1


def test_neither_part_alone_is_as_good_for_the_sum():
    given, options = problem(), dual.Options(mix=0.5)
    found = {
        "dual": dual.match(given, options), "wm": wm.match(given), "am": am.match(given)
    }  # fmt: skip
    similar = similarities(given, options)["post"]
    heights = {name: sum(both_parts(given, f.permutations[0], similar)) for name, f in found.items()}
    assert heights["dual"] > max(heights["wm"], heights["am"])


def test_equal_models_have_one_in_both_parts():
    given = problem()
    same = replace(given, models=(given.models[0],) * 2)
    found = dual.match(same, dual.Options(mix=0.3))
    seen, weighed = both_parts(same, found.permutations[0], similarities(same, am.Options())["post"])
    assert seen == pytest.approx(1) and permutation.is_identity(found.permutations[0])
    assert found.objective_after == pytest.approx(0.3 * seen + 0.7 * weighed, rel=1e-5)


def test_squared_distances_and_inner_products_mix_alike():
    """They differ by what no permutation changes, which is taken off."""
    given = problem()
    found = [dual.match(given, dual.Options(cost=cost)).permutations[0] for cost in ("inner", "l2")]
    assert equal(*found)
    assert not equal(found[0], dual.match(given, dual.Options(cost="correlation")).permutations[0])


@pytest.mark.parametrize("name", ["mlp", "resnet20", "transformer"])
@pytest.mark.parametrize("at", ["post", "pre"])
def test_a_planted_permutation_is_recovered_heads_included(name, at):
    network, fitted, data = setting(name)
    model = randomised(network.state_dict(), 0)
    hidden, perm = shuffled(model, fitted)
    given = Problem(fitted, (model, hidden), network=network, data=data)
    found = dual.match(given, dual.Options(at=at)).permutations[0]
    assert equal(found, permutation.invert(perm))


def test_heads_and_their_units_keep_the_function_and_gain_by_both():
    network, data = transformer(), batches(6, 5)
    fitted = inferred(network, data)
    a, b = (randomised(network.state_dict(), seed) for seed in range(2))
    aligned = rebasin_cli.align(
        a, b, fitted, method="dual", network=network, data=data, inputs=data[0][0][:2]
    )
    permutation.check(aligned.permutations[0], fitted.words, within=fitted.within)
    assert not permutation.is_identity(aligned.permutations[0]) and aligned.proof is not None
    assert aligned.result.objective_after > aligned.result.objective_before


def test_models_that_are_read_when_asked_for_are_matched_alike():
    given = problem()
    lazy = tuple(
        LazyTensors({n: tuple(t.shape) for n, t in m.items()}, {n: t.dtype for n, t in m.items()}, m.get)
        for m in given.models
    )
    found, expected = (dual.match(p) for p in (replace(given, models=lazy), given))
    assert equal(found.permutations[0], expected.permutations[0])


def test_units_that_the_data_never_wakes_are_matched_by_their_weights():
    network, fitted, data = built("mlp")
    models = [randomised(network.state_dict(), seed) for seed in range(2)]
    for model in models:
        for layer in range(3):
            model[f"layers.{layer}.bias"][:] = -1e3
    given = Problem(fitted, tuple(models), network=network, data=data)
    assert equal(dual.match(given).permutations[0], wm.match(given).permutations[0])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mix": -0.1}, "--mix -0.1"),
        ({"mix": 1.5}, "--mix 1.5"),
        ({"mix": float("nan")}, "--mix nan"),
        ({"at": "both"}, "--at post-then-pre"),
        ({"at": "constrained"}, "--at constrained"),
        ({"effort": "utmost"}, "unknown effort"),
        ({"cost": "cosine"}, "unknown cost"),
    ],
)
def test_options_that_make_no_sense_are_refused(wrong, says):
    with pytest.raises(UsageError, match=says):
        dual.Options(**wrong)


def test_what_is_missing_is_said():
    given = problem()
    with pytest.raises(UsageError, match="dual needs the network and data"):
        dual.match(replace(given, data=None))
    with pytest.raises(UsageError, match="dual matches two models, not 3"):
        dual.match(replace(given, models=(*given.models, given.models[0])))
    with pytest.raises(UsageError, match="dual runs the network on data"):
        rebasin_cli.align(*given.models, given.fitted, method="dual")
