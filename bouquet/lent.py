"""Arrays of a message whose bytes are made when somebody wants them.

Between processes everybody does. Within one process, where the other side is handed the message itself, nobody does,
and tables of all users of a node are then neither copied nor parsed. What is lent must not be changed as long as the
message may be read: until the replies to a request are there, and never in a reply.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray


class LentArray(Array):
    """What `Array(values)` makes, but for its bytes.

    Attributes:
        values: read-only.
    """

    values: NDArray[Any]

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = np.ascontiguousarray(values).view()
        self.values.flags.writeable = False
        self.dtype, self.shape, self.stype = str(self.values.dtype), self.values.shape, "numpy.ndarray"

    def __getattr__(self, name: str) -> Any:
        if name != "data" or "values" not in self.__dict__:
            raise AttributeError(name)
        self.data = serialised(self.values)
        return self.data

    @property
    def size(self) -> int:
        """Bytes of `data`."""
        return len(_header(self.values)) + self.values.nbytes


def serialised(values: NDArray[Any]) -> bytes:
    """What numpy writes, copied once: the tables of all users of a node are large."""
    return b"".join((_header(values), values.data))


def lent_values(array: Array) -> NDArray[Any] | None:
    """The values of an array that is lent and has not been given other bytes."""
    return array.values if isinstance(array, LentArray) and "data" not in array.__dict__ else None


def size_of(array: Array) -> int:
    """Bytes that an array takes in a message, its header included."""
    return len(array.data) if lent_values(array) is None else array.size  # type: ignore[attr-defined]


def _header(values: NDArray[Any]) -> bytes:
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    return header.getvalue()
