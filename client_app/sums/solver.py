"""What a device adds to dense sums that are asked for anew in every round."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.packed import PackedArray
from bouquet.ragged import Ragged
from client_app.sums.counter import Recommender


@dataclass(frozen=True)
class GivenSums:
    """What some users add to the sums of a round.

    Attributes:
        sums: by array, of all users that are fit; float32 of a user that was asked alone, else float64.
        fit: [k] whose numbers are finite; the others are in no sum.
        loss: [k] float32, what is left of the loss per item of the history; NaN where there is none.
        upload_bytes: [k] int64, what each user alone would send.
    """

    sums: dict[str, PackedArray]
    fit: NDArray[np.bool_]
    loss: NDArray[np.float32]
    upload_bytes: NDArray[np.int64]


class Solver(Recommender):
    """The device's half of a method whose sums are of dense rows, from arrays that the server sends in each round."""

    @abstractmethod
    def given(self, shared: Arrays, histories: Ragged) -> GivenSums:
        """What these users add.

        Args:
            shared: the arrays that the server sent.
            histories: [k] rows of distinct items.
        Raises:
            WireError: the server sent arrays that there is no answer to.
        """

    @abstractmethod
    def round_bytes(self, returning: Specs, users: int) -> float:
        """Bytes of memory that a round of so many users takes, beside the messages."""


class RowTotal:
    """Adds up one array by item over users, and knows which rows any of them has.

    Args:
        shape: [m, …].
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total, self._touched = np.zeros(shape), np.zeros(shape[0], dtype=bool)

    def add(self, items: NDArray[np.int32], rows: NDArray[np.float64]) -> None:
        """Add rows [n, …] to those of distinct items [n]."""
        self._total[items] += rows
        self._touched[items] = True

    def packed(self, alone: bool) -> PackedArray:
        """The rows that were touched; in float32 of one user alone."""
        rows = None if self._touched.all() else np.flatnonzero(self._touched).astype(np.int32)
        values = self._total if rows is None else self._total[rows]
        return PackedArray(rows, values.astype(np.float32) if alone else values)


def rows_bytes(lengths: NDArray[np.int64], num_items: int, words: int) -> NDArray[np.int64]:
    """[k] bytes of so many rows of an array in float32, each of so many words, as `RowTotal` packs them."""
    return 4 * lengths * (words + (lengths < num_items))
