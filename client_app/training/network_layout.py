"""Where every array of a model stands in the vector of numbers that compiled loops train for a user.

All arrays of a perceptron that a user trains besides its rows of the item table stand in one vector,

    p, then for every size W_p, W_q, b_1, W_2, b_2, …, h, b        with W_1 = [W_p; W_q],

with widths padded to multiples of 4 by zeros, which training leaves zero.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.ragged import Ragged
from client_app.training.task import LocalTask
from models import Backbone, NestedBackbone, NeuralCollaborativeFiltering

_USER = "user_embedding"


def networks_of(backbone: Backbone) -> list[NeuralCollaborativeFiltering]:
    """The networks of a model whose kernel is "ncf", smallest first."""
    sizes = backbone.sizes if isinstance(backbone, NestedBackbone) else (backbone,)
    return [size for size in sizes if isinstance(size, NeuralCollaborativeFiltering)]


class NetworkLayout:
    """Where every array stands in a user's vector.

    Args:
        backbone: whose kernel is "ncf".

    Attributes:
        columns: [s] columns of the item table that each size has.
        widths: [s, L + 1] units of every layer, padded.
        weight_at, bias_at: [s, L] where the W_l (for l = 1: W_q) and b_l begin.
        user_at, output_at: [s] where W_p and h begin, which b follows.
        places: name -> where each value of the array stands, in the array's shape.
        bounds: [a + 1] of the parts of the vector; names: [a] the array that each belongs to.
        size: n.
    """

    def __init__(self, backbone: Backbone) -> None:
        networks = networks_of(backbone)
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

    def start(self, task: LocalTask, users: NDArray[np.int64], rows: Ragged) -> NDArray[np.floating]:
        """[c, n] what some users start from."""
        vectors = np.zeros((len(users), self.size), task.dtype)
        for name, places in self.places.items():
            vectors[:, places] = task.of_users(name, users, rows)
        return vectors

    def by_name(self, vectors: NDArray[np.floating]) -> dict[str, NDArray[np.floating]]:
        """name -> [c, …] a copy of every array."""
        return {name: vectors[:, places] for name, places in self.places.items()}

    def rates(self, task: LocalTask) -> NDArray[np.floating]:
        """[a] the learning rate of every part."""
        return np.array([task.rate(name) for name in self.names], task.dtype)

    def keep(
        self, task: LocalTask, users: NDArray[np.int64], before: NDArray[np.floating], vectors: NDArray[np.floating]
    ) -> dict[str, NDArray[np.floating]]:
        """Put into the users' own arrays what was trained.

        Args:
            before, vectors: [c, n] at the start and now.
        Returns:
            The changes that are reported, by name.
        """
        for name in task.private.keys() & self.places.keys():
            task.private[name][users] = vectors[:, self.places[name]]
        reported = [name for name in task.changing if name in self.places]
        return {name: vectors[:, self.places[name]] - before[:, self.places[name]] for name in reported}

    def arguments(self, task: LocalTask) -> tuple[object, ...]:
        """What compiled loops of one size read: d; widths; where W_p, all W_l, all b_l and h begin; bounds; rates."""
        places = (self.columns, self.widths, self.user_at, self.weight_at, self.bias_at, self.output_at)
        return (*(of_sizes[-1] for of_sizes in places), self.bounds, self.rates(task))

    def single_rates(self, task: LocalTask) -> list[float]:
        """Rates that stand among those of other arrays: none, all are in `arguments`."""
        return []


class EmbeddingLayout:
    """As `NetworkLayout`, of a factorisation: the vector is the user's embedding."""

    def start(self, task: LocalTask, users: NDArray[np.int64], rows: Ragged) -> NDArray[np.floating]:
        """[c, d] what some users start from."""
        return task.of_users(_USER, users, rows)

    def keep(
        self, task: LocalTask, users: NDArray[np.int64], before: NDArray[np.floating], vectors: NDArray[np.floating]
    ) -> dict[str, NDArray[np.floating]]:
        """Put what was trained into the users' own array; nothing of it is reported."""
        task.private[_USER][users] = vectors
        return {}

    def arguments(self, task: LocalTask) -> tuple[object, ...]:
        """Loops need nothing more."""
        return ()

    def single_rates(self, task: LocalTask) -> list[float]:
        """The rate of the user's embedding."""
        return [task.rate(_USER)]


def layout_of(task: LocalTask) -> NetworkLayout | EmbeddingLayout | None:
    """What compiled loops with a personalization train besides item tables; None: they do not compute this model."""
    kernel, backbone = task.backbone.kernel, task.backbone
    if kernel == "mf":
        return EmbeddingLayout()
    all_trained = {*backbone.shared, *backbone.private} <= set(task.trained)
    if kernel == "ncf" and all_trained and len(networks_of(backbone)) == 1:
        return NetworkLayout(backbone)
    return None
