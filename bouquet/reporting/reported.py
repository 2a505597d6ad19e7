"""The round that a run reports, kept so that somebody can recommend with it: a folder in the folder of the run.

round-000012.safetensors          the shared arrays, as a published model
round-000012-lists.safetensors    a simulation's: the best items of every user, as its device would show them
round-000012-lists-0-of-4.…       the same of one node, until the run has ended
catalogue.json, users.json        raw ids of items, with titles, and of users, where the run knows them

Lists are written by the nodes of a simulation, which have this folder at hand, and travel in no message. Users' private
arrays would be as large as the nodes' whole state, which holds three versions already and not that of the best round; a
hundred items of each user are small, and the scores are there when the round is evaluated. Outside a simulation nobody
makes them: a device keeps its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.catalogue import Catalogue, fingerprint, load_catalogue
from bouquet.checked import checked_tensors, read_checked
from bouquet.errors import DataError, StateError
from bouquet.files import private_folder, write_atomically
from bouquet.published import PublishedModel, load_published
from bouquet.randomness import Words

NOTHING = -1
"""In place of an item, at the end of a list that is shorter than the others."""


@dataclass(frozen=True)
class Lists:
    """What users would be shown.

    Attributes:
        users: [n] keys.
        items: [n, k] int32 rows of the catalogue, best first, without those that are known of a user; `NOTHING` after
            the last.
        scores: [n, k] float32; they compare items of one user and nothing else.
    """

    users: Words
    items: NDArray[np.int32]
    scores: NDArray[np.float32]

    def without_gaps(self) -> Lists:
        """Without what comes after the longest list."""
        length = int((self.items != NOTHING).sum(axis=1).max(initial=0))
        return Lists(self.users, self.items[:, :length], self.scores[:, :length])

    def but(self, users: Words) -> Lists:
        """Those of all but these users."""
        others = ~np.isin(self.users, users)
        return Lists(self.users[others], self.items[others], self.scores[others])


class ReportedFolder:
    """Reads and writes such a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def catalogue(self) -> Path:
        return self.path / "catalogue.json"

    @property
    def users(self) -> Path:
        return self.path / "users.json"

    def model(self, server_round: int) -> Path:
        return self.path / f"round-{server_round:06d}.safetensors"

    def lists(self, server_round: int) -> Path:
        return self.path / f"round-{server_round:06d}-lists.safetensors"

    def create(self) -> None:
        """Make the folder, into which nobody else looks."""
        private_folder(self.path)

    def write_ids(self, users: Sequence[str], catalogue: Catalogue) -> None:
        """Who and what rows and keys are: raw ids of a data set."""
        self.create()
        catalogue.save(self.catalogue)
        document = {"digest": fingerprint(list(users)), "users": list(users)}
        write_atomically(self.users, json.dumps(document), private=True)

    def write_model(self, model: PublishedModel) -> None:
        """Keep the shared arrays of a round."""
        self.create()
        model.save(self.model(model.round))

    def write_part(self, server_round: int, partition: int, num_partitions: int, lists: Lists) -> None:
        """Keep what users of one node would be shown after a round, beside what is there of others of its users."""
        name = self.lists(server_round).with_suffix("").name
        path = self.path / f"{name}-{partition}-of-{num_partitions}.safetensors"
        if path.exists():
            before = _lists(path)
            lists = _together([before.but(lists.users), lists])
        self._write(path, lists, durable=False)

    def keep_only(self, rounds: Collection[int]) -> None:
        """Remove what there is of other rounds."""
        for path in self.path.glob("round-*.safetensors"):
            if int(path.name[6:12]) not in rounds:
                path.unlink(missing_ok=True)

    def join(self, server_round: int) -> None:
        """Put the lists of all nodes into one file; nothing, where there are none."""
        parts = sorted(self.path.glob(f"{self.lists(server_round).stem}-*-of-*.safetensors"))
        if not parts:
            return
        self._write(self.lists(server_round), _together([_lists(path) for path in parts]).without_gaps(), durable=True)
        for path in parts:
            path.unlink()

    def read_model(self, server_round: int) -> PublishedModel:
        """The shared arrays of a round.

        Raises:
            DataError: they were not kept, or the file is damaged.
        """
        if not self.model(server_round).exists():
            raise DataError(
                f"{self.path.parent} has no model of round {server_round}: it was made by a version that kept none, or "
                "it is no federated run."
            )
        try:
            return load_published(self.model(server_round))
        except StateError as error:
            raise DataError(str(error)) from None

    def read_lists(self, server_round: int) -> Lists:
        """What users would be shown after a round.

        Raises:
            DataError: nobody kept it, or the file is damaged.
        """
        path = self.lists(server_round)
        if not path.exists():
            raise DataError(
                f"{self.path.parent} has no recommendations: a simulation of `bouquet run` keeps them, unless its "
                "setting 'recommendations' is 0. Of a deployment every device has its own."
            )
        try:
            return _lists(path)
        except StateError as error:
            raise DataError(str(error)) from None

    def read_catalogue(self) -> Catalogue | None:
        """Items and titles in the order of the model's rows; None where the run does not know them.

        Raises:
            DataError: the file is damaged.
        """
        if not self.catalogue.exists():
            return None
        try:
            return load_catalogue(self.catalogue)
        except StateError as error:
            raise DataError(str(error)) from None

    def read_users(self) -> list[str]:
        """Raw ids of users; empty where the run does not know them.

        Raises:
            DataError: the file is damaged.
        """
        if not self.users.exists():
            return []
        try:
            document = json.loads(self.users.read_text())
            users = [str(user) for user in document["users"]]
            if fingerprint(users) != document["digest"]:
                raise ValueError("its digest does not fit")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{self.users} is damaged ({error}).") from None
        return users

    def _write(self, path: Path, lists: Lists, *, durable: bool) -> None:
        arrays: dict[str, NDArray[Any]] = {"users": lists.users, "items": lists.items, "scores": lists.scores}
        write_atomically(path, checked_tensors(arrays, {}), durable=durable, private=True)


def _lists(path: Path) -> Lists:
    arrays = read_checked(path)[0]
    return Lists(arrays["users"], arrays["items"], arrays["scores"])


def _together(parts: Sequence[Lists]) -> Lists:
    """The lists of different users, in the order of their keys."""
    users = np.concatenate([part.users for part in parts])
    order, width = np.argsort(users), max(part.items.shape[1] for part in parts)
    items = np.concatenate([_padded(part.items, width, NOTHING) for part in parts])[order]
    scores = np.concatenate([_padded(part.scores, width, -np.inf) for part in parts])[order]
    return Lists(users[order], items, scores)


def _padded(rows: NDArray, width: int, value: float) -> NDArray:
    return np.pad(rows, ((0, 0), (0, width - rows.shape[1])), constant_values=value)
