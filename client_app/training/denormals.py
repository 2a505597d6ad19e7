"""Numbers too small for full precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Numbers too small for full precision count as 0 in this thread.

    The gradients of samples that are fitted well, and above all their squares, are such numbers, and processors work
    on them many times slower than on others.
    """
    before = bool(np.float64(1e-310) * np.float64(1.0) == 0)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
