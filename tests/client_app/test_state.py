"""Private state: what was committed comes back, what is damaged or lost is said, and nothing is overwritten early."""

import numpy as np
import pytest

from bouquet.arrays import ArraySpec
from bouquet.errors import StateError
from bouquet.randomness import user_keys
from client_app.state import PrivateState

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


def commit(folder, round_, checkpoint_round=0, positions=ALL):
    state = opened(folder)
    state.write(positions, round_, checkpoint_round, version(round_, positions))
    state.commit()


def read(folder, before, trained=True, positions=ALL):
    return opened(folder).read(positions, before, np.full(len(positions), trained))


def test_users_without_a_version_start_from_their_initial_values(tmp_path):
    assert (read(tmp_path, 1, trained=False)["user_embedding"] == -1).all()
    commit(tmp_path, 1, positions=np.array([2]))
    values = read(tmp_path, 2, trained=False)["user_embedding"]
    assert (values[:2] == -1).all()
    assert (values[2] == 12).all()


def test_the_newest_version_before_a_round_is_read(tmp_path):
    for round_ in (1, 2, 3):
        commit(tmp_path, round_)
        for name, values in read(tmp_path, round_ + 1).items():
            np.testing.assert_array_equal(values, version(round_)[name])


def test_the_version_of_the_last_checkpoint_stays_until_the_next(tmp_path):
    """Rounds 1 to 9 with checkpoints after 3 and 6: going back to the last checkpoint is possible at any time."""
    checkpoint = 0
    for round_ in range(1, 10):
        commit(tmp_path, round_, checkpoint)
        expected = version(checkpoint) if checkpoint else {name: initial(name, ALL) for name in SPECS}
        for name, values in read(tmp_path, checkpoint + 1, trained=False).items():
            np.testing.assert_array_equal(values, expected[name])
        checkpoint = round_ if round_ % 3 == 0 else checkpoint


def test_a_user_that_trains_rarely_keeps_its_version(tmp_path):
    commit(tmp_path, 1)
    for round_ in range(2, 9):
        commit(tmp_path, round_, checkpoint_round=round_ - 1, positions=np.array([0]))
    values = read(tmp_path, 9)["user_embedding"]
    assert (values[1] == 11).all()
    assert (values[0] == 80).all()


def test_rounds_after_a_resume_replace_what_the_stopped_run_left(tmp_path):
    for round_ in (1, 2, 3, 4):
        commit(tmp_path, round_, checkpoint_round=2 if round_ > 2 else 0)
    assert (read(tmp_path, 3)["user_embedding"][0] == 20).all(), "the state of the checkpoint"
    commit(tmp_path, 3, checkpoint_round=2)
    assert (read(tmp_path, 9)["user_embedding"][0] == 30).all(), "round 4 of the stopped run must not come back"


def test_what_was_not_committed_does_not_count(tmp_path):
    commit(tmp_path, 1)
    opened(tmp_path).write(ALL, 2, 0, version(2))  # the process dies here
    np.testing.assert_array_equal(read(tmp_path, 3)["user_embedding"], version(1)["user_embedding"])


def test_lost_state_is_noticed(tmp_path):
    with pytest.raises(StateError, match=f"{int(USERS[0]):016x} is missing in {tmp_path}"):
        read(tmp_path, 5)


@pytest.mark.parametrize("name", ["user_embedding.npy", "item_embedding.npy", "index.safetensors"])
@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_damage_is_an_error_that_names_the_file(tmp_path, name, damage):
    commit(tmp_path, 1)
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
        read(tmp_path, 2)


def test_state_of_another_series_or_of_other_users_is_refused(tmp_path):
    commit(tmp_path, 1)
    with pytest.raises(StateError, match="has series 's' where 'other' is expected"):
        opened(tmp_path, series="other")
    with pytest.raises(StateError, match="belongs to other users"):
        opened(tmp_path, users=USERS[::-1].copy())
