"""The common tables that users' own versions are from: one file each, named after a digest of what is in it.

Users who train in the same round start from the same tables, so there are few of these files: one for each round whose
versions are still kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from bouquet.arrays import Arrays
from bouquet.errors import StateError
from bouquet.files import write_atomically
from bouquet.sealing import Seal


class Origins:
    """Common tables by digest, in one folder.

    Args:
        folder: where the files are.
        series: the run series that they belong to.
        durable: force every file to the disk.
        seal: encrypts the files; None: they are plain.
    """

    def __init__(self, folder: Path, series: str, durable: bool, seal: Seal | None) -> None:
        self._folder, self._durable, self._seal = folder, durable, seal
        self._belongs_to = f"{series}/origin"
        self._suffix = "sealed" if seal else "safetensors"
        self._last: tuple[Arrays, np.uint64] | None = None

    def keep(self, tables: Arrays) -> np.uint64:
        """Store tables, unless they are there; returns their digest, which is not 0.

        The users of a message are written in parts, from the same arrays, which nobody changes meanwhile.
        """
        if self._last and self._last[0].keys() == tables.keys():
            last, digest = self._last
            if all(tables[name] is last[name] for name in tables):
                return digest
        content = save({name: np.ascontiguousarray(values) for name, values in tables.items()})
        digest = _digest(content)
        path = self._path(digest)
        if not path.exists():
            if self._seal:
                content = self._seal.close(content, self._belongs_to)
            write_atomically(path, content, durable=self._durable, private=True)
        self._last = dict(tables), digest
        return digest

    def read(self, digest: np.uint64) -> Arrays:
        """The tables with a digest.

        Raises:
            StateError: they are missing or damaged, or sealed with another key.
        """
        path = self._path(digest)
        try:
            content = path.read_bytes()
            if self._seal:
                content = self._seal.open(content, self._belongs_to, path)
            tables = load(content)
        except (OSError, ValueError, SafetensorError) as error:
            raise StateError(f"{path} is damaged and cannot be read ({error}).") from None
        if _digest(content) != digest:
            raise StateError(f"{path} is damaged: its name does not fit what is in it.")
        return tables

    def keep_only(self, digests: Iterable[np.uint64]) -> None:
        """Remove the files of all others."""
        self._last = None
        needed = {self._path(digest) for digest in digests}
        for path in self._folder.glob(f"origin-*.{self._suffix}"):
            if path not in needed:
                path.unlink(missing_ok=True)

    def _path(self, digest: np.uint64) -> Path:
        return self._folder / f"origin-{int(digest):016x}.{self._suffix}"


def _digest(content: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(blake2b(content, digest_size=8).digest(), "little") or 1)
