"""Signals held back in many small blocks; in one alone, tests/matchers/test_straight.py sends them."""

import os
import signal

import pytest

from rebasin_cli.runtime.signals import holding


def test_between_blocks_signals_are_answered_at_once_and_within_at_their_end():
    before, done = signal.getsignal(signal.SIGINT), []
    with holding() as held:
        with held:
            pass
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            done.append("after one between them")
        with pytest.raises(KeyboardInterrupt):
            with held, held:
                os.kill(os.getpid(), signal.SIGINT)
                done.append("after one within")
            done.append("after the block")
        with held:
            done.append("in another one")
    assert done == ["after one within", "in another one"]
    assert signal.getsignal(signal.SIGINT) is before
