"""What other packages add by name: methods, backbones and data sets, which they declare as entry points.

A table of names holds what is built in, and reads what is installed when it is asked for another name, or for all. So
a device that runs a built-in method spends no time on it and imports nobody else's code, and a package may import
bouquet while bouquet imports it. What is wrong with an entry is told to whoever asks for its name, and to
nobody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One entry point.

    Attributes:
        name: under which it is asked for.
        package: the distribution that declares it, with its version.
        text: "name = module:object", as it is declared.
        value: the object; None where it cannot be imported.
        problem: why it cannot be imported, or "".
    """

    name: str
    package: str
    text: str
    value: Any
    problem: str = ""


def entries(group: str) -> list[Entry]:
    """All entry points of a group, imported."""
    from importlib.metadata import entry_points

    found = []
    for point in entry_points(group=group):
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
        text = f"{point.name} = {point.value}"
        try:
            found.append(Entry(point.name, package, text, point.load()))
        # Somebody else's module may raise whatever it likes, a SystemExit too, and no other name may suffer from it.
        except (Exception, SystemExit) as error:
            said = f": {error}" if str(error) else ""
            found.append(Entry(point.name, package, text, None, f"importing it raises {type(error).__name__}{said}"))
    return sorted(found, key=lambda entry: (entry.name, entry.package))


class Names(MutableMapping[str, T]):
    """A table of names: what is built in, and after it what is installed.

    Args:
        built_in: these names always mean this.
        group: of entry points, which may also hold objects for another table.
        wrong: what is wrong with an object that is installed under a name, or "".
        mine: whether an object that has nothing wrong belongs into this table.
    """

    def __init__(
        self,
        built_in: dict[str, T],
        group: str,
        wrong: Callable[[str, Any], str],
        mine: Callable[[Any], bool] = lambda value: True,
    ) -> None:
        self._built_in, self._group, self._wrong, self._mine = built_in, group, wrong, mine

    @cached_property
    def _installed(self) -> tuple[dict[str, T], dict[str, str]]:
        """What can be used, and why the rest cannot."""
        fit: dict[str, T] = {}
        refused: dict[str, str] = {}
        everything = entries(self._group)
        for entry in everything:
            others = [other for other in everything if other.name == entry.name and other is not entry]
            problem = entry.problem or self._wrong(entry.name, entry.value)
            if others:
                problem = f"{others[0].package} has one of this name, too"
            if entry.name in self._built_in:
                problem = "bouquet has one of this name itself"
            if problem:
                refused[entry.name] = f"of {entry.package} ('{entry.text}' in {self._group}) cannot be used: {problem}."
            elif self._mine(entry.value):
                fit[entry.name] = entry.value
        return fit, refused

    @property
    def refused(self) -> dict[str, str]:
        """Names that are installed and cannot be used, with the end of a sentence that says why."""
        return self._installed[1]

    def __getitem__(self, name: str) -> T:
        return self._built_in[name] if name in self._built_in else self._installed[0][name]

    def __setitem__(self, name: str, value: T) -> None:
        self._built_in[name] = value

    def __delitem__(self, name: str) -> None:
        del self._built_in[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._built_in, **self._installed[0]})

    def __len__(self) -> int:
        return len({**self._built_in, **self._installed[0]})
