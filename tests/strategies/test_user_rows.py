"""Rows that the server keeps of users in files: as arrays of all users, whatever happens between two checkpoints."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.errors import StateError
from bouquet.testing import assert_equal_runs
from bouquet.wire import EVALUATE
from strategies.federation.held_rows import HeldRows
from strategies.federation.user_rows import UserRows, rows_of, share_of_rows
from tests.runs.helpers import last_checkpoint, run_here, small_settings

INITIAL = {"table": np.arange(6, dtype=np.float32).reshape(3, 2), "bias": np.float32([7])}
USERS = 6
STEPS = st.one_of(
    st.tuples(st.sampled_from(["write", "change", "drop"]), st.sets(st.integers(0, USERS - 1), min_size=1)),
    st.tuples(st.sampled_from(["checkpoint", "kill", "join"]), st.just(frozenset())),
    st.tuples(st.just("forget"), st.integers(0, USERS - 1)),
)


def made(folder, count=USERS, kind=UserRows):
    return kind(folder, "own", INITIAL, count)


def whole(rows):
    everyone = np.arange(len(rows.places))
    return {name: rows.read(name, everyone) for name in INITIAL}


def assert_same(found, expected):
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def start(count=USERS):
    return {name: np.repeat(values[None], count, axis=0) for name, values in INITIAL.items()}


def written(number, users):
    """Rows that are like no others: the number of the write and the user."""
    own = (100 * number + np.arange(len(users))).astype(np.float32)
    return {name: own.reshape(-1, *[1] * values.ndim) + values for name, values in INITIAL.items()}


@pytest.mark.parametrize("kind", [UserRows, HeldRows])
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=15))
def test_they_are_what_arrays_of_all_users_would_be(tmp_path_factory, kind, steps):
    """Killed, they are again those of the last checkpoint; before the first one that is what all start from."""
    folder = tmp_path_factory.mktemp("rows")
    rows, expected = made(folder, kind=kind), start()
    kept = None
    for number, (step, who) in enumerate(steps):
        count = len(rows.places)
        if step == "write":
            users = np.array(sorted(user for user in who if user < count), np.int64)
            values = written(number, users)
            rows.write(users, values)
            for name in INITIAL:
                expected[name][users] = values[name]
        elif step == "change":
            users = np.array(sorted(user for user in who if user < count), np.int64)
            changed = {name: rows.to_change(name, users) for name in INITIAL}
            for name, values in changed.items():
                values += 1
                expected[name][users] += 1
            rows.write(users, changed)
        elif step == "drop":
            users = np.array(sorted(user for user in who if user < count), np.int64)
            rows.drop(users)
            for name, values in INITIAL.items():
                expected[name][users] = values
        elif step == "checkpoint":
            rows.checkpoint_due()
            kept = ({name: v.copy() for name, v in rows.index().items()}, {n: v.copy() for n, v in expected.items()})
            rows.checkpoint_written()
        elif step == "kill":
            rows, expected = made(folder, kind=kind), start()
            if kept:
                rows.restore(kept[0])
                expected = {name: values.copy() for name, values in kept[1].items()}
        elif step == "join":
            rows.users_joined(1)
            expected = {name: np.concatenate([v, INITIAL[name][None]]) for name, v in expected.items()}
        elif who < count:
            rows.users_forgotten(np.array([who]))
            expected = {name: np.delete(values, who, axis=0) for name, values in expected.items()}
        assert_same(whole(rows), expected)
        assert not any((expected[name][~rows.there] != values).any() for name, values in INITIAL.items())
    if kind is HeldRows:  # whose files are for checkpoints
        rows.checkpoint_due()
    if (rows.places > 0).any():
        found = rows_of(folder, rows.index())
        assert_same({name: found[f"own/{name}"] for name in INITIAL}, expected)


def test_what_is_held_is_changed_where_it_lies(tmp_path):
    """Ann, Bob and Cid follow one another: their rows are neither copied when read nor when they are changed."""
    rows, three = made(tmp_path, kind=HeldRows), np.array([1, 2, 3])
    rows.write(three, written(1, three))
    read, changed = rows.read("table", three), {name: rows.to_change(name, three) for name in INITIAL}
    assert np.shares_memory(read, changed["table"])
    assert not read.flags.writeable
    changed["table"][1] = 5
    rows.write(three, changed)
    assert (rows.read("table", np.array([2])) == 5).all()
    apart = rows.to_change("table", np.array([1, 3]))
    apart[:] = 9
    assert (rows.read("table", three) != 9).all(), "these are a copy until they are written"
    rows.room("table", np.array([1, 2]))[:] = 8
    assert (rows.read("table", np.array([1, 2])) == 8).all()
    assert not (tmp_path / "own").exists(), "without a checkpoint nothing is written"


def test_only_who_has_rows_takes_room_and_it_is_used_again(tmp_path):
    """Ann and Bob of six have rows; after a checkpoint new ones stand beside those, and later take their places."""
    rows = made(tmp_path)
    for number in range(6):
        rows.write(np.array([0, 1]), written(number, [0, 1]))
        assert sorted(rows.places.tolist()) == [0, 0, 0, 0, 1, 2]
    for places in ([3, 4], [1, 2], [3, 4]):
        rows.checkpoint_due()
        rows.checkpoint_written()
        rows.write(np.array([0, 1]), written(7, [0, 1]))
        assert rows.places[:2].tolist() == places
    rows.write(np.array([5]), written(8, [5]))
    assert rows.places[5] == 5


def test_rows_of_many_files(tmp_path, monkeypatch):
    """Three rows to a file: five users and what all start from are in two."""
    monkeypatch.setattr("strategies.federation.user_rows._FILE_ROWS", 3)
    rows, values = made(tmp_path), written(1, range(5))
    rows.write(np.arange(5), values)
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == [
        "bias-0000.npy", "bias-0001.npy", "table-0000.npy", "table-0001.npy",
    ]  # fmt: skip
    rows.checkpoint_due()
    again = made(tmp_path)
    again.restore(rows.index())
    rows.write(np.array([5]), written(2, [5]))
    assert_same({name: again.read(name, np.arange(5)) for name in INITIAL}, values)
    again.restore(again.index())
    np.testing.assert_array_equal(again.read("table", np.array([5]))[0], INITIAL["table"])


def test_a_damaged_row_is_named(tmp_path):
    rows = made(tmp_path)
    rows.write(np.arange(3), written(1, range(3)))
    rows.checkpoint_due()
    again = made(tmp_path)
    again.restore(rows.index())
    path = tmp_path / "own" / "table-0000.npy"
    stored = np.load(path, mmap_mode="r+")
    stored[0, rows.places[1], 0, 0] += 1
    stored.flush()
    again.read("table", np.array([0, 2]))
    with pytest.raises(StateError, match="table-0000.npy is damaged: a checksum does not fit"):
        again.read("table", np.array([1]))
    path.unlink()
    again = made(tmp_path)
    again.restore(rows.index())
    with pytest.raises(StateError, match="table-0000.npy cannot be read"):
        again.read("table", np.array([0]))


def test_nothing_of_who_is_forgotten_stays_once_a_checkpoint_is_written(tmp_path):
    """Bob's rows of two rounds, the first of which is in a checkpoint."""
    rows = made(tmp_path)

    def bobs():
        stored = np.load(tmp_path / "own" / "bias-0000.npy")
        return sorted(set(stored[stored > 300].tolist()))

    rows.write(np.array([0, 1]), {"table": np.zeros((2, 3, 2), np.float32), "bias": np.float32([[1], [400]])})
    rows.checkpoint_due()
    rows.checkpoint_written()
    rows.write(np.array([1]), {"table": np.zeros((1, 3, 2), np.float32), "bias": np.float32([[500]])})
    assert bobs() == [400, 500]
    rows.users_forgotten(np.array([1]))
    assert bobs() == [400], "a server that is killed now goes back to the checkpoint"
    rows.checkpoint_due()
    rows.checkpoint_written()
    assert bobs() == []


