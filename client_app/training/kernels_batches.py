"""Compiled batches: in which order a user's samples come, and how often a batch has each of the user's rows.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numpy as np

from .kernels_compile import _compile


@_compile
def _mix(word):
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


@_compile
def _order(stream, epoch, size, batch_size, keys, buckets, first, order):
    """Positions 0 … size - 1 in batches, in ascending order of their random keys.

    Key i is number i + epoch * 2**32 of the stream, as in `task.batch_order`. Keys are uniform, so a sort into as
    many buckets as keys is almost complete; it is completed only where a batch ends inside a bucket, because the
    order within a batch changes nothing.
    """
    buckets[: size + 1] = 0
    for i in range(size):
        counter = np.uint64(i) + (np.uint64(epoch) << np.uint64(32)) + np.uint64(1)
        keys[i] = _mix(stream + counter * np.uint64(0x9E3779B97F4A7C15))
        first[i] = ((keys[i] >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)
    for i in range(size):  # a loop of its own: the one above fills vector registers
        buckets[first[i] + 1] += 1
    for i in range(size):
        buckets[i + 1] += buckets[i]
    for i in range(size):
        order[buckets[first[i]]] = i
        buckets[first[i]] += 1
    for boundary in range(batch_size, size, batch_size):
        bucket = first[order[boundary]]
        begin = buckets[bucket - 1] if bucket > 0 else 0
        for i in range(begin + 1, buckets[bucket]):
            moved, j = order[i], i - 1
            while j >= begin and keys[order[j]] > keys[moved]:
                order[j + 1] = order[j]
                j -= 1
            order[j + 1] = moved


@_compile
def batch_orders(stream, indptr, epoch, batch_size, out):
    """The order of every user's samples in one epoch: out[indptr[u]:indptr[u + 1]] for user u."""
    longest = 0
    for user in range(len(stream)):
        longest = max(longest, indptr[user + 1] - indptr[user])
    keys, buckets = np.empty(longest, np.uint64), np.empty(longest + 1, np.int64)
    first = np.empty(longest, np.int64)
    for user in range(len(stream)):
        start, size = indptr[user], indptr[user + 1] - indptr[user]
        _order(stream[user], epoch, size, batch_size, keys, buckets, first, out[start : start + size])


@_compile
def _count(here, order, start, stop, num_positives, positives, samples, listed):
    """Count a batch's positives and all its samples by row, and list its distinct rows."""
    active = 0
    for i in range(start, stop):
        row = here[order[i]]
        if samples[row] == 0:
            listed[active] = row
            active += 1
        samples[row] += 1
        if order[i] < num_positives:
            positives[row] += 1
    return active


@_compile
def _count_all(here, order, start, stop, num_positives, positives, samples):
    """Count a batch's positives and all its samples by row, of all rows: nothing is guessed, so nothing wrongly."""
    one = samples.dtype.type(1)
    for i in range(start, stop):
        sample = order[i]
        row = here[sample]
        samples[row] += one
        positives[row] += one * (sample < num_positives)


@_compile
def _take(counts, listed, active, out):
    """out = counts[listed]; those counts are zero again."""
    for i in range(active):
        out[i] = counts[listed[i]]
        counts[listed[i]] = 0
