"""HeteFedRec: models of different sizes learn together (Yuan et al., 2023).

    groups          Section IV-A       users by number of interactions, smallest models for the least data
    nested tables   eq. 10             smaller tables start as the first columns of the largest
    aggregation     eq. 7 to 9         changes padded to the largest size, added up by block of columns
    networks        eq. 15             Θ_b from all users who carry it
    distillation    eq. 16 and 17      tables of all sizes agree on which items are alike

The text adds changes up (eq. 8). Devices here make several local steps, so the default is the mean over the users who
hold a block of columns; nothing is ever divided by users who do not hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.floating[Any]]

_MOST_HALVINGS = 40


def assign_groups(sizes: NDArray[np.integer], ratio: Sequence[int] = (5, 3, 2)) -> NDArray[np.int64]:
    """The group of each user: 0 for those with the least data.

    Args:
        sizes: [n] training interactions.
        ratio: shares of the groups, smallest models first; a group's end is rounded half up.
    Returns:
        [n]; users of equal size are taken in their order.
    Raises:
        ValueError: a share is not positive, or sizes are not a row of counts.
    """
    sizes, shares = np.asarray(sizes), np.asarray(ratio)
    if sizes.ndim != 1 or (sizes < 0).any():
        raise ValueError("sizes should be one count for each user")
    if shares.ndim != 1 or not len(shares) or (shares <= 0).any():
        raise ValueError(f"a ratio is made of positive shares, not {list(ratio)}")
    ends = np.floor(np.cumsum(shares) * len(sizes) / shares.sum() + 0.5)
    groups = np.empty(len(sizes), dtype=np.int64)
    groups[np.argsort(sizes, kind="stable")] = np.searchsorted(ends, np.arange(len(sizes)), side="right")
    return groups


def boundaries(sizes: NDArray[np.integer], groups: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The most data that a user of each group but the last has: who has more belongs higher up.

    Returns:
        [count - 1], never falling; 0 for groups below the first that has users.
    """
    most = [int(sizes[groups == group].max(initial=0)) for group in range(count - 1)]
    return np.maximum.accumulate(np.array(most, dtype=np.int64)) if most else np.zeros(0, np.int64)


def group_by_size(sizes: NDArray[np.integer], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    """The group of users who came or grew after groups were made: [n]."""
    return (np.asarray(sizes)[:, None] > bounds).sum(axis=1)


def aggregate_padded(
    updates: Sequence[Table],
    widths: Sequence[int],
    aggregation: Literal["mean", "sum"] = "mean",
    *,
    weights: Sequence[float] | None = None,
) -> NDArray[np.float64]:
    """Changes of tables of different widths, padded with zeros and added up (eq. 7 and 8).

    Args:
        updates: [m, width] each; the change of a user, or the weighted sum of the changes of several.
        widths: the width of each.
        aggregation: "mean" divides a column by the weights of those updates that have it; "sum" by nothing.
        weights: what each update weighs in a mean: a user's weight, or the sum of the users' weights. None: 1 each.
    Returns:
        [m, max width]; 0 where no update with a weight has a column. The first columns are the smaller tables'.
    Raises:
        ValueError: no updates, or shapes do not fit the widths.
    """
    weights = [1.0] * len(updates) if weights is None else weights
    if not updates or not len(updates) == len(widths) == len(weights):
        raise ValueError(f"{len(updates)} updates need as many widths and weights, not {len(widths)}, {len(weights)}")
    for update, width in zip(updates, widths, strict=True):
        if update.shape != (len(updates[0]), width):
            raise ValueError(f"an update should have shape {[len(updates[0]), width]}, not {list(update.shape)}")
    total, weight = np.zeros((len(updates[0]), max(widths))), np.zeros(max(widths))
    for update, width, share in zip(updates, widths, weights, strict=True):
        total[:, :width] += update
        weight[:width] += share
    if aggregation == "sum":
        return total
    return np.divide(total, weight, out=np.zeros_like(total), where=weight > 0)


def distillation_loss(tables: Sequence[Table], items: NDArray[np.integer]) -> float:
    """Σ_a ‖d(V_a) - d_ens‖² (eq. 16 and 17), squared Frobenius, d the cosine similarities of the chosen items.

    Args:
        tables: [m, width] each.
        items: [c] rows.
    """
    similarities = [_similarity(_directions(table[items])[0]) for table in tables]
    ensemble = sum(similarities[1:], start=similarities[0]) / len(similarities)
    return float(sum(np.square(similarity - ensemble).sum() for similarity in similarities))


def distill(
    tables: Sequence[Table], items: NDArray[np.integer], steps: int, learning_rate: float
) -> list[NDArray[np.float64]]:
    """Tables after steps down eq. 17, towards the ensemble of how they were.

    With unit rows ŝ_i = v_i / ‖v_i‖, d = ŝ ŝᵀ and g = 4 (d - d_ens) ŝ: ∂L/∂v_i = (g_i - ŝ_i (ŝ_i · g_i)) / ‖v_i‖.

    Args:
        tables, items: as for `distillation_loss`; not changed. A row of zeros has no direction and stays.
        steps: gradient steps of each table.
        learning_rate: their size; halved for a step that would take a table further away. Cosines do not know how long
            rows are, so that a step that suits long rows throws short ones far beyond where they should go.
    Returns:
        the tables, with the rows of `items` moved. `distillation_loss` is never higher than before.
    """
    moved = [np.array(table, dtype=np.float64) for table in tables]
    similarities = [_similarity(_directions(table[items])[0]) for table in moved]
    ensemble = sum(similarities[1:], start=similarities[0]) / len(similarities)
    for table in moved:
        for _ in range(steps):
            table[items] = _downhill(table[items], ensemble, learning_rate)
    return moved


def _downhill(rows: Table, ensemble: NDArray[np.float64], rate: float) -> Table:
    """Rows after one step that does not lead up; as they were where even a tiny one does."""

    def distance(rows: Table) -> float:
        return float(np.square(_similarity(_directions(rows)[0]) - ensemble).sum())

    gradient, before = distillation_gradient(rows, ensemble), distance(rows)
    for halvings in range(_MOST_HALVINGS):
        after = rows - rate * 0.5**halvings * gradient
        if distance(after) <= before:
            return after
    return rows


def distillation_gradient(rows: Table, ensemble: NDArray[np.float64]) -> NDArray[np.float64]:
    """∂‖d(V) - d_ens‖²/∂V of the chosen rows [c, width], with d_ens [c, c] as a constant."""
    units, norms = _directions(rows)
    pull = 4 * (_similarity(units) - ensemble) @ units
    pull -= units * np.einsum("cd,cd->c", units, pull)[:, None]
    return np.divide(pull, norms[:, None], out=np.zeros_like(pull), where=norms[:, None] > 0)


def _directions(rows: Table) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1)
    return np.divide(rows, norms[:, None], out=np.zeros_like(rows), where=norms[:, None] > 0), norms


def _similarity(units: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(units @ units.T)
