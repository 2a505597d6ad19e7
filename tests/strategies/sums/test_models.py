"""What servers make of sums, against numbers derived by hand."""

import numpy as np
import pytest
from scipy import sparse

from bouquet.config import parsed
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import small_settings
from strategies import strategy_of


def weights(tmp_path, strategy, sums, **settings):
    method = strategy_of(parsed(small_settings(tmp_path, strategy=strategy, **settings)), RunDirectory(tmp_path))
    found = method.weights_of({name: sparse.csr_matrix(np.array(values, float)) for name, values in sums.items()})
    return found if isinstance(found, np.ndarray) else found.toarray()


def test_rules_by_hand(tmp_path):
    """S[0, 1] = 2, counts 4, 16 and 0; b = 1/2, b' = 1/4, c = 1/2.

    K[0, 1] = 2 · 4^-½ · 16^-¼ = 1/2, and K[1, 0] = ½ · 2 · 16^-½ · 4^-¼ = ¼ / √2. Who was never counted says nothing.
    """
    found = weights(
        tmp_path,
        "sequential-rules",
        {"transitions": [[0, 2, 0], [0, 0, 0], [0, 0, 0]], "counts": [[4, 16, 0]]},
        sequential_rules_source=0.5,
        sequential_rules_target=0.25,
        sequential_rules_reverse=0.5,
    )
    np.testing.assert_allclose(found, [[0, 0.5, 0], [0.25 / np.sqrt(2), 0, 0], [0, 0, 0]], rtol=1e-12)


def test_slist_by_hand(tmp_path):
    """P + λI = [[2, 1], [1, 2]] with inverse [[2, -1], [-1, 2]] / 3; Q + ½ Qᵀ = [[0, 3], [1.5, 0]]."""
    found = weights(
        tmp_path,
        "slist",
        {"before": [[1, 1], [0, 1]], "next": [[0, 3], [0, 0]]},
        slist_regularization=1.0,
        slist_reverse=0.5,
    )
    np.testing.assert_allclose(found, [[-0.5, 2], [1, -1]], atol=1e-12)


@pytest.mark.parametrize("count", [2, 5])
def test_ease_by_hand(tmp_path, count):
    """Two items that all of `count` users have: P = (G + λI)^-1 ∝ [[c + λ, -c], [-c, c + λ]], so B = c / (c + λ)."""
    found = weights(tmp_path, "ease", {"together": [[count, count], [0, count]]}, ease_regularization=3.0)
    np.testing.assert_allclose(found, [[0, count / (count + 3)], [count / (count + 3), 0]], rtol=1e-12)
