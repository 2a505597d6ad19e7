"""How kernels are compiled: kept for the next process, without Python's lock, for vector registers.

Copied and compiled with the kernels beside it (see `compiler`).
"""

from __future__ import annotations

import numba

# Sums may be reordered into vector registers; NaN and infinity keep their meaning. Without numpy's rules of division
# every quotient is checked for zero, which keeps its loop from vector registers.
# What kernels call is part of each of them: called, it would be whichever of its copies a process met first, that of a
# kernel compiled here or of one from the cache, which round differently.
_compile = numba.njit(
    cache=True,
    nogil=True,
    forceinline=True,
    fastmath={"reassoc", "contract", "nsz", "arcp"},
    error_model="numpy",
)
