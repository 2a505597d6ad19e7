"""Work on users that is divided among threads, for compiled code that does not hold Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from client_app.training.denormals import flushed_denormals


def threads() -> int:
    """How many threads this process may use: what its environment says (Ray does), else all cores."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def spread(work: Callable[[int, int], None], indptr: NDArray[np.int64]) -> None:
    """Call work(begin, end) for parts of the users with about equally many rows, on all threads: a user goes where its
    middle row would."""
    users = len(indptr) - 1
    count = min(threads(), users)
    if count <= 1:
        work(0, users)
        return
    middles = (indptr[:-1] + indptr[1:]) / 2
    cuts = np.searchsorted(middles, np.linspace(0, indptr[-1], count + 1)[1:-1])
    bounds = [0, *cuts.tolist(), users]
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, *pair) for pair in pairwise(bounds)]:
            done.result()


def run_kernel(kernel: Callable[..., None], arguments: tuple[Any, ...], indptr: NDArray[np.int64]) -> None:
    """As `spread`, of kernel(begin, end, *arguments); numbers too small for full precision count as 0."""

    def work(begin: int, end: int) -> None:
        with flushed_denormals():
            kernel(begin, end, *arguments)

    spread(work, indptr)
