"""The scores that a device recommends with: the whole catalogue, for some users at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from client_app.personalization.base import Given, Personalization, Working
from models import Backbone

# Views of whole tables are made for as many users at once as fit into this many bytes.
VIEW_BYTES = 64 * 2**20


def scorer(
    backbone: Backbone, methods: Sequence[Personalization], given: Given, positives: Ragged, round_: int
) -> Callable[[NDArray[np.int64]], NDArray[np.float32]]:
    """A function that scores all items for the users with the given row numbers: rows [b] -> [b, m].

    Args:
        given: what the users recommend with, as the methods' `deploy` left it.
        positives: [k] rows of training items.
    """
    methods = [method for method in methods if method.in_loss]
    common = {name: torch.from_numpy(values) for name, values in (given.shared | given.frozen).items()}
    own = {name: torch.from_numpy(values) for name, values in (given.own | given.anchors).items()}

    def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        index = torch.from_numpy(rows)
        arrays = common | {name: values[index] for name, values in own.items()}
        with torch.inference_mode():
            private = {name: arrays[name] for name in backbone.private}
            return backbone.scores(private, {name: arrays[name] for name in backbone.shared}).numpy()

    def viewed(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        index = torch.from_numpy(rows)
        arrays = {name: values.expand(len(rows), *values.shape) for name, values in common.items()}
        arrays |= {name: values[index] for name, values in own.items()}
        working = _whole_catalogue(backbone, methods, positives.take(rows), round_)
        with torch.inference_mode():
            seen = arrays
            for method in methods:
                seen = dict(method.view(seen, working))
            private = {name: seen[name] for name in backbone.private}
            return backbone.scores(private, {name: seen[name] for name in backbone.shared}).numpy()

    if not methods:
        return scores
    per_user = 4 * sum(spec.size for spec in backbone.shared.values())
    step = max(1, VIEW_BYTES // per_user)

    def in_blocks(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.concatenate([viewed(rows[start : start + step]) for start in range(0, len(rows), step)])

    return in_blocks


def _whole_catalogue(backbone: Backbone, methods: Sequence[Personalization], positives: Ragged, round_: int) -> Working:
    k, m = len(positives), next(spec.shape[0] for spec in backbone.shared.values() if spec.by_item)
    liked = torch.zeros(k, m)
    liked[torch.from_numpy(positives.row_of_value), torch.from_numpy(positives.values.astype(np.int64))] = 1
    return Working(
        items=torch.arange(m).expand(k, m),
        valid=torch.ones(k, m, dtype=torch.bool),
        positive=liked,
        outside={name: torch.zeros(k) for method in methods for name in method.norms_of},
        round=round_,
    )
