"""Processes that tests start as forks of their own, which has imported what a command needs.

An interpreter that begins anew imports PyTorch for two processor seconds before it does anything. It is for
tests of what an interpreter begins with or ends by: what is imported, variables that are read once, an
installation that is broken, streams that are closed.
"""

import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Forked:
    """A process: what of `subprocess.Popen` tests use, and what it has written so far."""

    pid: int
    log: Path
    returncode: int | None = None

    @property
    def out(self):
        return _stream(self.log, 1).read_text(encoding="utf-8", errors="replace")

    @property
    def err(self):
        return _stream(self.log, 2).read_text(encoding="utf-8", errors="replace")

    def poll(self):
        """Its exit code, or minus the signal that ended it; None as long as it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self, seconds=120):
        until = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.log), seconds)
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def fork(body, log, folder=None, **environment):
    """`body()` in a process of its own, in `folder`, with these variables; its streams go to `log`.1 and .2.

    It answers signals as a process that a shell starts, and its exit code is that of the body.
    """
    log = Path(log).absolute()
    logs = [_stream(log, number) for number in (1, 2)]
    for path in logs:
        path.write_text("")
    with warnings.catch_warnings():
        # Of threads, which a fork does without: xdist has one that listens, and holds no lock of ours.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return Forked(pid, log)
    code = 70
    try:
        code = child(body, [os.open(path, os.O_RDWR) for path in (os.devnull, *logs)], folder, environment)
    finally:
        os._exit(code)


def rebasin(*arguments, log, folder=None, **environment):
    """A command line in a process of its own."""

    def body():
        from rebasin_cli.__main__ import main

        sys.argv = ["rebasin", *map(str, arguments)]
        main()

    return fork(body, log, folder, **environment)


def script(path, *arguments, log, folder=None, **environment):
    """A file of Python, run as a program in a process of its own."""

    def body():
        sys.argv = [str(path), *map(str, arguments)]
        runpy.run_path(str(path), run_name="__main__")

    return fork(body, log, folder, **environment)


def child(body, streams, folder, environment):
    """The exit code of `body()` in a process that was forked, with these descriptors as its streams."""
    for number, opened in enumerate(streams):
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding="utf-8", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    code = 0
    try:
        body()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except OSError:
                code = 120  # as an interpreter ends
    return code


def _stream(log, number):
    return log.with_name(f"{log.name}.{number}")
