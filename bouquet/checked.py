"""safetensors files with a digest of everything in them, so that no flipped bit and no cut goes unnoticed.

Any other program reads them too: the digest is an entry of the metadata. It is taken over the whole file, names, shapes
and padding included, with zeros where it will stand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bouquet.errors import StateError

_DIGEST = re.compile(rb'"digest":"([0-9a-f]{64})"')
_NO_DIGEST = b"0" * 64
_CHUNK = 2**20


def checked_tensors(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file, in parts, whose metadata has a `digest`: of the whole file with zeros in its place."""
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    content = memoryview(save(arrays, {**metadata, "digest": _NO_DIGEST.decode()}))
    place = _place_of_digest(bytes(content[: 8 + _header_bytes(content[:8])]))
    digest = blake2b(content, digest_size=32).hexdigest().encode()
    return [content[: place[0]], digest, content[place[1] :]]


def read_checked(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a file of `checked_tensors`.

    Raises:
        StateError: the file is missing or damaged; names it.
    """
    try:
        _check(path)
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise StateError(f"{path} is damaged and cannot be read ({error}).") from None


def check_content(content: bytes) -> None:
    """The same check for a file that is in memory.

    Raises:
        ValueError: it is damaged.
    """
    begin, end = _place_of_digest(content[: 8 + _header_bytes(content[:8])])
    found = blake2b(digest_size=32)
    for part in (content[:begin], _NO_DIGEST, content[end:]):
        found.update(part)
    if found.hexdigest().encode() != content[begin:end]:
        raise ValueError("its digest does not fit")


def _check(path: Path) -> None:
    """As `check_content`, without having all of the file in memory."""
    with path.open("rb") as file:
        length = _header_bytes(file.read(8))
        if length > os.fstat(file.fileno()).st_size:
            raise ValueError("its header is longer than the file")
        file.seek(0)
        head = file.read(8 + length)
        begin, end = _place_of_digest(head)
        found = blake2b(head[:begin] + _NO_DIGEST + head[end:], digest_size=32)
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    if found.hexdigest().encode() != head[begin:end]:
        raise ValueError("its digest does not fit")


def _header_bytes(begin: bytes | memoryview) -> int:
    return int.from_bytes(begin, "little")


def _place_of_digest(head: bytes) -> tuple[int, int]:
    found = _DIGEST.search(head)
    if not found:
        raise ValueError("it has no digest")
    return found.span(1)
