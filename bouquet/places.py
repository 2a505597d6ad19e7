"""Tables of objects that are imported when they are asked for: who needs one does not load what the others need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import TypeVar

T = TypeVar("T")


class Places(MutableMapping[str, T]):
    """Name -> object.

    Args:
        places: name -> "module:object".
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        self._found: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._found:
            module, _, found = self._places[name].partition(":")
            self._found[name] = getattr(import_module(module), found)
        return self._found[name]

    def __setitem__(self, name: str, value: T) -> None:
        self._places.setdefault(name, "")
        self._found[name] = value

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._found.pop(name, None)

    def __contains__(self, name: object) -> bool:  # without importing it
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
