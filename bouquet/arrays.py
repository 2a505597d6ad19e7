"""What a model is made of, told without the model: names, shapes and initial values of its arrays.

The server keeps and averages shared arrays without knowing the backbone (and without importing torch); a device
keeps private arrays for each of its users. Both start from specifications that the backbone declares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.randomness import Purpose, Words, draw, generator, normals, streams, uniforms

Array = NDArray[np.float32]
Arrays = dict[str, Array]

# So many private values are drawn at once: what is in between stays in the cache.
_DRAWN = 2**16

_INITS = ("normal", "uniform", "zeros")


@dataclass(frozen=True)
class ArraySpec:
    """One array of a model.

    Attributes:
        shape: its shape; for a private array, the shape for one user.
        init: "normal" (standard deviation `scale`), "uniform" (in [-scale, scale]) or "zeros".
        scale: see `init`.
        by_item: the first axis is the catalogue, so an update may carry touched rows only.
    """

    shape: tuple[int, ...]
    init: str = "normal"
    scale: float = 0.1
    by_item: bool = False

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape))


Specs = Mapping[str, ArraySpec]


def exchanged(specs: Specs, only_embeddings: bool) -> dict[str, ArraySpec]:
    """The shared arrays that a run exchanges: all, or only those by item."""
    return {name: spec for name, spec in specs.items() if spec.by_item or not only_embeddings}


def dump_specs(specs: Specs) -> str:
    """The specifications as JSON, for the wire and for checkpoints."""
    return json.dumps({name: asdict(spec) for name, spec in sorted(specs.items())})


def load_specs(text: str) -> dict[str, ArraySpec]:
    """The inverse of `dump_specs`.

    Raises:
        WireError: the text is no such specification.
    """
    try:
        specs = {name: ArraySpec(**{**spec, "shape": tuple(spec["shape"])}) for name, spec in json.loads(text).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise WireError(f"the array specifications cannot be read ({error})") from None
    for name, spec in specs.items():
        sizes_are_counts = all(isinstance(size, int) and size > 0 for size in spec.shape)
        if spec.init not in _INITS or not sizes_are_counts or not np.isfinite(spec.scale):
            raise WireError(f"array '{name}' has an impossible specification {spec}")
    return specs


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
            values = np.zeros(spec.shape)
        arrays[name] = values.astype(np.float32)
    return arrays


def initial_private(name: str, spec: ArraySpec, seed: int, users: Words) -> Array:
    """Initial values of a private array for the users with these keys: [k, *shape]."""
    # The name is hashed into the seed, so that two private arrays of a user do not start alike.
    salt = int(generator(seed, 0, Purpose.PRIVATE_INIT, name).integers(2**63))
    source = streams(salt, users, 0, Purpose.PRIVATE_INIT)
    found = np.zeros((len(users), spec.size), dtype=np.float32)
    step = max(1, _DRAWN // max(spec.size, 1))
    for start in range(0, len(users), step):
        some, part = source[start : start + step], found[start : start + step]
        if spec.init == "normal":
            part[:] = spec.scale * normals(some, spec.size)
        elif spec.init == "uniform":
            part[:] = spec.scale * (2.0 * uniforms(draw(some[:, None], np.arange(spec.size)[None, :])) - 1.0)
    return found.reshape(len(users), *spec.shape)
