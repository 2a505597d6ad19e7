"""The numba backend for GRU4Rec: what `kernels_gru` needs, packed and unpacked.

The arrays of a user's network stand in one vector: W_i, U, b, b', W_o, b_o.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, Words
from client_app.personalization.round import Changes
from client_app.training.blocks import blocks
from client_app.training.sequences import newest
from client_app.training.task import LocalTask
from client_app.training.threads import run_kernel
from models import is_sequential

# What the users of one block train, in bytes.
BLOCK_BYTES = 16 * 2**20

_ITEMS = "item_embedding"
_NETWORK = ("input_weight", "hidden_weight", "input_bias", "hidden_bias", "output_weight", "output_bias")


def fits_gru(task: LocalTask) -> bool:
    """Whether the kernels compute this task: everything trained, and dropout drawn from words that they can mix."""
    if task.backbone.kernel != "gru4rec" or task.personalizations or set(task.trained) != {_ITEMS, *_NETWORK}:
        return False
    return isinstance(_streams(task), np.ndarray)


def train_gru(task: LocalTask, code: ModuleType) -> Iterator[Changes]:
    """Train blocks of users.

    Args:
        code: the module of kernels.
    """
    task = newest(task)
    items = task.items()
    width, size = task.specs[_ITEMS].shape[1], sum(task.specs[name].size for name in _NETWORK)
    for block in blocks(task, 4 * (items.lengths * width + size), BLOCK_BYTES):
        yield _train_block(task, block, items.take(block), code)


def read_gru(
    networks: Mapping[str, NDArray[np.floating]], embedded: NDArray[np.floating], lengths: NDArray[np.int64],
    code: ModuleType,
) -> NDArray[np.floating]:  # fmt: skip
    """The state of each user after its history, read by a network of its own.

    Args:
        networks: its arrays, [k, …] each.
        embedded: [k, L, d] embeddings of the items, oldest first, padded at the end.
        lengths: [k], at least 1.
    Returns:
        [k, d].
    """
    states = np.empty((len(embedded), embedded.shape[2]), embedded.dtype)
    arrays = (np.ascontiguousarray(networks[name], dtype=embedded.dtype) for name in _NETWORK)
    run_kernel(code.read_users, (embedded, lengths, *arrays, states), np.concatenate([[0], np.cumsum(lengths)]))
    return states


def _streams(task: LocalTask, users: NDArray[np.int64] | None = None) -> Words:
    keys = task.users[:1] if users is None else task.users[users]
    return task.draws.streams(keys, task.round, Purpose.DROPOUT)  # type: ignore[return-value]


def _train_block(task: LocalTask, users: NDArray[np.int64], rows: Ragged, code: ModuleType) -> Changes:
    options, backbone = task.options, task.backbone
    assert is_sequential(backbone)
    positives, negatives = task.positives.take(users), task.negatives.take(users)
    tables = task.of_users(_ITEMS, users, rows)
    parts = [task.of_users(name, users, rows).reshape(len(users), -1) for name in _NETWORK]
    networks = np.concatenate(parts, axis=1)
    bounds = np.concatenate([[0], np.cumsum([part.shape[1] for part in parts])]).astype(np.int64)
    before = {name: task.of_users(name, users, rows) for name in task.changing}
    losses, steps = np.empty(len(users)), np.empty(len(users), np.int64)
    dropout = backbone.settings.dropout
    arguments = (
        rows.indptr,
        rows.values,
        tables,
        positives.indptr,
        positives.values,
        negatives.indptr,
        negatives.values,
        task.num_items,
        networks,
        bounds,
        np.array([task.rate(name) for name in _NETWORK], task.dtype),
        np.array([task.decay(name) for name in _NETWORK], task.dtype),
        task.dtype(task.rate(_ITEMS)),
        task.dtype(task.decay(_ITEMS)),
        _streams(task, users),
        np.uint64(math.ceil(dropout * 2**53)),
        task.dtype(1 / (1 - dropout)),
        options.local_epochs,
        options.optimizer == "adam",
        options.early_stop_tolerance,
        losses,
        steps,
    )

    run_kernel(code.train_users, arguments, positives.indptr)
    trained = {_ITEMS: tables}
    for name, start, end in zip(_NETWORK, bounds[:-1], bounds[1:], strict=True):
        trained[name] = networks[:, start:end].reshape(len(users), *task.specs[name].shape)
    task.keep(trained, users, rows)
    return task.changes(users, rows, {name: trained[name] - before[name] for name in before}, losses, steps)
