"""Private tables of which only the rows that training has touched are kept: to the last digit as whole ones."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import client_app.node.host
from bouquet.arrays import ArraySpec, initial_private, initial_private_rows
from bouquet.errors import RunFailed
from bouquet.needs import trained_at_least
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from bouquet.sealing import Seal
from bouquet.testing import assert_equal_runs
from client_app.node.host import host_of
from client_app.node.needs import fewer_rows, refuse_full_disk, state_bytes
from client_app.state.private import PrivateState
from client_app.state.row_overrides import either
from tests.runs.helpers import run_here, small_settings

USERS = user_keys(["ann", "bob", "cid"])
ITEMS = 7
SPECS = {"table": ArraySpec((ITEMS, 2), by_item=True), "user_embedding": ArraySpec((4,))}
ALL = np.arange(3)
SEALS = pytest.mark.parametrize("seal", [None, Seal(bytes(range(32)))], ids=["plain", "sealed"])
# Methods whose private tables can be kept by rows: with constraints over the whole catalogue, Fed3CR's cannot.
BY_ROWS = {
    "fedrap": {"strategy": "fedrap"},
    "fedrap with its terms": {"strategy": "fedrap", "fedrap_lambda": 0.1, "fedrap_mu": 0.1},
    "fedrap on ncf": {"strategy": "fedrap", "backbone": "ncf"},
    "local": {"strategy": "local"},
    "local, Adam": {"strategy": "local", "optimizer": "adam", "learning_rate": 0.01},
    "fed3cr without constraints": {"strategy": "fed3cr", "fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0},
    "fed3cr over samples": {
        "strategy": "fed3cr", "fed3cr_consistency": "similarity", "fed3cr_complementarity": "distance",
    },
}  # fmt: skip


def initial(name, positions):
    return initial_private(name, SPECS[name], 7, USERS[positions])


def opened(folder, seal=None, by_rows=("table",)):
    return PrivateState(folder, "s", USERS, SPECS, initial, seal=seal, by_rows=by_rows)


def rows_of(*rows):
    return Ragged.from_lengths([len(row) for row in rows], np.concatenate(rows).astype(np.int32))


@pytest.fixture
def by_rows_always(monkeypatch):
    """Also tables that are small, and of which a round touches most."""
    monkeypatch.setattr(client_app.node.host, "WHOLE_BYTES", 0)
    monkeypatch.setattr(client_app.node.host, "FEW_ROWS", 2)


# -- rows ------------------------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    init=st.sampled_from(["normal", "uniform", "zeros", "constant"]),
    shape=st.sampled_from([(1,), (5,), (5, 3), (40, 16), (5000, 16)]),
    data=st.data(),
)
def test_rows_are_those_of_the_whole_initial_table(init, shape, data):
    spec = ArraySpec(shape, init, 0.5, by_item=True)
    rows = rows_of(*(data.draw(st.lists(st.integers(0, shape[0] - 1), max_size=20)) for _ in USERS))
    whole = initial_private("table", spec, 7, USERS)
    found = initial_private_rows("table", spec, 7, USERS, rows)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, whole[rows.row_of_value, rows.values])


def test_either_by_hand():
    first, second = rows_of([1, 4], [], [0], [2]), rows_of([4, 0, 0], [3], [], [2])
    found = either(first, second)
    assert [found.row(user).tolist() for user in range(4)] == [[0, 1, 4], [3], [0], [2]]
    assert len(either(rows_of([]), rows_of([])).values) == 0


# -- state -----------------------------------------------------------------------------------------------------------


@SEALS
@settings(max_examples=25)
@given(data=st.data())
def test_every_version_is_what_a_whole_table_would_be(tmp_path_factory, seal, data):
    """Replies get lost, and the server goes on from older versions; the tables are followed here as whole ones."""
    folder = tmp_path_factory.mktemp("state")
    accepted, kept = np.zeros(3, np.int64), np.zeros(3, np.int64)
    tables = {(user, 0): initial("table", np.array([user]))[0] for user in range(3)}
    for round_ in range(1, data.draw(st.integers(2, 6))):
        touched = rows_of(*(sorted(data.draw(st.sets(st.integers(0, ITEMS - 1)))) for _ in range(3)))
        state = opened(folder, seal)
        values = state.read(ALL, accepted, only=touched)
        values["table"][touched.row_of_value, touched.values] += np.float32(round_)
        for user in range(3):
            tables[user, round_] = tables[user, accepted[user]].copy()
            tables[user, round_][touched.row(user)] += np.float32(round_)
        state.write(ALL, round_, accepted, kept, values, touched=touched)
        state.commit()
        lost = np.array(data.draw(st.tuples(*[st.booleans()] * 3)))
        accepted = np.where(lost, accepted, round_)
        kept = accepted if data.draw(st.booleans()) else kept
        for versions in (accepted, kept):
            found = opened(folder, seal).read(ALL, versions)
            for user in range(3):
                np.testing.assert_array_equal(found["table"][user], tables[user, versions[user]])


def test_what_no_training_touched_takes_no_disk(tmp_path):
    """8,000 items at d = 32, of which each of 20 users touches 40: 5 KiB of a place of 1 MiB, in pages of 4 KiB."""
    specs = {"table": ArraySpec((8000, 32), "zeros", by_item=True)}
    users, everyone, none = user_keys([str(user) for user in range(20)]), np.arange(20), np.zeros(20, int)

    def zeros(name, positions):
        return np.zeros((len(positions), 8000, 32), np.float32)

    state = PrivateState(tmp_path, "s", users, specs, zeros, by_rows=["table"])
    touched = Ragged.from_lengths(np.full(20, 40), np.tile(np.arange(40), 20))
    state.write(everyone, 1, none, none, {"table": np.ones((20, 8000, 32), np.float32)}, touched=touched)
    state.commit()
    assert (tmp_path / "table.pieces").stat().st_blocks * 512 < 20 * 4 * 4096
    assert state.read(everyone, np.ones(20, int))["table"].sum() == 20 * 40 * 32


@SEALS
def test_a_folder_goes_on_as_it_was_begun(tmp_path, seal):
    """What decides is measured once: a device's history grows, and other versions of the program kept tables whole."""
    touched, ones, none = rows_of([1], [2], [3]), np.ones(3, int), np.zeros(3, int)
    for begun, then in ((["table"], []), ([], ["table"])):
        folder = tmp_path / f"{bool(begun)}"
        state = opened(folder, seal, begun)
        state.write(ALL, 1, none, none, state.read(ALL, none), touched=touched)
        state.commit()
        again = opened(folder, seal, then)
        assert again.by_rows == set(begun)
        np.testing.assert_array_equal(again.read(ALL, ones)["table"], initial("table", ALL))


