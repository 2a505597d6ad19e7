"""Scores where a user sees the sum of the common item table and its own, as FedRAP's and plain Fed3CR's do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Array
from bouquet.ragged import picked
from client_app.personalization.round import PERSONAL, Given
from client_app.training.compiler import row_kernels


def scores_of_sum(given: Given, table: str) -> Callable[[NDArray[np.int64]], Array] | None:
    """⟨p_u, C_i + D_ui⟩, without a sum of the two tables in memory; None where there is no compiler.

    Args:
        table: the name of C.
    Returns:
        rows [b] of the users -> [b, m].
    """
    code, common = row_kernels(), (given.shared | given.frozen).get(table)
    if code is None or common is None:
        return None
    vectors, tables = given.own["user_embedding"], given.own[PERSONAL]

    def scores(rows: NDArray[np.int64]) -> Array:
        found = np.empty((len(rows), len(common)), np.float32)
        code.score_sums(picked(vectors, rows), common, picked(tables, rows), found)
        return found

    return scores
