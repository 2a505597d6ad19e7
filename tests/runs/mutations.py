"""Mutations of real replies: everything that a node with a valid key could do to a message, by number."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

EXTREME = (0.0, -1.0, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e30, 1e-45, 1e308)
SCALARS = (-1, 0, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 1e308, -1e308, float("nan"), float("inf"), "", "x" * 70_000,
           b"\x93NUMPY", True, [1, 2], ["a"], "[" * 20_000, '{"a":' * 20_000, "\x00", "protocol")  # fmt: skip
CLAIMS = ("float32", "float64", "int64", "uint64", "<f4", "object", "", "float32" * 1000, "[" * 5000)
HEADERS = (b"PK\x03\x04", b"\x93NUMPY\x02\x00", b"\x93NUMPY\x01\x00\xff\xff", b"\x80\x04K\x01.", b"")


def mutated(content: RecordDict, source: np.random.Generator) -> RecordDict:
    """A copy of a message with one to three things changed."""
    copy = copied(content)
    for _ in range(int(source.integers(1, 4))):
        _MUTATIONS[int(source.integers(len(_MUTATIONS)))](copy, source)
    return copy


def copied(content: RecordDict) -> RecordDict:
    """A message of its own."""
    records = {}
    for name, record in content.items():
        if isinstance(record, ArrayRecord):
            records[name] = ArrayRecord({key: Array(a.dtype, a.shape, a.stype, a.data) for key, a in record.items()})
        else:
            records[name] = type(record)(dict(record))
    return RecordDict(records)


def _any(values, source):
    values = list(values)
    return values[int(source.integers(len(values)))] if values else None


def _array(content, source):
    """A record, the name of one of its arrays, and the array."""
    record = _any([r for r in content.array_records.values() if len(r)], source)
    if record is None:
        return None
    name = _any(record.keys(), source)
    return record, name, record[name]


def _flip(content, source):
    if found := _array(content, source):
        record, name, array = found
        data = bytearray(array.data)
        for _ in range(int(source.integers(1, 9))):
            if data:
                data[int(source.integers(len(data)))] = int(source.integers(256))
        record[name] = Array(array.dtype, array.shape, array.stype, bytes(data))


def _flip_header(content, source):
    if found := _array(content, source):
        record, name, array = found
        data = bytearray(array.data)
        for _ in range(int(source.integers(1, 9))):
            if data:
                data[int(source.integers(min(len(data), 128)))] = int(source.integers(256))
        record[name] = Array(array.dtype, array.shape, array.stype, bytes(data))


def _cut(content, source):
    if found := _array(content, source):
        record, name, array = found
        at = int(source.integers(len(array.data) + 1))
        data = array.data[:at] if source.random() < 0.5 else array.data + array.data[:at]
        record[name] = Array(array.dtype, array.shape, array.stype, data)


def _other_header(content, source):
    if found := _array(content, source):
        record, name, array = found
        data = _any(HEADERS, source) + array.data[int(source.integers(12)) :]
        record[name] = Array(array.dtype, array.shape, array.stype, data)


def _nested_header(content, source):
    """A header that numpy's own reader would hand to a parser."""
    if found := _array(content, source):
        record, name, array = found
        text = _any((b"(" * 5000, b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 300 + b",), }",
                     b"'" * 99, b"\\", b"{'descr': '<f4', 'shape': (3,)"), source)  # fmt: skip
        text = text.ljust(118) + b"\n"
        data = b"\x93NUMPY\x01\x00" + (len(text) % 65536).to_bytes(2, "little") + text + array.data[128:]
        record[name] = Array(array.dtype, array.shape, array.stype, data)


def _claim(content, source):
    if found := _array(content, source):
        record, name, array = found
        dtype = _any((array.dtype, *CLAIMS), source)
        shape = _any((array.shape, (), (0,), (10**12,), (-1,), (2**63, 2), (1,) * 70, (*array.shape, 1)), source)
        stype = _any((array.stype, "", "torch.tensor", "numpy.ndarray" * 99), source)
        record[name] = Array(dtype, shape, stype, array.data)


def _values(change: Callable) -> Callable:
    def apply(content, source):
        if found := _array(content, source):
            record, name, array = found
            try:
                values = np.array(array.numpy())
            except Exception:  # an earlier mutation has made it unreadable
                return
            with np.errstate(all="ignore"):
                record[name] = Array(np.asarray(change(values, source)))

    return apply


