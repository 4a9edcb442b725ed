"""Frank-Wolfe through the universe: what `test_matchers` does not ask of every method."""

import math
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from rebasin_cli.errors import UsageError
from rebasin_cli.matchers import Problem, State, merge_many, universe
from rebasin_cli.matchers.descent.many import Many
from rebasin_cli.matchers.descent.mixtures import Mixtures
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import permutation
from rebasin_cli.symmetry.elements import Elements

SPEC = """
tensors:
  input: "h . "
  bias: "h"
  scale: "h"
  recurrent: "h h"
  middle: "g h 2"
  output: ". (g 3)"
"""
SHAPES = {
    "input": (6, 3),
    "bias": (6,),
    "scale": (6,),
    "recurrent": (6, 6),
    "middle": (4, 6, 2),
    "output": (2, 12),
}
HEADS = """
tensors:
  query: "(heads d*) ."
  value: "(heads v*) ."
  gate: "heads"
  output: ". (heads v*)"
  key: "(heads d*) ."
"""
HEAD_SHAPES = {"query": (6, 5), "value": (12, 5), "gate": (3,), "output": (5, 12), "key": (6, 5)}


def models(shapes, count=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return tuple(
        {name: torch.randn(shape, generator=rng, dtype=torch.float64) for name, shape in shapes.items()}
        for _ in range(count)
    )


def fitted(text=SPEC, shapes=SHAPES, **sizes):
    lines = "".join(f"\n  {word}: {size}" for word, size in sizes.items())
    return fit(parse(text + (f"sizes:{lines}\n" if sizes else ""), name="test"), shapes)


HEADED = {"d": 2, "v": 4}


def dense(model, mix):
    """The model under matrices, axis by axis, as one would write it."""
    h, g = mix["h"], mix["g"]
    return {
        "input": h @ model["input"],
        "bias": h @ model["bias"],
        "scale": h @ model["scale"],
        "recurrent": h @ model["recurrent"] @ h.T,
        "middle": torch.einsum("ag,bh,ghk->abk", g, h, model["middle"]),
        "output": torch.einsum("ag,cgk->cak", g, model["output"].view(2, 4, 3)).reshape(2, 12),
    }


def of_pairs(mixed):
    return sum((x[name] * y[name]).sum().item() for x, y in combinations(mixed, 2) for name in x)


def identities():
    return {"h": torch.eye(6, dtype=torch.float64), "g": torch.eye(4, dtype=torch.float64)}


def drawn(seed):
    return permutation.random({"h": 6, "g": 4}, torch.Generator().manual_seed(seed))


def elements(*numbers):
    return [Elements(drawn(seed)) for seed in numbers]


def mixtures_of(some):
    return Mixtures(some, fitted(), dict.fromkeys(SHAPES, 1.0))


def towards(mix, perms, alpha):
    return {
        word: (1 - alpha) * mix[word] + alpha * torch.eye(len(perm), dtype=torch.float64)[perm]
        for word, perm in perms.items()
    }


def test_a_mixed_model_is_the_model_under_doubly_stochastic_matrices():
    (model,) = models(SHAPES, 1)
    mixtures, mix = mixtures_of([model]), identities()
    for seed, alpha in enumerate((0.3, 0.75, 0.1)):
        mixtures.step(elements(seed), alpha)
        mix = towards(mix, drawn(seed), alpha)
    expected = dense(model, mix)
    for atom in mixtures.atoms:
        torch.testing.assert_close(mixtures.mixed(0, atom), atom.view(expected[atom.tensor]))


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.55, 1.0])
def test_the_line_is_the_objective_on_the_way(alpha):
    some = models(SHAPES)
    mixtures = mixtures_of(some)
    mixtures.step(elements(0, 1, 2), 0.35)
    found = mixtures.line(elements(10, 11, 12))(alpha)
    mixes = [towards(towards(identities(), drawn(k), 0.35), drawn(k + 10), alpha) for k in range(3)]
    assert found == pytest.approx(of_pairs([dense(m, mix) for m, mix in zip(some, mixes, strict=True)]))


