"""The grammar under the messages: arrays and settings in Flower's records, checked when they are read.

Decoding checks names, types, shapes and finiteness; what fails is a `WireError` with the reason. What is wrong with
one user alone is told with its key, so that the others of its node can stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.cells import Cells, CellSpec
from bouquet.errors import WireError
from bouquet.lent import LentArray, lent_values, serialised, size_of
from bouquet.packed import PackedArray, PackedRows, by_entry
from bouquet.randomness import Words

# Characters of a reason that a node gives.
LONGEST_REASON = 300


@dataclass(frozen=True)
class Report:
    """What each user may tell beside its update or its metrics: a shape, and a range that values must lie in.

    Attributes:
        shape: for one user; -1 stands for any size.
        low, high: bounds, of a shape that broadcasts to `shape`; a value that is not finite is never inside.
    """

    shape: tuple[int, ...] = ()
    low: float | NDArray[np.floating] = -math.inf
    high: float | NDArray[np.floating] = math.inf


def payload_bytes(arrays: Mapping[str, Any]) -> int:
    """Bytes of the values of arrays, as one user's own message would carry them."""
    return sum(int(array.nbytes) for array in arrays.values())


def message_bytes(content: RecordDict) -> int:
    """Bytes of all serialised arrays of a message, headers of the arrays included."""
    return sum(size_of(array) for record in content.array_records.values() for array in record.values())


def pack(arrays: dict[str, Any]) -> ArrayRecord:
    """A record of copies of these arrays."""
    return ArrayRecord({name: _packed(np.ascontiguousarray(values)) for name, values in arrays.items()})


def lend(arrays: Mapping[str, Any]) -> ArrayRecord:
    """The same without a copy: the arrays must not change as long as somebody may read the record."""
    record = ArrayRecord()
    for name, values in arrays.items():  # one by one: given a dictionary, a record makes arrays of its own
        record[name] = LentArray(values)
    return record


def _packed(values: NDArray[Any]) -> Array:
    return Array(str(values.dtype), values.shape, "numpy.ndarray", serialised(values))


def words_to_array(words: tuple[str, ...]) -> NDArray[np.uint8]:
    """Words without line breaks, as bytes."""
    return np.frombuffer("\n".join(words).encode(), dtype=np.uint8)


def read_words(content: RecordDict, record: str, name: str) -> tuple[str, ...]:
    """The inverse of `words_to_array`."""
    values = read_raw(content, record, name)
    if values.dtype != np.uint8 or values.ndim != 1:
        raise WireError(f"array '{name}' should be text")
    try:
        return tuple(values.tobytes().decode().split("\n"))
    except UnicodeDecodeError as error:
        raise WireError(f"array '{name}' is no text ({error})") from None


def unpack(record: ArrayRecord) -> Arrays:
    """The inverse of `pack`, for arrays that we packed ourselves."""
    return {name: array.numpy() for name, array in record.items()}


def read_record(content: RecordDict, record: str) -> ArrayRecord:
    # Not through `array_records`, which is made anew whenever it is looked at, with all checks.
    found = content.get(record)
    if not isinstance(found, ArrayRecord):
        raise WireError(f"the message has no record '{record}'")
    return found


def read_config(content: RecordDict) -> ConfigRecord:
    found = content.get("config")
    if not isinstance(found, ConfigRecord):
        raise WireError("the message has no record 'config'")
    return found


def read_scalar(config: ConfigRecord, name: str, kind: type[Any]) -> Any:
    value = config.get(name)
    if type(value) is not kind:
        raise WireError(f"'{name}' should be of type {kind.__name__}, not {value!r}")
    return value


# What numpy writes before the values of an array: its type, how it lies, its shape, and blanks up to a multiple of 16.
_HEADER = re.compile(
    rb"\{'descr': '(?P<dtype>[<|][a-z]\d)', 'fortran_order': (?P<by_columns>False|True), "
    rb"'shape': \((?P<shape>(?:\d{1,12}, ?)*(?:\d{1,12})?)\), ?\} *\n"
)
_MAGIC, _LENGTH = b"\x93NUMPY\x01\x00", 2
_DTYPES = {np.dtype(kind).str.encode(): np.dtype(kind) for kind in ("f4", "f8", "i4", "i8", "u1", "u4", "u8", "?")}


