"""The closed-form rows on MovieLens-100K, leave-one-out by time.

The figures of popularity and EASE were measured with other implementations; that of ItemKNN is this one's own.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from bouquet.evaluation import PARTS, evaluate_users, summarise
from bouquet.ragged import Ragged, positions
from models.centralized import CENTRALIZED


@pytest.fixture
def ml_100k(real_data):
    """(training matrix, arguments of `evaluate_users`): last = test, second last = validation, ties by file order."""
    raw = np.loadtxt(real_data("ml-100k") / "u.data", dtype=np.int64)
    users, items = (np.unique(raw[:, column], return_inverse=True)[1] for column in (0, 1))
    order = np.lexsort((raw[:, 3], users))
    users, items = users[order], items[order]
    lengths = np.bincount(users)
    left = np.repeat(lengths, lengths) - positions(lengths)
    num_users, num_items = len(lengths), int(items.max()) + 1
    names = {"train": left > 2, "validation": left == 2, "test": left == 1}
    parts = {name: Ragged.from_pairs(users[chosen], items[chosen], num_users) for name, chosen in names.items()}
    seen = np.zeros((num_users, num_items), dtype=np.bool_)
    seen[users, items] = True
    generator = np.random.default_rng(0)
    never = [np.flatnonzero(~row) for row in seen]
    candidates = {
        part: Ragged.from_lengths(
            [99] * num_users, np.concatenate([generator.choice(pool, 99, replace=False) for pool in never])
        )
        for part in PARTS
    }
    train = parts["train"]
    matrix = sparse.csr_matrix((np.ones(len(train.values)), train.values, train.indptr), shape=seen.shape)
    return matrix, {**parts, "candidates": candidates, "num_items": num_items}


@pytest.mark.parametrize(
    ("name", "full", "sampled"),
    [("popularity", 0.082, 0.412), ("itemknn", 0.125, 0.605), ("ease", 0.14, 0.65)],
)
def test_known_figures(ml_100k, name, full, sampled):
    """HR@10 at test. Equal timestamps and the drawn negatives move these by up to .01 and .03."""
    train, split = ml_100k
    summary = summarise(evaluate_users(CENTRALIZED[name]().fit(train).scores, **split))
    assert summary["test"]["full"]["HR@10"] == pytest.approx(full, abs=0.01)
    assert summary["test"]["sampled-99"]["HR@10"] == pytest.approx(sampled, abs=0.03)
