"""Arrays of users of whom several have the same one, which then travels once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array


@dataclass(frozen=True)
class Picked:
    """An array [k, …] whose entry of user j is `values[which[j]]`.

    Attributes:
        values: [c, …], each of them of one user or more.
        which: [k] int64.
    """

    values: Array
    which: NDArray[np.int64]

    @staticmethod
    def among(values: Array, which: NDArray[np.int64]) -> Picked:
        """Copies of those of some values [n, …] that users pick, `which` [k] of them."""
        present, picked = np.unique(which, return_inverse=True)
        return Picked(values[present], picked.astype(np.int64))

    def __len__(self) -> int:
        return len(self.which)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> Array:
        """Those of some users, as an array of its own for each."""
        return self.values[self.which[rows]]

    @property
    def nbytes(self) -> int:
        """What the users' own entries take, each in a message of its own."""
        return len(self.which) * self.values[:1].nbytes


PerUser = Mapping[str, Array | Picked]
"""Arrays with an entry for each user."""