def values_of(array: Array, name: str) -> NDArray[Any]:
    """The values of an array where they lie in the message, read-only.

    Nothing is parsed but the one form that numpy writes for plain numbers, and nothing is made before type, shape and
    length agree with each other.

    Raises:
        WireError: the bytes are no such array.
    """
    values = lent_values(array)
    if values is None:
        values = _parsed(array.data, name)
    if array.shape != values.shape or array.dtype != values.dtype.name:
        raise WireError(f"array '{name}' cannot be read (it is not of the type and shape that it claims)")
    return values


def array_of(data: bytes, name: str) -> Array:
    """The array whose bytes these are, as `pack` makes them.

    Raises:
        WireError: they are of none.
    """
    values = _parsed(data, name)
    return Array(values.dtype.name, values.shape, "numpy.ndarray", data)


def _parsed(data: bytes, name: str) -> NDArray[Any]:
    begin = len(_MAGIC) + _LENGTH
    end = begin + int.from_bytes(data[len(_MAGIC) : begin], "little")
    header = _HEADER.fullmatch(data[begin:end]) if data.startswith(_MAGIC) and end <= len(data) else None
    dtype = _DTYPES.get(header["dtype"]) if header else None
    if header is None or dtype is None:
        raise WireError(f"array '{name}' cannot be read (it is no array of numbers as numpy writes it)")
    shape = tuple(int(size) for size in header["shape"].split(b",") if size.strip())
    if len(data) - end != dtype.itemsize * math.prod(shape):
        raise WireError(f"array '{name}' cannot be read (it has {len(data) - end} bytes for the shape {list(shape)})")
    values = np.frombuffer(data, dtype, math.prod(shape), end) if len(data) > end else np.zeros(0, dtype)
    return values.reshape(shape, order="F" if header["by_columns"] == b"True" else "C")


def read_raw(content: RecordDict, record: str, name: str) -> NDArray[Any]:
    arrays = read_record(content, record)
    if name not in arrays:
        raise WireError(f"the record '{record}' has no array '{name}'")
    return values_of(arrays[name], name)


