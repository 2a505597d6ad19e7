"""Refusals of input that a method cannot work with: one sentence that names what is wrong, where, and what is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import Diverged


def refuse_non_finite(rows: NDArray[Any], where: str, start: int = 0) -> None:
    """Refuse rows with NaN or infinite values.

    Args:
        rows: [r, …].
        where: what a row is, with {} for its number.
        start: the number of the first row.
    Raises:
        ValueError: names the first bad row.
    """
    finite = np.isfinite(rows).all(axis=tuple(range(1, rows.ndim)))
    if not finite.all():
        raise ValueError(f"There is a value that is not finite in {where.format(start + int(np.argmin(finite)))}.")


def refuse_broken_state(arrays: Mapping[str, NDArray[Any]], when: str) -> None:
    """What the server goes on with, sends and keeps must be finite.

    Args:
        arrays: by name; those that are not made of floating-point numbers are not looked at.
        when: at the beginning of the sentence.
    Raises:
        Diverged: names the first array that is not.
    """
    for name, values in arrays.items():
        if values.dtype.kind != "f" or not values.size:
            continue
        # Smallest and largest show both NaN and infinity, and take no memory.
        if not (np.isfinite(values.min()) and np.isfinite(values.max())):
            raise Diverged(
                f"{when}: '{name}' has values that are not finite. Try a smaller learning-rate or server-learning-rate."
            )


def refuse_shape(name: str, array: NDArray[Any], axes: str) -> tuple[int, ...]:
    """The shape of an array of three axes, none of them empty.

    Raises:
        ValueError: it has another number of axes, or an empty one.
    """
    if array.ndim != 3 or array.size == 0:
        raise ValueError(f"{name} must have the axes {axes}, none of them empty, not shape {array.shape}.")
    return array.shape


def refuse_option(name: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a value that is none of those allowed.

    Raises:
        ValueError: names those allowed.
    """
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not '{value}'.")
