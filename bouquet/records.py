"""The grammar under the messages: arrays and settings in Flower's records, checked when they are read.

Decoding checks names, types, shapes and finiteness; what fails is a `WireError` with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.errors import WireError
from bouquet.randomness import Words


@dataclass(frozen=True)
class PackedArray:
    """The change of one shared array, summed over users: rows that no user touched are left out.

    Attributes:
        rows: [r] int32, ascending; None: the array is whole.
        values: [r, …] or the whole array; float32 for one user, float64 for a sum over several, so that the
            server's result does not depend on how users are spread over nodes.
    """

    rows: NDArray[np.int32] | None
    values: NDArray[np.floating]


@dataclass(frozen=True)
class PackedRows:
    """The change of one shared array for each user on its own.

    Attributes:
        indptr: [k + 1] int64; user j has rows indptr[j]:indptr[j + 1]. None: arrays are whole, one per user.
        rows: [r] int32, ascending within a user. None as above.
        values: [r, …] float32, or [k, …] of whole arrays.
    """

    indptr: NDArray[np.int64] | None
    rows: NDArray[np.int32] | None
    values: NDArray[np.float32]


def payload_bytes(arrays: dict[str, Any]) -> int:
    """Bytes of the values of arrays, as one user's own message would carry them."""
    return sum(int(np.asarray(array).nbytes) for array in arrays.values())


def message_bytes(content: RecordDict) -> int:
    """Bytes of all serialised arrays of a message, headers of the arrays included."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def pack(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: _packed(np.ascontiguousarray(values)) for name, values in arrays.items()})


def _packed(values: NDArray[Any]) -> Array:
    """What `Array(values)` makes, copied once: the tables of all users of a node are large."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    data = b"".join((header.getvalue(), values.data))
    return Array(str(values.dtype), values.shape, "numpy.ndarray", data)


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
    if record not in content.array_records:
        raise WireError(f"the message has no record '{record}'")
    return content.array_records[record]


def read_config(content: RecordDict) -> ConfigRecord:
    if "config" not in content.config_records:
        raise WireError("the message has no record 'config'")
    return content.config_records["config"]


def read_scalar(config: ConfigRecord, name: str, kind: type[Any]) -> Any:
    value = config.get(name)
    if type(value) is not kind:
        raise WireError(f"'{name}' should be of type {kind.__name__}, not {value!r}")
    return value


def read_raw(content: RecordDict, record: str, name: str) -> NDArray[Any]:
    arrays = read_record(content, record)
    if name not in arrays:
        raise WireError(f"the record '{record}' has no array '{name}'")
    try:
        return arrays[name].numpy()
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise WireError(f"array '{name}' cannot be read ({error})") from None


def _read_only(array: Array, name: str) -> NDArray[Any]:
    """The values where they lie in the message."""
    try:
        file = BytesIO(array.data)
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"its format is {version}")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        values = np.frombuffer(array.data, dtype, offset=file.tell())
        return values.reshape(shape, order="F" if by_columns else "C")
    except (ValueError, TypeError, OSError, EOFError) as error:
        raise WireError(f"array '{name}' cannot be read ({error})") from None


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


def read_shared(content: RecordDict, specs: Specs) -> Arrays:
    """The shared arrays that travel in this run: some or all of the model's."""
    if unknown := [name for name in read_record(content, "shared") if name not in specs]:
        raise WireError(f"the model has no shared array '{unknown[0]}'")
    names = read_record(content, "shared")
    return {name: read_array(content, "shared", name, np.float32, specs[name].shape) for name in names}


def read_personal(content: RecordDict, num_users: int) -> Arrays:
    arrays = {name: _read_only(array, name) for name, array in read_record(content, "personal").items()}
    for name, values in arrays.items():
        if values.ndim == 0 or len(values) != num_users:
            raise WireError(f"personal array '{name}' should have one entry for each of {num_users} users")
    return arrays


def read_reports(
    content: RecordDict, users: Words, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, NDArray[np.float32]]:
    """What users tell beside their update: exactly the names of `shapes`; a size of -1 may be any."""
    sent = set(content.array_records["reports"]) if "reports" in content.array_records else set()
    if unknown := sorted(sent - shapes.keys()):
        raise WireError(f"nobody asked for the report '{unknown[0]}'")
    reports = {}
    for name, shape in shapes.items():
        values = read_raw(content, "reports", name)
        wanted = (len(users), *shape)
        fits = values.ndim == len(wanted) and all(w in (-1, s) for w, s in zip(wanted, values.shape, strict=True))
        if values.dtype != np.float32 or not fits:
            raise WireError(
                f"the report '{name}' should be float32 {list(wanted)}, not {values.dtype.name} {list(values.shape)}"
            )
        finite = np.isfinite(values).reshape(len(users), -1).all(axis=1)
        if not finite.all():
            raise WireError(f"user {int(users[np.flatnonzero(~finite)[0]]):016x} reports '{name}' that is not finite")
        reports[name] = values
    return reports


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
        owner = np.arange(len(users))
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
    finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if not finite.all():
        bad = int(users[owner[np.flatnonzero(~finite)[0]]])
        raise WireError(f"user {bad:016x} sent values of '{name}' that are not finite")
    return PackedRows(indptr, rows, values)


def _read_rows(content: RecordDict, name: str, num_items: int) -> NDArray[np.int32]:
    rows = read_raw(content, "update", f"{name}/rows")
    if rows.dtype != np.int32 or rows.ndim != 1:
        raise WireError(f"the rows of '{name}' should be 32-bit item numbers")
    if len(rows) and (rows.min() < 0 or rows.max() >= num_items):
        raise WireError(f"the update of '{name}' names an item outside the catalogue of {num_items}")
    return rows
