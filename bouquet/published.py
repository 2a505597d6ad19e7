"""A model that was published: what everybody can recommend with who has a history and knows the catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.checked import checked_tensors, read_checked
from bouquet.errors import StateError
from bouquet.files import write_atomically

_FORMAT = "1"


@dataclass(frozen=True)
class PublishedModel:
    """Arrays, and what they are to be read with.

    Attributes:
        strategy: the method's name.
        settings: the method's settings, as kebab-case keys and plain values.
        catalogue: fingerprint of the items that rows are of.
        arrays: by name, by item along the first axis.
        round: the round of the run that published it.
    """

    strategy: str
    settings: Mapping[str, Any]
    catalogue: str
    arrays: Mapping[str, NDArray[Any]]
    round: int

    def save(self, path: Path) -> None:
        """Write it, atomically. Nothing of single users is in it, so whoever may read the folder may read the file."""
        metadata = {
            "format": _FORMAT,
            "strategy": self.strategy,
            "settings": json.dumps(dict(self.settings)),
            "catalogue": self.catalogue,
            "round": str(self.round),
        }
        write_atomically(path, checked_tensors(self.arrays, metadata))


def load_published(path: Path) -> PublishedModel:
    """What `PublishedModel.save` wrote.

    Raises:
        StateError: the file is missing or damaged, or no such model.
    """
    arrays, metadata = read_checked(path)
    if metadata.get("format") != _FORMAT or "strategy" not in metadata:
        raise StateError(f"{path} is no published model of this version.")
    settings = json.loads(metadata["settings"])
    finite = all(np.isfinite(values).all() for values in arrays.values())
    if not finite:
        raise StateError(f"{path} has numbers that are not finite.")
    return PublishedModel(metadata["strategy"], settings, metadata["catalogue"], arrays, int(metadata["round"]))
