"""Tasks of device-side methods for tests of local training, and everything that a backend makes of one."""

import numpy as np

from bouquet.arrays import initial_private, initial_shared
from bouquet.config import RunConfig, defaults, own, parsed
from bouquet.experiments.settings import option_classes
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from client_app.personalization import device_methods
from client_app.personalization.round import Given
from client_app.training import BACKENDS, LocalTask
from models import BACKBONES

NUM_ITEMS = 24
SIZES = [1, 6, 3, 0, 9, 2, 2, 5]


def make_task(lengths=SIZES, seed=0, dtype=np.float64, round_=3, num_items=NUM_ITEMS, **changes):
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
    backbone = cls(num_items, config, own(settings, cls.options_class))
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
    drawn = [random.choice(num_items // 2, size, replace=False) for size in lengths]
    return LocalTask(
        backbone=backbone,
        options=config,
        users=users,
        round=round_,
        draws=SeededDraws(seed),
        positives=Ragged.from_lengths(lengths, np.concatenate(drawn)),
        negatives=Ragged.from_lengths(2 * lengths, random.integers(num_items // 2, num_items, 2 * lengths.sum())),
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
