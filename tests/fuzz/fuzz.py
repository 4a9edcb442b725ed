"""Fuzz until the minutes are over, or something is found.

    python -m tests.fuzz.fuzz --minutes 5                       every target in turn, by hypothesis
    python -m tests.fuzz.fuzz --target torch --engine atheris   guided by coverage, where atheris is installed

Prints how many inputs were tried. A finding is printed with the input that shows it, as small as hypothesis
could make it, and ends the run with exit code 1; it is kept in .hypothesis and tried first the next time.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

ROUND = 100  # inputs of a target before the next one's turn


def test_of(name: str, tried: Counter, *, examples: int, number: int | None = None) -> Callable[[], None]:
    """A hypothesis test of one target; with a `number` it draws the same inputs each time."""
    from .targets import TARGETS  # late: atheris instruments what is imported after it

    strategy, target = TARGETS[name]

    def one(value: object) -> None:
        tried[name] += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of files that torch reads; a user sees them, a fuzzer does not
            target(value)

    how = settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        database=None if number is not None else settings.default.database,
        derandomize=False,
    )
    test = how(given(strategy)(one))
    return test if number is None else seed(number)(test)


def main(arguments: list[str]) -> int:
    reader = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    reader.add_argument("--minutes", type=float, default=5.0)
    reader.add_argument("--target", action="append", help="By default all.")
    reader.add_argument("--engine", choices=["hypothesis", "atheris"], default="hypothesis")
    asked = reader.parse_args(arguments)
    torch.set_num_threads(1)
    tried: Counter[str] = Counter()
    if asked.engine == "atheris":
        return _atheris((asked.target or ["safetensors"])[0], tried, asked.minutes)
    from .targets import TARGETS

    names = asked.target or list(TARGETS)
    if unknown := set(names) - TARGETS.keys():
        print(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    end = time.monotonic() + 60 * asked.minutes
    while time.monotonic() < end:
        for name in names:
            try:
                test_of(name, tried, examples=ROUND)()
            except Exception as found:
                print(f"{name}: {type(found).__name__}: {found}", file=sys.stderr)
                for note in getattr(found, "__notes__", ()):
                    print(note, file=sys.stderr)
                import traceback

                traceback.print_exception(found, limit=-3)
                return 1
    told = ", ".join(f"{name} {count:,}" for name, count in tried.items())
    print(f"{sum(tried.values()):,} inputs tried, nothing found: {told}")
    return 0


def _atheris(name: str, tried: Counter, minutes: float) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["rebasin_cli"]):
        test = test_of(name, tried, examples=ROUND)
    atheris.Setup([sys.argv[0], f"-max_total_time={60 * minutes:.0f}"], test.hypothesis.fuzz_one_input)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
