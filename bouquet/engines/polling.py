"""How often a node asks for messages: a server cannot call it, since it only connects outwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bouquet.errors import ConfigError

BUSY, REST = "poll-interval", "rest-poll-interval"
"""Their names on command lines and among a device's settings."""


@dataclass(frozen=True)
class Polling:
    """The pauses between two questions of a SuperNode.

    Attributes:
        busy: seconds while messages come, and for a minute after the last one.
        rest: seconds from then on; Flower's own.
    """

    busy: float = 0.2
    rest: float = 3.0

    def __post_init__(self) -> None:
        for name, seconds in ((BUSY, self.busy), (REST, self.rest)):
            if not (math.isfinite(seconds) and seconds > 0):
                raise ConfigError(f"{name} is a number of seconds above 0, not {seconds:g}.")

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Polling:
        """What a device's settings say, of which there are others.

        Raises:
            ConfigError: one of them is no number of seconds.
        """
        given = {}
        for field, name in (("busy", BUSY), ("rest", REST)):
            if name in settings:
                try:
                    given[field] = float(settings[name])
                except ValueError:
                    raise ConfigError(f"{name} is a number of seconds, not '{settings[name]}'.") from None
        return cls(**given)

    def words(self) -> list[str]:
        """The same on the command line of `client_app.edge.supernode`."""
        return [f"--{BUSY}={self.busy!r}", f"--{REST}={self.rest!r}"]


def polling_settings(busy: float | None, rest: float | None) -> dict[str, str]:
    """What of it was given, as a device's settings.

    Raises:
        ConfigError: a number is not above 0.
    """
    settings = {name: repr(seconds) for name, seconds in ((BUSY, busy), (REST, rest)) if seconds is not None}
    Polling.of(settings)
    return settings
