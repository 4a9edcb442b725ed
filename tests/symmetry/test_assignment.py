"""One linear assignment, exactly, whoever solves it."""

import importlib
import itertools
import math
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from rebasin_cli.errors import CheckpointError, UsageError
from rebasin_cli.symmetry import assignment
from tests import processes

needs_compiled = pytest.mark.skipif(assignment._lap is None, reason="built without a C compiler")


@pytest.fixture(params=["compiled", "scipy"])
def solver(request, monkeypatch):
    if request.param == "compiled" and assignment._lap is None:
        pytest.skip("built without a C compiler")
    if request.param == "scipy":
        monkeypatch.setattr(assignment, "_lap", None)
    assert assignment.compiled() == (request.param == "compiled")


def randoms(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def replace(found: assignment.Solution, **parts: torch.Tensor) -> assignment.Solution:
    """The same solution with other numbers in some of its parts."""
    names = ("perm", "rows", "columns", "margins")
    perm, *duals = (parts.get(name, getattr(found, name)) for name in names)
    return assignment.Solution(perm, duals)


def random_matrix(
    m: int, seed: int, n: int | None = None, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    return torch.randn(m, n or m, generator=randoms(seed), dtype=torch.float64).to(dtype)


def trained_like(n: int, seed: int) -> torch.Tensor:
    """Low rank with a strong common direction: hard, as every row wants the same columns."""
    a, b = random_matrix(n, seed, 12), random_matrix(n, seed + 1, 12)
    return ((a + 1).relu() @ (b + 1).relu().T).float()


def tied_blocks(n: int, seed: int) -> torch.Tensor:
    rows, columns = (torch.randint(0, 4, (n,), generator=randoms(seed + k)) for k in (0, 1))
    return random_matrix(4, seed)[rows][:, columns]


def dead_units(n: int, seed: int) -> torch.Tensor:
    similarity = random_matrix(n, seed, dtype=torch.float32)
    similarity[n // 2 :] = 0
    similarity[:, n // 3 : n - n // 4] = 0
    return similarity


def integers(n: int, seed: int, below: int = 5) -> torch.Tensor:
    return torch.randint(0, below, (n, n), generator=randoms(seed)).float()


MATRICES = {
    "float64": random_matrix(70, 0),
    "float32": random_matrix(64, 1, dtype=torch.float32),
    "odd size": random_matrix(93, 2, dtype=torch.float32),
    "low rank": trained_like(90, 3),
    "very low rank": random_matrix(60, 4, 2) @ random_matrix(2, 5, 60),
    "outer product": torch.outer(torch.arange(40.0), torch.arange(40.0)),
    "integers": integers(50, 6),
    "bits": integers(45, 7, below=2),
    "tenths": integers(33, 8, below=30) * 0.1,
    "tied blocks": tied_blocks(48, 9),
    "dead units": dead_units(60, 10),
    "constant": torch.full((37, 37), 0.1),
    "an offset": random_matrix(40, 11) + 1e6,
    "wide": random_matrix(20, 12, 31),
    "tall": random_matrix(31, 13, 20),
    "wide, ties": integers(30, 14)[:20],
    "tall, ties": integers(30, 15)[:, :20],
    "one": torch.tensor([[-3.0]]),
    "one row": random_matrix(1, 16, 9),
    "tiny": random_matrix(30, 17, dtype=torch.float32) * 1e-38,
    "huge": random_matrix(30, 18, dtype=torch.float32).clamp(-3, 3) * 1e38,
    "huge double": random_matrix(30, 19).clamp(-3, 3) * 3e299,
    "both": random_matrix(30, 20) * 10.0 ** (76 * random_matrix(30, 21).sign() / 2),
}


def best_total(similarity: torch.Tensor) -> float:
    matrix = similarity.double().numpy()
    rows, columns = linear_sum_assignment(matrix, maximize=True)
    return math.fsum(matrix[rows, columns])


def rounding(similarity: torch.Tensor) -> float:
    return 1e-13 * max(similarity.shape) * similarity.abs().max().double().item()


def proves_itself(similarity: torch.Tensor, found: assignment.Solution) -> None:
    m, n = similarity.shape
    taken = sorted(j for j in found.perm.tolist() if j >= 0)
    assert len(set(taken)) == len(taken) == min(m, n) and max(taken) < n
    slack = found.rows[:, None] + found.columns - similarity.double()
    pairs = [(i, j) for i, j in enumerate(found.perm.tolist()) if j >= 0]
    close = rounding(similarity)
    assert slack.min() >= -close and all(abs(slack[i, j].item()) <= close for i, j in pairs)
    assert abs(assignment.certificate(similarity, found)) <= close
    assert assignment.total(similarity.double(), found.perm) == pytest.approx(
        best_total(similarity), abs=close
    )


@pytest.mark.parametrize("n", range(1, 7))
def test_of_all_permutations_it_is_the_first_of_the_best(n, solver):
    for seed, make in itertools.product(range(3), (random_matrix, integers)):
        similarity = make(n, seed)
        worth = {p: math.fsum(similarity[i, j].item() for i, j in enumerate(p)) for p in
                 itertools.permutations(range(n))}  # fmt: skip
        most = max(worth.values())
        first = min(p for p in worth if worth[p] == most)
        found = assignment.solve(similarity)
        assert found.perm.dtype == torch.int64
        assert tuple(found.perm.tolist()) == first, (seed, make)


@pytest.mark.parametrize("name", MATRICES)
def test_every_solution_is_scipys_optimum_and_brings_its_proof(name, solver):
    found = assignment.solve(MATRICES[name])
    assert found.rows.dtype == found.columns.dtype == torch.float64
    proves_itself(MATRICES[name], found)


@needs_compiled
@pytest.mark.parametrize("name", MATRICES)
def test_the_compiled_solver_and_scipy_agree_on_every_permutation(name, monkeypatch):
    found = assignment.solve(MATRICES[name]).perm
    monkeypatch.setattr(assignment, "_lap", None)
    assert torch.equal(assignment.solve(MATRICES[name]).perm, found)


@pytest.mark.parametrize("name", MATRICES)
def test_no_start_changes_the_answer(name, solver):
    similarity = MATRICES[name]
    cold, (m, n) = assignment.solve(similarity), similarity.shape
    scale = similarity.abs().max().double().item()
    columns = torch.randn(n, generator=randoms(0), dtype=torch.float64)
    backwards = torch.arange(n).flip(0)[:m] if m <= n else torch.full((m,), n // 2)
    for perm, prices in [
        (cold.perm, cold.columns),
        (backwards, cold.columns),
        (torch.zeros_like(cold.perm), cold.columns),  # two rows may want it, one can have it
        (cold.perm, columns * scale),
        (torch.zeros_like(cold.perm), columns * 1e300),  # not a permutation, and prices beyond all measure
        (cold.perm + 10**9, columns * 1e-300),
        (cold.perm, torch.full_like(columns, math.nan)),
        (-cold.perm, torch.full_like(columns, -math.inf)),
    ]:
        found = assignment.solve(similarity, start=replace(cold, perm=perm, columns=prices))
        assert torch.equal(found.perm, cold.perm)
        proves_itself(similarity, found)


def test_a_similar_matrix_solves_from_there(solver):
    similarity, other = trained_like(130, 0), trained_like(130, 40)
    for step in (1e-6, 1e-3, 0.1, 1.0):
        moved = torch.lerp(similarity, other, step)
        warm = assignment.solve(moved, start=assignment.solve(similarity))
        proves_itself(moved, warm)
        assert torch.equal(warm.perm, assignment.solve(moved).perm)


def slack_elsewhere(similarity: torch.Tensor, found: assignment.Solution) -> torch.Tensor:
    """By how much each row (m,) would lose in the best column but its own."""
    slack = found.rows[:, None] + found.columns - similarity.double()
    slack[torch.arange(len(slack)), found.perm] = math.inf
    return slack.min(dim=1).values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_margins_from_a_start_are_no_larger_than_they_should_be(dtype, solver):
    for seed, step in enumerate((0.0, 1e-4, 1e-2, 0.3)):
        similarity = torch.lerp(trained_like(70, 0), trained_like(70, 40), step).to(dtype)
        warm = assignment.solve(similarity, start=assignment.solve(trained_like(70, 0).to(dtype)))
        assert (warm.margins <= slack_elsewhere(similarity, warm) + rounding(similarity)).all()
        near = random_matrix(33, seed).to(dtype) + 9 * torch.eye(33, dtype=dtype)  # all is clear
        warm = assignment.solve(near, start=assignment.solve(near))
        torch.testing.assert_close(warm.margins, slack_elsewhere(near, warm), rtol=1e-5, atol=1e-5)


def test_prices_to_begin_with_lie_farther_within_those_that_are_optimal(solver):
    similarity = trained_like(60, 0).double()
    found = assignment.solve(similarity)
    least, mean = found.margins.min(), found.columns.mean()
    for _ in range(50):
        found = assignment.solve(similarity, start=found)
        assert found.margins.min() >= least - rounding(similarity)
        least = found.margins.min()
        torch.testing.assert_close(found.columns.mean(), mean)  # they do not rise with every solve
    if assignment.compiled():
        assert least > 10 * rounding(similarity) > assignment.solve(similarity).margins.min()


def test_preferences_that_float_cannot_tell_are_told(solver):
    for seed in range(40):
        steps, shuffled = integers(24, seed, below=40), torch.randperm(24, generator=randoms(seed))
        between = 2.0**20 + steps / 8  # entries are exact in float32, prices between two of them are not
        nearly = 1 + steps * 2.0**-23  # differences to prices as large as this are not
        cold = [assignment.solve(similarity) for similarity in (between, nearly)]
        prices = cold[0].columns + 0.1 * random_matrix(1, seed, 24)[0]
        for similarity, best, start in [
            (between, cold[0], replace(cold[0], columns=prices)),
            (nearly, cold[1], replace(cold[1], columns=torch.full_like(prices, 50), perm=shuffled)),
        ]:
            warm = assignment.solve(similarity, start=start)
            assert torch.equal(warm.perm, best.perm)
            proves_itself(similarity, warm)
            assert (warm.margins <= slack_elsewhere(similarity, warm) + rounding(similarity)).all()


def test_a_start_is_left_as_it_was(solver):
    start = assignment.solve(random_matrix(30, 0))
    before = [start.perm.clone(), start.rows.clone(), start.columns.clone()]
    assignment.solve(random_matrix(30, 1), start=start)
    assert all(map(torch.equal, before, (start.perm, start.rows, start.columns)))


def test_a_settled_solution_is_that_of_columns_in_its_order(solver):
    similarity = trained_like(50, 0)
    found = assignment.solve(similarity)
    placed, settled = similarity[:, found.perm], found.settled()
    assert settled.perm.tolist() == list(range(50)) and not torch.equal(settled.columns, found.columns)
    proves_itself(placed, settled)
    again = assignment.solve(placed, start=settled)
    assert torch.equal(again.perm, settled.perm)


def test_a_start_of_another_size_is_refused(solver):
    with pytest.raises(UsageError, match="4 × 4, but .* 3 × 3"):
        assignment.solve(random_matrix(4, 0), start=assignment.solve(random_matrix(3, 0)))


def test_a_worse_permutation_has_no_proof(solver):
    similarity = random_matrix(40, 0)
    found = assignment.solve(similarity)
    perm = found.perm.clone()
    perm[[0, 1]] = perm[[1, 0]]
    loss = assignment.total(similarity, found.perm) - assignment.total(similarity, perm)
    assert loss > 0.01
    assert assignment.certificate(similarity, replace(found, perm=perm)) >= loss - 1e-12
    mine = similarity[torch.arange(40), perm]  # tight for the worse one, so not feasible
    assert (
        assignment.certificate(
            similarity, replace(found, perm=perm, rows=mine, columns=torch.zeros(40).double())
        )
        >= loss
    )


@pytest.mark.parametrize("shape", [(4, 6), (6, 4)])
def test_the_proof_of_a_rectangle_pays_nobody_who_stays_alone(shape, solver):
    similarity = random_matrix(shape[0], 0, shape[1])
    found = assignment.solve(similarity)
    shifted = replace(found, rows=found.rows - 1, columns=found.columns + 1)
    assert assignment.certificate(similarity, shifted) > 0.5
    shifted = replace(found, rows=found.rows + 1, columns=found.columns - 1)
    assert assignment.certificate(similarity, shifted) > 0.5


def test_rows_are_reference_units_and_columns_model_units(solver):
    similarity = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]])
    assert assignment.solve(similarity).perm.tolist() == [1, 2, 0]
    assert assignment.solve(similarity[:2]).perm.tolist() == [1, 2]
    assert assignment.solve(similarity[:, :1]).perm.tolist() == [-1, -1, 0]
    assert assignment.total(similarity[:, :1], torch.tensor([-1, -1, 0])) == 1


def test_among_equals_everybody_stays_at_home(solver):
    n = 60
    similarity = random_matrix(n, 0, dtype=torch.float32).abs()
    similarity = similarity.T @ similarity  # every unit is most like itself
    for dead in (slice(0, 20), slice(30, 60), slice(5, 50, 3)):
        similarity[dead], similarity[:, dead] = 0, 0
        assert assignment.solve(similarity).perm.tolist() == list(range(n))
    assert assignment.solve(torch.zeros(n, n)).perm.tolist() == list(range(n))


@pytest.mark.parametrize("little", [1e-10, 2.0**-47])  # more, and less, than rounding makes of a reduced cost
def test_what_is_better_by_little_is_no_tie(little, solver):
    similarity = torch.ones(20, 20, dtype=torch.float64)
    similarity[3, 7] += little
    perm = assignment.solve(similarity).perm.tolist()
    assert perm == [0, 1, 2, 7, 3, 4, 5, 6, *range(8, 20)]


@pytest.mark.parametrize("make", [lambda: torch.ones(700, 700), lambda: dead_units(700, 0)])
def test_large_ties_are_settled(make, solver):
    similarity = make()
    found = assignment.solve(similarity)
    proves_itself(similarity, found)
    last = found.perm[-100:].tolist()
    assert last == sorted(last)


@pytest.mark.parametrize(
    "bad, dtype",
    [(x, d) for x in (math.nan, math.inf, -math.inf) for d in (torch.float32, torch.float64)]
    + [(1e301, torch.float64)],
)
@pytest.mark.parametrize("warm", [False, True])
def test_values_that_are_no_numbers_are_refused(bad, dtype, warm, solver):
    similarity = random_matrix(69, 0).to(dtype)
    start = assignment.solve(similarity) if warm else None
    for i, j in [(2, 1), (7, 31), (8, 32), (68, 68)]:  # vectors have up to 32; the last is in one of its own
        broken = similarity.clone()
        broken[i, j] = bad
        with pytest.raises(CheckpointError, match="NaN or infinite"):
            assignment.solve(broken, start=start)
        broken[3, 3] = -bad  # infinities of both signs do not hide each other
        with pytest.raises(CheckpointError, match="NaN or infinite"):
            assignment.solve(broken, start=start)
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        assignment.solve(broken[:9], start=None)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_nothing_is_solved_too(shape, solver):
    found = assignment.solve(torch.zeros(shape))
    assert found.perm.tolist() == [-1] * shape[0] and found.columns.shape == (shape[1],)
    assert (
        assignment.certificate(torch.zeros(shape), found)
        == assignment.total(torch.zeros(shape), found.perm)
        == 0
    )


def test_any_layout_and_number_type_will_do_and_stays_as_it_was(solver):
    similarity = torch.randint(-50, 50, (23, 23), generator=randoms(0))
    perm = assignment.solve(similarity).perm
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int8):
        assert torch.equal(assignment.solve(similarity.to(dtype)).perm, perm)
    large = torch.full((30, 60), 1e9)
    large[5:28, 10:56:2] = similarity.float()
    transposed = similarity.double().T.contiguous().T
    for view in (large[5:28, 10:56:2], transposed, similarity.double().requires_grad_()):
        before = view.clone()
        assert torch.equal(assignment.solve(view).perm, perm) and torch.equal(view, before)
    rows = torch.arange(23.0).expand(23, 23)
    assert assignment.solve(rows).perm.tolist() == list(range(23))
    assert assignment.solve(rows.T[:1, 4:5]).perm.tolist() == [0]
    window = random_matrix(40, 0, dtype=torch.float32)[3:33, 7:37]  # contiguous rows, wider stride
    assert torch.equal(assignment.solve(window).perm, assignment.solve(window.clone()).perm)


def test_threads_change_nothing(solver):
    similarities = [trained_like(40 + k, k) for k in range(12)]
    starts = [assignment.solve(s.flip(0)) if k % 2 else None for k, s in enumerate(similarities)]
    alone = [assignment.solve(s, start=start) for s, start in zip(similarities, starts, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        together = assignment.solve_all(similarities, starts, pool=pool)
    for found in (together, assignment.solve_all(similarities, starts)):
        for a, b in zip(alone, found, strict=True):
            assert (
                torch.equal(a.perm, b.perm)
                and torch.equal(a.columns, b.columns)
                and torch.equal(a.rows, b.rows)
            )
    assert assignment.solve_all([]) == []


def test_the_environment_chooses_scipy(tmp_path):
    """In a process of its own, since the module looks at it once, and is loaded here."""

    def loaded():
        for solver in ("scipy", ""):
            os.environ["REBASIN_SOLVER"] = solver
            print(importlib.reload(assignment).compiled())

    ended = processes.fork(loaded, tmp_path / "log")
    assert ended.wait() == 0 and ended.out.split() == ["False", str(assignment.compiled())], ended.err


@needs_compiled
def test_other_threads_run_while_one_is_solved():
    similarity = torch.outer(torch.arange(900.0), torch.arange(900.0))  # takes a while
    steps, begun, done = 0, threading.Event(), threading.Event()

    def count():
        nonlocal steps
        begun.set()
        while not done.is_set():
            steps += 1
            time.sleep(0.0001)

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    begun.wait()
    matrix, n = similarity.numpy(), len(similarity)
    arguments = matrix, torch.zeros(3, n).double().numpy(), torch.zeros(n, dtype=torch.int64).numpy()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # nobody is made to let go: the counter runs only if the solver does
    before = steps
    assignment._lap.solve(*arguments)
    after = steps
    sys.setswitchinterval(interval)
    done.set()
    counter.join()
    assert after > before


@needs_compiled
def test_the_extension_refuses_buffers_that_do_not_fit():
    matrix, d = torch.zeros(3, 3).numpy(), torch.zeros(3, 3).double().numpy()
    perm, v = torch.zeros(3, dtype=torch.int64).numpy(), torch.zeros(3).double().numpy()
    start = d.copy()
    assert assignment._lap.solve(matrix, d, perm) == "ties"
    assert assignment._lap.solve(matrix, d, perm, start, perm.copy()) == "ties"
    frozen = d.copy()
    frozen.flags.writeable = False
    for wrong in [
        (matrix[:2], d, perm), (matrix[:, ::2], d, perm), (matrix.astype("i4"), d, perm),
        (matrix.T[:, :2], d, perm), (v, d, perm), (matrix, d[:2], perm), (matrix, d[::-1], perm),
        (matrix, d.T, perm), (matrix, v, perm), (matrix, d, perm[:2]), (matrix, d.astype("f4"), perm),
        (matrix, d, v), (matrix, frozen, perm), (matrix, None, perm), (matrix, d, perm, start),
        (matrix, d, perm, start[:2], perm), (matrix, d, perm, start[::-1], perm), (matrix, d, perm, v, perm),
        (matrix, d, perm, perm, perm), (matrix, d, perm, start.astype("f4"), perm),
        (matrix, d, perm, start, v), (matrix, d, perm, start, None),
        (matrix, d, perm, start, perm.astype("i4")),
    ]:  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            assignment._lap.solve(*wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_margins_are_what_every_other_column_is_worse_by(dtype, solver):
    for seed, n in enumerate([2, 17, 40]):
        similarity = random_matrix(n, seed).to(dtype)
        found = assignment.solve(similarity)
        torch.testing.assert_close(found.margins, slack_elsewhere(similarity, found), rtol=0, atol=1e-12)
    assert assignment.solve(torch.ones(1, 1)).margins.item() == math.inf
    assert assignment.solve(torch.zeros(3, 3)).margins.abs().max() == 0  # ties
