"""What a model is made of, told without the model: names, shapes and initial values of its arrays.

The server keeps and averages shared arrays without knowing the backbone (and without importing torch); a device
keeps private arrays for each of its users. Both start from specifications that the backbone declares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, Words, draw, generator, normals, some_normals, streams, uniforms

Array = NDArray[np.float32]
Arrays = dict[str, Array]

# So many private values are drawn at once: what is in between stays in the cache.
_DRAWN = 2**16

_INITS, _DTYPES = ("normal", "uniform", "zeros", "constant"), ("float32", "int32")

# What a node may claim about a model: far above every backbone here, and little work to refuse.
MOST_TEXT = 64 * 1024
MOST_ARRAYS, MOST_AXES, LONGEST_NAME = 1000, 4, 100
MOST_VALUES = 2**31
# {name: {"shape": [...]}}
_DEPTH = 3


@dataclass(frozen=True)
class ArraySpec:
    """One array of a model.

    Attributes:
        shape: its shape; for a private array, the shape for one user.
        init: "normal" (standard deviation `scale`), "uniform" (in [-scale, scale]), "zeros", or "constant" (`scale`).
        scale: see `init`.
        by_item: the first axis is the catalogue, so an update may carry touched rows only.
        dtype: "float32", or "int32" for item numbers, which nothing trains.
    """

    shape: tuple[int, ...]
    init: str = "normal"
    scale: float = 0.1
    by_item: bool = False
    dtype: Literal["float32", "int32"] = "float32"

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


Specs = Mapping[str, ArraySpec]


def exchanged(specs: Specs, only_embeddings: bool) -> dict[str, ArraySpec]:
    """The shared arrays that a run exchanges: all, or only those by item."""
    return {name: spec for name, spec in specs.items() if spec.by_item or not only_embeddings}


def dump_specs(specs: Specs) -> str:
    """The specifications as JSON, for the wire and for checkpoints."""
    return json.dumps({name: _said(spec) for name, spec in sorted(specs.items())})


def digest_of(specs: Specs) -> str:
    """16 hexadecimal digits that tell models apart."""
    return blake2b(dump_specs(specs).encode(), digest_size=8).hexdigest()


def _said(spec: ArraySpec) -> dict[str, Any]:
    """What differs from one array to another; nodes of earlier versions know no other numbers than float32."""
    said = asdict(spec)
    if spec.dtype == "float32":
        del said["dtype"]
    return said


def load_specs(text: str) -> dict[str, ArraySpec]:
    """The inverse of `dump_specs`.

    Raises:
        WireError: the text is no such specification.
    """
    if len(text) > MOST_TEXT or _depth(text) > _DEPTH:
        raise WireError(f"the array specifications are longer than {MOST_TEXT} characters, or nested too deeply")
    try:
        specs = {name: ArraySpec(**{**spec, "shape": tuple(spec["shape"])}) for name, spec in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"the array specifications cannot be read ({error})") from None
    if len(specs) > MOST_ARRAYS:
        raise WireError(f"the model has {len(specs)} shared arrays where at most {MOST_ARRAYS} make sense")
    for name, spec in specs.items():
        if len(name) > LONGEST_NAME or not _is_possible(spec):
            raise WireError(f"array '{name[:LONGEST_NAME]}' has an impossible specification {str(spec)[:200]}")
    if sum(spec.size for spec in specs.values()) > MOST_VALUES:
        raise WireError(f"the model has more than {MOST_VALUES} shared values")
    return specs


def _depth(text: str) -> int:
    """How deeply brackets are nested; one inside a name counts like all others."""
    codes = np.frombuffer(text.encode(errors="replace"), np.uint8)
    steps = np.isin(codes, list(b"[{")).astype(np.int64) - np.isin(codes, list(b"]}"))
    return int(np.cumsum(steps).max(initial=0))


def _is_possible(spec: ArraySpec) -> bool:
    """Whether a specification that was read is one of an array that could be made."""
    sizes = len(spec.shape) <= MOST_AXES and all(type(size) is int and 0 < size <= MOST_VALUES for size in spec.shape)
    scale = type(spec.scale) in (int, float) and abs(spec.scale) <= float(np.finfo(np.float32).max)
    return (
        sizes
        and scale
        and spec.init in _INITS
        and spec.dtype in _DTYPES
        and type(spec.by_item) is bool
        and bool(spec.shape or not spec.by_item)
    )


def initial_shared(specs: Specs, seed: int) -> Arrays:
    """Initial shared arrays: the same for one seed, whatever nodes there are."""
    arrays = {}
    for name, spec in specs.items():
        source = generator(seed, 0, Purpose.SHARED_INIT, name)
        if spec.init == "normal":
            values = source.normal(0.0, spec.scale, spec.shape)
        elif spec.init == "uniform":
            values = source.uniform(-spec.scale, spec.scale, spec.shape)
        else:
            values = np.full(spec.shape, _resting(spec))
        arrays[name] = values.astype(spec.dtype)
    return arrays


def initial_private(name: str, spec: ArraySpec, seed: int, users: Words) -> Array:
    """Initial values of a private array for the users with these keys: [k, *shape]."""
    source = private_streams(name, seed, users)
    found = np.full((len(users), spec.size), _resting(spec), dtype=np.float32)
    step = max(1, _DRAWN // max(spec.size, 1))
    for start in range(0, len(users), step):
        some, part = source[start : start + step], found[start : start + step]
        if spec.init == "normal":
            part[:] = spec.scale * normals(some, spec.size)
        elif spec.init == "uniform":
            part[:] = spec.scale * (2.0 * uniforms(draw(some[:, None], np.arange(spec.size)[None, :])) - 1.0)
    return found.reshape(len(users), *spec.shape)


def initial_private_rows(name: str, spec: ArraySpec, seed: int, users: Words, rows: Ragged) -> Array:
    """Some rows of `initial_private`, to the last digit, without the others.

    Args:
        rows: [k] rows of the first axis that are wanted of each of the users.
    Returns:
        [nnz, …], one user after another.
    """
    width = math.prod(spec.shape[1:])
    found = np.full((len(rows.values), width), _resting(spec), dtype=np.float32)
    if spec.init in ("normal", "uniform") and len(found):
        source = np.repeat(private_streams(name, seed, users), width * rows.lengths)
        counter = (rows.values.astype(np.int64)[:, None] * width + np.arange(width)).reshape(-1)
        if spec.init == "normal":
            values = spec.scale * some_normals(source, counter, spec.size)
        else:
            values = spec.scale * (2.0 * uniforms(draw(source, counter)) - 1.0)
        found[:] = values.reshape(found.shape)
    return found.reshape(len(found), *spec.shape[1:])


def _resting(spec: ArraySpec) -> float:
    """The value of an array of which nothing is drawn."""
    return spec.scale if spec.init == "constant" else 0.0


def private_streams(name: str, seed: int, users: Words) -> Words:
    """[k] the stream of a private array of each user."""
    # The name is hashed into the seed, so that two private arrays of a user do not start alike.
    salt = int(generator(seed, 0, Purpose.PRIVATE_INIT, name).integers(2**63))
    return streams(salt, users, 0, Purpose.PRIVATE_INIT)
