"""The singular vectors that users tell FedCA's server beside their tables (eq. 7), kept while they are wanted.

Where a round mixes the tables of its own users, their vectors are of the round. Where the stored tables of all others
are mixed as well, so are the vectors that these told last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from strategies.federation.hooks import Extra

_LAST, _WIDTH = "features", "features/width"


class KeptFeatures:
    """Features X_u, [vectors, dimensions] for each user, zeros for one that has told none.

    Args:
        count: users of the roster.
        everybody: keep what each user told last, and not the round's alone.
    """

    def __init__(self, count: int, *, everybody: bool) -> None:
        self._count, self._everybody = count, everybody
        self._users = np.arange(count if everybody else 0)
        self._features: NDArray[np.float32] | None = None
        # Left vectors grow with the longest history that there ever was.
        self._width = 0

    def begin(self, users: NDArray[np.int64]) -> None:
        """A round of these users, ascending."""
        if not self._everybody:
            self._users, self._features = users, None

    def take(self, members: NDArray[np.int64], features: NDArray[np.float32]) -> None:
        """What some of them told, [k, vectors, dimensions]."""
        width = features.shape[2]
        self._width = max(self._width, width)
        if self._features is None or self._features.shape[2] < self._width:
            wider = np.zeros((len(self._users), features.shape[1], self._width), np.float32)
            if self._features is not None:
                wider[:, :, : self._features.shape[2]] = self._features
            self._features = wider
        places = np.searchsorted(self._users, members)
        self._features[places, :, :width] = features
        self._features[places, :, width:] = 0

    def of(self, users: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """[k, vectors, dimensions] of users of the round, or of any; None where nobody has told anything."""
        return None if self._features is None else self._features[np.searchsorted(self._users, users)]

    def arrays(self) -> Extra:
        """What a checkpoint must hold."""
        kept = {_LAST: self._features} if self._everybody and self._features is not None else {}
        return {**kept, _WIDTH: np.array([self._width])}

    def restore(self, arrays: Extra) -> None:
        """Take back what `arrays` gave."""
        self._features, self._width = arrays.get(_LAST), int(arrays[_WIDTH][0])

    def users_joined(self, count: int) -> None:
        """So many users stand at the end of the roster."""
        self._count += count
        if self._everybody:
            self._users = np.arange(self._count)
            if self._features is not None:
                nothing = np.zeros((count, *self._features.shape[1:]), np.float32)
                self._features = np.concatenate([self._features, nothing])

    def users_forgotten(self, positions: NDArray[np.int64]) -> None:
        """Drop what these users told."""
        self._count -= len(positions)
        if self._everybody:
            self._users = np.arange(self._count)
            if self._features is not None:
                self._features = np.delete(self._features, positions, axis=0)
        else:
            self._users, self._features = np.arange(0), None
