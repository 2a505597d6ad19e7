"""Users' own versions of common tables: kept as the rows that training touched, used as if they were whole tables."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.arrays import ArraySpec, initial_shared
from bouquet.errors import StateError
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from bouquet.sealing import Seal
from bouquet.wire import EvaluateRequest, TrainRequest
from client_app.node import handlers
from client_app.node.given import deployed
from client_app.node.host import host_of
from client_app.node.tasks import rank
from client_app.personalization.round import Changes
from client_app.state.private import PrivateState
from client_app.state.row_overrides import OwnRows
from tests.runs.helpers import small_settings

USERS = user_keys(["ann", "bob", "cid"])
SPECS = {"user_embedding": ArraySpec((4,))}
TABLES = {"item_bias": ArraySpec((5,), by_item=True), "item_embedding": ArraySpec((5, 2), by_item=True)}
ALL = np.arange(3)
SEALS = pytest.mark.parametrize("seal", [None, Seal(bytes(range(32)))], ids=["plain", "sealed"])


def opened(folder, seal=None):
    def initial(name, positions):
        return np.zeros((len(positions), 4), np.float32)

    return PrivateState(folder, "s", USERS, SPECS, initial, seal=seal, tuned=TABLES)


def common(round_):
    return {"item_bias": np.full(5, round_, np.float32), "item_embedding": np.full((5, 2), round_, np.float32)}


def own(round_, positions=ALL):
    """The first user has touched rows 1 and 4, the second none, the third row 0; values tell round and user."""
    touched = [[1, 4], [], [0]]
    rows = Ragged.from_lengths(
        [len(touched[p]) for p in positions], np.concatenate([touched[p] for p in positions]).astype(np.int32)
    )
    values = (10 * round_ + positions[rows.row_of_value]).astype(np.float32)
    return OwnRows(rows, {"item_bias": values, "item_embedding": np.repeat(values[:, None], 2, axis=1)})


def commit(folder, round_, positions=ALL, seal=None, version=None, checkpoint=0):
    state, count = opened(folder, seal), len(positions)
    vectors = {"user_embedding": np.full((count, 4), round_, np.float32)}
    versions = np.full(count, round_ - 1 if version is None else version)
    state.write(
        positions, round_, versions, np.full(count, checkpoint), vectors, common(round_), own(round_, positions)
    )
    state.commit()


def assert_has(folder, expected, positions=ALL, seal=None):
    """Each of the users has the version of the round that is expected, 0 for none."""
    state, expected = opened(folder, seal), np.array(expected)
    origins, found = state.origins(positions, expected), state.own_rows(positions, expected)
    for place, round_ in enumerate(expected):
        if not round_:
            assert not origins[place]
            assert not len(found.rows.row(place))
            continue
        for name, values in common(round_).items():
            np.testing.assert_array_equal(state.origin(origins[place])[name], values)
        one, wanted = found.take(np.array([place])), own(round_, positions[place : place + 1])
        np.testing.assert_array_equal(one.rows.values, wanted.rows.values)
        for name, values in wanted.values.items():
            np.testing.assert_array_equal(one.values[name], values)


def test_own_rows_are_what_training_made_of_common_ones():
    """Rows 1 and 4 of the second user, row 0 of the first: 1 + change, or 1 + change / 2."""
    changes = [
        Changes(np.array([1]), Ragged.from_lengths([2], [1, 4]), {"t": np.array([[1, 2], [3, 4]], np.float32)}),
        Changes(np.array([0]), Ragged.from_lengths([1], [0]), {"t": np.array([[5, 6]], np.float32)}),
    ]
    for table, width in ((np.ones((5, 2), np.float32), 2), (np.ones(5, np.float32), 1)):
        given = [replace(part, by_item={"t": part.by_item["t"][:, :width].reshape(-1, *table.shape[1:])})
                 for part in changes]  # fmt: skip
        whole, half = OwnRows.after({"t": table}, given), OwnRows.after({"t": table}, given, 0.5)
        assert [whole.rows.row(user).tolist() for user in (0, 1)] == [[0], [1, 4]]
        np.testing.assert_array_equal(whole.values["t"].reshape(3, -1), np.array([[6, 7], [2, 3], [4, 5]])[:, :width])
        np.testing.assert_array_equal(
            half.values["t"].reshape(3, -1), np.array([[3.5, 4], [1.5, 2], [2.5, 3]])[:, :width]
        )
        assert (table == 1).all(), "what is common must not change"


def test_own_rows_of_some_users():
    whole = own(1)
    for users in ([0, 1], [1, 2], [2, 0], [1]):
        taken, expected = whole.take(np.array(users)), own(1, np.array(users))
        np.testing.assert_array_equal(taken.rows.indptr, expected.rows.indptr)
        np.testing.assert_array_equal(taken.rows.values, expected.rows.values)
        for name, values in expected.values.items():
            np.testing.assert_array_equal(taken.values[name], values)


@SEALS
def test_each_user_has_the_version_of_its_last_training(tmp_path, seal):
    assert_has(tmp_path, [0, 0, 0], seal=seal)
    commit(tmp_path, 1, seal=seal)
    commit(tmp_path, 2, np.array([2, 0]), seal=seal)
    assert_has(tmp_path, [2, 1, 2], seal=seal)
    assert_has(tmp_path, [2, 2], np.array([2, 0]), seal=seal)
    assert_has(tmp_path, [1, 1, 1], seal=seal)


@SEALS
def test_common_tables_stay_as_long_as_a_version_is_from_them(tmp_path, seal):
    def kept():
        return len(list(tmp_path.glob("origin-*")))

    commit(tmp_path, 1, seal=seal)
    for round_ in range(2, 9):
        commit(tmp_path, round_, np.array([0]), seal=seal, checkpoint=2)
        assert kept() <= 4, "round 1's of the others, and three of the first user"
    assert_has(tmp_path, [8, 1, 1], seal=seal)
    assert_has(tmp_path, [2, 1, 1], seal=seal)
    for round_ in range(9, 12):
        commit(tmp_path, round_, seal=seal, checkpoint=round_ - 1)
    assert kept() <= 3
    assert_has(tmp_path, [11, 11, 11], seal=seal)


def test_what_was_not_committed_does_not_count(tmp_path):
    commit(tmp_path, 1)
    vectors = {"user_embedding": np.zeros((3, 4), np.float32)}
    ones, zeros = np.ones(3, int), np.zeros(3, int)
    opened(tmp_path).write(ALL, 2, ones, zeros, vectors, common(2), own(2))  # the process dies here
    assert_has(tmp_path, [1, 1, 1])


@SEALS
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("kind", ["own_rows", "origin"])
def test_damage_is_an_error_that_names_the_file(tmp_path, kind, damage, seal):
    commit(tmp_path, 1, seal=seal)
    file = next(tmp_path.glob(f"{kind}*"))
    content = bytearray(file.read_bytes())
    if damage == "flip":
        for place in range(len(content) % 3 if seal or kind == "origin" else 128, len(content), 3):
            content[place] ^= 0x40
    file.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    if damage == "remove":
        file.unlink()
    state, versions = opened(tmp_path, seal), np.ones(3, int)
    origin = state.origins(ALL, versions)[0]
    with pytest.raises(StateError, match=file.name):
        state.own_rows(ALL, versions) if kind == "own_rows" else state.origin(origin)


def test_a_lost_version_is_noticed(tmp_path):
    commit(tmp_path, 1, np.array([0, 1]))
    with pytest.raises(StateError, match=f"{int(USERS[2]):016x} is missing"):
        opened(tmp_path).own_rows(ALL, np.ones(3, int))


def test_plain_versions_are_taken_over_when_a_key_comes(tmp_path):
    commit(tmp_path, 1)
    commit(tmp_path, 2, np.array([2]))
    assert_has(tmp_path, [1, 1, 2], seal=Seal(bytes(32)))
    assert {path.suffix for path in tmp_path.iterdir()} == {".sealed"}
    assert_has(tmp_path, [1, 1, 1], seal=Seal(bytes(32)))


def test_what_is_not_touched_takes_no_disk(tmp_path):
    """8,000 items at d = 32, of which each of 20 users touches 40: 5 KiB of a place of 1 MiB, in pages of 4 KiB."""
    tables = {"item_embedding": ArraySpec((8000, 32), by_item=True)}
    state = PrivateState(tmp_path, "s", user_keys([str(u) for u in range(20)]), {}, lambda *_: None, tuned=tables)
    rows = Ragged.from_lengths(np.full(20, 40), np.tile(np.arange(40), 20))
    values = {"item_embedding": np.ones((800, 32), np.float32)}
    none, started = np.zeros(20, int), {"item_embedding": np.zeros((8000, 32), np.float32)}
    state.write(np.arange(20), 1, none, none, {}, started, OwnRows(rows, values))
    state.commit()
    assert (tmp_path / "own_rows.npy").stat().st_blocks * 512 < 20 * 4 * 4096


# -- in rounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("optimizer", "weight_decay"), [("adam", 0.0), ("sgd", 0.01)])
@pytest.mark.parametrize("backbone", ["mf", "ncf", "lightgcn", "sasrec"])
def test_rows_are_used_as_whole_tables_would_be(tmp_path, backbone, optimizer, weight_decay):
    """Users who trained in different rounds, and some who never did, each rank with a version of their own."""
    settings = small_settings(
        tmp_path, strategy="pfedrec", backbone=backbone, optimizer=optimizer, weight_decay=weight_decay,
        learning_rate=0.1, state_dir=str(tmp_path / "state"), init_scale=0.5,
    )  # fmt: skip
    host = host_of(settings, {"partition-id": 0, "num-partitions": 1})
    travels = [name for name, spec in host.backbone.shared.items() if spec.by_item]
    users, done = host.histories.users[::-1], np.zeros(len(host.histories.users), np.int64)
    ranked = []
    for round_, chosen in enumerate([np.arange(0, 24), np.arange(6, 12), np.arange(9, 30)], start=1):
        shared = {name: initial_shared(host.backbone.shared, round_)[name] for name in travels}
        weights = np.ones(len(chosen))
        handlers.train(
            host, TrainRequest("s", round_, users[chosen], done[chosen], done[chosen], shared, weights=weights)
        )
        done[chosen] = round_
        shared = {name: initial_shared(host.backbone.shared, 100 + round_)[name] for name in travels}
        asked = EvaluateRequest("s", round_, users, done.copy(), shared)
        by_rows = handlers.evaluate(host, asked)
        positions, state = host.positions(users), host.state("s", shared)
        tables = deployed(host, asked, state, slice(0, len(users)), positions)
        assert tables.own["item_embedding"].shape == (len(users), *shared["item_embedding"].shape)
        np.testing.assert_array_equal(by_rows.users, users)
        np.testing.assert_allclose(by_rows.metrics, rank(host, tables, positions, round_)[0], atol=1e-6)
        ranked.append(by_rows.metrics)
    assert np.array_equal(ranked[0][:6], ranked[1][:6]), "who did not train goes on with what it has"
    assert not np.array_equal(ranked[0][12:24], ranked[2][12:24])
    never = replace(asked, versions=np.zeros(len(users), np.int64), series="another")
    np.testing.assert_array_equal(handlers.evaluate(host, never).metrics[30:], ranked[2][30:])
