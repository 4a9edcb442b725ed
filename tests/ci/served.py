"""`rebasin` for shell lines, from a process that has imported it and forks for every call.

An interpreter of its own takes two processor seconds before a command begins, and jobs start dozens. Lines
call a client, which hands on its words, folder, variables and streams, and ends with the command's exit code.
Not for jobs that are sent signals, nor for an installation that is broken.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import processes

CLIENT = """\
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    asked = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    sys.exit(int(server.recv(10) or 137))
"""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The shell line that runs `rebasin` so, as long as the block lasts."""
    address, client = folder / "socket", folder / "client.py"
    client.write_text(CLIENT)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen(16)
        server = processes.fork(lambda: _serve(listening), folder / "log")
    try:
        yield f'exec {shlex.join([sys.executable, "-I", "-S", str(client), str(address)])} "$@"'
    finally:
        server.kill()
        server.wait()


def _serve(listening: socket.socket) -> None:
    import rebasin_cli.cli  # noqa: F401 (what every call needs)

    warnings.resetwarnings()  # those that pytest makes errors of
    signal.signal(signal.SIGCHLD, _ended)
    while True:
        asking, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer(asking)
        asking.close()


def _ended(*signalled: object) -> None:
    """Wait for those that have ended: their processor seconds count as this process's then."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _answer(asking: socket.socket) -> None:
    """One call, in a process of its own, which dies with its client."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 70
    try:
        size, streams, *_ = socket.recv_fds(asking, 8, 3)
        with asking.makefile("rb") as file:
            words, folder, environment = json.loads(file.read(int.from_bytes(size, "big")))
        fcntl.fcntl(asking, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(asking, fcntl.F_SETFL, fcntl.fcntl(asking, fcntl.F_GETFL) | os.O_ASYNC)  # SIGIO ends it
        os.environ.clear()
        sys.argv = ["rebasin", *words]
        code = processes.child(_main, streams, folder, environment)
        asking.sendall(str(code).encode())
    finally:
        os._exit(code)


def _main() -> None:
    from rebasin_cli.__main__ import main

    main()
