"""Masks: ChaCha20 streams, read as numbers modulo 2^32 or 2^64."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bouquet.masking.fixed import Bits, Whole, dtype_of

# Bytes of a stream that are made at once: they stay in the cache.
_PIECE = 2**18


def add_masks(total: Whole, masks: Iterable[tuple[bytes, int]]) -> None:
    """Add streams to numbers, in place.

    Args:
        total: [D].
        masks: keys of 32 bytes, each of which makes one stream in its life, with the sign +1 or -1.
    """
    # Not at the top: most processes mask nothing.
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    piece = _PIECE // total.itemsize
    zeros, buffer = bytes(_PIECE), bytearray(_PIECE)
    for key, sign in masks:
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        for start in range(0, len(total), piece):
            part = total[start : start + piece]
            size = part.nbytes
            stream.update_into(memoryview(zeros)[:size], memoryview(buffer)[:size])
            mask = np.frombuffer(buffer, total.dtype, len(part))
            if sign > 0:
                part += mask
            else:
                part -= mask


def zeros(length: int, bits: Bits) -> Whole:
    """[D] numbers to add to."""
    return np.zeros(length, dtype_of(bits))