def test_corners_are_best_for_the_gradient():
    some = models(SHAPES)
    mixtures, mixes = mixtures_of(some), []
    mixtures.step(elements(0, 1, 2), 0.35)
    corners = mixtures.corners()
    for k in range(3):
        mix = towards(identities(), drawn(k), 0.35)
        mixes.append({word: matrix.requires_grad_() for word, matrix in mix.items()})
    shown = [dense(model, mix) for model, mix in zip(some, mixes, strict=True)]
    total = sum((x[name] * y[name]).sum() for x, y in combinations(shown, 2) for name in x)
    total.backward()
    for element, mix in zip(corners, mixes, strict=True):
        for word, matrix in mix.items():
            best = permutation_value(matrix.grad)
            rows = torch.arange(len(matrix))
            assert matrix.grad[rows, element.permutations[word]].sum().item() == pytest.approx(best)


def permutation_value(gradient):
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(gradient.numpy(), maximize=True)
    return gradient.numpy()[rows, columns].sum()


def test_the_best_share_is_where_the_polynomial_is_largest():
    from numpy.polynomial import Polynomial

    assert universe.best_share(Polynomial([0.0, 1.0, -1.0])) == pytest.approx(0.5)
    assert universe.best_share(Polynomial([0.0, 1.0])) == 1.0
    assert universe.best_share(Polynomial([1.0, -1.0])) == 0.0
    assert universe.best_share(Polynomial([2.0])) == 0.0
    quartic = Polynomial([0.0, 1.0, 3.0, -9.0, 4.9])
    grid = max((k / 1000 for k in range(1001)), key=quartic)
    assert universe.best_share(quartic) == pytest.approx(grid, abs=1e-3)


def states_of(problem, options):
    states = []
    result = universe.match(replace(problem, progress=states.append), options)
    return result, states


def test_frank_wolfe_never_loses_objective_nor_do_the_rounds_after_it():
    some = models({name: tuple(4 * n if n in (4, 6, 12) else n for n in s) for name, s in SHAPES.items()})
    wide = fit(parse(SPEC, name="test"), {name: tuple(t.shape) for name, t in some[0].items()})
    result, states = states_of(Problem(wide, some), universe.Options(gain=1e-5))
    mixing = [state.objective for state in states if "steps" in state.tensors]
    rounds = [state.objective for state in states if "steps" not in state.tensors]
    assert len(mixing) > 3 and rounds
    for heights in (mixing, rounds):
        assert all(b >= a - 1e-9 for a, b in zip(heights, heights[1:], strict=False))
    assert result.objective_after == rounds[-1] > result.objective_before
    assert result.converged and result.sweeps == len(states)


def test_without_rounds_the_mixtures_are_rounded():
    some = models(SHAPES)
    result, states = states_of(Problem(fitted(), some), universe.Options(ascent=False))
    assert all("steps" in state.tensors for state in states) and result.converged
    sets = [permutation.identity({"h": 6, "g": 4}), *result.permutations]
    moved = [permutation.permuted(m, fitted(), p) for m, p in zip(some, sets, strict=True)]
    assert result.objective_after == pytest.approx(of_pairs([dict(m) for m in moved]))


def test_rounding_takes_the_permutations_nearest_to_the_mixtures():
    for shares, wanted in (((1.0, 0.3), 0), ((1.0, 0.7), 3), ((0.8, 0.0), 0), ((0.4, 0.1), None)):
        mixtures = mixtures_of(models(SHAPES))
        for first, share in zip((0, 3), shares, strict=True):
            mixtures.step(elements(*range(first, first + 3)), share)
        for k, matrices in enumerate(mixtures.current):
            found = mixtures.nearest(matrices).permutations
            expected = permutation.identity({"h": 6, "g": 4}) if wanted is None else drawn(wanted + k)
            assert all(torch.equal(found[word], expected[word]) for word in found)


