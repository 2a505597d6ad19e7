"""Metrics of every user in the reported round, which paired tests need, in a file of their own.

Of single users, so it is readable for the owner of the folder only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from bouquet.checked import checked_tensors, read_checked
from bouquet.errors import DataError, StateError
from bouquet.files import write_atomically
from bouquet.randomness import Words


def write_user_metrics(
    path: Path, users: Words, values: NDArray[np.floating], sizes: NDArray[np.integer] | None = None
) -> None:
    """Write keys [n] and metrics [n, parts, candidate sets, metrics].

    Args:
        sizes: [n] training interactions of each user, which say how active it is.
    """
    arrays: dict[str, NDArray[Any]] = {"users": users, "metrics": values.astype(np.float32)}
    if sizes is not None:
        arrays["sizes"] = sizes.astype(np.int64)
    write_atomically(path, checked_tensors(arrays, {}), private=True)


def read_user_metrics(path: Path) -> dict[str, NDArray[Any]]:
    """`users` and `metrics`, and `sizes` unless an older version wrote the file.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            checked = file.metadata() is not None
        # Without any metadata it is of a version that wrote no digest.
        return read_checked(path)[0] if checked else load_file(path)
    except (OSError, SafetensorError, StateError) as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