def test_plain_rows_are_taken_over_when_a_key_comes(tmp_path):
    touched, none = rows_of([1, 2], [], [0]), np.zeros(3, int)
    state = opened(tmp_path)
    values = state.read(ALL, none)
    values["table"][touched.row_of_value, touched.values] = 5
    state.write(ALL, 1, none, none, values, touched=touched)
    state.commit()
    sealed = opened(tmp_path, Seal(bytes(32)))
    assert {path.suffix for path in tmp_path.iterdir()} == {".sealed"}
    np.testing.assert_array_equal(sealed.read(ALL, np.ones(3, int))["table"], values["table"])


# -- in rounds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "torch", "loop"])
@pytest.mark.parametrize("method", BY_ROWS)
def test_a_run_is_the_same_by_rows(tmp_path, method, backend, monkeypatch):
    """Some users train in a round and some do not; all are evaluated. Resumed by rows after four of six rounds."""
    changes = BY_ROWS[method] | {"backend": backend, "fraction_train": 0.6, "init_scale": 0.5}
    run = small_settings(tmp_path, **changes)
    whole = run_here(tmp_path / "whole", run, 3)
    monkeypatch.setattr(client_app.node.host, "WHOLE_BYTES", 0)
    monkeypatch.setattr(client_app.node.host, "FEW_ROWS", 2)
    run_here(tmp_path / "rows", run | {"num-server-rounds": 4}, 3)
    rows = run_here(tmp_path / "rows", run | {"resume": str(tmp_path / "rows")}, 3)
    assert list((tmp_path / "rows" / "nodes").rglob("*.pieces"))
    assert not list((tmp_path / "whole" / "nodes").rglob("*.pieces"))
    assert_equal_runs(rows, whole)


