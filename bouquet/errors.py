"""The errors that a person is meant to read: one clear sentence each.

Every message says what was wrong, where, and what would be right. The command line prints the sentence and
exits with the status of the class; nothing else of the program catches these.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

ERROR_FILE = "BOUQUET_ERROR_FILE"
"""In the environment of a command whose caller is a program: where it says what ended it."""


class BouquetError(Exception):
    """Base of every error that is reported as one sentence."""

    exit_status = 1


class ConfigError(BouquetError):
    """A setting is unknown, of the wrong type, or impossible together with another one."""

    exit_status = 2


class MissingPackage(ConfigError):
    """A package is not installed that this needs; whether anything else is wrong is not known."""


class DataError(BouquetError):
    """A data set is missing, damaged or unusable; the message names the file and, where there is one, the line."""


class StateError(BouquetError):
    """A node's private state is missing, damaged or belongs to another run; the message names the file."""


class WireError(BouquetError):
    """A message does not have the declared names, types or shapes."""


class RunFailed(BouquetError):
    """A run cannot go on: too few nodes came, or too few of them gave valid replies."""


class Diverged(RunFailed):
    """Training has run away: what users sent, or what the server made of it, are no numbers to go on with."""


def tell(error: BouquetError) -> None:
    """Say what ends this command to the program that called it, if one did."""
    if path := os.environ.get(ERROR_FILE):
        Path(path).write_text(json.dumps({"kind": type(error).__name__, "sentence": str(error)}))


def told(path: Path) -> BouquetError | None:
    """The error that `tell` wrote; None: none did."""
    if not path.exists():
        return None
    said = json.loads(path.read_text())
    kinds = {kind.__name__: kind for kind in _kinds_of(BouquetError)}
    return kinds.get(said["kind"], BouquetError)(said["sentence"])


def _kinds_of(kind: type[BouquetError]) -> Iterator[type[BouquetError]]:
    for narrower in kind.__subclasses__():
        yield narrower
        yield from _kinds_of(narrower)