@pytest.mark.sweep
def test_an_interrupted_mixture_goes_on_from_what_a_state_holds():
    problem, options = Problem(fitted(), models(SHAPES), seed=1), universe.Options(gain=0.01)
    whole, states = states_of(problem, options)
    mixing = [state for state in states if "steps" in state.tensors]
    assert 2 <= len(mixing) < len(states) < 60
    for state in [mixing[0], mixing[-1], *states[len(mixing) : -1 : 8]]:
        kept = State(
            state.permutations,
            state.sweep,
            state.objective,
            dict(state.notes),
            {name: tensor.clone() for name, tensor in state.tensors.items()},
        )
        seen = []
        again = universe.match(replace(problem, start=kept, progress=seen.append), options)
        assert [s.sweep for s in seen] == [s.sweep for s in states[state.sweep :]]
        assert [s.objective for s in seen] == [s.objective for s in states[state.sweep :]]
        assert again.objective_after == whole.objective_after and again.sweeps == whole.sweeps
        for p, q in zip(again.permutations, whole.permutations, strict=True):
            assert all(torch.equal(p[word], q[word]) for word in p)


def test_a_state_that_lacks_something_is_refused_by_one_message():
    problem, options = Problem(fitted(), models(SHAPES), seed=1), universe.Options(gain=0.01)
    states = states_of(problem, options)[1]
    for lacks in ("corner", "objectives", "begun", "ended"):
        state = next(s for s in states if lacks in s.notes or any(n.startswith(lacks) for n in s.tensors))
        less = replace(
            state,
            notes={name: note for name, note in state.notes.items() if name != lacks},
            tensors={name: tensor for name, tensor in state.tensors.items() if not name.startswith(lacks)},
        )
        with pytest.raises(UsageError, match="cannot go on: what was kept of it lacks"):
            universe.match(replace(problem, start=less), options)


def test_units_within_heads_are_mixed_together_with_their_heads():
    spec = fitted(HEADS, HEAD_SHAPES, **HEADED)
    (model,) = models(HEAD_SHAPES, 1)
    rng = torch.Generator().manual_seed(3)
    planted = [permutation.random(spec.words, rng, within=spec.within) for _ in range(2)]
    others = [dict(permutation.permuted(model, spec, perms)) for perms in planted]
    result = universe.match(Problem(spec, (model, *others)))
    for found, perms in zip(result.permutations, planted, strict=True):
        permutation.check(found, spec.words, within=spec.within)
        assert all(torch.equal(found[w], p) for w, p in permutation.invert(perms).items())
    apart = universe.match(Problem(spec, models(HEAD_SHAPES)), universe.Options(ascent=False))
    for found in apart.permutations:
        permutation.check(found, spec.words, within=spec.within)


def test_the_merge_in_the_universe_is_the_merge_of_the_results():
    some = models(SHAPES)
    problem = Problem(fitted(), some)
    result, states = states_of(problem, universe.Options(effort="fast"))
    order = universe.by_norm(problem)
    there = [states[-1].permutations[order.index(k)] for k in range(3)]

    def mean(sets):
        moved = [permutation.permuted(m, fitted(), p) for m, p in zip(some, sets, strict=True)]
        return {name: sum(m[name] for m in moved) / len(moved) for name in SHAPES}

    here = mean([permutation.identity({"h": 6, "g": 4}), *result.permutations])
    carried = permutation.permuted(here, fitted(), there[0])
    for name, tensor in mean(there).items():
        torch.testing.assert_close(carried[name], tensor)


def test_two_models_at_least():
    with pytest.raises(UsageError, match="universe needs at least two models"):
        universe.match(Problem(fitted(), models(SHAPES, 1)))


def test_no_objective_exceeds_the_limit():
    many = Many(Problem(fitted(), models(SHAPES)), "test", 0.0)
    norms = [math.sqrt(sum(t.square().sum().item() for t in m.values())) for m in models(SHAPES)]
    assert many.limit() == pytest.approx(sum(x * y for x, y in combinations(norms, 2)))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 6))])
def test_no_result_is_below_that_of_merge_many(seed):
    problem = Problem(fitted(), tuple(reversed(models(SHAPES, 4))), seed=seed)
    for effort in ("normal", "high"):
        least = merge_many.match(problem, merge_many.Options(effort=effort))
        found = universe.match(problem, universe.Options(effort=effort))
        assert found.objective_after >= least.objective_after - 1e-9
