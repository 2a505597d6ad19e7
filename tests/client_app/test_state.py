"""Private state: what was committed comes back, what is damaged or lost is said, and nothing is overwritten early."""

import subprocess
import sys
import zlib
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from bouquet.arrays import ArraySpec
from bouquet.errors import ConfigError, StateError
from bouquet.randomness import user_keys
from bouquet.row_files import checksum
from bouquet.sealing import OVERHEAD, Seal, read_seal
from client_app.state.private import PrivateState
from tests.conftest import REPOSITORY

USERS = user_keys(["ann", "bob", "cid"])
SPECS = {"user_embedding": ArraySpec((4,)), "item_embedding": ArraySpec((5, 4), by_item=True)}
ALL = np.arange(3)


def initial(name, positions):
    return np.full((len(positions), *SPECS[name].shape), -1.0, dtype=np.float32)


def opened(folder, series="s", users=USERS):
    return PrivateState(folder, series, users, SPECS, initial)


def version(round_, positions=ALL):
    """Values that tell their round and user."""
    return {
        name: np.stack([np.full(spec.shape, 10 * round_ + p, dtype=np.float32) for p in positions])
        for name, spec in SPECS.items()
    }


def of(*versions):
    """One version for each of three users, or the same for all."""
    return np.array(versions if len(versions) > 1 else versions * 3)


def commit(folder, round_, versions, kept=None, positions=ALL):
    state = opened(folder)
    state.write(positions, round_, versions, kept if kept is not None else 0 * versions, version(round_, positions))
    state.commit()


def read(folder, *versions, positions=ALL):
    return opened(folder).read(positions, of(*versions)[: len(positions)])


def assert_read(folder, *versions):
    """Each user has the version that was asked for."""
    for name, values in read(folder, *versions).items():
        for user, round_ in enumerate(of(*versions)):
            expected = version(round_)[name][user] if round_ else initial(name, [user])[0]
            np.testing.assert_array_equal(values[user], expected)


def test_users_without_a_version_start_from_their_initial_values(tmp_path):
    assert_read(tmp_path, 0)
    commit(tmp_path, 1, of(0)[:1], positions=np.array([2]))
    assert_read(tmp_path, 0, 0, 1)


def test_a_version_that_the_server_goes_on_from_is_read_whatever_came_after(tmp_path):
    """Round 4's reply was lost for bob, and 5's too: the server still has round 3 of him."""
    for round_ in (1, 2, 3):
        commit(tmp_path, round_, of(round_ - 1))
    commit(tmp_path, 4, of(3))
    assert_read(tmp_path, 4, 3, 4)
    commit(tmp_path, 5, of(4, 3, 4))
    assert_read(tmp_path, 5, 3, 5)
    commit(tmp_path, 6, of(5, 3, 5))
    assert_read(tmp_path, 6, 6, 6)
    with pytest.raises(StateError, match=f"{int(USERS[1]):016x} is missing .* goes on from round 5"):
        read(tmp_path, 6, 5, 6)


@settings(max_examples=40)
@given(
    lost=st.lists(st.tuples(*[st.booleans()] * 3), min_size=1, max_size=12),
    every=st.integers(1, 5),
)
def test_whatever_is_lost_the_server_can_go_on_and_go_back(tmp_path_factory, lost, every):
    """After every round: what the server has and what its last checkpoint has are there, to the last value."""
    folder = tmp_path_factory.mktemp("state")
    accepted, kept = of(0), of(0)
    for round_, missing in enumerate(lost, start=1):
        commit(folder, round_, accepted, kept)
        accepted = np.where(missing, accepted, round_)
        assert_read(folder, *accepted)
        assert_read(folder, *kept)
        kept = accepted if round_ % every == 0 else kept


def test_a_user_that_trains_rarely_keeps_its_version(tmp_path):
    commit(tmp_path, 1, of(0))
    for round_ in range(2, 9):
        first = np.array([round_ - 1])
        commit(tmp_path, round_, first, first, positions=np.array([0]))
    assert_read(tmp_path, 8, 1, 1)


def test_rounds_after_a_resume_replace_what_the_stopped_run_left(tmp_path):
    for round_ in (1, 2, 3, 4):
        commit(tmp_path, round_, of(round_ - 1), of(2 if round_ > 2 else 0))
    assert_read(tmp_path, 2)
    commit(tmp_path, 3, of(2), of(2))
    assert_read(tmp_path, 3)
    with pytest.raises(StateError, match="goes on from round 4"):
        read(tmp_path, 4)


