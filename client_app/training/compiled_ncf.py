"""The numba backend for neural collaborative filtering: what `kernels_nested` needs, packed and unpacked.

All arrays that a user trains besides its rows of the item table stand in one vector,

    p, then for every size W_p, W_q, b_1, W_2, b_2, …, h, b        with W_1 = [W_p; W_q],

with widths padded to multiples of 4 by zeros, which training leaves zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from bouquet.randomness import Purpose
from client_app.personalization.base import Changes
from client_app.training.blocks import blocks
from client_app.training.task import LocalTask
from client_app.training.threads import run_kernel
from models import Backbone, NestedBackbone, NeuralCollaborativeFiltering

# What the users of one block train, in bytes.
BLOCK_BYTES = 16 * 2**20

_ITEMS, _USER = "item_embedding", "user_embedding"


def networks_of(backbone: Backbone) -> list[NeuralCollaborativeFiltering]:
    """The networks of a model whose kernel is "ncf", smallest first."""
    sizes = backbone.sizes if isinstance(backbone, NestedBackbone) else (backbone,)
    return [size for size in sizes if isinstance(size, NeuralCollaborativeFiltering)]


def fits_ncf(task: LocalTask) -> bool:
    """Whether the kernels compute this task but for its personalizations: everything trained, embeddings undecayed."""
    arrays = {*task.backbone.shared, *task.backbone.private}
    return task.backbone.kernel == "ncf" and task.options.weight_decay == 0 and arrays == set(task.trained)


def train_ncf(task: LocalTask, code: ModuleType, alpha: float = 0.0, off_diagonal: bool = False) -> Iterator[Changes]:
    """Train blocks of users.

    Args:
        code: the module of kernels.
        alpha, off_diagonal: of decorrelation (HeteFedRec, eq. 13 and 14), which works on all rows; 0: there is none.
    """
    layout = _Layout(task)
    items = task.items()
    width = task.specs[_ITEMS].shape[1]
    for block in blocks(task, 4 * (items.lengths * width + layout.size), BLOCK_BYTES):
        yield _train_block(task, layout, block, items.take(block), code, (task.dtype(alpha), off_diagonal))


class _Layout:
    """Where every array stands in a user's vector.

    Attributes:
        columns: [s] columns of the item table that each size has.
        widths: [s, L + 1] units of every layer, padded.
        weight_at, bias_at: [s, L] where the W_l (for l = 1: W_q) and b_l begin.
        user_at, output_at: [s] where W_p and h begin, which b follows.
        places: name -> where each value of the array stands, in the array's shape.
        bounds: [a + 1] of the parts of the vector; names: [a] the array that each belongs to.
        size: n.
    """

    def __init__(self, task: LocalTask) -> None:
        networks = networks_of(task.backbone)
        user = networks[-1].size
        self.names, self.places, self.size = [_USER], {_USER: np.arange(user)}, -(-user // 4) * 4
        bounds = [0, self.size]

        def add(name: str, shape: tuple[int, ...], room: tuple[int, ...]) -> int:
            """Room for an array or a half of it; returns where it begins."""
            start = self.size
            grid = start + np.arange(np.prod(room)).reshape(room)[tuple(slice(length) for length in shape)]
            half = self.places.get(name)
            self.places[name] = grid if half is None else np.concatenate([half, grid])
            self.names.append(name)
            self.size += int(np.prod(room))
            bounds.append(self.size)
            return start

        widths, user_at, weight_at, bias_at, output_at = [], [], [], [], []
        for number, network in enumerate(networks):
            prefix = "" if number == len(networks) - 1 else f"{number}."
            real = [network.size, *network.widths]
            padded = [-(-width // 4) * 4 for width in real]
            user_at.append(add(f"{prefix}weight_1", (real[0], real[1]), (padded[0], padded[1])))
            weights, biases = [], []
            for layer in range(1, len(real)):
                shape, room = (real[layer - 1], real[layer]), (padded[layer - 1], padded[layer])
                weights.append(add(f"{prefix}weight_{layer}", shape, room))
                biases.append(add(f"{prefix}bias_{layer}", shape[1:], room[1:]))
            output_at.append(add(f"{prefix}output", (real[-1],), (padded[-1],)))
            add(f"{prefix}output_bias", (1,), (4,))
            widths.append(padded)
            weight_at.append(weights)
            bias_at.append(biases)
        self.columns = np.array([network.size for network in networks], np.uint64)
        self.widths, self.bounds = np.array(widths, np.uint64), np.array(bounds, np.int64)
        self.weight_at, self.bias_at = np.array(weight_at, np.uint64), np.array(bias_at, np.uint64)
        self.user_at, self.output_at = np.array(user_at, np.uint64), np.array(output_at, np.uint64)


def _train_block(
    task: LocalTask, layout: _Layout, users: NDArray[np.int64], rows: Ragged, code: ModuleType,
    decorrelation: tuple[np.floating, bool],
) -> Changes:  # fmt: skip
    options = task.options
    positives, negatives = task.positives.take(users), task.negatives.take(users)
    tables = task.of_users(_ITEMS, users, rows)
    networks = np.zeros((len(users), layout.size), task.dtype)
    for name, places in layout.places.items():
        networks[:, places] = task.of_users(name, users, rows)
    before = {_ITEMS: tables.copy()} | {name: networks[:, places] for name, places in layout.places.items()}
    losses = np.empty(len(users))
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
        layout.columns,
        layout.widths,
        layout.user_at,
        layout.weight_at,
        layout.bias_at,
        layout.output_at,
        layout.bounds,
        np.array([task.rate(name) for name in layout.names], task.dtype),
        np.array([task.decay(name) for name in layout.names], task.dtype),
        task.dtype(task.rate(_ITEMS)),
        *decorrelation,
        task.draws.seeds(task.users[users], task.round, Purpose.BATCH_ORDER),
        options.local_epochs,
        options.batch_size,
        options.optimizer == "adam",
        options.early_stop_tolerance,
        losses,
    )

    run_kernel(code.train_users, arguments, rows.indptr)
    trained = {_ITEMS: tables} | {name: networks[:, places] for name, places in layout.places.items()}
    task.keep(trained, users, rows)
    return task.changes(users, rows, {name: trained[name] - before[name] for name in task.changing}, losses)
