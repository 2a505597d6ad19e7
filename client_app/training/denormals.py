"""Numbers too small for full precision."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# Where the C library's `fenv_t` has the word that says how such numbers are treated, and the bits that make them 0:
# MXCSR with "flush to zero" and "denormals are zero", and on ARM FPCR with "flush to zero".
_PLACES = {
    ("linux", "x86_64"): (28, 0x8040),
    ("linux", "aarch64"): (0, 1 << 24),
    ("darwin", "x86_64"): (4, 0x8040),
    ("darwin", "arm64"): (8, 1 << 24),
}
_ENVIRONMENT_BYTES = 64  # more than any of them has


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Numbers too small for full precision count as 0 in this thread, where the processor is one that we know.

    The gradients of samples that are fitted well, and above all their squares, are such numbers, and processors work
    on them many times slower than on others.
    """
    place = _PLACES.get((sys.platform, platform.machine()))
    if place is None:
        yield
        return
    before = _environment()
    flushed = ctypes.create_string_buffer(before.raw, _ENVIRONMENT_BYTES)
    word = ctypes.c_uint32.from_buffer(flushed, place[0])
    word.value |= place[1]
    _library().fesetenv(flushed)
    try:
        yield
    finally:
        _library().fesetenv(before)


def _environment() -> ctypes.Array[ctypes.c_char]:
    """How this thread computes now."""
    found = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _library().fegetenv(found)
    return found


@cache
def _library() -> ctypes.CDLL:
    # The mathematical part of the C library, which the interpreter has loaded already.
    return ctypes.CDLL("libm.so.6") if sys.platform == "linux" and platform.libc_ver()[0] else ctypes.CDLL(None)
