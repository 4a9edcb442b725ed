"""For every test: one thread (small tensors, and the machine may be busy), and Ctrl-C as on a terminal.

And networks that are traced once (see traced). PyTorch is imported where tests run: what hands them out to
several processes does without.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.processor import Processor

os.environ.setdefault("OMP_NUM_THREADS", "1")  # for what tests start, too


def pytest_addoption(parser):
    parser.addoption(
        "--processor", type=int, default=10, metavar="N", help="show the N rooms and tests that take most"
    )


def pytest_configure(config):
    config.pluginmanager.register(Processor(config.getoption("--processor")), "processor")
    gc.disable()  # what is imported and collected stays; see pytest_collection_finish


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Every second worker reads the files of a folder from the last one on: each is rewritten by one of them.

    What rewriting gave is kept as bytecode, which the others find.
    """
    if not int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 2 or sys.dont_write_bytecode:
        return
    root = session.config.rootpath
    for folder in map(Path, session.config.args):
        for path in sorted(folder.absolute().rglob("test_*.py"), reverse=True):
            name = ".".join(path.relative_to(root).with_suffix("").parts)
            with contextlib.suppress(Exception, pytest.skip.Exception):  # which collection will tell
                importlib.import_module(name)


DEAR = "test_browser.py", "test_device.py", "test_plugin.py", "test_together.py"


def pytest_collection_modifyitems(items):
    """Files whose tests share what takes seconds come first.

    A process that has nothing left takes the last tests of another one, and would make all that anew.
    """
    items.sort(key=lambda item: item.path.name not in DEAR)


def pytest_collection_finish():
    """What was imported by now stays, and is not looked through for garbage again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_a_disk():
    """Files last as long as the machine does, and no test turns it off: only what has no descriptor fails."""
    os.fsync = os.fstat


@pytest.fixture(scope="session", autouse=True)
def traced_once():
    from tests.traced import trace_once

    trace_once()


@pytest.fixture(autouse=True)
def interruptible():
    """A shell that starts the tests in the background has SIGINT ignored, by them and by what they start.

    And one of several processes that fails, as some tests let it, ignores SIGTERM from then on.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@pytest.fixture
def record(tmp_path):
    """A checkpoint of a tiny MLP with this metadata."""
    import torch

    from rebasin_cli.checkpoints.checkpoint import open_checkpoint
    from rebasin_cli.checkpoints.writer import write_safetensors

    names = iter("abc")
    shapes = {"layers.0.weight": (3, 4), "layers.0.bias": (3,), "head.weight": (10, 3), "head.bias": (10,)}

    def record(**metadata):
        path = tmp_path / f"{next(names)}.safetensors"
        said = {f"rebasin.{key}": value for key, value in metadata.items()}
        write_safetensors(path, {name: torch.ones(shape) for name, shape in shapes.items()}, metadata=said)
        return open_checkpoint(path)

    return record
