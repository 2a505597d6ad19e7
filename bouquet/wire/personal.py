"""Arrays of single users in a message to their node; what several of them have in common is in it once."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, RecordDict
from numpy.typing import NDArray

from bouquet.errors import WireError
from bouquet.picked import PerUser, Picked
from bouquet.records import lend, read_record, values_of

# What the name of an array ends with that says which entry of a personal array is whose.
_OF = "/of"


def lend_personal(arrays: PerUser) -> ArrayRecord:
    """Arrays of the users: what several have once, and beside it which of the entries is whose."""
    flat: dict[str, Any] = {}
    for name, values in arrays.items():
        if not isinstance(values, Picked):
            flat[name] = values
        elif len(values.values) < len(values):
            flat |= {name: values.values, f"{name}{_OF}": values.which}
        else:  # nothing to save, as for the only user of a node
            flat[name] = values[:]
    return lend(flat)


def read_personal(content: RecordDict, num_users: int) -> dict[str, NDArray[np.float32] | Picked]:
    """What `lend_personal` lent."""
    arrays = {name: values_of(array, name) for name, array in read_record(content, "personal").items()}
    found: dict[str, NDArray[np.float32] | Picked] = {}
    for name, values in arrays.items():
        if name.endswith(_OF):
            continue
        if values.ndim == 0:
            raise WireError(f"personal array '{name}' should have one entry for each of {num_users} users")
        which = arrays.get(f"{name}{_OF}")
        if which is None:
            found[name] = values
        elif which.dtype != np.int64 or which.ndim != 1 or not ((which >= 0) & (which < len(values))).all():
            raise WireError(f"'{name}{_OF}' should say which of {len(values)} entries of '{name}' is each user's")
        else:
            found[name] = Picked(values, which)
        if len(found[name]) != num_users:
            raise WireError(f"personal array '{name}' should have one entry for each of {num_users} users")
    if unknown := [name for name in arrays if name.endswith(_OF) and name.removesuffix(_OF) not in found]:
        raise WireError(f"'{unknown[0]}' says whose the entries of an array are that did not come")
    return found
