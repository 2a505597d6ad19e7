"""A split as a folder that any program reads: Parquet files with the ids of the data set.

users.parquet       user                  all users, in the order of their rows
items.parquet       item, title           all items, in the order of their numbers
train.parquet       user, item            what is learned from, by user, oldest first where there are times
validation.parquet  user, item            what is hidden for choosing
test.parquet        user, item            what is hidden for the figures that are reported
candidates.parquet  part, user, item      the random items that what is hidden is ranked against in sampled-99
split.json          the settings, counts, and a digest of each file

They are those of every run with the same settings. Ids are text, as they stand in the data set's files. A blind split
has neither test.parquet nor candidates.parquet, from which a program could learn what is hidden.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import PARTS
from bouquet.experiments.ground import Ground
from bouquet.extras import need
from bouquet.files import digest_of, write_atomically
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from client_app.node.histories import Histories

ABOUT = "split.json"
_FORMAT = 1
_RAGGED = ("train", "validation", "test")

Columns = dict[str, Any]


def write_ground(ground: Ground, folder: Path, *, blind: bool = False) -> None:
    """Write the files of a split.

    Args:
        blind: leave out what is hidden for test, and what it is ranked against.
    Raises:
        ConfigError: the folder holds one already, training items are left out, or pyarrow is missing.
        OSError: it cannot be written.
    """
    need("pyarrow", "Writing Parquet files")
    if ground.histories.left_out is not None:
        raise ConfigError("A split for other programs has all training items: leave training-share out.")
    if (folder / ABOUT).exists():
        raise ConfigError(f"{folder} already holds a split. Name another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    digests = {}
    for name, columns in _tables(ground, blind).items():
        content = _parquet(columns)
        digests[name] = digest_of(content)
        write_atomically(folder / name, content)
    about = {
        "format": _FORMAT,
        "blind": blind,
        "settings": dict(ground.settings),
        "users": len(ground.user_ids),
        "items": len(ground.item_ids),
        "interactions": ground.interactions,
        "dropped_users": ground.histories.dropped_users,
        "in_time": ground.histories.in_time,
        "digests": digests,
    }
    # Last, because a folder without it is no split.
    write_atomically(folder / ABOUT, json.dumps(about, indent=2) + "\n")


def read_ground(folder: Path) -> Ground:
    """The split in a folder, as it was written; sampled candidates are drawn anew, by the same keys.

    Raises:
        DataError: there is none, it is blind, or a file of it is missing or was changed.
        ConfigError: pyarrow is missing.
    """
    need("pyarrow", "Reading Parquet files")
    try:
        about = json.loads((folder / ABOUT).read_text())
        if about["format"] != _FORMAT:
            raise DataError(f"{folder} was exported by another version of this program; export it anew.")
        if about["blind"]:
            raise DataError(
                f"The split in {folder} is blind, it has no test items: give --split one that is not, or the settings "
                "of the data with -c."
            )
        tables = {name: _read(folder / name, digest) for name, digest in about["digests"].items()}
        users, items = (_text(tables[f"{name}s.parquet"][name]) for name in ("user", "item"))
        parts = {name: _ragged(tables[f"{name}.parquet"], users, items) for name in _RAGGED}
        settings = dict(about["settings"])
        histories = Histories(
            users=user_keys(users),
            **parts,
            num_items=len(items),
            catalogue=blake2b("\n".join(items).encode(), digest_size=8).hexdigest(),
            partition=0,
            num_partitions=1,
            dropped_users=int(about["dropped_users"]),
            split_seed=int(settings["split-seed"]),
            in_time=bool(about["in_time"]),
        )
        titles = tuple(tables["items.parquet"]["title"].to_pylist())
        return Ground(settings, users, items, titles, histories)
    except FileNotFoundError as error:
        missing = Path(str(error.filename)).name
        raise DataError(f"{folder} holds no split: it has no {missing}. Make one with: bouquet data export") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"The split in {folder} is damaged or was changed ({error}). Make it anew with: bouquet data export"
        ) from None


def _tables(ground: Ground, blind: bool) -> dict[str, Columns]:
    histories = ground.histories
    tables: dict[str, Columns] = {
        "users.parquet": {"user": ground.user_ids.tolist()},
        "items.parquet": {"item": ground.item_ids.tolist(), "title": list(ground.titles)},
    }
    for name in _RAGGED[:2] if blind else _RAGGED:
        tables[f"{name}.parquet"] = _pairs(ground, getattr(histories, name))
    if blind:
        return tables
    sampled = [_pairs(ground, histories.candidates[part]) for part in PARTS]
    part_of_row = np.repeat(np.arange(len(PARTS)), [len(histories.candidates[part].values) for part in PARTS])
    tables["candidates.parquet"] = {
        "part": _chosen(np.array(PARTS), part_of_row),
        **{name: _joined([pairs[name] for pairs in sampled]) for name in ("user", "item")},
    }
    return tables


def _pairs(ground: Ground, rows: Ragged) -> Columns:
    return {"user": _chosen(ground.user_ids, rows.row_of_value), "item": _chosen(ground.item_ids, rows.values)}


def _chosen(names: NDArray[np.str_], places: NDArray[np.integer]) -> Any:
    """names[places] as a column of text, without an object for each row."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(names.tolist())).cast(pa.string())


def _joined(parts: Sequence[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_arrays(parts)


def _parquet(columns: Mapping[str, Any]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(dict(columns)), file, compression="zstd")
    return file.getvalue()


def _read(path: Path, digest: str) -> Any:
    """The table of a file of `_parquet`.

    Raises:
        ValueError: it is not the file that was written.
    """
    import pyarrow.parquet as pq

    content = path.read_bytes()
    if digest_of(content) != digest:
        raise ValueError(f"the digest of {path.name} does not fit")
    return pq.read_table(io.BytesIO(content))


def _text(column: Any) -> NDArray[np.str_]:
    return np.array(column.to_pylist(), dtype=np.str_)


def _ragged(table: Any, users: NDArray[np.str_], items: NDArray[np.str_]) -> Ragged:
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, values = (
        pc.index_in(table[name], value_set=pa.array(ids.tolist())).to_numpy()
        for name, ids in (("user", users), ("item", items))
    )
    return Ragged.from_pairs(rows, values, len(users))