def read_array(content: RecordDict, record: str, name: str, dtype: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    values = read_raw(content, record, name)
    if values.dtype != dtype or values.shape != shape:
        raise WireError(
            f"array '{name}' should be {np.dtype(dtype).name} {list(shape)}, "
            f"not {values.dtype.name} {list(values.shape)}"
        )
    return values


def read_users(content: RecordDict, name: str = "user") -> Words:
    users = read_raw(content, "users", name)
    if users.dtype != np.uint64 or users.ndim != 1:
        raise WireError(f"the users should be a row of 64-bit keys, not {users.dtype.name} {list(users.shape)}")
    if len(np.unique(users)) != len(users):
        raise WireError("a user stands twice in one message")
    return users


def read_left_out(content: RecordDict) -> dict[int, str]:
    """Users that a node says nothing about, by key, with the reason of each."""
    if "left_out" not in read_record(content, "users"):
        return {}
    users, reasons = read_users(content, "left_out"), read_words(content, "users", "reasons")
    if len(users) != len(reasons):
        raise WireError(f"there are {len(reasons)} reasons for {len(users)} users that are left out")
    return {user: reason[:LONGEST_REASON] for user, reason in zip(users.tolist(), reasons, strict=True)}


def read_shared(content: RecordDict, specs: Specs) -> Arrays:
    """The shared arrays that travel in this run: some or all of the model's. They can be written to."""
    if unknown := [name for name in read_record(content, "shared") if name not in specs]:
        raise WireError(f"the model has no shared array '{unknown[0]}'")
    names = read_record(content, "shared")
    return {name: read_array(content, "shared", name, specs[name].dtype, specs[name].shape).copy() for name in names}


def read_reports(
    content: RecordDict, users: Words, reports: Mapping[str, Report]
) -> tuple[dict[str, NDArray[np.float32]], dict[int, str]]:
    """What users tell beside their update: exactly the names that were asked for.

    Returns:
        the reports by name, [k, …] each, and what is wrong with those of single users, by key.
    """
    sent = set(read_record(content, "reports")) if "reports" in content else set()
    if unknown := sorted(sent - reports.keys()):
        raise WireError(f"nobody asked for the report '{unknown[0]}'")
    found: dict[str, NDArray[np.float32]] = {}
    wrong: dict[int, str] = {}
    if not len(users):  # all are left out, and tell nothing
        return found, wrong
    for name, report in reports.items():
        values = read_raw(content, "reports", name)
        wanted = (len(users), *report.shape)
        fits = values.ndim == len(wanted) and all(w in (-1, s) for w, s in zip(wanted, values.shape, strict=True))
        if values.dtype != np.float32 or not fits:
            raise WireError(
                f"the report '{name}' should be float32 {list(wanted)}, not {values.dtype.name} {list(values.shape)}"
            )
        # NaN compares false with everything.
        inside = np.isfinite(values) & (values >= report.low) & (values <= report.high)
        for at in np.flatnonzero(~by_entry(inside)):
            wrong[int(users[at])] = f"it reports '{name}' that is not in its range"
        found[name] = values
    return found, wrong


def read_packed_array(content: RecordDict, name: str, shape: tuple[int, ...], by_item: bool) -> PackedArray:
    rows = None
    if f"{name}/rows" in read_record(content, "update"):
        if not by_item:
            raise WireError(f"array '{name}' has no item rows, so its update must be whole")
        rows = _read_rows(content, name, shape[0])
        if (np.diff(rows) <= 0).any():
            raise WireError(f"the rows of '{name}' should ascend")
        shape = (len(rows), *shape[1:])
    values = read_raw(content, "update", f"{name}/values")
    if values.dtype not in (np.float32, np.float64) or values.shape != shape:
        raise WireError(f"the update of '{name}' should have shape {list(shape)}, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise WireError(f"the update of '{name}' has values that are not finite")
    return PackedArray(rows, values)


def read_packed_rows(content: RecordDict, name: str, shape: tuple[int, ...], users: Words) -> PackedRows:
    if f"{name}/rows" not in read_record(content, "update"):
        values = read_array(content, "update", f"{name}/values", np.float32, (len(users), *shape))
        rows = indptr = None
    else:
        rows = _read_rows(content, name, shape[0])
        indptr = read_array(content, "update", f"{name}/indptr", np.int64, (len(users) + 1,))
        if indptr[0] != 0 or indptr[-1] != len(rows) or (np.diff(indptr) < 0).any():
            raise WireError(f"the row pointers of '{name}' do not fit its rows")
        owner = np.repeat(np.arange(len(users)), np.diff(indptr))
        if ((np.diff(rows) <= 0) & (np.diff(owner) == 0)).any():
            raise WireError(f"the rows of '{name}' should ascend within a user")
        values = read_array(content, "update", f"{name}/values", np.float32, (len(rows), *shape[1:]))
    return PackedRows(indptr, rows, values)


def read_cells(content: RecordDict, name: str, spec: CellSpec, record: str = "update") -> Cells:
    """The cells of a matrix; their values are finite, and that is all that is said of them."""
    rows = _read_rows(content, name, spec.shape[0], record)
    if (np.diff(rows) <= 0).any():
        raise WireError(f"the rows of '{name}' should ascend")
    lengths = read_array(content, record, f"{name}/lengths", np.int32, (len(rows),))
    columns = read_raw(content, record, f"{name}/columns")
    if columns.dtype != np.int32 or columns.ndim != 1:
        raise WireError(f"the columns of '{name}' should be 32-bit item numbers")
    if (lengths < 1).any() or int(lengths.sum(dtype=np.int64)) != len(columns):
        raise WireError(f"the lengths of the rows of '{name}' do not fit its columns")
    values = read_raw(content, record, f"{name}/values")
    if values.dtype not in (np.float32, np.float64) or values.shape != columns.shape:
        raise WireError(f"the cells of '{name}' should have {len(columns)} values, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise WireError(f"the cells of '{name}' have values that are not finite")
    if len(columns) and (columns.min() < 0 or columns.max() >= spec.shape[1]):
        raise WireError(f"the cells of '{name}' name a column outside the {spec.shape[1]} that there are")
    found = Cells(rows, lengths, columns, values)
    if (np.diff(found.keys(spec)) <= 0).any():
        raise WireError(f"the cells of '{name}' should ascend within a row")
    if spec.symmetric and (columns < np.repeat(rows, lengths)).any():
        raise WireError(f"the cells of '{name}' should lie on or above the diagonal")
    return found


def _read_rows(content: RecordDict, name: str, num_items: int, record: str = "update") -> NDArray[np.int32]:
    rows = read_raw(content, record, f"{name}/rows")
    if rows.dtype != np.int32 or rows.ndim != 1:
        raise WireError(f"the rows of '{name}' should be 32-bit item numbers")
    if len(rows) and (rows.min() < 0 or rows.max() >= num_items):
        raise WireError(f"the update of '{name}' names an item outside the catalogue of {num_items}")
    return rows
