"""The scores that a device recommends with: the whole catalogue, for some users at once.

Plain matrix factorisation is a product of two arrays, and takes no torch; everything else is in `tensor_scoring`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.ragged import Ragged, picked
from client_app.personalization.base import Personalization
from client_app.personalization.round import Given
from client_app.state.row_overrides import OwnRows
from client_app.training.compiler import row_kernels
from models import Backbone, MatrixFactorization, is_sequential


def scorer(
    backbone: Backbone,
    methods: Sequence[Personalization],
    given: Given,
    histories: Ragged,
    round_: int,
    *,
    own_rows: OwnRows | None = None,
) -> ScoreBlock:
    """A function that scores all items for the users with the given row numbers: rows [b] -> [b, m].

    Args:
        given: what the users recommend with, as the methods' `deploy` left it.
        histories: [k] rows of items that may be read of the users, oldest first.
        own_rows: rows that users have fine-tuned; not together with methods that change what the model sees.
    """
    methods = [method for method in methods if method.in_view]
    plain = own_rows is None and type(backbone).scores is MatrixFactorization.scores
    # Compiled, this takes a tenth of what tables take that are added up in memory and then multiplied.
    if plain and len(methods) == 1 and (compiled := methods[0].scores(given)) is not None:
        return compiled
    if takes_tensors(backbone, methods):
        from client_app.node.tensor_scoring import tensor_scorer

        return tensor_scorer(backbone, methods, given, histories, round_, own_rows)
    return _products(given, own_rows)


def takes_tensors(backbone: Backbone, methods: Sequence[Personalization]) -> bool:
    """Whether a model is more than a product of a user's vector and an item table."""
    # Not by its kernel: a backbone that was made from this one may train as it does and score otherwise.
    return type(backbone).scores is not MatrixFactorization.scores or any(method.in_loss for method in methods)


def reads_histories(backbone: Backbone, methods: Sequence[Personalization]) -> bool:
    """Whether what a user did is an input of its scores, beside what was learned from it."""
    return is_sequential(backbone) or backbone.reads_history or any(method.reads_history for method in methods)


def _products(given: Given, own_rows: OwnRows | None) -> ScoreBlock:
    """⟨p_u, q_i⟩, or with the user's own row of an item where it has one."""
    common, own = given.shared | given.frozen, given.own | given.anchors
    vectors = own["user_embedding"]

    def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        mine: NDArray[np.float32] = picked(vectors, rows)
        found: NDArray[np.float32]
        if "item_embedding" in common:
            found = mine @ common["item_embedding"].T
        else:
            found = np.matmul(picked(own["item_embedding"], rows), mine[:, :, None])[:, :, 0]
        return found if own_rows is None else _with_own_rows(found, mine, own_rows.take(rows))

    return scores


def _with_own_rows(
    scores: NDArray[np.float32], vectors: NDArray[np.float32], mine: OwnRows
) -> NDArray[np.float32]:  # fmt: skip
    """The scores [b, m], in place, after rows of the users' own."""
    if not len(mine.rows.values):
        return scores
    values = mine.values["item_embedding"]
    if (code := row_kernels()) is not None:
        code.score_rows(vectors, mine.rows.indptr, mine.rows.values, values, scores)
    else:
        owner = mine.rows.row_of_value
        scores[owner, mine.rows.values] = np.einsum("nd,nd->n", vectors[owner], values)
    return scores
