"""Versions that share what has not changed: they read back as if each were whole, and take what they differ in."""

import copy
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec
from bouquet.errors import StateError
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from bouquet.sealing import OVERHEAD, Seal
from client_app.state import kept_rows
from client_app.state.pieces import Pieces
from client_app.state.private import PrivateState
from client_app.state.space import Space
from tests.conftest import REPOSITORY

KEY = Seal(bytes(range(32)))
SEALS = pytest.mark.parametrize("seal", [None, KEY], ids=["plain", "sealed"])
ITEMS, WIDTH, COUNT = 9, 2, 4
ROW = 4 + 4 * WIDTH


def opened(folder, seal=None, users=COUNT, items=ITEMS):
    def initial(name, positions):
        table = np.arange(items * WIDTH, dtype=np.float32).reshape(items, WIDTH)
        return table[None] + 1000 * positions[:, None, None].astype(np.float32)

    specs = {"table": ArraySpec((items, WIDTH), by_item=True)}
    keys = user_keys([str(user) for user in range(users)])
    return PrivateState(folder, "s", keys, specs, initial, seal=seal, by_rows=["table"])


def rows_of(rows):
    return Ragged.from_lengths([len(row) for row in rows], np.concatenate(rows).astype(np.int32))


def train(state, positions, round_, versions, kept, rows, stamp):
    """What a round writes: `stamp` is added to the rows; gives the tables."""
    touched = rows_of(rows)
    values = state.read(positions, versions, only=touched)
    values["table"][touched.row_of_value, touched.values] += np.float32(stamp)
    state.write(positions, round_, versions, kept, values, touched=touched)


def lie_apart(state):
    """Pieces must not lie over one another."""
    pieces, file = state._index.pieces["table"], state._kept["table"].file
    order = np.argsort(pieces.offsets)
    ends = (pieces.offsets + file.sizes(pieces.lengths))[order]
    return (pieces.offsets[order][1:] >= ends[:-1]).all()


# -- what is read ------------------------------------------------------------------------------------------------------


@SEALS
@settings(max_examples=60)
@given(data=st.data(), longest=st.integers(1, 4))
def test_any_sequence_reads_back_as_a_dictionary(tmp_path_factory, seal, data, longest):
    """Some users train, replies are lost, checkpoints are made and gone back to, and the process is killed at times."""
    folder = tmp_path_factory.mktemp("state")
    accepted, kept = np.zeros(COUNT, np.int64), np.zeros(COUNT, np.int64)
    first = opened(folder, seal).read(np.arange(COUNT), accepted)["table"]
    tables = {(user, 0): first[user] for user in range(COUNT)}
    at_checkpoint, round_, stamp = 0, 0, 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(kept_rows, "LONGEST", longest)
        patched.setattr(kept_rows, "SPREAD", 2)
        for _ in range(data.draw(st.integers(1, 12))):
            round_, stamp = round_ + 1, stamp + 1
            who = np.array(sorted(data.draw(st.sets(st.integers(0, COUNT - 1), min_size=1))))
            rows = [sorted(data.draw(st.sets(st.integers(0, ITEMS - 1), max_size=4))) for _ in who]
            state = opened(folder, seal)
            for block in np.array_split(np.arange(len(who)), data.draw(st.integers(1, 2))):
                if len(block):
                    own = [rows[place] for place in block]
                    train(state, who[block], round_, accepted[who[block]], kept[who[block]], own, stamp)
            event = data.draw(st.sampled_from(["done", "done", "checkpoint", "lost", "killed", "back"]))
            if event != "killed":
                state.commit()
                assert lie_apart(state)
                for user, touched in zip(who.tolist(), rows, strict=True):
                    tables[user, round_] = tables[user, accepted[user]].copy()
                    tables[user, round_][touched] += np.float32(stamp)
            if event not in ("killed", "lost"):
                accepted[who] = round_
            if event == "checkpoint":
                kept, at_checkpoint = accepted.copy(), round_
            if event == "back":
                accepted, round_ = kept.copy(), at_checkpoint
            for versions in (accepted, kept):
                found = opened(folder, seal).read(np.arange(COUNT), versions)["table"]
                for user in range(COUNT):
                    np.testing.assert_array_equal(found[user], tables[user, versions[user]])