@pytest.mark.usefixtures("by_rows_always")
@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fedrap", "weight_decay": 0.01},
        {"strategy": "fedrap", "personalization": "plgc"},
        {"strategy": "fed3cr"},
        {"strategy": "fedca"},
        {"strategy": "local", "weight_decay": 0.01},
    ],
)
def test_what_moves_every_row_is_kept_whole(tmp_path, changes):
    host = host_of(small_settings(tmp_path, **changes), {"partition-id": 0, "num-partitions": 1})
    shared = {} if changes["strategy"] in ("fedca", "local") else host.shared_specs
    assert any(spec.by_item for spec in host.private_specs(shared).values())
    assert host.by_rows(shared) == frozenset()


def test_small_tables_are_kept_whole(tmp_path):
    host = host_of(small_settings(tmp_path, strategy="fedrap"), {"partition-id": 0, "num-partitions": 1})
    assert host.by_rows(host.shared_specs) == frozenset()


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"strategy": "fed3cr"}, "constraints over samples (fed3cr-consistency, fed3cr-complementarity), "),
        ({"strategy": "fedrap", "weight_decay": 0.01}, "weight-decay = 0, "),
        ({"strategy": "fedavg", "weight_decay": 0.01}, ""),
        ({"strategy": "fedrap"}, ""),
    ],
)
def test_what_would_touch_fewer_rows_is_said(tmp_path, changes, advice, monkeypatch):
    """In the refusal by a node, too."""
    run = small_settings(tmp_path, **changes)
    host = host_of(run, {"partition-id": 0, "num-partitions": 1})
    assert fewer_rows(host, host.shared_specs) == advice
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1))
    with pytest.raises(RunFailed, match=f"fewer users on this node, {re.escape(advice)}a smaller fraction-train"):
        refuse_full_disk(host, "s", host.shared_specs)


# -- what it takes ---------------------------------------------------------------------------------------------------


def test_how_often_users_train_by_hand():
    """Half of the users in each of two rounds: 3/4 train at least once, 1/4 twice. All in each of five: all, thrice."""
    assert trained_at_least(3, 2, 0.5) == [0.75, 0.25]
    assert trained_at_least(3, 5, 1.0) == [1.0, 1.0, 1.0]
    assert trained_at_least(2, 1, 1.0) == [1.0]


@pytest.mark.usefixtures("by_rows_always")
def test_disk_by_rows_is_told(tmp_path):
    """Of 60 items a user with n has touched n + (60 - n)(1 - e^(-4 n / (60 - n))) after a round: rows of 5 words."""
    run = small_settings(tmp_path, strategy="fedrap", num_server_rounds=1, checkpoint_every=0)
    host = host_of(run, {"partition-id": 0, "num-partitions": 1})
    sizes, m = host.histories.train.lengths, host.histories.num_items
    rows = sizes + (m - sizes) * (1 - np.exp(-4 * sizes / (m - sizes)))
    vectors = len(sizes) * 4 * 4
    expected = 5 * 4 * rows.sum() + len(sizes) * 24 + vectors
    assert state_bytes(host, host.shared_specs) == pytest.approx(expected)

    def after(rounds, **changes):
        run = small_settings(tmp_path, strategy="fedrap", num_server_rounds=rounds, **changes)
        host = host_of(run, {"partition-id": 0, "num-partitions": 1})
        return state_bytes(host, host.shared_specs)

    # Versions share what has not changed: another round takes another round's rows, and a checkpoint a vector more.
    different = sizes + (m - sizes) * (1 - np.exp(-8 * sizes / (m - sizes)))
    both = 5 * 4 * np.minimum(2 * rows, 1.5 * different).sum() + 2 * len(sizes) * 24 + 2 * vectors
    assert after(2, checkpoint_every=0) == pytest.approx(both)
    assert after(3, checkpoint_every=1) - after(3, checkpoint_every=0) == pytest.approx(vectors)
    # However often a user trains, a version has no more than half of its rows again: 1.5 of 60.
    assert after(1000, checkpoint_every=0) == pytest.approx(
        1.5 * 5 * 4 * m * len(sizes) + 1000 * len(sizes) * 24 + 2 * vectors
    )
