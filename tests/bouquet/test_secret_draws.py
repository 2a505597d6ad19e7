"""Draws that only the node can compute: what a server that sees noise can do about them, and what it cannot."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest, norm

from bouquet.config import PrivacyOptions
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, SeededDraws, draw, mix, normals, user_keys
from bouquet.sealing import Seal
from bouquet.secret_draws import SecretDraws
from client_app.node.protection import protect
from client_app.personalization.round import Changes
from data_partition.negatives import decoy_items, training_negatives

USER = user_keys(["ann"])
KEY = bytes(range(32))
GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1
SIGMA = 0.5


# -- the attack --------------------------------------------------------------------------------------------------------


def unmix(word):
    """SplitMix64's output function backwards."""
    word ^= (word >> 31) ^ (word >> 62)
    word = word * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    word ^= (word >> 27) ^ (word >> 54)
    word = word * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return word ^ (word >> 30) ^ (word >> 60)


def uniform_bits(pair, pairs):
    """The two uniform numbers behind one Box-Muller pair, as the 53 bits each that they were made of, roughly."""
    first, second = pair
    radius, angle = np.hypot(first, second), np.arctan2(second, first) % (2 * np.pi)
    return int(-np.expm1(-(radius**2) / 2) * 2.0**53), int(angle / (2 * np.pi) * 2.0**53)


def stream_of(noise, count, known_bits):
    """The stream word behind noise that was seen, in float32, where nothing else stood; None if there is none.

    Number 0 of the stream is known up to its lowest bits (the uniform number to some 20 bits after rounding, and 11
    more that no uniform number shows); each guess gives one stream word, which the other pairs confirm. The search of
    all 2**44 took a core 16 s in C; here the bits above `known_bits` are given away, so that it takes no time.

    Args:
        noise: [count] standard normal numbers as the server has them.
        known_bits: number 0 without its lowest 12 bits: what the long search would try.
    """
    pairs = (count + 1) // 2
    found = (np.uint64(known_bits) << np.uint64(12)) | np.arange(2**12, dtype=np.uint64)
    words = np.array([unmix(int(word)) for word in found], dtype=np.uint64) - np.uint64(GOLDEN)
    at = np.array([1, 2, 3])
    for word in words:
        guess = normals(np.array([word]), count)[0]
        if np.allclose(guess[at], noise[at], atol=1e-4) and np.allclose(
            guess[pairs + at], noise[pairs + at], atol=1e-4
        ):
            return word
    return None


def noisy_update(draws):
    """One update of a user with 200 items and 8 dimensions; items 3 and 5 were touched. σ = 0.5."""
    made = Changes(
        users=np.array([0]),
        rows=Ragged.from_lengths([2], np.array([3, 5], np.int32)),
        by_item={"item_embedding": np.full((2, 8), 0.3, np.float32)},
        loss=np.zeros(1, np.float32),
    )
    sent = protect(made, PrivacyOptions(update_clip=1.0, update_noise=SIGMA), USER, 200, draws, 4)
    return sent.by_item["item_embedding"].reshape(-1)


