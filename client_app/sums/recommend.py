"""The best next items for one history, from a published model: at once, for whoever has both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bouquet.catalogue import Catalogue
from bouquet.config import lookup, own
from bouquet.errors import StateError
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.methods.parts import ModelOfSums, published_factors
from bouquet.published import PublishedModel
from bouquet.ragged import Ragged
from client_app.edge.growing_history import oldest_first
from client_app.sums.counter import Recommender


def recommended(
    model: PublishedModel, catalogue: Catalogue, events: Sequence[tuple[float, str]], user: str = ""
) -> list[tuple[int, float]]:
    """Rows of the catalogue with their scores, best first, without those of the history.

    Args:
        events: time and item of everything that the person did; items that the catalogue does not have are left out.
        user: whose they are, which decides the order of events of equal time.
    Raises:
        StateError: the model is of another catalogue, or not of a method that only counts.
    """
    if model.catalogue != catalogue.fingerprint:
        raise StateError("The published model is of another catalogue than the one that is here.")
    method = lookup(METHODS, "strategy", model.strategy)
    options = own(model.settings, method.options)
    if not isinstance(options, ModelOfSums):
        raise StateError(f"A model of {model.strategy} needs more than a history to recommend from.")
    device: Recommender = class_at(str(method.device))(len(catalogue.items), options)
    size, factors = len(catalogue.items), model.arrays.get("factors")
    specs = options.published(size)
    if factors is not None and factors.ndim == 2 and "factors" not in specs:  # of a private sum
        specs = published_factors(size, factors.shape[1])
    for name, spec in specs.items():
        if name not in model.arrays or model.arrays[name].shape != spec.shape:
            raise StateError(f"The published model does not have '{name}' of the shape {list(spec.shape)}.")
    rows = [catalogue.rows[item] for item in oldest_first(events, user) if item in catalogue.rows]
    if not rows:
        raise StateError("There is nothing to recommend from: no item of the history is in the catalogue.")
    scores = device.scores(model.arrays, Ragged.from_lengths([len(rows)], rows))[0]
    order = np.argsort(-scores, kind="stable")
    return [(row, float(scores[row])) for row in order[~np.isin(order, rows)].tolist()]