def _extreme(values, source):
    if values.size and values.dtype.kind in "fiu":
        some = source.random(values.shape) < _any((0.01, 0.3, 1.0), source)
        extreme = _any(EXTREME, source)
        if values.dtype.kind != "f":
            extreme = _any((0, 1, np.iinfo(values.dtype).max, np.iinfo(values.dtype).min), source)
        values[some] = np.asarray(extreme).astype(values.dtype)
    return values


def _blown_up(values, source):
    if values.dtype.kind != "f":
        return values
    return (values * _any((-1.0, 30.0, 1e3, 1e6, 1e18, 1e30, 1e38), source)).astype(values.dtype)


def _reshaped(values, source):
    kind = int(source.integers(6))
    if kind == 0:
        return values[None]
    if kind == 1:
        return values.reshape(-1)
    if kind == 2:
        return values[: len(values) // 2] if values.ndim else values
    if kind == 3:
        return np.concatenate([values, values]) if values.ndim else values
    if kind == 4:
        return np.asfortranarray(values)
    return values[::-1].copy() if values.ndim else values


def _retyped(values, source):
    return values.astype(_any(("f2", "f4", "f8", "i4", "i8", "u1", "u8", "?", "c8", "U3", ">f4", ">i8"), source))


def _shuffled(values, source):
    return source.permutation(values) if values.ndim else values


def _drop(content, source):
    if source.random() < 0.4 and len(content):
        del content[_any(content.keys(), source)]
    elif found := _array(content, source):
        del found[0][found[1]]


def _rename(content, source):
    if found := _array(content, source):
        record, name, array = found
        other = _any(
            (_any(record.keys(), source), name + "/rows", "rows", "user_embedding/values", "", "x" * 999), source
        )
        record[other] = array
        if source.random() < 0.5 and other != name:
            del record[name]


def _move(content, source):
    """An array, or a whole record, where another one belongs."""
    if source.random() < 0.5 and (found := _array(content, source)):
        _any(content.array_records.values(), source)[found[1]] = found[2]
    elif len(content):
        content[_any((*content.keys(), "more", "personal"), source)] = copied(content)[_any(content.keys(), source)]


def _wrong_kind(content, source):
    if not len(content):
        return
    record = _any((ConfigRecord({"a": 1}), MetricRecord({"a": 1.0}), ArrayRecord(), ConfigRecord()), source)
    content[_any(content.keys(), source)] = record


def _setting(content, source):
    if "config" in content.config_records and len(content.config_records["config"]):
        config = content.config_records["config"]
        name = _any(config.keys(), source)
        if source.random() < 0.2:
            del config[name]
        else:
            config[name] = _any(SCALARS, source)


def _specs(content, source):
    """What a roster says of the model."""
    if "config" not in content.config_records or "specs" not in content.config_records["config"]:
        _setting(content, source)
        return
    config = content.config_records["config"]
    array = {"shape": [60, 4], "init": "normal", "scale": 0.1, "by_item": True}
    array |= _any(
        ({"shape": [10**9, 10**9]}, {"shape": [-1]}, {"shape": [True]}, {"shape": "60"}, {"shape": []},
         {"shape": [[4]]},
         {"scale": 1e999}, {"scale": "1"}, {"scale": 10**400}, {"init": []}, {"init": "x" * 999}, {"by_item": 3},
         {"more": 1},
         {"shape": [2] * 99}, {"shape": {}}, {"shape": None}),
        source,
    )  # fmt: skip
    many = {str(number): array for number in range(2000)}
    deep = json.dumps({"q": array}).replace("[", "[" * 3000)
    config["specs"] = _any((json.dumps({"item_embedding": array}), json.dumps(many), deep, "[]", "null", "{}"), source)


_MUTATIONS = (
    _flip, _flip_header, _flip_header, _cut, _other_header, _nested_header, _claim, _claim, _values(_extreme),
    _values(_extreme), _values(_blown_up), _values(_blown_up), _values(_reshaped), _values(_retyped),
    _values(_shuffled), _drop, _rename, _move, _wrong_kind, _setting, _setting, _specs,
)  # fmt: skip
