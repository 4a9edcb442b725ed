"""Kicks: where rounds of many models go on once all starts have ended."""

import pytest
import torch

from rebasin_cli.matchers import Problem, merge_many
from rebasin_cli.matchers.descent import rounds, starts
from rebasin_cli.spec.fits import fit
from rebasin_cli.spec.parser import parse
from rebasin_cli.symmetry import elements as acts

SHAPES = {"a": (40, 5), "b": (40,), "c": (30, 40), "d": (4, 30)}
SPEC = fit(parse('tensors: {a: "h .", b: "h", c: "g h", d: ". g"}', name="test"), SHAPES)
TURNING = """
tensors: {a: "h .", b: "h", c: "(heads d*) h", d: ". (heads d*)"}
groups: {h: signed, d: GL}
"""


def models(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return tuple({n: torch.randn(s, generator=rng) for n, s in SHAPES.items()} for _ in range(count))


def test_kicks_find_more_than_the_starts_alone():
    problem = Problem(SPEC, models(3))
    search = rounds.Rounds(problem, merge_many.starts(problem, merge_many.Options()))
    search.run(100)
    found = merge_many.match(problem)
    assert found.converged and found.objective_after > search.best[0] + 1e-3
    assert found.sweeps > search.sweep


@pytest.mark.sweep
def test_kicks_take_no_more_than_twice_the_rounds_of_the_starts_whatever_they_gain():
    seen = []
    problem = Problem(SPEC, models(8), progress=seen.append)
    starts = len(merge_many.starts(problem, merge_many.Options()))
    found = merge_many.match(problem)
    begun = next(state.sweep for state in seen if state.notes["start"] == starts)
    assert begun < found.sweeps <= 3 * begun + 20  # the last kick's rounds come to their end


def test_a_turn_kicks_one_model_after_the_other_and_every_third_turn_all():
    problem = Problem(SPEC, models(3))
    begun = merge_many.starts(problem, merge_many.Options())[0]
    standing = [drawn(SPEC, seed) for seed in range(3)]
    moved = []
    for start in rounds.kicks(begun.many, begun.order, 3):
        after = start._kicked(standing)
        moved.append(
            [k for k in range(3) if (after[k].permutations["h"] != standing[k].permutations["h"]).any()]
        )
    assert moved == [[0], [1], [2], *([[0, 1, 2]] * 3), [0], [1], [2]]


def test_of_many_models_a_few_are_joined_first_and_kicked_in_a_turn():
    problem = Problem(SPEC, models(20))
    begun, *_ = every = merge_many.starts(problem, merge_many.Options())
    assert [start.joining[:1] for start in every] == [*((2 * k,) for k in range(10)), ()]
    assert [start.kick for start in rounds.kicks(begun.many, begun.order, 2, few=True)] == [
        (k // 10, k) for k in range(20)
    ]
    assert len(rounds.kicks(begun.many, begun.order, 2)) == 40
    assert len(merge_many.starts(problem, merge_many.Options(effort="high"))) == 41


def test_a_start_that_falls_behind_is_given_up_and_one_that_comes_near_is_not():
    problem = Problem(SPEC, models(6))
    begun = merge_many.starts(problem, merge_many.Options())
    search = rounds.Rounds(problem, begun)
    search.number, search.sweep, search.ended = 1, 2, (10.0, [])
    search.last = 8.0
    assert search._behind(8.3) and search.last == 8.3  # 1.2 more in four rounds
    search.last = 8.0
    assert not search._behind(8.5)
    search.last, search.sweep = 8.4, 1  # the round before was another start's
    assert not search._behind(8.4)
    search.sweep, search.problem = 2, Problem(SPEC, models(5))
    assert not search._behind(8.4)


def test_a_model_is_matched_again_only_after_another_one_moved():
    problem = Problem(SPEC, models(4))
    many = merge_many.starts(problem, merge_many.Options())[0].many
    number = 0
    while many.round(number):
        number += 1
    solves = many.solves
    assert not many.round(number + 1) and many.solves == solves
    many.current = [*many.current[:3], drawn(SPEC, 5)]
    many.round(number + 2)
    assert many.solves > solves


def test_models_that_nearly_match_are_not_kicked():
    (one,) = models(1)
    problem = Problem(SPEC, tuple(acts.acted(one, SPEC, drawn(SPEC, seed)) for seed in range(3)))
    seen = []
    merge_many.match(Problem(SPEC, problem.models, progress=seen.append))
    assert all(state.notes["start"] <= 4 for state in seen)  # as they stand, three joins, the end


def drawn(fitted, seed):
    return acts.random(fitted, torch.Generator().manual_seed(seed))


def test_a_kick_moves_units_and_stays_in_the_groups():
    fitted = fit(parse(TURNING + "sizes: {d: 6}\n", name="test"), SHAPES)
    element = drawn(fitted, 3)
    after = starts.jolted(element, fitted, torch.Generator().manual_seed(0))
    acts.check(after, fitted)
    moved = (after.permutations["h"] != element.permutations["h"]).sum()
    assert moved == round(starts.KICK * 40)
    assert sorted(after.maps["d"].flatten().tolist()) == sorted(element.maps["d"].flatten().tolist())


def test_a_kick_leaves_units_that_are_turned_together_as_they_are():
    fitted = fit(
        parse('tensors: {a: "h .", b: "h", c: "g h", d: ". g"}\ngroups: {g: O}', name="test"), SHAPES
    )
    element = drawn(fitted, 3)
    after = starts.jolted(element, fitted, torch.Generator().manual_seed(0))
    acts.check(after, fitted)
    assert torch.equal(after.maps["g"], element.maps["g"])
    assert not torch.equal(after.permutations["h"], element.permutations["h"])
