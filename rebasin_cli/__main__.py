"""`python -m rebasin_cli` and the `rebasin` command: run, and turn errors into one message and an exit code."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130
OUT_OF_RESOURCES = 5


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with DESIGN's exit codes; REBASIN_DEBUG=1 shows tracebacks."""
    from .cli import app
    from .errors import RebasinError

    debug = os.environ.get("REBASIN_DEBUG") == "1"
    try:
        app(args=arguments, prog_name="rebasin", standalone_mode=True)
    except RebasinError as error:
        _stop(str(error), error.exit_code, error if debug else None)
    except KeyboardInterrupt as error:
        _stop("interrupted", INTERRUPTED, error if debug else None)
    except MemoryError as error:
        _stop("out of memory", OUT_OF_RESOURCES, error if debug else None)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has left: nothing to tell
        sys.exit(0)
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError" and "can't allocate memory" not in str(error):
            raise
        _stop(f"out of memory: {str(error).splitlines()[0]}", OUT_OF_RESOURCES, error if debug else None)


def _stop(message: str, code: int, error: BaseException | None) -> None:
    if error is not None:
        raise error
    sys.stdout.flush()
    print(f"rebasin: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
