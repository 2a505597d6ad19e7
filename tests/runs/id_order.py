"""What the numbers of items tell about what is hidden: scorers without learning, and a plain count.

Files are often sorted by item, or items numbered in the order of a file. Where that order decides which event is a
user's last, the hidden item stands above the others in number, and whatever learns that is no better recommender.

A scorer that knows numbers alone may be above popularity for another reason: neighbours in number are often of one
series or brand, and were bought together. That has no direction. So every scorer has its mirror image, which goes down
where it goes up: an order that leaks shows as one of the two above popularity and above the other.

    python -m tests.runs.id_order /data/sets     the table of docs/reference/datasets.md, for the sets that are there
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bouquet.errors import DataError
from bouquet.evaluation.metrics import METRICS, user_metrics
from bouquet.evaluation.ranks import rank_full
from bouquet.ragged import Ragged, one_after_another
from data_partition import DATASETS, Interactions, Split, from_table, leave_one_out, load
from data_partition.fetch import locate
from data_partition.readers.raw import RawData

FIGURES = ("HR@10", "NDCG@10")
AFTER_VALIDATION = "the next id above the validation item"
_BLOCK = 2**22

Scorer = Callable[[NDArray[np.int64]], NDArray[np.float64]]
"""[b] rows of users to [b, m] scores."""


def id_scorers(split: Split, num_items: int) -> dict[str, tuple[Scorer, Scorer]]:
    """Scorers that read nothing but numbers of known items, which ascend with their raw ids; each with its mirror."""
    numbers = np.arange(num_items, dtype=np.float64)
    known = one_after_another(split.train, split.validation)

    def beside(base: Callable[[int], int], sign: int) -> Scorer:
        def score(rows: NDArray[np.int64]) -> NDArray[np.float64]:
            distance = sign * (numbers[None] - np.array([base(row) for row in rows])[:, None])
            return -np.where(distance > 0, distance, num_items - distance)

        return score

    def newest(part: Ragged) -> tuple[Scorer, Scorer]:
        return beside(lambda row: part.row(row)[-1], 1), beside(lambda row: part.row(row)[-1], -1)

    def all_over(values: NDArray[np.float64]) -> Scorer:
        return lambda rows: np.broadcast_to(values, (len(rows), num_items))

    return {
        "the largest id": (all_over(numbers), all_over(-numbers)),
        "the next id above the largest known": (
            beside(lambda row: known.row(row).max(), 1),
            beside(lambda row: known.row(row).min(), -1),
        ),
        "the next id above the newest training item": newest(split.train),
        AFTER_VALIDATION: newest(split.validation),
    }


def popularity(split: Split, num_items: int) -> Scorer:
    """What most people have in training, the same for everybody."""
    counts = np.bincount(split.train.values, minlength=num_items).astype(np.float64)
    return lambda rows: np.broadcast_to(counts, (len(rows), num_items))


def reached(scorer: Scorer, split: Split, num_items: int, users: NDArray[np.int64]) -> NDArray[np.float64]:
    """[k, 2] FIGURES of these users' test items among all items that they do not know."""
    known = one_after_another(split.train, split.validation)
    columns = [METRICS.index(name) for name in FIGURES]
    blocks = []
    for rows in np.array_split(users, len(users) * num_items // _BLOCK + 1):
        ranks = rank_full(scorer(rows), split.test.take(rows), known.take(rows))
        blocks.append(user_metrics(ranks)[:, columns])
    return np.concatenate(blocks)


def above(values: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.bool_]:
    """[2] whether the means of [k, 2] values are above those of others by more than 3 standard errors over users."""
    difference = values - others
    error = difference.std(axis=0, ddof=1) / np.sqrt(len(difference))
    return np.asarray(difference.mean(axis=0) > 3 * error)


def leaks(interactions: Interactions, most_users: int = 2000) -> list[str]:
    """The id scorers that are above popularity and above their mirror image."""
    split, items = leave_one_out(interactions), interactions.num_items
    users = evaluated(split)
    users = users[:: len(users) // most_users + 1]
    popular = reached(popularity(split, items), split, items, users)
    found = []
    for words, pair in id_scorers(split, items).items():
        up, down = (reached(scorer, split, items, users) for scorer in pair)
        for name, one, other in ((words, up, down), (f"the mirror image of {words}", down, up)):
            if (above(one, popular) & above(one, other)).any():
                found.append(name)
    return found


def evaluated(split: Split) -> NDArray[np.int64]:
    """The users who have a test and a validation item."""
    return np.flatnonzero((split.test.lengths > 0) & (split.validation.lengths > 0))


def extremes(interactions: Interactions, split: Split) -> tuple[float, float, float, float]:
    """In which share of users the test item has the largest, and the smallest, id of the user's n_u items.

    Returns:
        both; the share Σ_u (1 / n_u) / k of chance; and its standard error, users being independent.
    """
    users = evaluated(split)
    histories, test = interactions.histories.take(users), split.test.take(users).values
    starts = histories.indptr[:-1]
    largest = float((test == np.maximum.reduceat(histories.values, starts)).mean())
    smallest = float((test == np.minimum.reduceat(histories.values, starts)).mean())
    share = 1 / histories.lengths
    return largest, smallest, float(share.mean()), float(np.sqrt((share * (1 - share)).sum()) / len(users))


def rows_of(name: str, folder: Path) -> RawData:
    """The rows of a set as its reader gives them; those of the built-in one are in the order of time.

    Raises:
        DataError: it is not there.
    """
    dataset = DATASETS[name]
    if dataset.read is not None:
        return dataset.read(locate(dataset, str(folder)))
    histories = load(name).histories
    return RawData(pd.DataFrame({"user": histories.row_of_value, "item": histories.values}), in_order=True)


def made(name: str, raw: RawData, *, by_row: bool = False) -> Interactions:
    """A set as it is loaded, or with the order of the file between equal times."""
    table, time = raw.table, "time" if "time" in raw.table else None
    if by_row and time:
        table = table.sort_values(["user", "time"], kind="stable").drop(columns="time")
        return from_table(name, table, time=None, in_order=True)
    return from_table(name, table, time=time, in_order=raw.in_order)


def tied(raw: RawData, interactions: Interactions, split: Split) -> NDArray[np.bool_]:
    """[k] whether the test and the validation item of an evaluated user have one time."""
    users = evaluated(split)
    if "time" not in raw.table:
        return np.zeros(len(users), dtype=bool)
    first = raw.table.groupby([raw.table["user"].astype(str), raw.table["item"].astype(str)])["time"].min()
    owners = interactions.user_ids[users].astype(str)
    names = (interactions.item_ids[part.take(users).values].astype(str) for part in (split.validation, split.test))
    before, last = (first.loc[pd.MultiIndex.from_arrays([owners, items])].to_numpy() for items in names)
    return np.asarray(before == last)


def _line(name: str, raw: RawData) -> str:
    """One line of the table; before → after the draw between equal times."""
    cells: dict[str, list[str]] = {"largest": [], "up": [], "down": [], "popular": []}
    held_out = []
    for by_row in (True, False):
        interactions = made(name, raw, by_row=by_row)
        split, items = leave_one_out(interactions), interactions.num_items
        users = evaluated(split)
        held_out.append((split.test.take(users).values, split.validation.take(users).values))
        up, down = id_scorers(split, items)[AFTER_VALIDATION]
        for column, scorer in (("up", up), ("down", down), ("popular", popularity(split, items))):
            figures = reached(scorer, split, items, users).mean(axis=0)
            cells[column].append(" / ".join(f"{figure:.4f}".removeprefix("0") for figure in figures))
        largest, _, chance, _ = extremes(interactions, split)
        cells["largest"].append(f"{100 * largest:.1f}")
    changed = [f"{100 * (before != after).mean():.1f}" for before, after in zip(*held_out, strict=True)]
    share = f"{100 * tied(raw, interactions, split).mean():.1f}"
    arrows = {column: " → ".join(dict.fromkeys(values)) for column, values in cells.items()}
    return (
        f"| `{name}` | {share} | {' / '.join(changed)} | {arrows['largest']} | {100 * chance:.1f} | {arrows['up']} | "
        f"{arrows['down']} | {arrows['popular']} |"
    )


if __name__ == "__main__":
    for known_set in DATASETS:
        try:
            print(_line(known_set, rows_of(known_set, Path(sys.argv[1]))), flush=True)
        except DataError as error:
            print(error, file=sys.stderr)
