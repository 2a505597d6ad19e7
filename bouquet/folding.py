"""Many arrays in few parts, for the way between processes.

Flower gives and takes every record of a message, every array of a record and every piece of an array in a call of its
own, and each call costs the SuperLink two transactions in its database. A message of a round has some sixteen such
parts; folded it has three: the message, its list of records, and the settings, with all arrays among them. What is
large stays an array, which Flower cuts into pieces; and what is the same for all nodes stays apart if it is not small,
since Flower keeps equal parts once.

Folding changes no value and nothing that is counted: what comes out of `unfolded` went into `folded`.
"""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from bouquet.errors import WireError
from bouquet.records import array_of

# Records that are the same for all nodes of a round.
SAME_FOR_ALL = ("shared", "catalogue")
SMALL_BYTES, MOST_INLINE_BYTES = 64 * 1024, 2**20

_CONFIG, _FOLDED = "config", "folded"
# The names and lengths of all arrays of a message; the bytes of the number that says how long they are.
_MOST_HEAD, _LENGTH = 2**20, 4
_MOST_DIGITS = 12

Records = Mapping[str, ArrayRecord]


def folded(content: RecordDict, before: dict[str, ArrayRecord] | None = None) -> RecordDict:
    """The same content in fewer parts; itself where it has no settings to put them into.

    Args:
        before: large records of the messages that were folded before this one, which is added to them. What is the same
            for all nodes is then in memory once, however many nodes there are.
    """
    if _CONFIG not in content.config_records:
        return content
    records = dict(content.array_records)
    large = [name for name in SAME_FOR_ALL if name in records and _bytes({name: records[name]}) > SMALL_BYTES]
    apart: dict[str, Records] = {name: {name: records.pop(name)} for name in large}
    if _bytes(records) > MOST_INLINE_BYTES:
        apart["rest"], records = records, {}
    inline = {**content.config_records[_CONFIG], _FOLDED: _joined(records)}
    parts = {f"{_FOLDED}/{name}": _as_array(_joined(group), name, before) for name, group in apart.items()}
    return RecordDict({_CONFIG: ConfigRecord(inline), **parts})


def is_folded(content: RecordDict) -> bool:
    """Whether it is what `folded` returns for a content with settings."""
    return _FOLDED in content.config_records.get(_CONFIG, {})


def unfolded(content: RecordDict) -> RecordDict:
    """The inverse of `folded`; what is not folded stays as it is.

    Raises:
        WireError: it is folded, and cannot be unfolded.
    """
    if not is_folded(content):
        return content
    config = dict(content.config_records[_CONFIG])
    joined = [config.pop(_FOLDED)]
    for name, record in content.array_records.items():
        if not name.startswith(f"{_FOLDED}/") or list(record) != [_FOLDED]:
            raise WireError(f"the record '{name[:100]}' of a folded message is not folded")
        joined.append(record[_FOLDED].data)
    found: dict[str, ArrayRecord] = {}
    for part in joined:
        if not isinstance(part, bytes):
            raise WireError("the arrays of a folded message are no bytes")
        records = _split(part)
        if twice := found.keys() & records.keys():
            raise WireError(f"the record '{min(twice)[:100]}' stands twice in one message")
        found |= records
    return RecordDict({_CONFIG: ConfigRecord(config), **found})


def _bytes(records: Records) -> int:
    return sum(len(array.data) for record in records.values() for array in record.values())


def _as_array(content: bytes, name: str, before: dict[str, ArrayRecord] | None) -> ArrayRecord:
    if before and name in before and before[name][_FOLDED].data == content:
        return before[name]
    record = ArrayRecord({_FOLDED: Array("uint8", (len(content),), _FOLDED, content)})
    if before is not None and name in SAME_FOR_ALL:
        before[name] = record
    return record


def _joined(records: Records) -> bytes:
    """A head of three lines per array (record, name, length), then the arrays as they are.

    A record begins with a line of its own, with no name, so that one without arrays is there too.
    """
    lines, parts = [], []
    for name, record in records.items():
        lines += [name, "", "0"]
        for key, array in record.items():
            lines += [name, key, str(len(array.data))]
            parts.append(array.data)
    head = "\n".join(lines).encode()
    return b"".join([len(head).to_bytes(_LENGTH, "little"), head, *parts])


def _split(content: bytes) -> dict[str, ArrayRecord]:
    """The inverse of `_joined`.

    Raises:
        WireError: the bytes are none of these.
    """
    begin = _LENGTH + int.from_bytes(content[:_LENGTH], "little")
    if not _LENGTH <= begin <= min(len(content), _MOST_HEAD):
        raise WireError("the head of a folded message is longer than makes sense")
    try:
        lines = content[_LENGTH:begin].decode().split("\n") if begin > _LENGTH else []
    except UnicodeDecodeError as error:
        raise WireError(f"the head of a folded message is no text ({error})") from None
    if len(lines) % 3:
        raise WireError("the head of a folded message is not of three lines per array")
    found: dict[str, dict[str, Array]] = {}
    for name, key, digits in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS):
            raise WireError("the head of a folded message has a length that is no number")
        if not key:
            found.setdefault(name, {})
            continue
        if name not in found or key in found[name]:
            raise WireError(f"the array '{key[:100]}' of a folded message stands twice, or in no record")
        end = begin + int(digits)
        found[name][key] = array_of(content[begin:end], key)
        begin = end
    if begin != len(content):
        raise WireError("the arrays of a folded message are not as long as its head says")
    return {name: ArrayRecord(arrays) for name, arrays in found.items()}
