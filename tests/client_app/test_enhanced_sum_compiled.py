"""The compiled steps of Fed3CR over samples, and of ACE before FedRAP, against the loop; what they leave to others."""

import numpy as np
import pytest

from client_app.personalization import enhanced_sum_compiled
from client_app.personalization.round import PERSONAL
from tests.client_app import compiled_steps
from tests.client_app.compiled_steps import steps_of
from tests.client_app.method_tasks import make_task, outcome

# Of so many items an own table has several tiles of rows.
MANY = {"num_items": 600, "embedding_size": 8, "ace_learning_rate": 0.2, "batch_size": 2048}
BASE = MANY | {"strategy": "fedrap", "personalization": "ace", "fedrap_lambda": 0.3, "fedrap_mu": 0.2}
FED3CR = MANY | {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0}
ALTERNATIVES = {
    "none": {},
    "similarity": {"fed3cr_consistency": "similarity", "fed3cr_beta_a": 0.7},
    "contrast": {"fed3cr_consistency": "contrast", "fed3cr_beta_a": 0.7},
    "distance": {"fed3cr_complementarity": "distance", "fed3cr_beta_o": 0.2},
    "information": {"fed3cr_complementarity": "information", "fed3cr_beta_o": 0.3},
    "both": {
        "fed3cr_consistency": "contrast", "fed3cr_beta_a": 0.7, "fed3cr_complementarity": "information",
        "fed3cr_beta_o": 0.3,
    },
}  # fmt: skip


def assert_equal_to_the_loop(options, **further):
    expected = compiled_steps.assert_equal_to_the_loop(options, **further)
    for name in ("change of item_embedding", "change of transfer_weight_1", "change of transfer_weight_2"):
        assert np.abs(expected[name]).max() > 1e-4


@pytest.mark.parametrize(
    "further",
    [
        {},
        {"fedrap_mu": 0.0},
        {"fedrap_lambda": 0.0},
        {"fedrap_lambda": 0.0, "fedrap_mu": 0.0, "local_epochs": 5},
        {"ace_hidden_layers": 1, "fedrap_schedule": "constant"},
        {"ace_hidden_layers": 3, "ace_identity_residual": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch_size", [25, 2048])
def test_they_equal_the_loop(further, batch_size):
    assert_equal_to_the_loop(BASE | further | {"batch_size": batch_size})


@pytest.mark.parametrize("further", ALTERNATIVES.values(), ids=ALTERNATIVES)
@pytest.mark.parametrize("batch_size", [7, 25, 2048])
def test_those_of_fed3cr_equal_the_loop(further, batch_size):
    assert_equal_to_the_loop(FED3CR | further | {"batch_size": batch_size})


@pytest.mark.parametrize("further", ALTERNATIVES.values(), ids=ALTERNATIVES)
@pytest.mark.parametrize("size", [4, 32])
def test_those_of_fed3cr_for_other_widths_and_networks(further, size):
    deeper = {"ace_hidden_layers": 3, "ace_identity_residual": False, "ace_learning_rate": 0.05}
    assert_equal_to_the_loop(FED3CR | further | {"embedding_size": size, **deeper})


@pytest.mark.parametrize("name", ["similarity", "contrast", "information"])
def test_rows_without_a_direction_and_columns_without_a_spread(name):
    """A user whose own table is zero: its rows point nowhere, and its columns are constant."""
    options, found = FED3CR | ALTERNATIVES[name], []
    for backend in ("loop", "numba"):
        task = make_task(compiled_steps.SIZES, **options)
        task.private[PERSONAL][2] = 0
        found.append(outcome(task, backend))
    assert np.isfinite(found[0]["change of item_embedding"]).all()
    # Divided by the shortest length, 1e-8, what differs in the last place differs in the eighth.
    compiled_steps.assert_equal(found[1], found[0], rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_more_steps_than_are_remembered_as_vectors(batch_size):
    slow = {"learning_rate": 0.01, "ace_learning_rate": 0.02, "fedrap_personal_learning_rate": 0.05}
    sizes = [1, 6, 40, 0, 9, 2]
    assert 2 * -(-3 * 40 // batch_size) > 64
    assert_equal_to_the_loop(BASE | slow | {"batch_size": batch_size}, sizes=sizes)


@pytest.mark.parametrize("size", [4, 16, 32, 64])
@pytest.mark.parametrize("seed", [1, 2])
def test_for_every_width(size, seed):
    assert_equal_to_the_loop(BASE | {"embedding_size": size, "ace_learning_rate": 0.05, "batch_size": 20}, seed=seed)


KINDS = {"fedrap": BASE, **{f"fed3cr, {name}": FED3CR | further for name, further in ALTERNATIVES.items()}}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_single_precision_is_near_double_precision(options):
    """Columns of the few rows of a user with one item correlate so nearly perfectly that torch's single precision is no
    nearer: log(1 - R²) is steep there. Without information that user is asked, too."""
    few = [] if options.get("fed3cr_complementarity") == "information" else [1, 2]
    compiled_steps.assert_single_precision_is_near_double_precision(options, [*few, 40, 150, 0, 9, 20])


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_threads_and_blocks_change_nothing(monkeypatch, options):
    compiled_steps.assert_threads_and_blocks_change_nothing(monkeypatch, enhanced_sum_compiled, options)


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("name", ["user_embedding", PERSONAL])
def test_a_user_who_has_diverged_is_nothing_to_the_others(name, options):
    compiled_steps.assert_who_has_diverged_is_nothing_to_the_others(name, options)


@pytest.mark.parametrize(
    "further",
    [
        {"optimizer": "adam"},
        {"weight_decay": 0.1},
        {"network_weight_decay": 0.1},
        {"early_stop_tolerance": 0.1},
        {"embedding_size": 6},
        {"backbone": "ncf"},
    ],
    ids=str,
)
def test_the_rest_is_left_to_others(further):
    assert steps_of(make_task(**BASE | further)) is None
    assert steps_of(make_task(**FED3CR | further)) is None


def test_one_matrix_for_all_is_left_to_others():
    assert steps_of(make_task(**FED3CR, fed3cr_enhancement="consensus")) is None


def test_without_numba_all_of_it_is(monkeypatch):
    names = ("enhanced_sum_kernels", "row_kernels")
    for options in (BASE, FED3CR):
        with monkeypatch.context() as patches:
            compiled_steps.assert_nothing_is_compiled_without_numba(patches, enhanced_sum_compiled, names, options)
