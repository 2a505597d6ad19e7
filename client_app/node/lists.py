"""What the users of a simulated node would be shown after a round, left where the run keeps what it reports.

An evaluation has the scores anyway. The lists go to the disk that nodes and server of a simulation share, and into no
message. A node of a deployment, whose settings say where its state is, never makes any: a device keeps its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.config import RunConfig, Scalar
from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.packed import by_entry, surely_finite
from bouquet.ragged import one_after_another

if TYPE_CHECKING:
    from bouquet.reporting.reported import Lists, ReportedFolder
    from client_app.node.histories import Histories

Watch = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
"""Is told the places [b] of users among the hosted ones, and their scores [b, m], which it leaves as they are."""
# Scores of so many items are made at once where nobody else makes them.
BLOCK_ITEMS = 2**23


def blocks(users: int, num_items: int) -> list[NDArray[np.int64]]:
    """The rows of some users, in blocks whose scores are of bounded size."""
    size = max(1, BLOCK_ITEMS // max(num_items, 1))
    return [np.arange(start, min(start + size, users)) for start in range(0, users, size)]


def watched(scorer: ScoreBlock, positions: NDArray[np.int64], watch: Watch | None) -> ScoreBlock:
    """A scorer of these users whose scores somebody sees, but for those of users that are not finite."""
    if watch is None:
        return scorer
    told = watch

    def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = scorer(rows)
        good = np.ones(len(rows), dtype=bool) if surely_finite(values) else by_entry(np.isfinite(values))
        if good.any():
            told(positions[rows[good]], values if good.all() else values[good])
        return values

    return scores


def together(watches: Sequence[Watch]) -> Watch:
    """All of them, one after another."""

    def told(positions: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        for watch in watches:
            watch(positions, scores)

    return told


class Shown:
    """Collects the best items of the users of a node.

    Args:
        histories: of the hosted users.
        length: how many items of each are kept.
        exclude_known: whether what a user is known to have is left out.
    """

    def __init__(self, histories: Histories, length: int, *, exclude_known: bool) -> None:
        self._histories, self._exclude_known = histories, exclude_known
        self._length = min(length, histories.num_items)
        self._items: dict[int, NDArray[np.int32]] = {}
        self._scores: dict[int, NDArray[np.float32]] = {}

    def take(self, positions: NDArray[np.int64], scores: NDArray[np.float32]) -> None:
        """As `Watch`; among items of equal score the first of the catalogue comes first."""
        if self._exclude_known:
            histories = self._histories
            known = one_after_another(histories.had.take(positions), histories.validation.take(positions))
            scores = scores.copy()
            scores[known.row_of_value, known.values] = -np.inf
        items, best = best_items(scores, self._length)
        items[np.isneginf(best)] = -1
        for place, row in enumerate(positions.tolist()):
            self._items[row], self._scores[row] = items[place], best[place]

    def lists(self) -> Lists:
        """All that was taken, in the order of users."""
        from bouquet.reporting.reported import Lists

        rows = sorted(self._items)
        empty = (0, self._length)
        items = np.stack([self._items[row] for row in rows]) if rows else np.zeros(empty, np.int32)
        scores = np.stack([self._scores[row] for row in rows]) if rows else np.zeros(empty, np.float32)
        return Lists(self._histories.users[rows], items, scores)

    def leave(self, folder: ReportedFolder, server_round: int) -> None:
        """Write them down."""
        here = self._histories
        folder.write_part(server_round, here.partition, here.num_partitions, self.lists())


def best_items(scores: NDArray[np.float32], count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """The `count` best columns of each row, best first, and their scores: [b, count] each."""
    width = scores.shape[1]
    if count < width:
        chosen = np.argpartition(scores, width - count, axis=1)[:, width - count :]
        chosen.sort(axis=1)  # so that equal scores are in the order of the catalogue
    else:
        chosen = np.broadcast_to(np.arange(width), scores.shape)
    found = np.take_along_axis(scores, chosen, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return (
        np.take_along_axis(chosen, order, axis=1).astype(np.int32),
        np.take_along_axis(found, order, axis=1).astype(np.float32),
    )


def folder_of(config: RunConfig, node_config: Mapping[str, Scalar]) -> ReportedFolder | None:
    """Where the lists of a simulated node go; None where none are made."""
    path = config.resume or config.out
    if "state-dir" in node_config or not (config.recommendations and path):
        return None
    from bouquet.reporting.run_directory import RunDirectory

    folder = RunDirectory(path).reported
    # Made by the server of a simulation; not there, the run is elsewhere.
    return folder if folder.path.is_dir() else None
