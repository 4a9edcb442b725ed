"""For every test: one thread (small tensors, and the machine may be busy), and Ctrl-C as on a terminal."""

import signal

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def interruptible():
    """A shell that starts the tests in the background has SIGINT ignored, by them and by what they start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