def test_the_share_of_rows_by_hand():
    """Half of the users in each of four rounds: 15/16 have trained at the end.

    With a checkpoint after two, 3/4 are in it and 3/4 of these train again before the next: 15/16 + 9/16. All of the
    users in every round: themselves, and once more where there is a checkpoint to go back to.
    """
    assert share_of_rows(4, 0, 0.5) == 15 / 16
    assert share_of_rows(4, 2, 0.5) == 15 / 16 + 9 / 16
    assert share_of_rows(3, 5, 1.0) == 1
    assert share_of_rows(4, 1, 1.0) == 2


# -- FedCA with them ---------------------------------------------------------------------------------------------------


def seen_users(directory):
    return (last_checkpoint(directory).versions > 0).sum()


def test_the_server_stores_tables_of_those_alone_who_took_part(tmp_path):
    """4 of 40 users in each of 5 rounds: as many tables of each kind as users have trained, and the one of all."""
    cohort = small_settings(tmp_path, strategy="fedca", fraction_train=0.1, num_server_rounds=5, checkpoint_every=5)
    directory = run_here(tmp_path / "run", cohort, 2)
    for kind in ("table", "aggregate"):
        (path,) = (directory.rows_by_user / kind).iterdir()
        stored = np.load(path, mmap_mode="r")[0]
        filled = np.array([row.any() for row in stored[:64]])
        assert filled.sum() == 1 + seen_users(directory)
        assert seen_users(directory) <= 20
        assert path.stat().st_blocks * 512 <= stored[0].nbytes * 21 + 2 * 4096


def test_without_checkpoints_nothing_stays(tmp_path):
    settings = small_settings(tmp_path, strategy="fedca", num_server_rounds=2, checkpoint_every=0)
    directory = run_here(tmp_path / "run", settings, 2)
    assert not [path for path in directory.path.rglob("*.npy") if "by-user" in path.parts]


@pytest.mark.parametrize("nodes", [1, 3])
def test_an_evaluation_in_parts_is_one_evaluation(tmp_path, monkeypatch, nodes):
    """Nobody sends or is sent more tables at once than a round has users, and every figure is the same.

    Of 40 users 8 train in a round. Those who never did are asked first, and are sent nothing.
    """
    from bouquet.testing import Recording

    options = {"strategy": "fedca", "fraction_train": 0.2, "num_server_rounds": 4, "backbone": "ncf"}
    whole_run = run_here(tmp_path / "whole", small_settings(tmp_path, **options), nodes)
    monkeypatch.setattr("strategies.fedca_strategy.EVALUATED_BYTES", 0)
    log = []
    parts = run_here(tmp_path / "parts", small_settings(tmp_path, **options), nodes, Recording, log=log)
    assert_equal_runs(parts, whole_run)
    asked = [message.content for message, _ in log if message.metadata.message_type == EVALUATE]
    sent = [len(content["users"]["user"].numpy()) for content in asked if len(content["personal"])]
    new = [content for content in asked if not len(content["personal"])]
    assert max(sent) <= 8
    assert sum(sent) + sum(len(content["users"]["user"].numpy()) for content in new) == 2 * 40
    for content in new:
        assert not content["users"]["version"].numpy().any()
    lines = [run.rounds()[-1]["bytes"]["evaluation"] for run in (parts, whole_run)]
    assert lines[0]["asked"] == lines[0]["users"] == 40
    assert lines[0]["down_per_user"] == lines[1]["down_per_user"] > 0
