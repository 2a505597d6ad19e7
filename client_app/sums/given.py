"""What the users of a node have given, so that it is given once, and can be taken back.

A reply can be lost, late or refused. So a node keeps the histories that its last replies were made of, each under its
round, and the server names the round whose reply it has. What is sent is the difference from that one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load

from bouquet.checked import check_content, checked_tensors
from bouquet.device import GIVEN
from bouquet.errors import StateError
from bouquet.files import private_folder, write_atomically
from bouquet.ragged import Ragged
from bouquet.randomness import Words
from bouquet.sealing import Seal


class Given:
    """The histories that one node's replies of one run series were made of, by user and round.

    Args:
        path: the file.
        seal: encrypts the file; None: it is stored as it is.
        durable: whether it is forced to the disk.
    Raises:
        StateError: the file is damaged, or encrypted with another key.
    """

    def __init__(self, path: Path, seal: Seal | None = None, *, durable: bool = False) -> None:
        self._path, self._seal, self._durable = path, seal, durable
        self._items: dict[int, dict[int, NDArray[np.int32]]] = {}
        if self._path.exists():
            self._read()

    def versions(self, user: int) -> dict[int, NDArray[np.int32]]:
        """What a user has given, by round: the whole history then, oldest first."""
        return self._items.get(user, {})

    @property
    def users(self) -> list[int]:
        """Keys of all users that have given something."""
        return list(self._items)

    def put(self, user: int, version: int, items: NDArray[np.int32], keep: Iterable[int]) -> None:
        """Note what a reply is made of; of earlier ones only those of the rounds in `keep` stay."""
        kept = {round_: found for round_, found in self.versions(user).items() if round_ in set(keep)}
        self._items[user] = {**kept, version: items}

    def save(self) -> None:
        """Write the file, so that it is there before the reply leaves."""
        entries = [(user, version, items) for user, of in self._items.items() for version, items in of.items()]
        lengths = [len(items) for _, _, items in entries]
        arrays = {
            "user": np.array([user for user, _, _ in entries], np.uint64),
            "version": np.array([version for _, version, _ in entries], np.int64),
            "length": np.array(lengths, np.int64),
            "item": np.concatenate([np.zeros(0, np.int32), *(items for _, _, items in entries)]),
        }
        private_folder(self._path.parent)
        parts: list[bytes | memoryview] = checked_tensors(arrays, {})
        if self._seal:
            parts = [self._seal.close(b"".join(parts), GIVEN)]
        write_atomically(self._path, parts, private=True, durable=self._durable)

    def _read(self) -> None:
        content = self._path.read_bytes()
        if self._seal:
            content = self._seal.open(content, GIVEN, self._path)
        try:
            check_content(content)
            arrays = load(content)
            histories = Ragged.from_lengths(arrays["length"], arrays["item"])
            entries: Words = arrays["user"]
        except (ValueError, KeyError) as error:
            raise StateError(f"{self._path} is damaged and cannot be read ({error}).") from None
        for place, (user, version) in enumerate(zip(entries.tolist(), arrays["version"].tolist(), strict=True)):
            self._items.setdefault(user, {})[version] = histories.row(place)
