"""FedRAP's compiled steps against the loop, alone and with its tables mixed, and what they leave to others."""

import numpy as np
import pytest

from client_app.personalization import fedrap_compiled
from client_app.personalization.round import PERSONAL
from tests.client_app import compiled_steps
from tests.client_app.compiled_steps import SIZES
from tests.client_app.method_tasks import make_task, outcome

TERMS = {"fedrap_lambda": 0.3, "fedrap_mu": 0.2}
# Of so many items an own table has several tiles of rows.
BASE = {"num_items": 600, "strategy": "fedrap", "embedding_size": 8, "batch_size": 2048, **TERMS}
MIXED = BASE | {"personalization": "plgc", "plgc_tables": "base", "plgc_lambda": 0.3}


def assert_equal_to_the_loop(options, **further):
    expected = compiled_steps.assert_equal_to_the_loop(options, **further)
    start = make_task(further.get("sizes", SIZES), further.get("seed", 0), **options)
    assert np.abs(expected[PERSONAL] - start.private[PERSONAL]).max() > 1e-3


@pytest.mark.parametrize("batch_size", [40, 2048])
@pytest.mark.parametrize(
    "further", [{}, {"fedrap_mu": 0.0}, {"fedrap_lambda": 0.0}, {"fedrap_schedule": "constant"}], ids=str
)
def test_alone_they_equal_the_loop(further, batch_size):
    assert_equal_to_the_loop(BASE | further | {"batch_size": batch_size})


@pytest.mark.parametrize("batch_size", [40, 2048])
@pytest.mark.parametrize("terms", [TERMS, {"fedrap_lambda": 0.0, "fedrap_mu": 0.0}], ids=["terms", "none"])
@pytest.mark.parametrize("mixing", ["ntk", "half", "local", "none"])
@pytest.mark.parametrize(
    "loss", [{}, {"plgc_redundancy": "none"}, {"plgc_redundancy": "au", "plgc_lambda": 0.0}], ids=str
)
def test_mixed_they_equal_the_loop(loss, mixing, terms, batch_size):
    assert_equal_to_the_loop(MIXED | loss | terms | {"plgc_mixing": mixing, "batch_size": batch_size})


@pytest.mark.parametrize("size", [1, 6, 16, 32, 64])
@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_for_every_width(size, options):
    assert_equal_to_the_loop(options | {"embedding_size": size, "local_epochs": 3}, seed=size)


@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_batches_with_next_to_no_statistics(batch_size, options):
    """Statistics of two rows are small differences, in which the order of sums shows: stacked torch is as far away."""
    assert_equal_to_the_loop(options | {"batch_size": batch_size}, sizes=[1, 2, 0, 3], atol=1e-7)


@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_single_precision_is_near_double_precision(options):
    compiled_steps.assert_single_precision_is_near_double_precision(options)


@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_threads_and_blocks_change_nothing(monkeypatch, options):
    compiled_steps.assert_threads_and_blocks_change_nothing(monkeypatch, fedrap_compiled, options)


@pytest.mark.parametrize("name", ["user_embedding", PERSONAL])
@pytest.mark.parametrize("options", [BASE, MIXED], ids=["alone", "mixed"])
def test_a_user_who_has_diverged_is_nothing_to_the_others(name, options):
    compiled_steps.assert_who_has_diverged_is_nothing_to_the_others(name, options)


@pytest.mark.parametrize(
    "options",
    [
        *(BASE | rest for rest in ({"optimizer": "adam"}, {"weight_decay": 0.1}, {"early_stop_tolerance": 0.1})),
        BASE | {"backbone": "ncf"},
        BASE | {"personalization": "plgc"},
        BASE | {"personalization": "ace"},
        MIXED | {"plgc_learn_through_mu": True},
        MIXED | {"plgc_redundancy": "feddecorr"},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(options):
    """A plug-in that the loops do not know is not left out of training: torch computes it."""
    expected, found = (outcome(make_task(SIZES, **options), backend) for backend in ("loop", "numba"))
    compiled_steps.assert_equal(found, expected, rtol=1e-9, atol=1e-9)


def test_without_numba_all_of_it_is(monkeypatch):
    names = ("mixed_kernels", "row_kernels")
    compiled_steps.assert_nothing_is_compiled_without_numba(monkeypatch, fedrap_compiled, names, BASE)
