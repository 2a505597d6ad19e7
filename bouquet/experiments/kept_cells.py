"""A cell of a table in a few KB, which can be committed: what the run was, what it reached, and every user's metrics.

    FOLDER/<data set>/<method>.seed-<s>.<digest>.safetensors   one cell
    FOLDER/<data set>/users-<digest>.safetensors               who the users are, once for all cells that have the same

Metrics of one held-out item follow from its rank, so the rank is kept, a small integer, wherever the metrics are those
of a rank to the last bit. What else there is (ties, several held-out items) is kept as float32, each distinct row once:
tables that are made from kept cells are the same as those from the runs, figure by figure.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.checked import checked_tensors, read_checked
from bouquet.config import Scalar
from bouquet.errors import DataError, StateError
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS, user_metrics
from bouquet.evaluation.ranks import Ranks
from bouquet.files import write_atomically
from bouquet.randomness import Words
from bouquet.reporting.run_directory import RunDirectory

FORMAT = 1
_INTEGERS = ("|i1", "<i2", "<i4", "<i8")
SUFFIX = ".safetensors"
# The same bytes for the same content, whatever the release of the library has as its default.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 2**22}]


@dataclass(frozen=True, eq=False)
class KeptCell:
    """One run, without its rounds, its model and its private state.

    Attributes:
        settings: its configuration, without paths and what else does not matter.
        engine: how it was carried out; `model` names a model of pooled data.
        versions: of the packages that it ran with.
        revision: of its numbers, as `kept_runs.revision_of`.
        summary: its `summary.json`.
        users: [n] keys, ascending.
        sizes: [n] training interactions; None where nobody wrote them.
        values: [n, parts, candidate sets, metrics] float32.
    """

    settings: Mapping[str, Scalar]
    engine: Mapping[str, Scalar]
    versions: Mapping[str, str]
    revision: str
    summary: Mapping[str, Any]
    users: Words
    sizes: NDArray[np.int64] | None
    values: NDArray[np.float32]


def write_cell(folder: Path, cell: KeptCell) -> Path:
    """Keep a cell; gives its file, which is the same for the same cell."""
    place = folder / str(cell.summary["dataset"])
    place.mkdir(parents=True, exist_ok=True)
    people: dict[str, NDArray[Any]] = {"users": cell.users}
    if cell.sizes is not None:
        people["sizes"] = cell.sizes
    named = _digest(b"".join(values.tobytes() for values in people.values()))
    others = place / f"users-{named}{SUFFIX}"
    if not others.exists():
        if cell.sizes is not None:
            people["sizes"] = _packed(cell.sizes)
        write_atomically(others, checked_tensors(people, {}))
    told = {
        "format": FORMAT,
        "settings": dict(cell.settings),
        "engine": dict(cell.engine),
        "versions": dict(cell.versions),
        "revision": cell.revision,
        "users": named,
    }
    codes, rows = _coded(cell.values)
    arrays = {
        "about": _compressed(json.dumps(told).encode()),
        "summary": _compressed(json.dumps(cell.summary).encode()),
        "codes": _packed(codes),
        "rows": _packed(rows),
    }
    method = "+".join(
        str(part) for key in ("strategy", "personalization") if (part := cell.summary.get(key)) and part != "none"
    )
    # Which settings they are: cells of one method under one seed lie side by side.
    which = _digest(json.dumps([dict(cell.settings), cell.engine.get("model", ""), cell.revision]).encode())[:8]
    # No metadata: safetensors writes several entries in any order, and the same cell shall be the same file.
    path = place / f"{method}.seed-{cell.settings['seed']}.{which}{SUFFIX}"
    write_atomically(path, checked_tensors(arrays, {}))
    return path


def read_cell(path: Path) -> KeptCell:
    """A kept cell.

    Raises:
        DataError: it, or the file of its users, is missing or damaged, or a newer bouquet has written it.
    """
    arrays = _read(path)
    try:
        told, summary = (json.loads(_decompressed(arrays[name])) for name in ("about", "summary"))
        if told["format"] != FORMAT:
            raise DataError(f"{path} is a kept cell of format {told['format']}, and this bouquet reads {FORMAT}.")
        people = _read(path.parent / f"users-{told['users']}{SUFFIX}")
        users = people["users"]
        values = _decoded(_unpacked(arrays["codes"]), _unpacked(arrays["rows"]))
        sizes = _unpacked(people["sizes"]) if "sizes" in people else None
        if len(values) != len(users):
            raise ValueError(f"it has {len(values)} users, and the file of its users {len(users)}")
        return KeptCell(
            told["settings"], told["engine"], told["versions"], told["revision"], summary, users, sizes, values
        )
    except (KeyError, ValueError, lzma.LZMAError) as error:
        raise _damaged(path, error) from None


def to_run(cell: KeptCell, directory: RunDirectory) -> None:
    """Write the folder of a run that has nothing but what a table, a test or a page of it needs."""
    directory.create(cell.settings, cell.engine, cell.versions)
    directory.write_users(cell.users, cell.values, cell.sizes)
    directory.write_summary(cell.summary)


def cell_files(folder: Path) -> list[Path]:
    """The cells in a folder, and in the folders of data sets in it."""
    return [path for path in sorted(folder.rglob(f"*.seed-*{SUFFIX}")) if not path.name.startswith(".")]


def _coded(values: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Metrics as ranks, and the distinct rows of metrics that are not those of a rank.

    Returns:
        [n, parts, candidate sets] 0: not evaluated; r above 0: a held-out item of rank r; -j: row j - 1 of the others.
        [j, metrics].
    """
    flat = values.reshape(-1, len(METRICS))
    codes = np.zeros(len(flat), np.int64)
    known = ~np.isnan(flat).all(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rank = np.rint(1.0 / flat[:, METRICS.index("MRR")].astype(np.float64))
    ranked = known & np.isfinite(rank)
    codes[ranked] = rank[ranked].astype(np.int64)
    ranked[ranked] = (_of_ranks(codes[ranked]) == flat[ranked]).all(axis=1)
    rows, which = np.unique(flat[known & ~ranked], axis=0, return_inverse=True)
    codes[known & ~ranked] = -1 - which.reshape(-1)
    return codes.reshape(values.shape[:-1]), rows


def _decoded(codes: NDArray[np.int64], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    if codes.shape[1:] != (len(PARTS), len(CANDIDATE_SETS)) or rows.shape[1:] != (len(METRICS),):
        raise ValueError(f"its codes are {list(codes.shape)} and its rows {list(rows.shape)}")
    if len(rows) < -codes.min(initial=0):
        raise ValueError("a row of metrics is missing")
    flat = np.full((codes.size, len(METRICS)), np.nan, np.float32)
    each = codes.reshape(-1)
    flat[each > 0] = _of_ranks(each[each > 0])
    flat[each < 0] = rows[-1 - each[each < 0]]
    return flat.reshape(*codes.shape, len(METRICS))


def _of_ranks(ranks: NDArray[np.int64]) -> NDArray[np.float32]:
    """[k, metrics] of users with one held-out item each, without ties."""
    one_each = np.arange(len(ranks) + 1)
    return user_metrics(Ranks(one_each, ranks - 1, np.zeros(len(ranks), np.int64))).astype(np.float32)


def _packed(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Shape, type and bytes of an array, compressed: integers in the fewest bytes, all first bytes first."""
    if values.dtype == np.int64:
        least, most = int(values.min(initial=0)), int(values.max(initial=0))
        kinds = [(kind, np.iinfo(kind)) for kind in _INTEGERS]
        values = values.astype(next(kind for kind, info in kinds if info.min <= least and most <= info.max))
    # User after user within a column, since columns differ in size from one another.
    columns = np.ascontiguousarray(np.moveaxis(values, 0, -1))
    head = json.dumps([values.dtype.str, values.shape]).encode() + b"\n"
    shuffled = columns.reshape(-1).view(np.uint8).reshape(-1, values.dtype.itemsize).T
    return _compressed(head + shuffled.tobytes())


def _unpacked(content: NDArray[np.uint8]) -> NDArray[Any]:
    head, _, shuffled = _decompressed(content).partition(b"\n")
    kind, shape = json.loads(head)
    if kind not in (*_INTEGERS, "<f4"):
        raise ValueError(f"its values are {kind}")
    size = np.dtype(kind).itemsize
    flat = np.frombuffer(shuffled, np.uint8).reshape(size, -1).T.copy().view(kind).reshape(*shape[1:], shape[0])
    values = np.moveaxis(flat, -1, 0)
    return np.ascontiguousarray(values.astype(np.int64) if values.dtype.kind == "i" else values)


def _compressed(content: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(lzma.compress(content, lzma.FORMAT_RAW, filters=_FILTERS), np.uint8)


def _decompressed(content: NDArray[np.uint8]) -> bytes:
    return lzma.decompress(content.tobytes(), lzma.FORMAT_RAW, filters=_FILTERS)


def _read(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_checked(path)[0]
    except StateError as error:
        raise _damaged(path, error.__context__ or error) from None


def _damaged(path: Path, error: BaseException) -> DataError:
    if not path.exists():
        return DataError(f"{path} is missing, which kept cells beside it need.")
    return DataError(f"{path} is damaged and cannot be read; remove it, and its cell is run again ({error}).")


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest()
