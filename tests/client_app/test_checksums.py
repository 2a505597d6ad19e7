"""Checksums of private state: what is damaged, lost or exchanged is seen, with compiled loops and without."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.checked import checked_tensors
from bouquet.errors import StateError
from bouquet.row_batches import RowBatch
from bouquet.row_files import checksum
from client_app.state import checksums
from client_app.state.checksums import BLOCK, FACTOR, keys, mixed_words
from tests.client_app.test_state import ALL, USERS, assert_read, commit, of, opened, read


def batch(seed, lengths, width=3):
    """Users with so many entries in two parts, of which the second is `width` wide."""
    random, indptr = np.random.default_rng(seed), np.concatenate([[0], np.cumsum(lengths)])
    arrays = [random.normal(size=(indptr[-1], *shape)).astype(np.float32) for shape in ((), (width,))]
    return RowBatch.of(arrays, indptr)


def test_two_blocks_by_hand():
    """One row of BLOCK + 1 words: h_0 of all keys, h_1 = a_0 x with one word x, in Python's whole numbers."""
    values = np.random.default_rng(0).normal(size=(1, BLOCK + 1)).astype(np.float32)
    words, a = values.view(np.uint32)[0].tolist(), keys().tolist()
    state = 0
    for total in (sum(k * x for k, x in zip(a, words[:BLOCK], strict=True)), a[0] * words[BLOCK]):
        state = (state ^ total % 2**64) * FACTOR % 2**64
        state ^= state >> 29
    assert mixed_words(RowBatch.whole(values), np.array([0])).tolist() == [state >> 32]


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 1500), min_size=1, max_size=5), seed=st.integers(0, 9))
def test_compiled_and_not_they_are_the_same_in_any_order(lengths, seed):
    rows = batch(seed, lengths)
    everyone = np.arange(len(lengths))
    found = mixed_words(rows, everyone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "row_kernels", lambda: None)
        np.testing.assert_array_equal(mixed_words(rows, everyone), found)
    np.testing.assert_array_equal(mixed_words(rows, everyone[::-1]), found[::-1])
    alone = [RowBatch(tuple((part, np.array([0, part.size])) for part in row)) for row in rows.rows()]
    assert [int(mixed_words(one, np.array([0]))[0]) for one in alone] == found.tolist()


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(1, 60_000), place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 31), seed=st.integers(0, 9)
)
def test_every_flipped_bit_and_every_lost_or_exchanged_page_is_seen(size, place, bit, seed):
    row = np.random.default_rng(seed).normal(size=(1, size)).astype(np.float32)

    def of_row(values):
        return int(mixed_words(RowBatch.whole(values), np.array([0]))[0])

    before, damaged = of_row(row), row.copy()
    damaged.view(np.uint32)[0, int(place * size)] ^= np.uint32(1 << bit)
    assert of_row(damaged) != before
    damaged.view(np.uint32)[0, size // 2] ^= np.uint32(1 << 31)  # a second one, at the top
    assert of_row(damaged) != before or (int(place * size) == size // 2 and bit == 31)
    page = 1024 * (int(place * size) // 1024)  # 4 KiB of float32
    lost = row.copy()
    lost[0, page : page + 1024] = 0
    assert of_row(lost) != before
    if size > page + 2048:
        exchanged = row.copy()
        exchanged[0, page : page + 2048] = np.roll(row[0, page : page + 2048], 1024)
        assert of_row(exchanged) != before


# -- formats -----------------------------------------------------------------------------------------------------------


def index_as_format(folder, form):
    """Write the index as that of another format, with its checksums where that is 2."""
    state = opened(folder)
    index = state._index
    index.form = form
    if form == "2":
        for number, name in enumerate(state._shapes):
            for slot, user in np.argwhere(index.rounds > 0).tolist():
                row = np.load(folder / f"{name}.npy")[slot, user]
                index.checksums[number, slot, user] = checksum((row,))
    state._written = True
    state.commit()


def format_of(folder):
    content = (folder / "index.safetensors").read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]["format"]


def test_a_folder_of_the_format_before_is_read_and_goes_on_as_it_was_begun(tmp_path):
    commit(tmp_path, 1, of(0))
    assert format_of(tmp_path) == "3"
    index_as_format(tmp_path, "2")
    assert_read(tmp_path, 1)
    commit(tmp_path, 2, of(1)[:1], positions=np.array([1]))
    assert format_of(tmp_path) == "2"
    assert_read(tmp_path, 1, 2, 1)


def test_a_format_that_is_not_known_is_refused(tmp_path):
    commit(tmp_path, 1, of(0))
    index_as_format(tmp_path, "4")
    with pytest.raises(StateError, match="index.safetensors has format '4' where '3' is expected"):
        opened(tmp_path)
    parts = checked_tensors({"users": USERS}, {"series": "s"})
    (tmp_path / "index.safetensors").write_bytes(b"".join(parts))
    with pytest.raises(StateError, match="has format 'None' where '3' is expected"):
        opened(tmp_path)


@pytest.mark.parametrize("form", ["2", "3"])
@pytest.mark.parametrize("user", [0, 1, 2])
def test_the_user_whose_row_is_damaged_is_named(tmp_path, form, user):
    commit(tmp_path, 1, of(0))
    index_as_format(tmp_path, form)
    file = tmp_path / "item_embedding.npy"
    content = bytearray(file.read_bytes())
    place = int((USERS[user] > USERS).sum())  # users stand in the order of their keys
    content[128 + 80 * place + 7] ^= 1  # of the first version, five rows of four values
    file.write_bytes(content)
    with pytest.raises(StateError, match=f"item_embedding.npy is damaged: .* of user {int(USERS[user]):016x}"):
        read(tmp_path, 1)
    others = np.delete(ALL, user)
    assert (opened(tmp_path).read(others, of(1)[:2])["item_embedding"][:, 0, 0] == 10 + others).all()
