"""The sizes that are measured: MovieLens-100K and -1M, from their files or made with the same marginals."""

from __future__ import annotations

import os
from dataclasses import dataclass

from bouquet.config import RunConfig
from bouquet.errors import DataError
from client_app.node.histories import Histories, histories_of
from data_partition import load, synthetic

DATA_VARIABLE = "BOUQUET_DATA"

# users, items, mean interactions per user of the published sets
MARGINALS = {"ml-100k": (943, 1682, 106.0), "ml-1m": (6040, 3706, 165.6)}


@dataclass(frozen=True)
class Shape:
    """Histories of one size, and whether they are the real ones."""

    name: str
    real: bool
    histories: Histories


def shape(name: str) -> Shape:
    """Histories with the size of a published set: the set itself where $BOUQUET_DATA or the cache has it."""
    try:
        interactions, real = load(name, os.environ.get(DATA_VARIABLE, "")), True
    except DataError:
        users, items, length = MARGINALS[name]
        interactions, real = synthetic(users, items, mean_length=length), False
    return Shape(name, real, histories_of(interactions, RunConfig()))
