"""What the users of one node did, and what is held out of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bouquet.config import DataOptions
from bouquet.ragged import Ragged, one_after_another, positions
from bouquet.randomness import Draws, Purpose, Words, draw, uniforms
from data_partition import decoy_items, evaluation_candidates

if TYPE_CHECKING:
    from data_partition import Interactions

SAMPLED_CANDIDATES = 99
# Of a user's stream of decoys: numbers below choose the items, and these say where in the history they stand.
_PLACE = 2**40


@dataclass(frozen=True)
class Histories:
    """What the users of one node did.

    Attributes:
        users: [k] keys.
        train, validation, test: [k] rows of items; train oldest first, or in the order of the file.
        num_items: size of the catalogue.
        catalogue: fingerprint of the item list.
        num_partitions, partition: which part of the data this is.
        dropped_users: users dropped by the minimum count, told by the first partition only.
        split_seed: seed of the candidates of sampled-99.
        in_time: whether `train` is in the order of time.
        left_out: [k] rows of items that training-share left out of `train`; None: nothing.
    """

    users: Words
    train: Ragged
    validation: Ragged
    test: Ragged
    num_items: int
    catalogue: str
    partition: int
    num_partitions: int
    dropped_users: int
    split_seed: int
    in_time: bool
    left_out: Ragged | None = None

    @cached_property
    def had(self) -> Ragged:
        """[k] What each user had before anything is held out, learned from or left out: never a candidate."""
        return self.train if self.left_out is None else one_after_another(self.train, self.left_out)

    @cached_property
    def whole(self) -> Ragged:
        """Everything that each user ever touched."""
        parts = (self.had, self.validation, self.test)
        owners = np.concatenate([part.row_of_value for part in parts])
        return Ragged.from_pairs(owners, np.concatenate([part.values for part in parts]), len(self.users))

    @cached_property
    def candidates(self) -> dict[str, Ragged]:
        """The 99 never-touched items that a held-out item is ranked against, by part."""
        purposes = {"validation": Purpose.VALIDATION_CANDIDATES, "test": Purpose.TEST_CANDIDATES}
        return {
            part: evaluation_candidates(
                self.whole, self.num_items, SAMPLED_CANDIDATES, self.users, self.split_seed, purpose
            )
            for part, purpose in purposes.items()
        }


def interactions_of(options: DataOptions) -> Interactions:
    """The data set of a run: run, nodes and baselines of one process share it, and read it once.

    A file of one's own that was changed is read again.
    """
    changed = 0
    if options.data_file and (file := Path(options.data_file)).is_file():
        changed = file.stat().st_mtime_ns
    chosen = {key: getattr(options, key) for key in DataOptions.model_fields}
    return _interactions(DataOptions(**chosen), changed)


@lru_cache(maxsize=1)
def _interactions(options: DataOptions, changed: int) -> Interactions:
    from data_partition import load  # a device of one person reads no data set, and so loads nothing to read it with

    return load(
        options.dataset,
        options.data_dir,
        min_interactions=options.min_interactions,
        repeats=options.repeats,
        max_users=options.max_users,
        sample_seed=options.split_seed,
        data_file=options.data_file,
        user_column=options.user_column,
        item_column=options.item_column,
        time_column=options.time_column,
        title_column=options.title_column,
        skip_broken_rows=options.skip_broken_rows,
    )


def histories_of(
    interactions: Interactions, options: DataOptions, partition: int = 0, num_partitions: int = 1
) -> Histories:
    """Split a data set, and take the users of one partition (by default all)."""
    from data_partition import assign

    homes = assign(interactions.histories.lengths, num_partitions, options.partition)
    return _histories(interactions, options, np.flatnonzero(homes == partition), partition, num_partitions)


def histories_of_shard(folder: Path, options: DataOptions) -> Histories:
    """The users of a shard, each split as in the whole data set.

    Raises:
        DataError: the folder holds no shard.
        ConfigError: the run is over other data.
    """
    from data_partition import read_shard

    shard = read_shard(folder)
    shard.check(options.to_flat(), folder)
    here = np.arange(shard.interactions.num_users)
    return _histories(shard.interactions, options, here, shard.partition, shard.num_partitions)


def _histories(
    interactions: Interactions, options: DataOptions, here: NDArray[np.int64], partition: int, num_partitions: int
) -> Histories:
    from data_partition import make_split

    split = make_split(
        interactions,
        options.split,
        options.hold_out,
        options.split_seed,
        options.validation_share,
        options.training_share,
    )
    return Histories(
        users=interactions.user_keys[here],
        train=split.train.take(here),
        validation=split.validation.take(here),
        test=split.test.take(here),
        num_items=interactions.num_items,
        catalogue=blake2b("\n".join(interactions.item_ids).encode(), digest_size=8).hexdigest(),
        partition=partition,
        num_partitions=num_partitions,
        dropped_users=interactions.dropped_users if partition == 0 else 0,
        split_seed=options.split_seed,
        in_time=interactions.has_time,
        left_out=None if split.left_out is None else split.left_out.take(here),
    )


def no_order(reader: str, options: DataOptions, instead: str) -> str:
    """Why something that reads the order of histories cannot be used on this data, in a sentence with a way out."""
    from data_partition import FILE

    name, times = options.dataset, "Choose a set with times"
    if name == FILE:
        name, times = Path(options.data_file).name or "the data file", "Name the column of its times with time-column"
    return (
        f"{reader} reads histories in the order of time, and {name} has no times: its rows may be sorted by item. "
        f"{times}, or {instead}."
    )


def with_decoys(histories: Histories, count: int, draws: Draws) -> Histories:
    """The same users with decoys among their training items, each at a place in the order of its own.

    An item that a user validates with is no decoy. What it will have at test it does not know: a decoy may be that, and
    the user that the server sees is then tested with nothing.
    """
    train, users = histories.train, histories.users
    decoys = decoy_items(one_after_another(train, histories.validation), histories.num_items, count, users, draws)
    bits = draw(draws.streams(users, 0, Purpose.DECOYS)[decoys.row_of_value], decoys.values.astype(np.int64) + _PLACE)
    place = np.concatenate([(positions(train.lengths) + 0.5) / train.lengths[train.row_of_value], uniforms(bits)])
    owner = np.concatenate([train.row_of_value, decoys.row_of_value])
    items = np.concatenate([train.values, decoys.values]).astype(train.values.dtype)
    shown = Ragged.from_lengths(train.lengths + decoys.lengths, items[np.lexsort((place, owner))])
    size = np.int64(histories.num_items)
    test = histories.test
    still = ~np.isin(test.row_of_value * size + test.values, decoys.row_of_value * size + decoys.values)
    left = Ragged.from_pairs(test.row_of_value[still], test.values[still], len(users))
    return replace(histories, train=shown, test=left)
