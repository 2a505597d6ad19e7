"""Compiled normal numbers: those of `bouquet.randomness.normals` in float32, and which of them are in doubt.

Logarithm, sine and cosine are series here, a few units in the last place of a float64 away from anybody else's. Rounded
to float32 that makes no difference unless the number lies close to the middle between two neighbours; such numbers, one
or two in a million, are told to the caller, who draws them again the long way. So the numbers are the same with these
loops and without.

As `kernels`, this module imports nothing of the project and is compiled from a copy.
"""

from __future__ import annotations

import math

import numba
import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11, _S52 = (np.uint64(shift) for shift in (30, 27, 31, 11, 52))
_ONE = np.uint64(1)

# What is in between of so many pairs stays in the first cache; every loop over them is one of vector instructions.
_CHUNK = 512

# π/2 in two parts: products of the first with 0, …, 4 are exact.
_FIRST = math.ldexp(round(math.ldexp(math.pi / 2, 32)), -32)
_REST = (math.pi / 2 - _FIRST) + 6.123233995736766e-17
_TURN, _QUARTERS = 2.0 * math.pi, 2.0 / math.pi
_LN_2 = math.log(2)

# Mantissas are taken from [√½, √2), so that the logarithm of a number near 1 keeps all its digits.
_ROOT = np.array([math.sqrt(0.5)]).view(np.uint64)[0]
_UP = np.array([1.0]).view(np.uint64)[0] - _ROOT
_MANTISSA = np.uint64(2**52 - 1)
# The exponent of 1, and that of the 53-bit integers that uniform numbers are made of.
_BIAS = 1023.0 + 53.0

# The 29 bits of a float64 that float32 has not: within 2^9 of the middle, 2^-43 of the number, it is in doubt. Both
# sides are wrong by less than 2^-48.
_LOW = np.uint64(2**29 - 1)
_DOUBT_BEGIN, _DOUBT_WIDTH = np.uint64(2**28 - 2**9), np.uint64(2**10)
# Where a sine or cosine is smaller than this, or the result nearly nothing, digits were lost: in doubt as well.
_SMALL, _TINY = 1e-9, 1e-30

_inline = numba.njit(inline="always", error_model="numpy")


@_inline
def _mixed(word):
    word = (word ^ (word >> _S30)) * _MIX_1
    word = (word ^ (word >> _S27)) * _MIX_2
    return word ^ (word >> _S31)


@_inline
def _atanh_over(s):
    """atanh(s) / s for |s| <= 0.1716, from z = s²."""
    z = s * s
    total = 1.0 / 21.0
    total = total * z + 1.0 / 19.0
    total = total * z + 1.0 / 17.0
    total = total * z + 1.0 / 15.0
    total = total * z + 1.0 / 13.0
    total = total * z + 1.0 / 11.0
    total = total * z + 1.0 / 9.0
    total = total * z + 1.0 / 7.0
    total = total * z + 1.0 / 5.0
    total = total * z + 1.0 / 3.0
    return total * z + 1.0


@_inline
def _sine(r):
    """sin(r) for |r| <= π/4."""
    z = r * r
    total = 1.0 / 355687428096000.0
    total = total * z - 1.0 / 1307674368000.0
    total = total * z + 1.0 / 6227020800.0
    total = total * z - 1.0 / 39916800.0
    total = total * z + 1.0 / 362880.0
    total = total * z - 1.0 / 5040.0
    total = total * z + 1.0 / 120.0
    total = total * z - 1.0 / 6.0
    return r + r * z * total


@_inline
def _cosine(r):
    """cos(r) for |r| <= π/4."""
    z = r * r
    total = 1.0 / 20922789888000.0
    total = total * z - 1.0 / 87178291200.0
    total = total * z + 1.0 / 479001600.0
    total = total * z - 1.0 / 3628800.0
    total = total * z + 1.0 / 40320.0
    total = total * z - 1.0 / 720.0
    total = total * z + 1.0 / 24.0
    total = total * z - 1.0 / 2.0
    return total * z + 1.0


@numba.njit(cache=True, nogil=True, error_model="numpy")
def normals(streams, scale, out, doubtful):
    """out[u] = scale · normal numbers of stream u; those in doubt are in `doubtful`.

    Args:
        streams: [k] uint64.
        out: [k, n] float32.
        doubtful: [room] int64, filled with places in `out` as if that were flat.
    Returns:
        how many are in doubt; more than there is room for: the rest was not written down.
    """
    count = out.shape[1]
    pairs = (count + 1) // 2
    radius, angle = np.empty(_CHUNK), np.empty(_CHUNK)
    first, second = np.empty(_CHUNK), np.empty(_CHUNK)
    bits, first_bits, second_bits = radius.view(np.uint64), first.view(np.uint64), second.view(np.uint64)
    exponent, unsure = np.empty(_CHUNK), np.empty(_CHUNK, np.uint8)
    found = 0
    for user in range(len(streams)):
        stream, row = streams[user], out[user]
        for begin in range(0, pairs, _CHUNK):
            size = min(_CHUNK, pairs - begin)
            low, high = np.uint64(begin + 1), np.uint64(pairs + begin + 1)
            for i in range(size):
                step = np.uint64(i)
                # 1 - u as an integer of 2^-53, which is never 0, and the angle just as it is elsewhere.
                word = _mixed(stream + (low + step) * _GOLDEN) >> _S11
                radius[i] = np.float64(np.int64(9007199254740992) - np.int64(word))
                word = _mixed(stream + (high + step) * _GOLDEN) >> _S11
                angle[i] = _TURN * (np.float64(np.int64(word)) * 2.0**-53)
            for i in range(size):
                word = bits[i] + _UP
                exponent[i] = np.float64(np.int64(word >> _S52)) - _BIAS
                bits[i] = (word & _MANTISSA) + _ROOT
            for i in range(size):
                part = radius[i] - 1.0
                s = part / (2.0 + part)
                logarithm = exponent[i] * _LN_2 + 2.0 * s * _atanh_over(s)
                length = np.sqrt(-2.0 * logarithm)
                quarter = np.rint(angle[i] * _QUARTERS)
                r = (angle[i] - quarter * _FIRST) - quarter * _REST
                sine, cosine = _sine(r), _cosine(r)
                half = quarter * 0.5
                odd = half != np.floor(half)
                along = sine if odd else cosine
                across = cosine if odd else sine
                along = -along if (quarter == 1.0) | (quarter == 2.0) else along
                across = -across if (quarter == 2.0) | (quarter == 3.0) else across
                first[i], second[i] = scale * (length * along), scale * (length * across)
                unsure[i] = (abs(along) < _SMALL) | (abs(across) < _SMALL)
            for i in range(size):
                unsure[i] |= (
                    ((first_bits[i] & _LOW) - _DOUBT_BEGIN < _DOUBT_WIDTH)
                    | ((second_bits[i] & _LOW) - _DOUBT_BEGIN < _DOUBT_WIDTH)
                    | (abs(first[i]) < _TINY)
                    | (abs(second[i]) < _TINY)
                )
            for i in range(size):
                row[begin + i] = np.float32(first[i])
            for i in range(min(size, count - pairs - begin)):
                row[pairs + begin + i] = np.float32(second[i])
            some = np.uint64(0)
            for i in range(size):
                some += np.uint64(unsure[i])
            if some:
                for i in range(size):
                    if unsure[i]:
                        for place in (begin + i, pairs + begin + i):
                            if place < count:
                                if found < len(doubtful):
                                    doubtful[found] = user * count + place
                                found += 1
    return found
