"""The server's stages of FedCA one after another: on a real round, and with what none of them takes."""

from __future__ import annotations

import numpy as np
import pytest

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import ModelOptions, RunConfig, TrainingOptions
from bouquet.randomness import SeededDraws
from client_app.node.histories import histories_of
from client_app.training import BACKENDS, LocalTask
from data_partition import load, training_negatives
from models import BACKBONES
from strategies.fedca import complementarity_matrix, composite_weights, mix, similarity_matrix
from tests.strategies.fedca_references import literal_eq5, plain_complementarity, plain_similarity


def test_a_round_on_real_data(real_data):
    """A third of MovieLens-100K's users after local training from one table: each stage against its plain form."""
    histories = histories_of(load("ml-100k", str(real_data("ml-100k"))), RunConfig())
    third = np.arange(0, len(histories.users), 3)
    users, positives, items = histories.users[third], histories.train.take(third), histories.num_items
    backbone = BACKBONES["mf"](items, ModelOptions(embedding_size=16, init_scale=0.1))
    base = initial_shared(backbone.shared, 0)["item_embedding"]
    tables = np.tile(base, (len(users), 1, 1))
    task = LocalTask(
        backbone=backbone,
        options=TrainingOptions(
            batch_size=256, optimizer="adam", local_epochs=10, learning_rate=0.01, user_learning_rate=0.01
        ),
        users=users,
        round=1,
        draws=SeededDraws(0),
        positives=positives,
        negatives=training_negatives(positives, positives, items, 4, users, SeededDraws(0), 1),
        shared={},
        private={
            "user_embedding": initial_private("user_embedding", backbone.private["user_embedding"], 0, users),
            "item_embedding": tables,
        },
    )
    for _ in BACKENDS["numba"](task):
        pass
    features = np.zeros((len(users), 4, 16), np.float32)
    for user, table in enumerate(tables):
        vectors = np.linalg.svd(table[positives.row(user)], full_matrices=False)[2][:4]
        features[user, : len(vectors)] = vectors
    some = np.linspace(0, len(users) - 1, 20).astype(int)
    pairs = np.ix_(some, some)

    similarity, complementarity = similarity_matrix(tables), complementarity_matrix(features)
    np.testing.assert_allclose(similarity[pairs], plain_similarity(tables[some]), rtol=1e-6)
    np.testing.assert_allclose(complementarity[pairs], plain_complementarity(features[some]), rtol=0, atol=2e-4)
    weights = composite_weights(similarity, complementarity, positives.lengths, 0.5, 0.4)
    share = positives.lengths / positives.lengths.sum()
    for user in some[::4]:
        best, _ = literal_eq5(share, similarity[user], complementarity[user], 0.5, 0.4)
        np.testing.assert_allclose(weights[user], best, rtol=0, atol=1e-6)
    expected = np.einsum("uv,vid->uid", weights[some], tables, dtype=np.float64, optimize=True)
    np.testing.assert_allclose(mix(weights, tables)[some], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stage", [similarity_matrix, complementarity_matrix, lambda array: mix(np.eye(2), array)])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_other_shapes_are_refused(stage, shape):
    with pytest.raises(ValueError, match="must have the axes"):
        stage(np.ones(shape, np.float32))
