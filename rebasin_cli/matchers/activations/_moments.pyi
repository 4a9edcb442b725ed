from numpy import ndarray

def add(
    a: ndarray,
    b: ndarray,
    origin_a: ndarray,
    origin_b: ndarray,
    off: ndarray,
    squares: ndarray,
    products: ndarray,
) -> None: ...
