"""What is done to a user's update before it leaves the node, so that it tells less.

In this order, for the change Δ_u of all shared arrays of one user:

    clip     Δ_u ← Δ_u · min(1, C / ‖Δ_u‖)                       `update-clip` = C
    decoys   rows of items that the user never touched, the same in every round, carry the change of one of the
             user's training items: the server sees them beside the real ones    `decoy-rows`
    noise    Δ_u ← Δ_u + N(0, (z C)²) on every row of every array `update-noise` = z

Noise on every row makes the update dense: which rows were touched is then told by nothing but their size. One user's
noisy update is the Gaussian mechanism with sensitivity 2C (any two clipped updates differ by at most that), applied
in every round.

Draws come from a secret of the node where it has one. The run's own seed is known to the server, which could draw the
same again and take it off; so without a secret the protections can be tried out, and protect nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.config import PrivacyOptions
from bouquet.errors import ConfigError
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, Words, draw, normals, streams
from client_app.personalization.base import Changes

# Counters of one user's stream: which items are decoys, and whose change each of them carries.
_ITEM, _SOURCE = 0, 2**40


def is_protected(options: PrivacyOptions) -> bool:
    """Whether anything is to be done."""
    return options.update_clip > 0 or options.update_noise > 0 or options.decoy_rows > 0


def protect(
    changes: Changes, options: PrivacyOptions, users: Words, positives: Ragged, num_items: int, seed: int, round_: int
) -> Changes:
    """The changes that may leave.

    Args:
        changes: of c users.
        users: [c] their keys.
        positives: [c] rows of their training items.
        num_items: m.
        seed: a secret of the node.
        round_: noise is drawn anew in every round, decoys are not.
    Returns:
        Changes of the same users; with noise every item has a row.
    Raises:
        ConfigError: noise without a clip, which has no scale.
    """
    if options.update_noise > 0 and options.update_clip == 0:
        raise ConfigError("update-noise is a multiple of update-clip: set update-clip, for example to 1.0.")
    rows: list[NDArray[np.integer]] = []
    by_item: dict[str, list[NDArray[np.floating]]] = {name: [] for name in changes.by_item}
    dense = {name: values.copy() for name, values in changes.dense.items()}
    for c in range(len(changes.users)):
        place = slice(int(changes.rows.indptr[c]), int(changes.rows.indptr[c + 1]))
        own = {name: values[place] for name, values in changes.by_item.items()}
        scale = _clip_factor([*own.values(), *(values[c] for values in dense.values())], options.update_clip)
        own = {name: scale * values for name, values in own.items()}
        for values in dense.values():
            values[c] *= scale
        touched = changes.rows.row(c)
        items, own = _with_decoys(touched, own, positives.row(c), options.decoy_rows, num_items, users[c], seed)
        if options.update_noise > 0:
            sigma = options.update_noise * options.update_clip
            items, own = _everywhere(items, own, num_items)
            stream = streams(seed, users[c : c + 1], round_, Purpose.NOISE)
            for number, values in enumerate([*own.values(), *(array[c] for array in dense.values())]):
                values += sigma * normals(stream + np.uint64(number), values.size)[0].reshape(values.shape)
        rows.append(items)
        for name, values in own.items():
            by_item[name].append(values.astype(np.float32))
    lengths = np.array([len(items) for items in rows], dtype=np.int64)
    joined = np.concatenate(rows).astype(np.int32) if rows else np.zeros(0, np.int32)
    return replace(
        changes,
        rows=Ragged.from_lengths(lengths, joined),
        by_item={name: np.concatenate(parts) if parts else changes.by_item[name] for name, parts in by_item.items()},
        dense=dense,
    )


def decoy_items(positives: NDArray[np.integer], count: int, num_items: int, user: np.uint64, seed: int) -> NDArray:
    """The items that a user pretends to have: the same in every round, and none that it has.

    Returns:
        [≤ count] ascending.
    """
    stream = streams(seed, np.array([user], np.uint64), 0, Purpose.NOISE)
    order = np.argsort(draw(stream, _ITEM + np.arange(num_items)), kind="stable")
    # A new training item that was a decoy leaves the others as they are.
    return np.sort(order[~np.isin(order, positives)][:count])


def _with_decoys(
    touched: NDArray[np.integer],
    own: dict[str, NDArray[np.floating]],
    positives: NDArray[np.integer],
    count: int,
    num_items: int,
    user: np.uint64,
    seed: int,
) -> tuple[NDArray[np.integer], dict[str, NDArray[np.floating]]]:
    sources = np.flatnonzero(np.isin(touched, positives))
    if count == 0 or len(sources) == 0:
        return touched, own
    decoys = decoy_items(positives, count, num_items, user, seed)
    stream = streams(seed, np.array([user], np.uint64), 0, Purpose.NOISE)
    source = sources[draw(stream, _SOURCE + decoys) % np.uint64(len(sources))]
    # A decoy that was drawn as a negative in this round would give itself away: it carries the decoy's change too.
    kept = ~np.isin(touched, decoys)
    items = np.concatenate([touched[kept], decoys])
    order = np.argsort(items, kind="stable")
    return items[order], {name: np.concatenate([values[kept], values[source]])[order] for name, values in own.items()}


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
