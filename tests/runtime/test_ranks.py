"""Processes that search together: three of them, started once, do everything that is asked of ranks."""

import json
import os
import signal
from pathlib import Path

import pytest

from rebasin_cli.errors import Lost, UsageError
from rebasin_cli.runtime import devices
from rebasin_cli.runtime.processes import Together
from rebasin_cli.runtime.ranks import ALONE, Ranks
from rebasin_cli.runtime.rendezvous import in_short
from rebasin_cli.runtime.signals import STOPPED, Ending, listening
from tests import processes

SIZE = 3
WORKER = Path(__file__).parent / "ranks_worker.py"


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What every rank has found, each of them a process: {scenario: [rank 0's, rank 1's, …]}."""
    folder = tmp_path_factory.mktemp("ranks")
    workers = [
        processes.script(WORKER, folder, log=folder / f"log{k}", RANK=str(k), WORLD_SIZE=str(SIZE))
        for k in range(SIZE)
    ]
    try:
        for worker in workers:
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    ended = [(worker.out, worker.err) for worker in workers]
    lines = [[json.loads(line) for line in out.splitlines()] for out, _ in ended]
    found = {name: [dict(rank).get(name) for rank in lines] for name, _ in lines[1]}
    assert "stuck" in found, ended
    return found | {"codes": [worker.returncode for worker in workers], "errors": [err for _, err in ended]}


def test_all_get_the_same_sums(told):
    assert told["sum"] == [[[6.0, 12.0], 6.0]] * SIZE
    assert told["bits"][0] == told["bits"][1] == told["bits"][2]


def test_all_get_what_one_has(told):
    assert told["broadcast"] == [[1.0, 1.0]] * SIZE
    assert told["agree"] == [0.1] * SIZE


def test_a_step_of_the_first_rank_gives_its_result_to_all(told):
    assert told["first"] == [{"pid": told["first"][0]["pid"]}] * SIZE


def test_an_error_of_the_first_rank_ends_all_and_is_told_once(told):
    assert told["first fails"] == [["UsageError", 2, "no"], *[["Elsewhere", 2, "no"]] * 2]
    assert (
        told["interrupted"]
        == [["KeyboardInterrupt", 130, "interrupted"]] + [["Elsewhere", 130, "interrupted"]] * 2
    )


def test_an_error_of_one_rank_is_an_error_of_all(told):
    assert told["each"] == [0, 10, 20]
    other = ["Elsewhere", 3, "rank 1 cannot"]
    assert (
        told["one fails"]
        == told["one fails within"]
        == [other, ["CheckpointError", 3, "rank 1 cannot"], other]
    )


def test_what_is_no_error_of_ours_is_no_answer_of_a_command(told):
    """1 is what a gate says, or `verify`: elsewhere a bug is one, too."""
    first, _, last = told["code of the user's fails"]
    assert first == last == ["Elsewhere", 6, "code that rebasin was given failed: KeyError: 'x'"]
    assert in_short(KeyError("x"))[1] == 70


def test_ranks_with_other_inputs_are_refused(told):
    message = "the processes do not all work on the same"
    first, *others = told["differ"]
    assert first[:2] == ["UsageError", 2] and others == [["Elsewhere", 2, message]] * 2
    assert message in first[2] and "rank 2  the spec differs from that of rank 0" in first[2]
    assert "rank 1" not in first[2]


def test_a_rank_that_fails_by_itself_is_named_by_the_others(told):
    first, failed, last = told["out of memory"]
    assert failed == ["MemoryError", 5, "out of memory"]
    for error in (first, last):
        assert error[:2] == ["Lost", 5] and error[2].startswith("stopped, because rank 1 failed: out of mem")


def test_the_end_of_the_first_rank_stays_good_if_another_dies(told):
    first, *others = told["last"]
    assert first == "written" and [other[0] for other in others] == ["Lost", "ValueError"]


@pytest.mark.parametrize(
    "case",
    "mlp, resnet20, float64, bfloat16, near copies, fewer atoms than ranks, two words".split(", "),
)
def test_the_search_finds_what_one_process_finds(told, case):
    alone, devices = zip(*told[f"search {case}"], strict=True)
    for found in devices:
        assert found["perms"] == alone[0]["perms"]
        assert found["objective"] == pytest.approx(alone[0]["objective"], rel=1e-6)
        assert found["sweeps"] == alone[0]["sweeps"] and found["objective"] == devices[0]["objective"]
    assert alone[0]["moved"]


def test_ranks_that_take_turns_with_batches_find_the_same_figures(told):
    for found in told["measured"]:
        for name, (together, alone) in found.items():
            assert together[0] == pytest.approx(alone[0], rel=1e-12), name
            assert together[1:] == alone[1:], name
    assert told["measured"][0] == told["measured"][1] == told["measured"][2]


def test_a_batch_that_one_rank_cannot_measure_ends_all(told):
    *others, (kind, code, message) = told["measured wrongly"]
    assert kind == "NetworkError" and "too few" in message
    assert [other[:2] for other in others] == [["Elsewhere", code]] * 2


def test_sigterm_ends_a_rank_that_waits_in_c(told):
    assert told["codes"][0] == 5
    assert told["errors"][0].endswith(
        "rebasin: rank 0 of 3: told to stop (SIGTERM), as torchrun does to all ranks once one has ended\n"
    )
    assert told["codes"][1:] == [0, 0]
    assert [error[:2] for error in told["stuck"][1:]] == [["Lost", 5]] * 2


def test_shares_are_disjoint_complete_and_balanced():
    sizes = [100, 1, 50, 50, 7, 3, 90, 2]
    shares = [Ranks(k, SIZE).share(range(8), sizes) for k in range(SIZE)]
    assert sorted(item for share in shares for item in share) == list(range(8))
    assert max(sum(sizes[item] for item in share) for share in shares) == 102
    assert ALONE.share(range(8), sizes) == frozenset(range(8))
    assert Ranks(2, SIZE).share([1, 2], [1, 1]) == frozenset()


class Store(dict):
    """What ranks of one process say to each other."""

    set, check = dict.__setitem__, lambda self, keys: all(key in self for key in keys)


def told_to_stop(work):
    """Whether SIGTERM ends the first of two ranks after this work."""
    ranks = Together(0, 2, Store(), Ending())
    ranks.ending.over.set()  # it is this process that would end hard
    try:
        with listening(ranks.ending):
            work(ranks)
            os.kill(os.getpid(), signal.SIGTERM)
    except Lost as error:
        return error.message == STOPPED
    return False


def test_sigterm_ends_the_first_rank_in_the_middle_of_a_command_and_not_at_its_end():
    assert told_to_stop(lambda ranks: ranks.turn(int))
    assert not told_to_stop(lambda ranks: ranks.alone(int))


@pytest.mark.parametrize("size", [None, "", "1"])
def test_one_process_is_alone(monkeypatch, size):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if size is not None:
        monkeypatch.setenv("WORLD_SIZE", size)
    with devices.from_environment("cuda") as alone:
        assert alone is ALONE
    assert devices.own("cuda") == "cuda"


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_an_incomplete_environment_is_refused(monkeypatch, missing):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(missing)
    with pytest.raises(UsageError, match=rf"{missing} is not set[^$]*torchrun"):
        with devices.from_environment():
            pytest.fail("went on")
