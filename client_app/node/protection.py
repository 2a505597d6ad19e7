"""What is done to a user's update before it leaves the node, so that it tells less.

In this order, for the change Δ_u of all shared arrays of one user:

    clip     Δ_u ← Δ_u · min(1, C / ‖Δ_u‖)                       `update-clip` = C
    noise    Δ_u ← Δ_u + N(0, (z C)²) on every row of every array `update-noise` = z

Noise on every row makes the update dense: which rows were touched is then told by nothing but their size. One user's
noisy update is the Gaussian mechanism with sensitivity 2C (any two clipped updates differ by at most that), applied
in every round. Numbers are floating-point ones, which are not spread as real numbers are: the mechanism's bound holds
up to their rounding (Mironov, CCS 2012), against which nothing is done here.

Decoys (`decoy-rows`) are no matter of rows: the whole update is that of a user who has them (`Host.shown`).

In a run with differential privacy (`dp-epsilon`, `dp-noise-multiplier`) a device does one thing: it scales its change
down to L2 norm `dp-clip`, and a little below, so that no rounding leads above it. The server adds the noise.

Noise comes from a secret of the node where the run asks for it. The run's own seed is known to the server, which could
draw the same again and take it off; so without a secret the protections can be tried out, and protect nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.config import PrivacyOptions
from bouquet.randomness import Draws, Purpose, Words, normals
from client_app.personalization.round import Changes


def protect(
    changes: Changes, options: PrivacyOptions, users: Words, num_items: int, draws: Draws, round_: int
) -> Changes:
    """The changes that may leave.

    Args:
        changes: of c users.
        users: [c] their keys.
        num_items: m.
        draws: a secret of the node, or the seed of a run that shall be repeated.
        round_: noise is drawn anew in every round.
    Returns:
        Changes of the same users; with noise every item has a row.
    """
    rows: list[NDArray[np.integer]] = []
    by_item: dict[str, list[NDArray[np.floating]]] = {name: [] for name in changes.by_item}
    dense = {name: values.copy() for name, values in changes.dense.items()}
    for c in range(len(changes.users)):
        place = slice(int(changes.rows.indptr[c]), int(changes.rows.indptr[c + 1]))
        items: NDArray[np.integer] = changes.rows.row(c)
        own = {name: values[place] for name, values in changes.by_item.items()}
        scale = _clip_factor([*own.values(), *(values[c] for values in dense.values())], options.update_clip)
        own = {name: scale * values for name, values in own.items()}
        for values in dense.values():
            values[c] *= scale
        if options.update_noise > 0:
            sigma = options.update_noise * options.update_clip
            items, own = _everywhere(items, own, num_items)
            for number, values in enumerate([*own.values(), *(array[c] for array in dense.values())]):
                stream = draws.noise(users[c], round_, Purpose.NOISE, values, number)
                values += sigma * normals(stream, values.size)[0].reshape(values.shape)
        rows.append(items)
        for name, values in own.items():
            by_item[name].append(values.astype(np.float32))
    return changes.rebuilt(rows, by_item, dense)


def norms(changes: Changes) -> NDArray[np.float64]:
    """[c] L2 norm of all that each user changes, over all arrays together."""
    count, owner = len(changes.users), changes.rows.row_of_value
    square = np.zeros(count)
    for values in changes.by_item.values():
        rows = (values.astype(np.float64) ** 2).sum(axis=tuple(range(1, values.ndim)))
        square += np.bincount(owner, rows, minlength=count)
    for values in changes.dense.values():
        square += (values.astype(np.float64) ** 2).sum(axis=tuple(range(1, values.ndim)))
    return np.sqrt(square)


def limited(changes: Changes, clip: float) -> tuple[Changes, NDArray[np.bool_]]:
    """The changes with an L2 norm of at most `clip` for each user.

    Returns:
        them, and [c] whose were within the limit as they came.
    """
    found = norms(changes)
    within = found <= clip
    # float32 rounds each number by a share of 2^-24 at the most.
    most = clip * (1 - 2.0**-20)
    factors = np.minimum(1.0, np.divide(most, found, out=np.ones(len(found)), where=found > 0))
    of_rows = factors[changes.rows.row_of_value]

    def scaled(values: NDArray[np.floating], by: NDArray[np.float64]) -> NDArray[np.floating]:
        return (values * by.reshape(-1, *[1] * (values.ndim - 1))).astype(np.float32)

    by_item = {name: scaled(values, of_rows) for name, values in changes.by_item.items()}
    dense = {name: scaled(values, factors) for name, values in changes.dense.items()}
    return replace(changes, by_item=by_item, dense=dense), within


def _everywhere(
    items: NDArray[np.integer], own: dict[str, NDArray[np.floating]], num_items: int
) -> tuple[NDArray[np.integer], dict[str, NDArray[np.floating]]]:
    whole = {}
    for name, values in own.items():
        whole[name] = np.zeros((num_items, *values.shape[1:]), dtype=np.float64)
        whole[name][items] = values
    return np.arange(num_items), whole


def _clip_factor(arrays: list[NDArray[np.floating]], clip: float) -> float:
    norm = np.sqrt(sum(float((values.astype(np.float64) ** 2).sum()) for values in arrays))
    return min(1.0, clip / norm) if clip > 0 and norm > 0 else 1.0
