"""Teacher and student: closed forms against differences, draws and counting."""

import itertools
import math

import pytest
import torch

from rebasin_cli.errors import UsageError
from rebasin_cli.lab import overlap, teacher_barrier
from rebasin_cli.lab.teacher import descent, minima, systems


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def test_the_kernel_at_three_angles():
    found = systems.kernel(torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.5, 1 / (2 * math.pi), 0], abs=1e-15)


def test_the_loss_is_the_mean_over_gaussian_inputs():
    students = random(3, 4, 6)
    x = random(200_000, 6, seed=1)
    errors = (systems.outputs(students, x) - x[:, :3].relu().sum(1)) ** 2 / 2
    distance = (errors.mean(1) - systems.loss(students, 3)) / (errors.std(1) / math.sqrt(len(x)))
    assert distance.abs().max() < 3.5


def test_the_gradient_is_that_of_the_loss():
    students, small = random(2, 4, 5), 1e-6
    slope = systems.gradient(students, 3)
    for i, j in itertools.product(range(4), range(5)):
        moved = torch.zeros_like(students)
        moved[:, i, j] = small
        difference = systems.loss(students + moved, 3) - systems.loss(students - moved, 3)
        assert torch.allclose(slope[:, i, j], difference / (2 * small), atol=1e-8, rtol=0)


def test_a_row_of_zeros_has_the_loss_and_the_gradient_of_the_rest():
    students = torch.cat([random(2, 3, 4), torch.zeros(2, 1, 4).double()], 1)
    assert torch.allclose(systems.loss(students, 3), systems.loss(students[:, :3], 3), rtol=1e-14)
    assert torch.allclose(systems.gradient(students, 3)[:, :3], systems.gradient(students[:, :3], 3))
    assert systems.gradient(students, 3).isfinite().all()


def test_minima_have_no_loss_and_every_other_student_has():
    found = minima.drawn(20, 13, 5, generator())
    assert systems.loss(found, 5).abs().max() < 1e-14 and systems.gradient(found, 5).abs().max() < 1e-14
    assert (systems.loss(random(20, 13, 5), 5) > 0).all()
    assert torch.equal((found != 0).sum(2), torch.ones(20, 13, dtype=torch.int64))
    assert torch.allclose(found.sum(1), torch.ones(20, 5).double())
    with pytest.raises(UsageError):
        minima.drawn(1, 4, 5, generator())


def test_the_order_of_rows_changes_nothing():
    students = random(2, 6, 4)
    assert torch.allclose(
        systems.loss(students, 3), systems.loss(students[:, torch.randperm(6)], 3), rtol=1e-13
    )


def test_types_are_drawn_evenly_and_sizes_from_a_simplex():
    found = minima.drawn(20_000, 4, 2, generator())
    counts = minima.counts_of(found, 2)
    shares = [(counts[:, 0] == k).double().mean().item() for k in (1, 2, 3)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.015)  # 1 + a binomial
    three = found[counts[:, 0] == 3][:, :, 0]
    largest = three.max(1).values.mean().item()
    assert largest == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, abs=0.01)


def test_the_mean_overlap_by_counting_all_that_can_be_drawn():
    """Two types and two rows more: each minimum has 1 + Bin(2, ½) rows of the first."""
    chances = {1: 0.25, 2: 0.5, 3: 0.25}
    mean = sum(
        p * q * (min(u, v) + min(4 - u, 4 - v)) / 4
        for (u, p), (v, q) in itertools.product(chances.items(), repeat=2)
    )
    assert minima.expected_overlap(4, 2) == pytest.approx(mean)
    assert minima.expected_overlap(7, 7) == 1


def test_draws_have_the_overlap_of_the_formula():
    one, other = (minima.drawn(4_000, 23, 10, generator(seed)) for seed in (1, 2))
    shares = minima.overlap(one, other, 10)
    assert abs(shares.mean() - minima.expected_overlap(23, 10)) < 3 * shares.std() / math.sqrt(4_000)


@pytest.mark.parametrize(
    ("units", "at", "value"), [(5, 11, 0.7606), (10, 23, 0.7473), (20, 46, 0.7411), (100, 229, 0.7363)]
)
def test_where_the_overlap_is_lowest(units, at, value):
    assert overlap.lowest(units) == at
    assert minima.expected_overlap(at, units) == pytest.approx(value, abs=5e-5)
    assert minima.expected_overlap(2 * units, units) > minima.expected_overlap(at, units)


