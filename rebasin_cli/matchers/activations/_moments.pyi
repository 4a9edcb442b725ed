"""The compiled sums of activations (`_moments.c`)."""

import numpy as np

def add(
    a: np.ndarray,
    b: np.ndarray,
    origin_a: np.ndarray,
    origin_b: np.ndarray,
    off: np.ndarray,
    squares: np.ndarray,
    products: np.ndarray,
    /,
) -> None:
    """Adds the sums of samples × units in float32 to `off` (2, n), `squares` (2, n), `products` (n, n)."""