def attack(seen, draws, hidden):
    """Break in with what the server has (`seen`); `draws` only shortens the search, see `stream_of`."""
    noise, count = seen.astype(np.float64) / SIGMA, seen.size
    first = int(draw(draws.noise(USER[0], 4, Purpose.NOISE, hidden), np.array([0]))[0])
    assert abs(uniform_bits((noise[0], noise[count // 2]), count // 2)[0] - (first >> 11)) < 2**36, (
        "the pair is read right"
    )
    return stream_of(noise, count, first >> 12)


def test_noise_of_a_known_seed_is_taken_off():
    """From one noisy update to the stream, and from it to the update without noise: the attack is real."""
    draws = SeededDraws(2**61 + 12345)
    seen = noisy_update(draws)
    hidden = np.zeros((200, 8))
    word = attack(seen, draws, hidden)
    assert word is not None
    clean = (seen - SIGMA * normals(np.array([word]), seen.size)[0]).reshape(200, 8)
    assert np.flatnonzero(np.abs(clean).max(axis=1) > 1e-3).tolist() == [3, 5]
    # From the stream's word back to the secret, step by step: the user's key and the round are known to the server.
    base = unmix(int(word)) ^ int(mix(USER + np.uint64(GOLDEN))[0])
    for known in (int(Purpose.NOISE), 4):
        base = (unmix(base) - (known + 1) * GOLDEN) & MASK
    assert (unmix(base) - GOLDEN) & MASK == draws.seed


def test_the_same_attack_finds_nothing_where_draws_are_secret():
    """Even told all but twelve bits of the number behind a pair, it finds no stream."""
    draws = SecretDraws(KEY)
    seen = noisy_update(draws)
    hidden = np.zeros((200, 8))
    hidden[[3, 5]] = np.float32(0.3) * (1 / np.linalg.norm(np.full(16, np.float32(0.3), np.float64)))
    clean = (seen - SIGMA * normals(draws.noise(USER[0], 4, Purpose.NOISE, hidden), seen.size)[0]).reshape(200, 8)
    assert np.flatnonzero(np.abs(clean).max(axis=1) > 1e-3).tolist() == [3, 5], "who has the secret can take it off"
    assert attack(seen, draws, hidden) is None


# -- the numbers -------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_aes():
    """Number c of user u is the first half of AES-256 of (u, c), both little-endian, under the round's key."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    streams = SecretDraws(KEY).streams(user_keys(["ann", "bob"]), 3, Purpose.TRAIN_NEGATIVES)
    counters = np.array([0, 1, 2**40 + 7, 2**63])
    found = draw(streams[:, None], counters[None].astype(np.uint64))
    block = int(streams.users[1]).to_bytes(8, "little") + (2**40 + 7).to_bytes(8, "little")
    expected = Cipher(algorithms.AES256(streams.key), modes.ECB()).encryptor().update(block)[:8]
    assert int(found[1, 2]) == int.from_bytes(expected, "little")
    assert found.shape == (2, 4)


def test_more_numbers_than_one_call_of_the_cipher_takes_are_the_same_one_by_one():
    stream = SecretDraws(KEY).streams(USER, 1, Purpose.NOISE)
    together = draw(stream, np.arange(70_000))
    few = np.array([0, 32_767, 32_768, 69_999])
    assert together[few].tolist() == [int(draw(stream, np.array([place]))[0]) for place in few]


def test_normals_have_their_distribution():
    """Mean 0, variance 1 and the normal distribution, for 200,000 numbers of one key."""
    values = normals(SecretDraws(KEY).streams(user_keys([str(i) for i in range(100)]), 2, Purpose.NOISE), 2000)
    assert abs(values.mean()) < 4 / np.sqrt(200_000)
    assert abs(values.var() - 1) < 4 * np.sqrt(2 / 200_000)
    assert kstest(values.ravel(), norm.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(values[:20]) - np.eye(20)).max() < 0.12


kinds = st.tuples(
    st.binary(min_size=32, max_size=32), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.sampled_from(Purpose)
)


@given(st.lists(kinds, min_size=2, max_size=8, unique=True))
def test_no_two_keys_users_rounds_or_purposes_share_a_keystream(which):
    """What is encrypted, under which key, is another thing for each of them; and so are the numbers."""
    found = [SecretDraws(key).streams(np.array([user], np.uint64), t, p) for key, user, t, p in which]
    assert len({(stream.key, int(stream.users[0])) for stream in found}) == len(which)
    numbers = np.concatenate([draw(stream, np.arange(16)) for stream in found])
    assert len(np.unique(numbers)) == 16 * len(which)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), min_size=2, max_size=8, unique=True))
def test_noise_is_another_one_for_other_values(which):
    """Rounds, arrays, and what is hidden; the same question has the same answer."""
    draws = SecretDraws(KEY)

    def noise(round_, array, other):
        return draw(draws.noise(USER[0], round_, Purpose.NOISE, np.array([1.0, 2.0 + other]), array), np.arange(8))

    numbers = [noise(*kind) for kind in which]
    assert len(np.unique(np.concatenate(numbers))) == 8 * len(which)
    assert all(np.array_equal(noise(*kind), found) for kind, found in zip(which, numbers, strict=True))
    plain = draw(draws.streams(USER, 1, Purpose.NOISE), np.arange(8))
    assert not np.isin(plain, np.concatenate(numbers)).any()


def test_two_answers_to_one_round_have_no_common_noise():
    """A server that asks for a round twice, with different models, would see the noise cancel in the difference."""
    draws = SecretDraws(KEY)
    first, second = (np.zeros((50, 4)), np.zeros((50, 4)))
    second[7] = 1e-7
    noise = [normals(draws.noise(USER[0], 4, Purpose.NOISE, hidden), 200)[0] for hidden in (first, second)]
    assert np.abs(noise[0] - noise[1]).min() > 0
    assert abs(np.corrcoef(noise)[0, 1]) < 0.3


def test_decoys_and_negatives_are_the_same_after_a_restart_and_in_other_company():
    users = user_keys(["ann", "bob", "cid"])
    rows = Ragged.from_lengths([3, 2, 4], np.array([1, 2, 3, 4, 5, 0, 1, 2, 9]))
    whole = SecretDraws(KEY)
    decoys, negatives = decoy_items(rows, 50, 6, users, whole), training_negatives(rows, rows, 50, 4, users, whole, 2)
    again = SecretDraws(bytes(KEY))
    for u in range(3):
        alone = rows.take(np.array([u]))
        assert np.array_equal(decoy_items(alone, 50, 6, users[u : u + 1], again).row(0), decoys.row(u))
        key, drawn = users[u : u + 1], negatives.row(u)
        assert np.array_equal(training_negatives(alone, alone, 50, 4, key, again, 2).row(0), drawn)
        assert not np.isin(drawn, rows.row(u)).any()
    assert not np.array_equal(decoy_items(rows, 50, 6, users, SecretDraws(bytes(32))).values, decoys.values)


def test_a_new_item_that_was_a_decoy_leaves_the_others():
    """Ann has items 1, 2, 3, and then one of her decoys too: one decoy takes its place."""
    draws = SecretDraws(KEY)
    before = decoy_items(Ragged.from_lengths([3], np.array([1, 2, 3])), 50, 6, USER, draws).row(0)
    history = Ragged.from_lengths([4], np.array([1, 2, 3, before[2]]))
    after = decoy_items(history, 50, 6, USER, draws).row(0)
    assert set(before) - set(after) == {before[2]}
    assert len(set(after)) == 6


# -- keys of a node ----------------------------------------------------------------------------------------------------


def test_subkeys_and_pseudonyms_follow_from_the_key():
    first, other = Seal(KEY), Seal(bytes(32))
    assert first.subkey("draws") == Seal(KEY).subkey("draws")
    assert len({first.subkey("draws"), first.subkey("users"), other.subkey("draws"), KEY}) == 4
    assert len(first.subkey("draws")) == 32
    users = user_keys([str(number) for number in range(1, 944)])
    known_as = first.pseudonyms(users)
    assert np.array_equal(Seal(KEY).pseudonyms(users), known_as)
    assert len(np.unique(known_as)) == 943
    # Who lists all ids, and even other nodes' salts, finds nobody.
    assert not np.isin(known_as, users).any()
    assert not np.isin(known_as, other.pseudonyms(users)).any()


def test_what_draws_without_a_key_does_not_load_the_cipher():
    """Most processes have no key, and a device starts one for every message."""
    code = (
        "import sys, data_partition, bouquet.sealing, bouquet.secret_draws;"
        "print([name for name in sys.modules if name.startswith('cryptography')])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize("draws", [SeededDraws(1), SecretDraws(KEY)])
def test_seeds_are_one_word_of_each_user_and_round(draws):
    users = user_keys(["ann", "bob"])
    words = [draws.seeds(users, t, Purpose.BATCH_ORDER) for t in (1, 2)]
    assert words[0].shape == (2,)
    assert len(np.unique(np.concatenate(words))) == 4
    assert np.array_equal(draws.seeds(users[1:], 1, Purpose.BATCH_ORDER), words[0][1:])
