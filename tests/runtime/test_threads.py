"""Tasks beside each other: a second thread is what is tested."""

import threading
import time

import pytest
import torch

from rebasin_cli.runtime.threads import ALONE, ROOM, WAITING, Beside, beside


@pytest.fixture
def two():
    torch.set_num_threads(2)
    try:
        with beside("cpu") as threads:
            yield threads
    finally:
        torch.set_num_threads(1)


def test_tasks_run_beside_each_other_on_one_thread_each_and_results_keep_their_order(two: Beside):
    meeting = threading.Barrier(2, timeout=60)  # broken unless both are there at once

    def task(item: int) -> tuple[int, int]:
        meeting.wait()
        return item, torch.get_num_threads()

    assert two.each(task, [3, 1]) == [(3, 1), (1, 1)]
    assert torch.get_num_threads() == 1  # this one, too


def test_what_is_left_for_later_is_done_by_the_end_and_few_are_waiting(two: Beside):
    done, go = [], threading.Event()

    def task(item: int) -> None:
        assert go.wait(60)
        done.append(item)

    for item in range(2 * WAITING):
        two.later(task, item)  # all that may wait: none of them has to be done
    assert not done
    threading.Timer(0.05, go.set).start()
    two.later(task, 9)  # one more waits until one is done
    assert done
    two.settle()
    assert sorted(done) == [*range(2 * WAITING), 9]


def test_what_holds_much_memory_does_not_wait(two: Beside):
    done, go = [], threading.Event()

    def task(item: int) -> None:
        assert item == 9 or go.wait(60)
        done.append(item)

    two.later(task, 1, held=ROOM // 2)
    assert not done
    threading.Timer(0.05, go.set).start()
    two.later(task, 2, held=ROOM)  # beside the first it is too much
    assert 1 in done
    two.later(task, 9, held=ROOM + 1)
    assert done == [1, 2, 9]


def test_what_a_task_raises_is_raised(two: Beside):
    two.later([].pop)
    with pytest.raises(IndexError):
        two.settle()
    with pytest.raises(KeyError):
        two.each({}.__getitem__, [1])


def test_alone_everything_is_done_at_once():
    done: list[int] = []
    ALONE.later(done.append, 1)
    assert done == [1] and ALONE.each(lambda item: item + 1, [1, 2]) == [2, 3]
    torch.set_num_threads(2)
    try:
        for device in ("meta", torch.device("meta")):
            with beside(device) as threads:
                assert threads is ALONE and torch.get_num_threads() == 1
        with beside("cpu", most=1) as threads:
            names = threads.each(lambda _: time.sleep(0.02) or threading.get_ident(), range(4))
            assert len({*names}) == 1 and threading.get_ident() not in names
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
