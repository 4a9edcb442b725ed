"""A time limit ends what sleeps, and no more than it is for."""

import signal
import threading
import time

import pytest

from rebasin_cli.errors import TimedOut
from rebasin_cli.runtime import signals, stop_watch
from rebasin_cli.runtime.signals import Stopped, stoppable


def test_a_limit_wakes_what_sleeps_and_is_told_as_what_it_is():
    began, watch = time.monotonic(), stop_watch.Watch(lambda interrupt: None)
    with pytest.raises(TimedOut, match="over"), watch.on():
        try:
            with stoppable(), watch.limited(60, TimedOut("not this")), watch.limited(0.05, TimedOut("over")):
                time.sleep(30)
        except Stopped as stopped:
            raise signals.ending(stopped) from stopped
    assert time.monotonic() - began < 15
    assert str(signals.ending(Stopped(signal.SIGTERM))) == "terminated"  # the next is somebody else's


def test_a_limit_that_is_not_reached_does_nothing_and_one_that_was_caught_is_raised_later():
    watch = stop_watch.Watch(lambda interrupt: None)
    with stoppable(), watch.on():
        with watch.limited(60, TimedOut("over")), watch.limited(None, TimedOut("over")):
            pass
        with pytest.raises((Stopped, TimedOut)), watch.limited(0.01, TimedOut("over")):
            try:
                time.sleep(30)
            except BaseException:
                pass


def test_in_another_thread_a_limit_is_seen_at_its_end():
    """Needs a thread: signals never reach it."""
    found = []

    def work():
        watch = stop_watch.Watch(lambda interrupt: None)
        try:
            with watch.on(), watch.limited(0.001, TimedOut("over")):
                time.sleep(0.01)
        except TimedOut as error:
            found.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    assert found == ["over"]