@SEALS
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_damage_is_an_error_that_names_the_file(tmp_path, seal, damage):
    state = opened(tmp_path, seal)
    everyone, none = np.arange(COUNT), np.zeros(COUNT, int)
    train(state, everyone, 1, none, none, [[1, 2]] * COUNT, 1)
    state.commit()
    file = next(tmp_path.glob("table.pieces*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2 + 3] ^= 1
    file.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    if damage == "remove":
        file.unlink()
    with pytest.raises(StateError, match=file.name):
        opened(tmp_path, seal).read(everyone, none + 1)


def test_a_process_that_is_killed_leaves_what_it_had_committed(tmp_path):
    """Killed while it is at work, at whatever it does then; round r adds r to rows r, r + 1 and r + 2 of everybody."""
    script = """
import sys
from pathlib import Path
import numpy as np
from tests.client_app.test_pieces import opened, train

users = np.arange(40)
for round_ in range(1, 10_000):
    state = opened(Path(sys.argv[1]), None, 40, 50)
    rows = [[(round_ + place) % 50 for place in range(3)]] * 40
    train(state, users, round_, users * 0 + round_ - 1, users * 0, [sorted(own) for own in rows], round_)
    state.commit()
    print(round_, flush=True)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as process:
        for _ in range(90):
            said = int(process.stdout.readline())
        process.kill()
        said = int((process.stdout.read().split() or [said])[-1])
    users = np.arange(40)
    state = opened(tmp_path, None, 40, 50)
    newest = int(state.newest()[0])
    assert (state.newest() == newest).all()
    assert newest in (said, said + 1)
    expected = state.read(users, users * 0)["table"]
    for round_ in range(1, newest + 1):
        before = expected.copy()
        expected[:, [(round_ + place) % 50 for place in range(3)]] += np.float32(round_)
    np.testing.assert_array_equal(state.read(users, users * 0 + newest)["table"], expected)
    np.testing.assert_array_equal(state.read(users, users * 0 + newest - 1)["table"], before)


# -- what it takes -----------------------------------------------------------------------------------------------------


@SEALS
@pytest.mark.parametrize("every", [0, 1, 3])
def test_a_round_takes_the_rows_that_it_touched(tmp_path, seal, every):
    """Ten rounds of 4 rows, 3 of them new ones each time: 31 rows at the end. A checkpoint takes nothing."""
    users, items = 5, 100
    everyone, kept = np.arange(users), np.zeros(users, int)
    for round_ in range(1, 11):
        state, before = opened(tmp_path, seal, users, items), np.full(users, round_ - 1)
        rows = [[0, *range(3 * round_, 3 * round_ + 3)]] * users
        train(state, everyone, round_, before, kept, rows, 1)
        state.commit()
        kept = before + 1 if every and round_ % every == 0 else kept
        size = next(tmp_path.glob("table.pieces*")).stat().st_size
        assert size == round_ * users * (4 * ROW + (OVERHEAD if seal else 0))
    table = opened(tmp_path, seal, users, items).read(everyone, before + 1)["table"]
    first = opened(tmp_path, seal, users, items).read(everyone, np.zeros(users, int))["table"]
    assert ((table - first)[:, 0] == 10).all()
    assert ((table - first)[:, 3:33] == 1).all()
    assert ((table - first)[:, 33:] == 0).all()


@pytest.mark.parametrize(("every", "most"), [(0, 2.7), (10, 3.7)])
def test_however_long_a_run_is_the_file_stays_small(tmp_path, every, most):
    """200 rounds touch 10 of 50 rows of each of 40 users.

    A chain has up to 1.5 rows for each that is different; for the round in which it is written anew, both are there; a
    checkpoint may hold another one. What was freed is used again, as far as it fits, which a tenth does not.
    """
    users, items, source = 40, 50, np.random.default_rng(0)
    everyone, kept, table = np.arange(users), np.zeros(users, int), users * items * ROW
    state = opened(tmp_path, None, users, items)
    expected = state.read(everyone, kept)["table"]
    largest = 0
    for round_ in range(1, 201):
        rows = [np.sort(source.choice(items, 10, replace=False)) for _ in range(users)]
        train(state, everyone, round_, np.full(users, round_ - 1), kept, rows, round_)
        state.commit()
        for user, touched in enumerate(rows):
            expected[user, touched] += np.float32(round_)
        kept = np.full(users, round_) if every and round_ % every == 0 else kept
        largest = max(largest, (tmp_path / "table.pieces").stat().st_size)
    np.testing.assert_array_equal(
        opened(tmp_path, None, users, items).read(everyone, everyone * 0 + 200)["table"], expected
    )
    assert lie_apart(state)
    assert largest < most * table
    assert len(state._index.pieces["table"].before) < users * 40, "nor does the index grow for ever"


def test_who_touched_nothing_takes_nothing(tmp_path):
    state = opened(tmp_path)
    everyone, none = np.arange(COUNT), np.zeros(COUNT, int)
    train(state, everyone, 1, none, none, [[]] * COUNT, 1)
    state.commit()
    assert (tmp_path / "table.pieces").stat().st_size == 0
    np.testing.assert_array_equal(
        opened(tmp_path).read(everyone, none + 1)["table"], opened(tmp_path).read(everyone, none)["table"]
    )


def test_chains_by_hand():
    """Two users: 0's versions are pieces 0, 0-2 and 0-2-3; 1's is piece 1. Without the first user's middle version."""
    pieces = Pieces.empty(3, 2)
    numbers = [np.array(values) for values in ([-1, -1], [5, 6], [5, 6], [0, 50], [7, 8])]
    assert pieces.add(*numbers).tolist() == [0, 1]
    for before, length in ((0, 2), (2, 1)):
        pieces.add(*(np.array([value]) for value in (before, length, 5, 100 + length, 9)))
    pieces.heads[:, 0], pieces.heads[0, 1] = [0, 2, 3], 1
    chains = pieces.chains(np.array([3, 1, -1]))
    assert [chains.row(user).tolist() for user in range(3)] == [[0, 2, 3], [1], []]
    assert pieces.owners().tolist() == [0, 1, 0, 0]
    shorter = copy.deepcopy(pieces)
    shorter.keep_only(np.array([[True, True], [True, False], [False, False]]))
    assert shorter.heads.tolist() == [[0, 1], [2, -1], [-1, -1]]
    assert (shorter.lengths.tolist(), shorter.before.tolist()) == ([5, 6, 2], [-1, -1, 0])
    pieces.keep_only(np.array([[False, False], [False, False], [True, False]]))
    assert pieces.heads.tolist() == [[-1, -1], [-1, -1], [2, -1]]
    assert (pieces.lengths.tolist(), pieces.before.tolist()) == ([5, 2, 1], [-1, 0, 1])


def test_space_by_hand():
    """Taken are 10 to 20 and 25 to 30: there are gaps of 10 and of 5, and the end is 30."""
    space = Space(np.array([25, 10]), np.array([5, 10]))
    assert space.take(np.array([6, 5, 4, 4, 1])).tolist() == [0, 20, 6, 30, 34]
    assert space.end == 35


@given(
    taken=st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=20),
    wanted=st.lists(st.integers(1, 9), max_size=20),
)
def test_what_is_taken_never_lies_over_anything(taken, wanted):
    sizes = np.array([size for size, _ in taken], np.int64)
    offsets = np.cumsum(sizes) - sizes
    stays = np.array([there for _, there in taken], bool)
    space = Space(offsets[stays], sizes[stays])
    found = space.take(np.array(wanted, np.int64))
    begins = np.concatenate([offsets[stays], found])
    ends = begins + np.concatenate([sizes[stays], wanted])
    order = np.argsort(begins)
    assert (begins[order][1:] >= ends[order][:-1]).all()
    assert ends.max(initial=0) <= max(space.end, 0)
