"""Device-side methods in local training: every backend gives the oracle's numbers, and what is frozen stays frozen."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import RunConfig, defaults, own, parsed
from bouquet.experiments.settings import option_classes
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from client_app.node.tensor_scoring import whole_catalogue
from client_app.personalization import device_methods
from client_app.personalization.fed3cr import centres
from client_app.personalization.round import Given
from client_app.training import BACKENDS, LocalTask, stacked
from client_app.training.objective import working_rows
from client_app.training.sequences import newest
from models import BACKBONES

NUM_ITEMS = 24
SIZES = [1, 6, 3, 0, 9, 2, 2, 5]


def make_task(lengths=SIZES, seed=0, dtype=np.float64, round_=3, **changes):
    """A task of the given methods; every array of each user is away from its start, as in a later round."""
    settings = defaults(option_classes()) | {
        "embedding-size": 4,
        "init-scale": 0.3,
        "learning-rate": 0.1,
        "user-learning-rate": 0.3,
        "local-epochs": 2,
        "batch-size": 16,
        "fedrap-personal-learning-rate": 0.4,
        "fed3cr-personal-learning-rate": 0.4,
        "ace-learning-rate": 0.05,
        "ncf-hidden": "6,3",
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    config = own(settings, RunConfig)
    cls = BACKBONES[config.backbone]
    backbone = cls(NUM_ITEMS, config, own(settings, cls.options_class))
    methods = device_methods(parsed(settings), backbone)
    random = np.random.default_rng(seed)
    lengths = np.array(lengths)
    users = user_keys([str(i) for i in range(len(lengths))])
    shared_specs, private_specs = dict(backbone.shared), dict(backbone.private)
    kept = frozenset().union(*(method.kept for method in methods))
    for method in methods:
        shared_specs |= method.shared
        private_specs |= method.private
    if config.strategy == "pfedrec":
        moved = {name for name, spec in backbone.shared.items() if not spec.by_item}
        private_specs |= {name: shared_specs.pop(name) for name in moved}
    shared = initial_shared(shared_specs, seed)
    for name, spec in shared_specs.items():
        if spec.init == "zeros":
            shared[name] = random.normal(0, 0.1, spec.shape).astype(np.float32)
    private_specs |= {name: shared_specs[name] for name in kept}
    private = {name: initial_private(name, spec, seed, users).astype(dtype) for name, spec in private_specs.items()}
    given = Given(shared, private)
    for method in methods:
        given = method.start(given, {}, np.arange(len(users)) == 1)
    drawn = [random.choice(NUM_ITEMS // 2, size, replace=False) for size in lengths]
    return LocalTask(
        backbone=backbone,
        options=config,
        users=users,
        round=round_,
        draws=SeededDraws(seed),
        positives=Ragged.from_lengths(lengths, np.concatenate(drawn)),
        negatives=Ragged.from_lengths(2 * lengths, random.integers(NUM_ITEMS // 2, NUM_ITEMS, 2 * lengths.sum())),
        shared=given.shared,
        private={name: values.astype(dtype) for name, values in given.own.items()},
        reported=given.reported,
        frozen=given.frozen,
        anchors=given.anchors,
        personalizations=tuple(method for method in methods if method.in_loss),
        dtype=dtype,
    )


def outcome(task, backend):
    """Everything that training gives: the change of every user's arrays, losses, private arrays."""
    found = {f"change of {name}": np.zeros((len(task.users), *task.specs[name].shape)) for name in task.changing}
    found["loss"] = np.zeros(len(task.users))
    for part in BACKENDS[backend](task):
        found["loss"][part.users] = part.loss
        for name, values in part.by_item.items():
            found[f"change of {name}"][part.users[part.rows.row_of_value], part.rows.values] += values
        for name, values in part.dense.items():
            found[f"change of {name}"][part.users] += values
    return {**found, **task.private}


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
