"""Raw files -> interactions -> split -> users -> nodes.

interactions = load("ml-100k", "/data")
split = make_split(interactions, "leave-one-out")
nodes = assign(interactions.histories.lengths, num_partitions=4)

Who only draws items, as a device of one person does, does not load what tables are read with.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from data_partition.negatives import decoy_items, evaluation_candidates, training_negatives

if TYPE_CHECKING:
    from data_partition.catalogue import DATASETS, FILE, Dataset, caution_of, has_time
    from data_partition.interactions import Interactions, from_table, sample_users
    from data_partition.loading import load
    from data_partition.partition import assign, users_of
    from data_partition.shards import Shard, read_shard, write_shards
    from data_partition.split import Split, leave_one_out, make_split, published, ratio, with_training_share
    from data_partition.statistics import remarks, stats
    from data_partition.synthetic_set import synthetic

_PLACES = {
    **dict.fromkeys(("DATASETS", "FILE", "Dataset", "caution_of", "has_time"), "catalogue"),
    **dict.fromkeys(("Interactions", "from_table", "sample_users"), "interactions"),
    "load": "loading",
    **dict.fromkeys(("assign", "users_of"), "partition"),
    **dict.fromkeys(("Shard", "read_shard", "write_shards"), "shards"),
    **dict.fromkeys(("Split", "leave_one_out", "make_split", "published", "ratio", "with_training_share"), "split"),
    **dict.fromkeys(("remarks", "stats"), "statistics"),
    "synthetic": "synthetic_set",
}

__all__ = [
    "DATASETS",
    "FILE",
    "Dataset",
    "Interactions",
    "Shard",
    "Split",
    "assign",
    "caution_of",
    "decoy_items",
    "evaluation_candidates",
    "from_table",
    "has_time",
    "leave_one_out",
    "load",
    "make_split",
    "published",
    "ratio",
    "read_shard",
    "remarks",
    "sample_users",
    "stats",
    "synthetic",
    "training_negatives",
    "users_of",
    "with_training_share",
    "write_shards",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'data_partition' has no attribute '{name}'")
    found = getattr(import_module(f"data_partition.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
