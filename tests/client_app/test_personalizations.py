"""Device-side methods in local training: every backend gives the oracle's numbers, and what is frozen stays frozen."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from client_app.node.tensor_scoring import whole_catalogue
from client_app.personalization.fed3cr import centres
from client_app.training import BACKENDS, stacked
from client_app.training.objective import working_rows
from client_app.training.sequences import newest
from models import BACKBONES
from tests.client_app.method_tasks import NUM_ITEMS, SIZES, make_task, outcome

COMBINATIONS = [
    {"strategy": "pfedrec"},
    {"strategy": "fedrap", "fedrap_lambda": 0.3, "fedrap_mu": 0.2},
    {"strategy": "fedrap", "fedrap_lambda": 0.3, "fedrap_schedule": "constant"},
    {"strategy": "fedrap", "fedrap_personal_learning_rate": 0.7},
    *({"strategy": "fed3cr", "fed3cr_enhancement": kind} for kind in ("ace", "consensus", "unified", "none")),
    {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0, "ace_hidden_layers": 1},
    {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0, "fed3cr_enhancement": "none"},
    {"strategy": "fed3cr", "fed3cr_beta_a": 0.7, "fed3cr_beta_o": 0.0, "ace_identity_residual": False},
    {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_literal_scale": True, "fed3cr_beta_o": 0.02},
    {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_complementarity": "cosines", "fed3cr_beta_o": 0.7},
    {"strategy": "fed3cr", "fed3cr_consistency": "similarity", "fed3cr_complementarity": "information"},
    {"strategy": "fed3cr", "fed3cr_consistency": "contrast", "fed3cr_complementarity": "distance"},
    *({"strategy": base, "personalization": "ace"} for base in ("fedavg", "pfedrec", "fedrap")),
    *({"strategy": base, "personalization": "plgc"} for base in ("fcf", "pfedrec")),
    {"strategy": "fedrap", "personalization": "plgc", "fedrap_lambda": 0.3, "fedrap_mu": 0.2, "plgc_mixing": "half"},
    {"strategy": "fcf", "personalization": "plgc", "plgc_mixing": "local", "plgc_learning_rate": 0.7},
    {"strategy": "fcf", "personalization": "plgc", "plgc_redundancy": "none"},
    {"strategy": "fcf", "personalization": "plgc", "plgc_learn_through_mu": True},
    *(
        {"strategy": "fcf", "personalization": "plgc", "plgc_redundancy": kind}
        for kind in ("au", "duorec", "feddecorr")
    ),
    *({"strategy": base, "personalization": "plgc", "plgc_mixing": "none"} for base in ("fcf", "fedrap")),
    *(
        {"strategy": "fedrap", "personalization": "plgc", "plgc_tables": "base", **rest}
        for rest in (
            {"fedrap_lambda": 0.3, "fedrap_mu": 0.2},
            {"plgc_mixing": "half", "plgc_redundancy": "none"},
            {"plgc_mixing": "local"},
            {"plgc_mixing": "none"},
            {"plgc_learn_through_mu": True},
            {"plgc_redundancy": "au", "plgc_lambda_au": 0.3},
        )
    ),
]


def named(combination):
    return "-".join(str(value) for value in combination.values())


@lru_cache(maxsize=1)
def outcome_of_the_loop(**options):
    """Computed once for all backends, whose rows follow one another; not to be written to."""
    return outcome(make_task(**options), "loop")


@pytest.mark.parametrize("fast", sorted(BACKENDS.keys() - {"loop"}))
@pytest.mark.parametrize("combination", COMBINATIONS, ids=named)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("batch_size", [10, 2048])
@pytest.mark.parametrize("backbone", sorted(BACKBONES))
def test_fast_backends_equal_the_loop(fast, backbone, batch_size, optimizer, combination, monkeypatch):
    """Users of different sizes in several chunks, one without batches left, one without samples: equal to 1e-10."""
    monkeypatch.setattr(stacked, "CHUNK_VALUES", 2500)
    options = {**combination, "backbone": backbone, "optimizer": optimizer, "batch_size": batch_size}
    # Adam divides by the root of what it measured: a gradient that is zero up to rounding becomes a step.
    tolerance = 1e-10 if optimizer == "sgd" else 1e-6
    expected, found = outcome_of_the_loop(**options), outcome(make_task(**options), fast)
    assert any(np.abs(values).max() > 1e-3 for name, values in expected.items() if name.startswith("change"))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=tolerance, err_msg=name)


PROTOTYPES = [
    {"strategy": "fed3cr"},
    {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0},
    *({"strategy": base, "personalization": "ace"} for base in ("fedavg", "pfedrec", "fedrap")),
]


@pytest.mark.parametrize("combination", PROTOTYPES, ids=named)
@pytest.mark.parametrize("backbone", ["gru4rec", "sasrec"])
def test_a_prototype_is_the_same_in_training_and_in_use(backbone, combination):
    """Sequences of at most 2 + 1 items: users with 9, 6 and 5 train on the newest, and like all of them (eq. 10).

    A user with a single item has nothing to predict, so nothing of it is trained.
    """
    task = make_task(backbone=backbone, max_length=2, **combination)
    everybody = np.arange(len(SIZES))
    using = whole_catalogue(task.backbone, task.personalizations, task.positives, task.round)
    short = newest(task)
    assert short.positives.lengths.max() == 3
    rows = short.items()
    working = working_rows(short, everybody, rows, torch.device("cpu"))
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(NUM_ITEMS, 4)))
    trained = centres(table[working.items], working)
    used = centres(table.expand(len(SIZES), NUM_ITEMS, 4), replace(using, positive=using.positive.double()))
    several = np.array(SIZES) > 1
    np.testing.assert_allclose(trained[several], used[several], rtol=0, atol=1e-12)
    assert (trained[~several] == 0).all()


@pytest.mark.parametrize("combination", PROTOTYPES, ids=named)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("backbone", ["gru4rec", "sasrec"])
def test_rows_of_old_items_learn_from_what_their_prototype_is_used_for(backbone, optimizer, combination):
    """The backends agree, and an item that is too old to be a sample still moves, because the prototype has it."""
    options = {**combination, "backbone": backbone, "optimizer": optimizer, "max_length": 2}
    tolerance = 1e-10 if optimizer == "sgd" else 1e-6
    expected, found = (outcome(make_task(**options), backend) for backend in ("loop", "torch"))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-11, atol=tolerance, err_msg=name)
    task = make_task(**options)
    old = task.positives.row(4)[:-3]
    assert len(old) == 6
    moved = [expected[f"change of {name}"] for name in task.changing if task.by_item(name)]
    moved += [expected[name] - values for name, values in task.private.items() if task.by_item(name)]
    assert any((np.abs(change[4, old]).max(axis=1) > 0).all() for change in moved)
