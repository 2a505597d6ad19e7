"""Shards: a node's folder has its own users alone, and gives what the whole data set gives."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.config import DataOptions
from bouquet.errors import ConfigError, DataError
from client_app.node.histories import histories_of, histories_of_shard
from data_partition import from_table, read_shard, write_shards


def data(users=9, seed=0):
    """Users "u1", … with 3 to 12 of 30 items, times in no order of the file."""
    random = np.random.default_rng(seed)
    rows = [
        (f"u{user}", int(item), int(random.integers(1000)))
        for user in range(1, users + 1)
        for item in random.choice(30, random.integers(3, 13), replace=False)
    ]
    table = pd.DataFrame(rows, columns=["user", "item", "time"]).sample(frac=1.0, random_state=seed)
    return from_table("synthetic", table, titles={str(item): f"Title, {item}" for item in range(0, 30, 2)})


def equal(a, b):
    return np.array_equal(a.indptr, b.indptr) and np.array_equal(a.values, b.values)


def test_a_shard_knows_the_published_split(tmp_path):
    whole = data()
    whole = replace(whole, held_out=np.where(np.arange(whole.num_interactions) % 4 == 3, 2, 0).astype(np.int8))
    options = DataOptions(split="published", validation_share=0.3)
    for number, part in enumerate(write_shards(whole, 3, "contiguous", options.to_flat(), tmp_path)):
        there, here = histories_of(whole, options, number, 3), histories_of_shard(part, options)
        for name in ("train", "validation", "test"):
            assert equal(getattr(there, name), getattr(here, name)), name
        assert len(here.test.values)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 50),
    nodes=st.integers(1, 12),
    split=st.sampled_from(["leave-one-out", "ratio"]),
    hold_out=st.sampled_from(["auto", "random"]),
    scheme=st.sampled_from(["contiguous", "by-size"]),
)
def test_every_shard_is_the_part_of_the_whole(tmp_path_factory, seed, nodes, split, hold_out, scheme):
    """Also with more nodes than users: then some shards have nobody."""
    whole, folder = data(seed=seed), tmp_path_factory.mktemp("shards")
    if split == "ratio":  # which has no hold-out to choose
        hold_out = "auto"
    options = DataOptions(split=split, hold_out=hold_out, partition=scheme, split_seed=seed)
    parts = write_shards(whole, nodes, scheme, options.to_flat(), folder)
    assert [part.name for part in parts] == [str(number) for number in range(1, nodes + 1)]
    for number, part in enumerate(parts):
        there, here = histories_of(whole, options, number, nodes), histories_of_shard(part, options)
        for name in ("train", "validation", "test"):
            assert equal(getattr(there, name), getattr(here, name)), name
        for name in ("validation", "test"):
            assert equal(there.candidates[name], here.candidates[name])
        assert there.users.tolist() == here.users.tolist()
        for name in ("num_items", "catalogue", "partition", "num_partitions", "dropped_users", "split_seed"):
            assert getattr(there, name) == getattr(here, name), name


def test_a_shard_has_no_trace_of_other_users(tmp_path):
    whole = data()
    first, second = write_shards(whole, 2, "contiguous", DataOptions().to_flat(), tmp_path)
    theirs = set(read_shard(second).interactions.user_ids.tolist())
    assert theirs.isdisjoint(read_shard(first).interactions.user_ids.tolist())
    assert set(pd.read_csv(first / "interactions.csv")["user"]).isdisjoint(theirs)
    assert read_shard(first).interactions.titles == whole.titles


@pytest.mark.parametrize(
    "change", [{"dataset": "ml-100k"}, {"min_interactions": 5}, {"repeats": "keep"}, {"max_users": 4}]
)
def test_a_run_over_other_data_is_refused(tmp_path, change):
    (part,) = write_shards(data(), 1, "contiguous", DataOptions().to_flat(), tmp_path)
    key = next(iter(change)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"was made with {key} = .*, and the run has {next(iter(change.values()))!r}"):
        histories_of_shard(part, DataOptions(**change))


def test_of_a_sample_the_seed_must_agree_too(tmp_path):
    made = DataOptions(max_users=9, split_seed=3)
    (part,) = write_shards(data(), 1, "contiguous", made.to_flat(), tmp_path)
    assert histories_of_shard(part, made).split_seed == 3
    with pytest.raises(ConfigError, match="split-seed = 3, and the run has 4"):
        histories_of_shard(part, DataOptions(max_users=9, split_seed=4))


def test_no_shard_and_a_damaged_one_are_named(tmp_path):
    with pytest.raises(DataError, match="is no shard of a data set.*bouquet data shard"):
        read_shard(tmp_path)
    (part,) = write_shards(data(), 1, "contiguous", DataOptions().to_flat(), tmp_path)
    catalogue = (part / "catalogue.csv").read_text().splitlines(keepends=True)
    (part / "catalogue.csv").write_text("".join(catalogue[:-1]))
    with pytest.raises(DataError, match=r"or it is damaged \(the digest of catalogue.csv does not fit\)"):
        read_shard(part)
    (part / "shard.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match="another version"):
        read_shard(part)


@pytest.mark.parametrize("name", ["u,1", 'u "1"', "u\n1", "ü\r\n1", " "])
def test_ids_and_titles_of_any_text_come_back(tmp_path, name):
    table = pd.DataFrame([(name, f"{name}{item}", item) for item in range(5)], columns=["user", "item", "time"])
    whole = from_table("synthetic", table, titles={f"{name}{item}": f"{item}\n{name}," for item in range(5)})
    (part,) = write_shards(whole, 1, "contiguous", DataOptions().to_flat(), tmp_path)
    found = read_shard(part).interactions
    assert found.user_ids.tolist() == [name]
    assert (found.item_ids.tolist(), found.titles) == (whole.item_ids.tolist(), whole.titles)
