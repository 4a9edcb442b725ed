"""How threads that compute together wait for one another, on machines that others use as well."""

from __future__ import annotations

import os

SPINS = 3_000  # looks, some ten microseconds, before a thread that waits goes to sleep
SAID = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # where the user says how they wait


def wait_briefly() -> None:
    """Have OpenMP's threads sleep soon where they wait; to be called before PyTorch is imported.

    Threads share each layer, and meet after it. Those of GCC's OpenMP, which PyTorch has on Linux, look for
    milliseconds whether the others are there. Where another program has a processor, looking uses up the time
    in which the others would have come: beside one busy program a forward pass took seven times as long as on
    one thread. Asleep at once they would cost a ninth on a machine of one's own (`benchmarks/spinning.py`).
    What the environment says counts.
    """
    if not any(name in os.environ for name in SAID):
        os.environ[SAID[0]] = str(SPINS)