def test_the_limit_of_the_lowest_overlap():
    assert overlap.limit() == pytest.approx(2.2922, abs=1e-4)
    assert minima.limit_overlap(overlap.limit()) == pytest.approx(0.73516, abs=1e-5)
    assert minima.expected_overlap(20_000, 10_000) == pytest.approx(minima.limit_overlap(2), abs=1e-4)


def test_algorithm_1_finds_a_planted_order():
    student = minima.drawn(1, 30, 5, generator())[0]
    order = torch.randperm(30, generator=generator(3))
    perm = minima.by_type(student, student[order])
    assert torch.equal(order[perm], torch.arange(30))


@pytest.mark.parametrize("method", minima.METHODS)
def test_what_methods_return_are_permutations(method):
    one, other = minima.drawn(2, 30, 5, generator())
    assert torch.equal(minima.METHODS[method](one, other).sort().values, torch.arange(30))


def test_algorithm_1_pairs_types_first_then_norms_and_leaves_the_rest_in_order():
    def student(*rows):
        made = torch.zeros(len(rows), 2, dtype=torch.float64)
        for row, (kind, size) in zip(made, rows, strict=True):
            row[kind] = size
        return made

    one = student((0, 0.2), (0, 0.7), (1, 1.0), (0, 0.1))
    other = student((1, 0.4), (0, 0.9), (1, 0.6), (0, 0.1))
    assert minima.by_type(one, other).tolist() == [3, 1, 2, 0]
    assert minima.by_type(one, other, sort=False).tolist() == [1, 3, 0, 2]


def test_no_barrier_where_all_units_have_partners():
    """As many of each type, in any sizes: on the way each type keeps its sum."""
    one, other = minima.drawn(2, 12, 1, generator())
    perm = minima.by_type(one, other)
    assert systems.barrier(one[None], other[perm][None], 1).item() == pytest.approx(0, abs=1e-14)


def test_the_barrier_is_the_highest_point_of_the_grid_above_the_chord():
    one, other = random(3, 4, 3), random(3, 4, 3, seed=1)
    path = [
        systems.loss(torch.lerp(one, other, k / 10), 3)
        - torch.lerp(systems.loss(one, 3), systems.loss(other, 3), k / 10)
        for k in range(11)
    ]
    assert torch.allclose(systems.barrier(one, other, 3), torch.stack(path).max(0).values.clamp_min(0))


def test_barriers_do_not_depend_on_the_number_of_inputs():
    few, many = (
        torch.tensor(teacher_barrier.barriers(4, 9, 5, generator(), inputs=inputs)) for inputs in (4, 40)
    )
    assert few.shape == (5, 4) and torch.allclose(few, many, rtol=1e-12, atol=1e-13)


def test_a_slope_is_that_of_a_power():
    heights = torch.tensor([[5 * m**-1.5 for m in (1, 2, 8, 64)], [3.0] * 4], dtype=torch.float64)
    assert teacher_barrier.slope([1, 2, 8, 64], heights).tolist() == pytest.approx([-1.5, 0])


@pytest.mark.sweep
def test_descent_reaches_a_minimum_and_marks_what_diverges():
    start = descent.initial(4, 6, 2, 0.1, generator())
    ends = descent.descend(start, 2, 2.0, 3_000)
    assert systems.loss(ends, 2).max() < 1e-6
    both = descent.descend(start, 2, torch.tensor([2.0, 500.0, 2.0, 500.0]), 400)
    assert both.isnan().flatten(1).any(1).tolist() == [False, True, False, True]
    assert torch.allclose(both[0], descent.descend(start[:1], 2, 2.0, 400)[0], rtol=1e-12)


def test_sgd_falls_towards_the_teacher():
    start = descent.initial(3, 6, 2, 0.1, generator())
    ends = descent.stochastic(start, 2, 1.0, 400, generator(1))
    assert (systems.loss(ends, 2) < 0.2 * systems.loss(start, 2)).all()
    again = descent.stochastic(start, 2, 1.0, 400, generator(1))
    assert torch.equal(ends, again)


def test_the_pq_index_of_one_entry_and_of_equal_ones():
    one = torch.zeros(25, dtype=torch.float64)
    one[3] = -2.0
    assert systems.pq_index(one, 0.5, 1.0).item() == pytest.approx(0.96)
    assert systems.pq_index(torch.full((25,), 3.0).double(), 0.5, 1.0).item() == pytest.approx(0)
    assert systems.pq_index(one, 1.0, 2.0).item() == pytest.approx(0.8)