def test_what_was_not_committed_does_not_count(tmp_path):
    commit(tmp_path, 1, of(0))
    opened(tmp_path).write(ALL, 2, of(1), of(0), version(2))  # the process dies here
    assert_read(tmp_path, 1)


def test_lost_state_is_noticed(tmp_path):
    with pytest.raises(StateError, match=f"{int(USERS[0]):016x} is missing in {tmp_path}"):
        read(tmp_path, 5)


@pytest.mark.parametrize("name", ["user_embedding.npy", "item_embedding.npy", "index.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_damage_is_an_error_that_names_the_file(tmp_path, name, damage):
    commit(tmp_path, 1, of(0))
    file = tmp_path / name
    content = bytearray(file.read_bytes())
    if damage == "flip":  # a byte of the first user in each of the three slots; in the index, a byte of its JSON
        slot = (len(content) - 128) // 3
        for place in [128 + 3 + slot * i for i in range(3)] if name.endswith(".npy") else [9]:
            content[place] ^= 0xFF
    else:
        del content[len(content) // 2 :]
    file.write_bytes(content)
    with pytest.raises(StateError, match=name):
        read(tmp_path, 1)


def test_no_byte_of_a_header_stops_a_node_in_other_words(tmp_path):
    """numpy reads it with Python's own parser, which raises what it likes; a change that means the same is none."""
    commit(tmp_path, 1, of(0))
    expected, file = read(tmp_path, 1), tmp_path / "user_embedding.npy"
    content = file.read_bytes()
    refused = 0
    for place in range(128):
        for flip in (1, 0x80):
            file.write_bytes(content[:place] + bytes([content[place] ^ flip]) + content[place + 1 :])
            try:
                found, said = read(tmp_path, 1), ""
            except StateError as error:
                found, said = expected, str(error)
            refused += file.name in said
            assert said == "" or file.name in said
            np.testing.assert_equal(found, expected)
    assert refused > 200


@settings(max_examples=60)
@given(
    size=st.integers(1, 60_000), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 31), seed=st.integers(0, 9)
)
def test_every_flipped_bit_and_every_lost_page_changes_the_checksum(size, place, bit, seed):
    """Rows below and above the size from which sums are taken, with and without a rest."""
    row = np.random.default_rng(seed).normal(size=(1, size)).astype(np.float32)
    before = checksum(row)
    damaged = row.copy()
    damaged.view(np.uint32)[0, int(place * size)] ^= np.uint32(1 << bit)
    assert checksum(damaged) != before
    page = 1024 * (int(place * size) // 1024)  # 4 KiB of float32
    lost = row.copy()
    lost[0, page : page + 1024] = 0
    assert checksum(lost) != before
    if size > page + 2048:
        swapped = row.copy()
        swapped[0, page : page + 2048] = np.roll(row[0, page : page + 2048], 1024)
        assert checksum(swapped) != before


def test_the_checksum_of_a_short_row_is_the_one_of_its_bytes():
    row = np.arange(8000, dtype=np.float32)[None]
    assert checksum(row) == zlib.crc32(row.tobytes())


def test_the_checksum_does_not_depend_on_where_a_row_lies():
    """A row of own rows may begin in the middle of a 64-bit word."""
    values = np.random.default_rng(0).normal(size=30_001).astype(np.float32)
    assert checksum((values[1:],)) == checksum((values[1:].copy(),)) != checksum((values[:-1],))


def test_state_of_another_series_or_of_other_users_is_refused(tmp_path):
    commit(tmp_path, 1, of(0))
    with pytest.raises(StateError, match="has series 's' where 'other' is expected"):
        opened(tmp_path, series="other")
    with pytest.raises(StateError, match="belongs to other users"):
        opened(tmp_path, users=user_keys(["ann", "bob", "dan"]))
    with pytest.raises(StateError, match="belongs to other users"):
        opened(tmp_path, users=USERS[:2])


def test_users_stand_in_the_files_in_the_order_of_their_keys(tmp_path):
    """The server asks for them in this order, so that a block of them is one piece of a file."""
    commit(tmp_path, 1, of(0))
    order = np.argsort(USERS)
    assert order.tolist() != [0, 1, 2]
    np.testing.assert_array_equal(load_file(tmp_path / "index.safetensors")["users"], USERS[order])
    for name, values in version(1).items():
        np.testing.assert_array_equal(np.load(tmp_path / f"{name}.npy")[0], values[order])


@pytest.mark.parametrize("hosted", list(permutations(range(3))), ids=str)
def test_users_may_be_hosted_in_another_order_than_before(tmp_path, hosted):
    """Their positions are others then, and their state is their own."""
    commit(tmp_path, 1, of(0))
    state, hosted = opened(tmp_path, users=USERS[list(hosted)]), np.array(hosted)
    for name, values in state.read(ALL, of(1)).items():
        np.testing.assert_array_equal(values, version(1, hosted)[name])
    state.write(np.array([0]), 2, of(1)[:1], of(1)[:1], version(2, hosted[:1]))
    state.commit()
    assert state.newest().tolist() == [2, 1, 1]
    assert_read(tmp_path, *(2 if user == hosted[0] else 1 for user in ALL))


def in_the_order_of_hosting(folder):
    """Make of a folder what one was before users stood in it in the order of their keys."""
    state = opened(folder)
    index, at = state._index, state._index.places(USERS)
    for name in state._shapes:
        rows = np.load(folder / f"{name}.npy")
        np.save(folder / f"{name}.npy", rows[:, at])
    index.users, index.rounds, index.checksums = USERS.copy(), index.rounds[:, at], index.checksums[:, :, at]
    state._written = True
    state.commit()


def test_a_folder_in_another_order_goes_on_as_it_was_begun(tmp_path):
    commit(tmp_path, 1, of(0))
    in_the_order_of_hosting(tmp_path)
    assert_read(tmp_path, 1)
    commit(tmp_path, 2, of(1)[:2], positions=np.array([0, 2]))
    assert_read(tmp_path, 2, 1, 2)
    np.testing.assert_array_equal(load_file(tmp_path / "index.safetensors")["users"], USERS)


# -- encrypted state -------------------------------------------------------------------------------------------------

KEY, OTHER_KEY = Seal(bytes(range(32))), Seal(bytes(32))


def sealed(folder, seal=KEY):
    return PrivateState(folder, "s", USERS, SPECS, initial, seal=seal)


def commit_sealed(folder, round_, seal=KEY):
    state = sealed(folder, seal)
    state.write(ALL, round_, of(round_ - 1), of(0), version(round_))
    state.commit()


def test_encrypted_state_comes_back_and_the_disk_does_not_tell_it(tmp_path):
    commit_sealed(tmp_path, 1)
    values = sealed(tmp_path).read(ALL, of(1))
    for name, expected in version(1).items():
        np.testing.assert_array_equal(values[name], expected)
    assert {path.name for path in tmp_path.iterdir()} == {
        "index.sealed",
        "user_embedding.sealed",
        "item_embedding.sealed",
    }
    secrets = [row.tobytes() for row in version(1)["user_embedding"]] + [USERS.tobytes()]
    for path in tmp_path.iterdir():
        assert not any(secret in path.read_bytes() for secret in secrets)


@pytest.mark.parametrize("name", ["user_embedding.sealed", "item_embedding.sealed", "index.sealed"])
def test_encrypted_state_that_was_changed_is_an_error_that_names_the_file(tmp_path, name):
    commit_sealed(tmp_path, 1)
    file = tmp_path / name
    content = bytearray(file.read_bytes())
    for place in range(20, len(content), 24):
        content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(StateError, match=name):
        sealed(tmp_path).read(ALL, of(1))
    assert file.read_bytes() == content, "nothing may be overwritten"


def test_rows_of_two_users_cannot_be_exchanged(tmp_path):
    commit_sealed(tmp_path, 1)
    file = tmp_path / "user_embedding.sealed"
    content, record = bytearray(file.read_bytes()), 4 * 4 + 28
    for slot in range(3):
        first = 3 * slot * record
        ann, bob = content[first : first + record], content[first + record : first + 2 * record]
        content[first : first + 2 * record] = bob + ann
    file.write_bytes(content)
    with pytest.raises(StateError, match="cannot be decrypted"):
        sealed(tmp_path).read(ALL, of(1))


def test_another_key_or_none_is_refused(tmp_path):
    commit_sealed(tmp_path, 1)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StateError, match="index.sealed cannot be decrypted: it is damaged, or the key is another one"):
        sealed(tmp_path, OTHER_KEY)
    with pytest.raises(StateError, match="index.sealed is encrypted; give this node its key"):
        opened(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_plain_state_is_taken_over_when_a_key_comes(tmp_path):
    commit(tmp_path, 1, of(0))
    commit(tmp_path, 2, np.array([1]), positions=np.array([1]))
    values = sealed(tmp_path).read(ALL, of(1, 2, 1))["user_embedding"]
    assert values[:, 0].tolist() == [10, 21, 12]
    assert not list(tmp_path.glob("*.npy"))
    assert sealed(tmp_path).read(ALL, of(1))["user_embedding"][1, 0] == 11


@pytest.mark.parametrize("text", ["", "00", "zz" * 32])
def test_a_bad_key_file_is_named(tmp_path, text):
    (tmp_path / "state.key").write_text(text)
    with pytest.raises(ConfigError, match="state.key is no key file"):
        read_seal(tmp_path / "state.key")


def allocated(path):
    """Bytes that a file takes on the disk, holes left out."""
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("seal", [None, KEY], ids=["plain", "sealed"])
def test_a_disk_that_takes_half_a_row_is_an_error(tmp_path, seal):
    """A write up to the middle of the last of round 2's rows, in the second slot, is short and no error by itself."""
    state = PrivateState(tmp_path, "s", USERS, SPECS, initial, seal=seal)
    state.write(ALL, 1, of(0), of(0), version(1))
    state.commit()
    header, row = (0, 80 + OVERHEAD) if seal else (128, 80)
    script = """
import resource, sys
from tests.client_app.test_state import ALL, KEY, SPECS, USERS, initial, of, version
from client_app.state.private import PrivateState
from pathlib import Path

state = PrivateState(Path(sys.argv[1]), "s", USERS, SPECS, initial, seal=KEY if sys.argv[3] else None)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    state.write(ALL, 2, of(1), of(0), version(2))
except OSError:
    print("refused")
"""
    arguments = [str(tmp_path), str(header + 5 * row + row // 2), "sealed" if seal else ""]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout == "refused\n"
    values = PrivateState(tmp_path, "s", USERS, SPECS, initial, seal=seal).read(ALL, of(1))
    np.testing.assert_array_equal(values["item_embedding"], version(1)["item_embedding"])


def test_ten_users_of_a_large_node_are_read_alone(tmp_path):
    """A table of MovieLens-1M's size for each of 6,040 users, d = 32: ten users take their own rows, nobody else's.

    Measured in a process of its own: its memory at the peak and the size of the file on the disk.
    """
    row = 4 * 3706 * 32
    script = """
import resource, sys
from pathlib import Path
import numpy as np
from bouquet.arrays import ArraySpec
from bouquet.randomness import user_keys
from client_app.state.private import PrivateState

specs = {"personal_item_embedding": ArraySpec((3706, 32), by_item=True)}
users = user_keys([str(user) for user in range(6040)])
ten = np.arange(10) * 600
def opened():
    zeros = lambda name, at: np.zeros((len(at), 3706, 32), np.float32)
    return PrivateState(Path(sys.argv[1]), "s", users, specs, zeros)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for round_ in (1, 2, 3):
    values = {"personal_item_embedding": np.full((10, 3706, 32), round_, np.float32)}
    state = opened()
    state.write(ten, round_, np.full(10, round_ - 1), np.zeros(10, int), values)
    state.commit()
found = opened().read(ten, np.full(10, 3))["personal_item_embedding"]
assert (found == 3).all()
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert int(done.stdout) < 12 * 10 * row, "memory for some copies of ten users, of which there are 6,040"
    file = tmp_path / "personal_item_embedding.npy"
    assert file.stat().st_size > 3 * 6040 * row, "room for three versions of everybody"
    assert allocated(file) < 1.1 * 2 * 10 * row, "only what was written takes space"


def test_without_checkpoints_two_versions_take_space(tmp_path):
    """The third version is for going back to a checkpoint; a file of n users then stays below 2 n rows."""
    spec = {"table": ArraySpec((1000, 32), by_item=True)}
    users = user_keys([str(user) for user in range(20)])
    everyone, row = np.arange(20), 4 * 1000 * 32
    state = PrivateState(tmp_path, "s", users, spec, lambda name, at: np.zeros((len(at), 1000, 32), np.float32))
    for round_ in range(1, 6):
        values = {"table": np.full((20, 1000, 32), round_, np.float32)}
        state.write(everyone, round_, np.full(20, round_ - 1), np.zeros(20, int), values)
        state.commit()
    assert allocated(tmp_path / "table.npy") < 1.05 * 2 * 20 * row
    assert (state.read(everyone, np.full(20, 5))["table"] == 5).all()
