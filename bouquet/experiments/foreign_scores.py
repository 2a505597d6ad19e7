"""Scores that another program made: a file or a table of (user, item, score), checked against a split.

user, item     ids as in the split's files
score          a number, the higher the better; or, in its place, `rank`: 1 is best
part           "validation" or "test", for programs whose scores depend on what was known by then; without it the same
               scores rank both parts, as those of a model do that reads no history

Items without a score rank last. The order of rows has no say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import DataError
from bouquet.evaluation import PARTS
from bouquet.experiments.ground import Ground
from bouquet.extras import need
from bouquet.ragged import Ragged

if TYPE_CHECKING:
    import pandas as pd

Block = NDArray[np.float64]

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
_NAMES_SHOWN = 200


@dataclass(frozen=True, eq=False)
class PairScores:
    """Scores of some items for every user.

    Attributes:
        items: n rows of distinct items that have a score.
        scores: [nnz] finite, one for each of `items`.
        num_items: m.
    """

    items: Ragged
    scores: NDArray[np.float64]
    num_items: int

    def block(self, rows: NDArray[np.int64]) -> tuple[Block, NDArray[np.bool_]]:
        """[b, m] scores of some users that follow one another, and which of them there are.

        Items without a score have one that is lower than all scores of these users.
        """
        begin, end = self.items.indptr[rows[0]], self.items.indptr[rows[-1] + 1]
        here, scores = self.items.take(rows), self.scores[begin:end]
        floor = np.nextafter(scores.min(), -np.inf) if len(scores) else 0.0
        table = np.full((len(rows), self.num_items), floor)
        there = np.zeros(table.shape, dtype=np.bool_)
        table[here.row_of_value, here.values] = scores
        there[here.row_of_value, here.values] = True
        return table, there


@dataclass(frozen=True, eq=False)
class DenseScores:
    """Scores of all items for all users: `table` [n, m], finite."""

    table: NDArray[np.floating[Any]]

    def block(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.floating[Any]], NDArray[np.bool_]]:
        """As `PairScores.block`."""
        found = self.table[rows]
        return found, np.ones(found.shape, dtype=np.bool_)


Foreign = PairScores | DenseScores


def foreign_scores(scores: Any, ground: Ground, name: str) -> dict[str, Foreign]:
    """The scores of each part that has some.

    Args:
        scores: the path of a .parquet, .csv or .tsv file; a DataFrame with its columns; an array [n, m] in the order of
            the split's users and items; or such tables or arrays by part.
        name: what errors call them.
    Raises:
        DataError: a column is missing, an id is unknown, a pair occurs twice, a score is no finite number, or a user
            with something hidden has no score: one sentence about the first thing.
        ConfigError: pandas or pyarrow is missing.
    """
    if isinstance(scores, Mapping):
        strange = sorted(set(map(str, scores)) - set(PARTS))
        if strange or not scores:
            raise DataError(f"{name}: scores by part are of {' and '.join(PARTS)}, not of '{', '.join(strange)}'.")
        return {part: foreign_scores(given, ground, f"{name}, {part}")[part] for part, given in scores.items()}
    if isinstance(scores, str | Path):
        table = _read(Path(scores))
    elif isinstance(scores, np.ndarray):
        return dict.fromkeys(PARTS, _dense(scores, ground, name))
    elif hasattr(scores, "columns"):
        table = scores
    else:
        raise DataError(f"{name}: scores are a file, a DataFrame or an array, not of the type {type(scores).__name__}.")
    return _by_part(table, ground, name)


# -- arrays and files --------------------------------------------------------------------------------------------------


def _dense(table: NDArray[Any], ground: Ground, name: str) -> DenseScores:
    shape = (len(ground.user_ids), len(ground.item_ids))
    if table.shape != shape or table.dtype.kind not in "fiu":
        raise DataError(
            f"{name}: an array of scores is {list(shape)} numbers, users by items of the split, not "
            f"{list(table.shape)} of type {table.dtype}."
        )
    finite = np.isfinite(table)
    if not finite.all():
        user, item = (int(place) for place in np.argwhere(~finite)[0])
        raise _no_number(name, table[user, item], ground.user_ids[user], ground.item_ids[item])
    return DenseScores(table if table.dtype in (np.float32, np.float64) else table.astype(np.float64))


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise DataError(f"There is no file {path} with scores.")
    ending = path.suffix.lower()
    if ending != ".parquet" and ending not in _SEPARATORS:
        raise DataError(f"{path.name}: scores are read from .parquet, .csv, .tsv and .tab files.")
    need("pandas", f"Reading {path.name}")
    import pandas as pd

    try:
        if ending != ".parquet":
            return pd.read_csv(path, sep=_SEPARATORS[ending], dtype={"user": str, "item": str}, keep_default_na=False)
        need("pyarrow", f"Reading {path.name}")
        return pd.read_parquet(path)
    except (ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path.name} cannot be read: {' '.join(str(error).split())}.") from None


# -- tables ------------------------------------------------------------------------------------------------------------


def _by_part(table: pd.DataFrame, ground: Ground, name: str) -> dict[str, Foreign]:
    column = next((column for column in ("score", "rank") if column in table), "score")
    for wanted in ("user", "item", column):
        if wanted not in table:
            hint = " (or 'rank')" if wanted == "score" else ""
            there = ", ".join(map(str, table.columns))[:_NAMES_SHOWN]
            raise DataError(f"{name}: there is no column '{wanted}'{hint}, only {there}.")
    if not len(table):
        raise DataError(f"{name} has no rows.")
    users = _numbers(table["user"], ground.user_ids, "user", name)
    items = _numbers(table["item"], ground.item_ids, "item", name)
    scores = _finite(table[column], users, items, ground, name)
    if column == "rank":
        scores = -scores
    if "part" not in table:
        found = _pairs(users, items, scores, ground, name)
        for part in PARTS:
            _refuse_missing_users(found, ground, part, name)
        return dict.fromkeys(PARTS, found)
    part_of = _numbers(table["part"], np.array(PARTS), "part", name)
    by_part: dict[str, Foreign] = {}
    for place in np.unique(part_of):
        here = part_of == place
        found = _pairs(users[here], items[here], scores[here], ground, f"{name}, {PARTS[place]}")
        _refuse_missing_users(found, ground, PARTS[place], name)
        by_part[PARTS[place]] = found
    return by_part


def _numbers(column: pd.Series, ids: NDArray[np.str_], what: str, name: str) -> NDArray[np.int64]:
    """The place of each row's id among those that there are.

    Raises:
        DataError: an id is missing or unknown, or ids are numbers with a fraction.
    """
    import pandas as pd

    if pd.api.types.is_float_dtype(column.dtype):
        raise DataError(f"{name}: ids are text or whole numbers, and column '{what}' holds numbers with a fraction.")
    codes, distinct = pd.factorize(column)
    place = {str(known): number for number, known in enumerate(ids.tolist())}
    known = np.array([place.get(str(raw), -1) for raw in distinct] or [-1], dtype=np.int64)
    found = np.where(codes < 0, -1, known[codes])
    if (found >= 0).all():
        return found
    row = int(np.argmax(found < 0))
    if codes[row] < 0:
        raise DataError(f"{name}, row {row + 1}: no value in column '{what}'.")
    if what == "part":
        raise DataError(f"{name}, row {row + 1}: part is '{distinct[codes[row]]}' and not {' or '.join(PARTS)}.")
    unknown = int((known < 0).sum())
    raise DataError(
        f"{name}, row {row + 1}: there is no {what} '{distinct[codes[row]]}' in the split; {unknown:,} of the "
        f"{len(distinct):,} {what}s in the file are unknown."
    )


def _finite(
    column: pd.Series, users: NDArray[np.int64], items: NDArray[np.int64], ground: Ground, name: str
) -> NDArray[np.float64]:
    """[rows] the scores.

    Raises:
        DataError: one is no finite number.
    """
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = ~np.isfinite(numbers)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _no_number(
            f"{name}, row {row + 1}", column.iloc[row], ground.user_ids[users[row]], ground.item_ids[items[row]]
        )
    return numbers


def _no_number(where: str, value: object, user: str, item: str) -> DataError:
    return DataError(
        f"{where}: the score of user '{user}' and item '{item}' is {value!s}, and scores are finite numbers: leave out "
        "the rows of items that are to rank last."
    )


def _pairs(
    users: NDArray[np.int64], items: NDArray[np.int64], scores: NDArray[np.float64], ground: Ground, name: str
) -> PairScores:
    """Rows by user.

    Raises:
        DataError: a pair occurs twice.
    """
    num_items = len(ground.item_ids)
    key = users * num_items + items
    order = np.argsort(key, kind="stable")
    again = np.flatnonzero(np.diff(key[order]) == 0)
    if len(again):
        first, second = (int(order[place]) + 1 for place in (again[0], again[0] + 1))
        user, item = ground.user_ids[users[first - 1]], ground.item_ids[items[first - 1]]
        raise DataError(f"{name}: user '{user}' and item '{item}' have two rows, {first} and {second}; one is enough.")
    lengths = np.bincount(users, minlength=len(ground.user_ids))
    return PairScores(Ragged.from_lengths(lengths, items[order]), scores[order], num_items)


def _refuse_missing_users(found: PairScores, ground: Ground, part: str, name: str) -> None:
    hidden = ground.held_out[part].lengths > 0
    missing = np.flatnonzero(hidden & (found.items.lengths == 0))
    if len(missing):
        raise DataError(
            f"{name}: {len(missing):,} of the {int(hidden.sum()):,} users with something hidden for {part} have no "
            f"score, the first is '{ground.user_ids[missing[0]]}'. All users count alike, so none can be left out."
        )
