"""kill -9 and failing disks at every file operation: nothing is half-written, and the next run goes well.

Each runs in forked children: a process that is killed cannot be this one.
"""

import shutil

import pytest

from .cases import CASES, TRAINED, Known, inputs, known, problem_after
from .crashing import FAULTS, HALF, KILL_AFTER, KILL_BEFORE, Fault


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return inputs(tmp_path_factory.mktemp("made") / "inputs")


@pytest.fixture(scope="module")
def of(made, tmp_path_factory):
    found: dict[str, Known] = {}

    def of(name):
        if name not in found:
            found[name] = known(CASES[name], made, tmp_path_factory.mktemp("known"))
        return found[name]

    return of


def each(case, of, tmp_path, how, numbers, **more):
    """The problems, by operation."""
    problems = {}
    for at in numbers:
        folder = tmp_path / f"{at}"
        if found := problem_after(case, of, folder, Fault(at, how, **more)):
            problems[at] = found
        shutil.rmtree(folder)
    return problems


def test_every_operation_is_counted(of):
    """The sweeps would be worth nothing if they saw none."""
    assert of("align").operations > 10 and len(of("align to shards over shards").new) > 3


@pytest.mark.parametrize("name", ["align over an older one", "merge to shards over one file"])
def test_a_run_that_is_killed_now_and_then_leaves_all_old_or_all_new(tmp_path, of, name):
    whole = of(name)
    numbers = range(3, whole.operations + 1, max(1, whole.operations // 7))
    assert each(CASES[name], whole, tmp_path, KILL_AFTER, numbers) == {}


@pytest.mark.sweep
@pytest.mark.parametrize("how", [KILL_BEFORE, KILL_AFTER, HALF])
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_killed_anywhere_leaves_all_old_or_all_new(tmp_path, of, name, how):
    whole = of(name)
    assert each(CASES[name], whole, tmp_path, how, range(1, whole.operations + 1)) == {}


@pytest.mark.sweep
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("name", CASES)
def test_a_disk_that_fails_anywhere_leaves_all_old_or_all_new(tmp_path, of, name, how, lasting):
    whole = of(name)
    numbers = range(1, whole.operations + 1)
    assert each(CASES[name], whole, tmp_path, how, numbers, lasting=lasting) == {}


@pytest.mark.sweep
def test_a_training_that_is_killed_anywhere_can_go_on(tmp_path, made, tmp_path_factory):
    whole = known(TRAINED, made, tmp_path_factory.mktemp("known"))
    numbers = range(1, whole.operations + 1, 3)
    assert each(TRAINED, whole, tmp_path, KILL_AFTER, numbers) == {}
