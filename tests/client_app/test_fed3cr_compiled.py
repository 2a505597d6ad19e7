"""Fed3CR's compiled steps against the loop, on more rows than a tile has, and what they leave to torch."""

import numpy as np
import pytest

from tests.client_app.method_tasks import make_task, outcome

# Tiles of 256, 256 and 88 rows.
SMALL = {"num_items": 600, "strategy": "fed3cr", "fed3cr_beta_a": 0.7, "fed3cr_beta_o": 0.4, "embedding_size": 8}


def steps_of(task):
    (method,) = task.personalizations
    return method.compiled(task)


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"fed3cr_enhancement": "none"},
        {"ace_hidden_layers": 3, "ace_identity_residual": False},
        {"fed3cr_beta_a": 0.0, "fed3cr_literal_scale": True, "fed3cr_beta_o": 0.001},
        {"fed3cr_beta_o": 0.0, "batch_size": 7},
        {"fed3cr_complementarity": "cosines", "fed3cr_beta_o": 0.0},
        {"fed3cr_complementarity": "cosines"},
        {"fed3cr_complementarity": "cosines", "fed3cr_beta_a": 0.0, "fed3cr_enhancement": "none", "batch_size": 7},
        {"fed3cr_complementarity": "cosines", "embedding_size": 32},
        # More steps than are remembered as vectors.
        {"batch_size": 1, "local_epochs": 8, "ace_learning_rate": 0.01, "learning_rate": 0.02},
    ],
    ids=str,
)
def test_they_equal_the_loop(further):
    options = SMALL | further
    assert steps_of(make_task(**options)) is not None
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "numba"))
    assert np.abs(expected["change of item_embedding"]).max() > 1e-3
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=1e-10, err_msg=name)


def test_single_precision_is_near_double_precision():
    """Polynomials in the place of exp and log are right to 4e-7; a round of a few steps adds rounding of its own."""
    expected, found = outcome(make_task(**SMALL), "loop"), outcome(make_task(**SMALL, dtype=np.float32), "numba")
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-3, atol=2e-5, err_msg=name)


def test_threads_change_nothing(monkeypatch):
    found = []
    for count in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", count)
        found.append(outcome(make_task(**SMALL), "numba"))
    for name, values in found[0].items():
        np.testing.assert_array_equal(found[1][name], values, err_msg=name)


@pytest.mark.parametrize(
    "further",
    [
        {"optimizer": "adam"},
        {"weight_decay": 0.1},
        {"early_stop_tolerance": 0.1},
        {"embedding_size": 6},
        {"backbone": "ncf"},
        {"fed3cr_enhancement": "unified"},
        {"fed3cr_complementarity": "information"},
        {"fed3cr_consistency": "contrast"},
        {"fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0, "fed3cr_enhancement": "none"},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(further):
    assert steps_of(make_task(**SMALL | further)) is None
