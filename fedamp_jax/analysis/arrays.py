"""Checks of the arrays that are analysed."""

import numpy as np
from numpy.typing import ArrayLike


def finite(value: ArrayLike, name: str, axes: str) -> np.ndarray:
    """Returns `value` as float64, after checking that it is non-empty, finite and has the given axes (MM: square)."""
    array = np.asarray(value, dtype=np.float64)
    wanted = f"[{', '.join(axes)}]"
    if array.ndim != len(axes) or array.size == 0 or (axes == "MM" and array.shape[0] != array.shape[1]):
        raise ValueError(f"{name} must be a non-empty {wanted}, but has shape {array.shape}")
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"{name} {wanted} must be finite, but is {array[tuple(place)]} at {place}")
    return array
