"""The model of the round that a run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Model:
    """What all users share; what is private to each of them stays on its node, and is no part of it.

    Attributes:
        arrays: by name, such as `item_embedding` [m, d]; rows of arrays by item are in the order of `items`. Empty
            where a method shares nothing.
        items: [m] raw ids; empty where the run does not know them, as on a deployment over data of its nodes.
        titles: [m], "" where unknown.
        strategy: the method.
        settings: of the method, as kebab-case keys.
        round: the round that they are of: the best on validation.
    """

    arrays: Mapping[str, NDArray[Any]]
    items: NDArray[np.str_]
    titles: tuple[str, ...]
    strategy: str
    settings: Mapping[str, Any]
    round: int

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {list(values.shape)}" for name, values in self.arrays.items())
        return f"<Model of {self.strategy}, round {self.round}: {shapes or 'nothing shared'}>"
