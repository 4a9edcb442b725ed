"""The compiled solver (`_lap.c`)."""

import numpy as np

def solve(
    matrix: np.ndarray,
    duals: np.ndarray,
    perm: np.ndarray,
    start_duals: np.ndarray = ...,
    start_perm: np.ndarray = ...,
    /,
) -> str:
    """Fills `duals` (3, n) and `perm` (n,): "unique", "ties", "unsure" or "not finite"."""
