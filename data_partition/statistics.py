"""What a data set is like, in numbers."""

from __future__ import annotations

import numpy as np

from data_partition.interactions import Interactions


def remarks(interactions: Interactions) -> list[str]:
    """What must be known about a file of one's own before its figures, in sentences; nothing for a known set."""
    reading = interactions.reading
    if reading is None:
        return []
    said = [f"{interactions.name} was read {reading.form}."] if reading.form else []
    if reading.skipped:
        what = "row cannot be read and is" if reading.skipped == 1 else "rows cannot be read and are"
        which = ", among them" if reading.skipped > len(reading.examples) else ":"
        said.append(f"{reading.skipped:,} of {reading.rows:,} {what} left out{which} {'; '.join(reading.examples)}.")
    if interactions.duplicates:
        what = "row repeats" if interactions.duplicates == 1 else "rows repeat"
        counts = "they stay as events" if interactions.repeats == "keep" else "the oldest row of a pair counts"
        said.append(f"{interactions.duplicates:,} {what} an earlier pair of user and item; {counts}.")
    return said


def stats(interactions: Interactions) -> dict[str, int | float | str | bool]:
    """Counts and shape of a data set, in the order in which one would print them.

    `density` is the share of (user, item) pairs that interacted; with repeats kept, each pair counts once.
    """
    lengths = interactions.histories.lengths
    users, items = interactions.num_users, interactions.num_items
    histories = interactions.histories
    pairs = len(np.unique(histories.row_of_value * items + histories.values))
    density = pairs / (users * items)
    return {
        "name": interactions.name,
        "users": users,
        "items": items,
        "interactions": interactions.num_interactions,
        "average": float(lengths.mean()),
        "median": float(np.median(lengths)),
        "min": int(lengths.min()),
        "max": int(lengths.max()),
        "density": density,
        "sparsity": 1.0 - density,
        "has_time": interactions.has_time,
        "rows": interactions.rows,
        "repeats": interactions.repeats,
        "duplicates": interactions.duplicates,
        "dropped_users": interactions.dropped_users,
    }
