"""Noise on sums, and where it is drawn from.

Sums and noise are float64. A noisy sum is rounded to a grid of about 2^-20 of the noise, far coarser than the gaps
between floating-point numbers, so that the last bits, which can tell what noise was added to (Mironov, CCS 2012), are
not told. That takes away the known attack; it is no proof for floating-point numbers.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.randomness import Streams, mix, normals
from bouquet.secret_draws import SecretStreams

_GRID_BITS = 20


def noisy(values: NDArray[np.float64], deviation: float, stream: Streams, number: int) -> NDArray[np.float64]:
    """values + N(0, deviation²) on each of them, on a grid of about 2^-20 of the deviation.

    Args:
        stream: [1].
        number: of the array among those that share the stream.
    """
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    added = deviation * normals(_apart(stream, number), values.size)[0].reshape(values.shape)
    return np.asarray(np.round((values + added) / grid) * grid)


def _apart(stream: Streams, number: int) -> Streams:
    """A stream of its own for each array."""
    if isinstance(stream, SecretStreams):
        return replace(stream, users=stream.users + np.uint64(number))
    assert isinstance(stream, np.ndarray)
    return mix(stream + np.uint64(number))


def fresh() -> SecretStreams:
    """A stream that nobody can repeat: its key is forgotten."""
    return SecretStreams(secrets.token_bytes(32), np.zeros(1, np.uint64))
