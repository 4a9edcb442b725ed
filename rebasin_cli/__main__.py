"""`python -m rebasin_cli` and the `rebasin` command: run; turn errors into one message and an exit code."""

from __future__ import annotations

import errno
import os
import sys

INTERRUPTED = 130
OUT_OF_RESOURCES = 5
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with DESIGN's exit codes; REBASIN_DEBUG=1 shows tracebacks."""
    try:
        _encode_anything()
        _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt as error:  # before the command began
        _stop("interrupted", INTERRUPTED, error)


def _run(arguments: list[str]) -> None:
    from .cli import app
    from .errors import RebasinError

    try:
        app(args=arguments, prog_name="rebasin", standalone_mode=True, obj=arguments)
    except RebasinError as error:
        _stop(str(error), error.exit_code, error)
    except MemoryError as error:
        _stop("out of memory", OUT_OF_RESOURCES, error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing to tell
        sys.exit(0)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        _stop(f"{error.filename or 'the output'}: {error.strerror}", OUT_OF_RESOURCES, error)
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in str(error):
            raise
        _stop(f"out of memory: {str(error).splitlines()[0]}", OUT_OF_RESOURCES, error)


def _encode_anything() -> None:
    """A file name that is no text, or an arrow on an old terminal, is shown escaped instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _stop(message: str, code: int, error: BaseException) -> None:
    if os.environ.get("REBASIN_DEBUG") == "1":
        raise error
    print(f"rebasin: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
