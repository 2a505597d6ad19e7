"""The checksums of private state, 32 bits of each row, for many rows at once.

A part of a row is read as 32-bit words x in blocks of 1,024. With odd 64-bit keys a that are drawn once for all, and
arithmetic modulo 2^64,

    h_b = Σ_j a_j x_bj                       vector multiply-shift (Dietzfelbinger, 1996; Thorup, 2015)
    s   = mixed((s ⊕ h_b) · c)               over the blocks of all parts, s = 0 in the beginning, c odd

of which the upper half is kept. A damaged word changes its h_b whatever else the block holds, and every step is a
bijection of s, so that the blocks before and after take nothing back; by keeping a half one damage in 2^32 is missed.
With compiled loops this takes a third of what CRC-32 of sums of words does (`bouquet.row_files.checksum`), which
folders that were begun earlier go on with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from bouquet.randomness import draw
from bouquet.row_batches import Indices, RowBatch
from bouquet.row_files import checksum
from client_app.training.compiler import row_kernels

BLOCK = 1024
FACTOR = 0x9E3779B97F4A7C15
SHIFT = 29

Checksums = Callable[[RowBatch, Indices], NDArray[np.uint32]]


def mixed_words(rows: RowBatch, which: Indices) -> NDArray[np.uint32]:
    """[k] of the rows `which` [k] of a batch."""
    code, states = row_kernels(), np.zeros(len(which), np.uint64)
    for values, bounds in rows.parts:
        mix = code.mix_words if code is not None else mix_words
        mix(values.view(np.uint32), bounds[which], bounds[which + 1], keys(), np.uint64(FACTOR), states)
    return (states >> np.uint64(32)).astype(np.uint32)


def crc_of_sums(rows: RowBatch, which: Indices) -> NDArray[np.uint32]:
    """The same as folders have it whose index is of format 2."""
    return np.array([checksum(rows.row(user)) for user in which.tolist()], np.uint32)


BY_FORMAT: dict[str, Checksums] = {"2": crc_of_sums, "3": mixed_words}
"""By the format of an index, the newest last."""


@cache
def keys() -> NDArray[np.uint64]:
    """[BLOCK] a, the same on all machines."""
    return draw(np.zeros(1, np.uint64), np.arange(BLOCK)) | np.uint64(1)


def mix_words(
    words: NDArray[np.uint32], begins: Indices, ends: Indices, keys: NDArray[np.uint64], factor: np.uint64,
    states: NDArray[np.uint64],
) -> None:  # fmt: skip
    """What the compiled loop of this name does, in numpy."""
    for user, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        blocks = np.zeros(-(-(end - begin) // len(keys)) * len(keys), np.uint64)
        blocks[: end - begin] = words[begin:end]
        state = int(states[user])
        for total in (blocks.reshape(-1, len(keys)) @ keys).tolist():
            state = ((state ^ total) * int(factor)) % 2**64
            state ^= state >> SHIFT
        states[user] = state
