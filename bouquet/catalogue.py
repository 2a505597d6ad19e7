"""The catalogue that a server publishes: items in the model's order, their titles, and what edition this is."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

from bouquet.errors import DataError, StateError
from bouquet.files import write_atomically

_FORMAT = 1


@dataclass(frozen=True)
class Catalogue:
    """Items and titles.

    Attributes:
        items: [m] raw ids; their place is the row of the item embedding.
        titles: [m], "" where unknown.
    """

    items: tuple[str, ...]
    titles: tuple[str, ...]

    @cached_property
    def fingerprint(self) -> str:
        """Of the items: models of one fingerprint fit together."""
        return fingerprint(self.items)

    @cached_property
    def edition(self) -> str:
        """Of items and titles: a device with another edition is sent this one."""
        return fingerprint((*self.items, *self.titles))

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Raw id to row."""
        return {item: row for row, item in enumerate(self.items)}

    def save(self, path: Path) -> None:
        """Write it as JSON, atomically."""
        document = {"format": _FORMAT, "edition": self.edition, "items": self.items, "titles": self.titles}
        write_atomically(path, json.dumps(document), private=True)


def fingerprint(words: tuple[str, ...] | list[str]) -> str:
    """16 hexadecimal digits that tell lists of words apart."""
    return blake2b("\n".join(words).encode(), digest_size=8).hexdigest()


def load_catalogue(path: Path) -> Catalogue:
    """What `Catalogue.save` wrote.

    Raises:
        StateError: the file is missing or damaged.
    """
    try:
        document = json.loads(path.read_text())
        catalogue = Catalogue(tuple(document["items"]), tuple(document["titles"]))
        fits = (document["format"], document["edition"]) == (_FORMAT, catalogue.edition)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is no catalogue ({error}).") from None
    if not fits or len(catalogue.items) != len(catalogue.titles):
        raise StateError(f"{path} is damaged: its edition does not fit its items.")
    return catalogue


def read_catalogue(path: Path) -> Catalogue:
    """A catalogue from a CSV file with a column `item` and, if there are titles, `title`.

    Raises:
        DataError: the file is missing, has no such column, or an item twice; names the line.
    """
    items: dict[str, str] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if "item" not in (reader.fieldnames or []):
                raise DataError(f"{path} has no column 'item'.")
            for row in reader:
                item = (row["item"] or "").strip()
                if not item or item in items:
                    raise DataError(f"{path}, line {reader.line_num}: {'item twice' if item else 'no item'}.")
                items[item] = " ".join((row.get("title") or "").split())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}).") from None
    if not items:
        raise DataError(f"{path} has no items.")
    return Catalogue(tuple(items), tuple(items.values()))
