"""`python -m rebasin_cli` and the `rebasin` command: run; turn errors into one message and an exit code.

Only what every Python has is imported here: whatever else cannot be imported is told, too.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress

STOPPED = (124, 129, 130, 143)  # by a time limit or a signal


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with DESIGN's exit codes; REBASIN_DEBUG=1 shows tracebacks.

    What is none of our errors, an installation that is broken or a bug, ends with exit code 70.
    """
    try:
        from .runtime import broken
    except BaseException as error:
        sys.stderr.write(f"rebasin: this installation is broken: {error!a}\n")
        sys.exit(70)
    try:
        with broken.told():
            broken.check_python()
            _main(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as stop:
        if arguments is None and stop.code in STOPPED:  # a process of its own, and whoever stopped it waits
            from .runtime import signals

            signals.in_any_case(stop.code)
        raise


def _main(arguments: list[str]) -> None:
    from .runtime.streams import guarded

    prepare()
    try:
        with guarded():
            _run(arguments)
    except KeyboardInterrupt as error:  # before the command began
        _tell(error)
    except Exception as error:  # of stdout itself: its disk is full
        _tell(error)


def prepare() -> None:
    """What a command sets of its own process before PyTorch is imported (docs/decisions/0031)."""
    from .runtime.memory import collect_later, keep_freed
    from .runtime.thread_waits import wait_briefly

    collect_later()
    keep_freed()
    wait_briefly()


def _run(arguments: list[str]) -> None:
    from .errors import Elsewhere
    from .runtime.signals import ending, stoppable

    try:
        with stoppable():  # a job that is ended while packages are imported, too
            try:
                from .cli import execute
            except BaseException:
                _forget(arguments)
                raise
            execute(arguments, standalone=True, shown=arguments)
    except Elsewhere as error:  # of several processes, another one tells
        _stop([], error.exit_code, error)
    except KeyboardInterrupt as error:
        _tell(ending(error))
    except Exception as error:
        _tell(error)


def _forget(arguments: list[str]) -> None:
    """What an earlier run of a recipe left must not pass for what one leaves that cannot begin."""
    with suppress(Exception):
        from .commands.recipes import aside

        aside.forget(arguments[1:] if arguments[:1] == ["run"] else [])


def _tell(error: BaseException) -> None:
    from .errors import account
    from .runtime.broken import importing

    told = account(error)
    if told is None or (isinstance(error, OSError) and importing(error)):  # a package that nobody may read
        raise error
    _stop(*told, error)


def _stop(lines: list[str], code: int, error: BaseException) -> None:
    from .runtime.launchers import who
    from .runtime.text import line

    if os.environ.get("REBASIN_DEBUG") == "1":
        traceback.print_exception(error)
    if lines and sys.stderr is not None:
        first, *others = lines
        shown = [line(f"rebasin: {who()}{first}"), *map(line, others)]
        with suppress(OSError, ValueError):  # closed meanwhile: the exit code says it all the same
            # What a person reads stands last: a log is read from its end.
            print("\n".join([*_annotations(error, "\n".join(shown)), *shown]), file=sys.stderr, flush=True)
    sys.exit(code)


def _annotations(error: BaseException, told: str) -> list[str]:
    """What ended the program, as lines that a job's page shows."""
    from .reports import github

    return github.of_error(error, told.removeprefix("rebasin: ")) if github.running() else []


if __name__ == "__main__":
    main()
