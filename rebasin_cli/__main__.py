"""`python -m rebasin_cli` and the `rebasin` command: run; turn errors into one message and an exit code."""

from __future__ import annotations

import os
import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with DESIGN's exit codes; REBASIN_DEBUG=1 shows tracebacks."""
    try:
        _encode_anything()
        _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt as error:  # before the command began
        from .errors import account

        _stop(*account(error), error)


def _run(arguments: list[str]) -> None:
    from .cli import app
    from .errors import Elsewhere, account

    try:
        app(args=arguments, prog_name="rebasin", standalone_mode=True, obj=arguments)
    except Elsewhere as error:  # of several processes, another one tells
        _stop("", error.exit_code, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing to tell
        sys.exit(0)
    except Exception as error:
        told = account(error)
        if told is None:
            raise
        _stop(*told, error)


def _encode_anything() -> None:
    """A file name that is no text, or an arrow on an old terminal, is shown escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _stop(message: str, code: int, error: BaseException) -> None:
    if os.environ.get("REBASIN_DEBUG") == "1":
        raise error
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    who = f"rank {rank} of {size}: " if rank and size not in ("", "1") else ""
    if message:
        print(f"rebasin: {who}{message}", file=sys.stderr, flush=True)
        _annotate(error, f"{who}{message}")
    sys.exit(code)


def _annotate(error: BaseException, message: str) -> None:
    """What ended the program, where a job's page shows it."""
    from .reports import _github

    if _github.running():
        for line in _github.of_error(error, message):
            print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
