"""Initial values of whole private arrays, by compiled loops where there are any, and the same to the last digit."""

from __future__ import annotations

import numpy as np

from bouquet.arrays import Array, ArraySpec, initial_private, private_streams
from bouquet.randomness import Words, some_normals
from client_app.training.compiler import normals_kernels

# Below so many values of a user numpy is as fast, and a node of small models needs no compiler.
_FEW = 2**15
# Of a million values one or two are in doubt; where there are more than this for each user, numpy draws all.
_DOUBTFUL = 1024


def drawn_private(name: str, spec: ArraySpec, seed: int, users: Words, out: Array) -> None:
    """What `initial_private` gives, into `out` [k, *shape]."""
    code = normals_kernels() if spec.init == "normal" and spec.size >= _FEW else None
    if code is None:
        out[:] = initial_private(name, spec, seed, users)
        return
    streams, flat = private_streams(name, seed, users), out.reshape(len(users), spec.size)
    doubtful = np.empty(_DOUBTFUL * len(users), np.int64)
    count = code.normals(streams, spec.scale, flat, doubtful)
    if count > len(doubtful):
        out[:] = initial_private(name, spec, seed, users)
        return
    whose, place = np.divmod(doubtful[:count], spec.size)
    flat[whose, place] = spec.scale * some_normals(streams[whose], place, spec.size)
