"""kill -9 and failing disks at file operations: nothing is half-written, and the next run goes well.

Each runs in forked children: a process that is killed cannot be this one. Operations are drawn by a seed;
benchmarks/faults.py takes them all.
"""

import random

import pytest

from rebasin_cli.checkpoints import stages
from rebasin_cli.checkpoints.stages import staged
from rebasin_cli.checkpoints.writer import write_text_atomic

from .cases import CASES, Known, inputs, known, problem_after, problem_after_seconds
from .crashing import FAULTS, HALF, INTERRUPT, KILL_AFTER, Fault, run


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


def drawn(whole, many, seed):
    return sorted(random.Random(seed).sample(range(1, whole.operations + 1), min(many, whole.operations)))


def test_every_operation_is_counted(of):
    """The sweeps would be worth nothing if they saw none."""
    assert of("align").operations > 10 and len(of("align to shards over shards").new) > 3


@pytest.mark.parametrize(
    ("name", "many"),
    [
        ("align over an older one", 3),
        pytest.param("merge to shards over one file", 3, marks=pytest.mark.sweep),
        pytest.param("align that keeps every sweep", 4, marks=pytest.mark.sweep),
    ],
)
def test_a_run_that_is_killed_now_and_then_leaves_all_old_or_all_new(of, name, many):
    whole = of(name)
    faults = [Fault(at, KILL_AFTER) for at in drawn(whole, many, name)]
    assert {fault.at: problem_after(CASES[name], whole, fault) for fault in faults} == dict.fromkeys(
        (fault.at for fault in faults), None
    )


def test_ctrl_c_at_every_operation_leaves_all_old_or_all_new_and_nothing_hidden(tmp_path):
    """Of what every command writes with."""

    def body():
        with staged(tmp_path) as stage:
            for name in "ab":
                write_text_atomic(tmp_path / name, "new", force=True, stage=stage)
        return 0

    seen = set()
    for at in range(1, 100):
        for name in "ab":
            (tmp_path / name).write_text("old")
        ended = run(body, Fault(at, INTERRUPT), str(tmp_path) + ".log")
        left = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert left in ({"a": "old", "b": "old"}, {"a": "new", "b": "new"}), at
        seen.add(left["a"])
        if ended.operations < at:
            break
    assert seen == {"old", "new"} and ended.operations > 10 and ended.code == 0


def slow(whole):
    return whole.seconds > 0.4


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_killed_anywhere_leaves_all_old_or_all_new(of, name):
    whole = of(name)
    faults = [  # killed before an operation is killed after the one before it
        Fault(at, how)
        for how in (KILL_AFTER, HALF, INTERRUPT)
        for at in drawn(whole, 1 if slow(whole) else 2, name + how)
    ]
    problems = [(fault, problem_after(CASES[name], whole, fault)) for fault in faults]
    assert [(fault, problem) for fault, problem in problems if problem] == []


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_killed_at_any_moment_leaves_all_old_or_all_new(of, name):
    whole = of(name)
    moment = random.Random(name).uniform(0, whole.seconds)
    assert problem_after_seconds(CASES[name], whole, moment) is None


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
def test_a_disk_that_fails_anywhere_leaves_all_old_or_all_new(of, name):
    whole = of(name)
    ways = [(how, lasting) for how in FAULTS for lasting in (False, True)]
    for how, lasting in random.Random(name).sample(ways, 2 if slow(whole) else 4):
        for at in drawn(whole, 1, name + how):
            fault = Fault(at, how, lasting)
            assert problem_after(CASES[name], whole, fault) is None, fault


def test_ctrl_c_between_the_new_name_and_the_end_leaves_no_lock(tmp_path, monkeypatch):
    held, begun = stages.held_back, []

    def interrupted():
        begun.append(1)
        if len(begun) == 3:  # the lock is made, names are changed, and here all is tidied
            raise KeyboardInterrupt
        return held()

    monkeypatch.setattr(stages, "held_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with staged(tmp_path) as stage, stage.open(tmp_path / "new") as file:
            file.write(b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
