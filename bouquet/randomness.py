"""Keyed randomness: every draw of a user depends on (seed, user, round, purpose) and on nothing else.

A run must give the same numbers however its users are spread over nodes, so no generator is shared between
users. One generator object per user and purpose would cost more than the training itself; instead a user's
stream is a counter-based generator (SplitMix64): number c of a stream is `mix(stream + c * GOLDEN)`, which a
whole array of users and counters evaluates at once.

SplitMix64 is a bijection that anybody can compute backwards: it repeats a run, and it hides nothing. What a node draws
in training comes through a `Draws`, which is decided in one place (`Host.draws`): `SeededDraws` for
runs that can be repeated, or `bouquet.secret_draws.SecretDraws`, which only the node can compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(np.uint64(s) for s in (30, 27, 31))
_HALF = np.uint64(32)


class Purpose(IntEnum):
    """What a stream is drawn for. Numbers are part of every result: add, never renumber."""

    PRIVATE_INIT = 1
    SHARED_INIT = 2
    USER_SAMPLING = 3
    TRAIN_NEGATIVES = 4
    BATCH_ORDER = 5
    HOLD_OUT = 6
    VALIDATION_CANDIDATES = 7
    TEST_CANDIDATES = 8
    NOISE = 9
    FEATURE_NOISE = 10
    DROPOUT = 11
    CLUSTERING = 12
    USERS = 13
    DISTILLATION = 20
    TIES = 21
    DECOYS = 22
    LIARS = 30
    TRAINING_SHARE = 31
    PRIVATE_SAMPLING = 40
    PRIVATE_NOISE = 41


class CounterStreams(Protocol):
    """[k] streams whose numbers are not SplitMix64's; indexed as an array of k stream words is."""

    def __getitem__(self, index: Any) -> CounterStreams: ...

    def __len__(self) -> int: ...

    def at(self, counter: Words) -> Words:
        """Number `counter` of each stream; shapes broadcast."""
        ...


# Keyed streams: words of SplitMix64, or something else that has numbers.
Streams = Words | CounterStreams


class Draws(Protocol):
    """Where a node's draws come from."""

    def streams(self, users: Words, round_: int, purpose: Purpose) -> Streams:
        """[k] one stream per user; streams of different users, rounds and purposes have nothing in common."""
        ...

    def seeds(self, users: Words, round_: int, purpose: Purpose) -> Words:
        """[k] one SplitMix64 stream word per user, for compiled loops that make numbers of their own.

        For draws that nobody outside the node sees any function of.
        """
        ...

    def noise(
        self, user: np.uint64, round_: int, purpose: Purpose, hidden: NDArray[np.floating], array: int = 0
    ) -> Streams:
        """[1] the stream of what is added to one user's values.

        Args:
            hidden: the values before noise is added.
            array: number of the array among those that leave together.
        """
        ...


@dataclass(frozen=True)
class SeededDraws:
    """Draws that everybody who knows the seed can repeat, as the server of a run does.

    Attributes:
        seed: of the run.
    """

    seed: int

    def streams(self, users: Words, round_: int, purpose: Purpose) -> Words:
        """As `Draws.streams`."""
        return streams(self.seed, users, round_, purpose)

    def seeds(self, users: Words, round_: int, purpose: Purpose) -> Words:
        """As `Draws.seeds`."""
        return streams(self.seed, users, round_, purpose)

    def noise(
        self, user: np.uint64, round_: int, purpose: Purpose, hidden: NDArray[np.floating], array: int = 0
    ) -> Words:
        """As `Draws.noise`, whatever is hidden: a run that is repeated has the same noise to the last digit."""
        return streams(self.seed, np.array([user], np.uint64), round_, purpose) + np.uint64(array)


def user_key(user_id: str) -> int:
    """The 64-bit key of a user: the same on every machine, whatever other users exist."""
    return _id_key(user_id)


def user_keys(user_ids: list[str] | NDArray[np.str_]) -> Words:
    """[n] keys of the users with these raw ids."""
    return np.array([user_key(str(user_id)) for user_id in user_ids], dtype=np.uint64)


def item_keys(item_ids: Iterable[str]) -> Words:
    """[m] keys of the items with these raw ids: the same in every data set that has them, whatever their numbers."""
    return np.array([_id_key(str(item_id)) for item_id in item_ids], dtype=np.uint64)


def _id_key(raw_id: str) -> int:
    return int.from_bytes(blake2b(raw_id.encode(), digest_size=8).digest(), "little")


def mix(words: Words) -> Words:
    """SplitMix64's output function: a bijection of 64-bit words whose outputs look independent."""
    words = (words ^ (words >> _SHIFTS[0])) * MIX_1
    words = (words ^ (words >> _SHIFTS[1])) * MIX_2
    return words ^ (words >> _SHIFTS[2])


def streams(seed: int, users: Words, round_: int, purpose: Purpose) -> Words:
    """[k] one stream per user.

    Args:
        seed: any non-negative integer below 2**64.
        users: [k] user keys.
        round_: the server round; 0 before the first.
        purpose: streams of different purposes are independent.
    """
    base = mix(np.asarray([seed], dtype=np.uint64) + GOLDEN)
    for word in (int(round_), int(purpose)):
        base = mix(base + np.uint64((word + 1) * int(GOLDEN) % 2**64))
    return mix(base ^ mix(np.asarray(users, dtype=np.uint64) + GOLDEN))


def draw(stream: Streams, counter: NDArray[np.integer]) -> Words:
    """Number `counter` of each stream, as 64 random bits; the arguments broadcast."""
    if not isinstance(stream, np.ndarray):
        return stream.at(np.asarray(counter).astype(np.uint64))
    return mix(stream + (np.asarray(counter).astype(np.uint64) + np.uint64(1)) * GOLDEN)


def ties(users: Words, items: Words) -> Words:
    """What decides between a user's events of equal time: the one with the smaller number is the older.

    Files are sorted by item within a second or a day, or as their publisher's program left them, so their order must
    have no say. The draw is no setting: which event is a user's last belongs to the data, and is the same in a whole
    set, in a shard, on a device, and in every run.

    Args:
        users: [k] key of the user of each event.
        items: [k] key of its item.
    Returns:
        [k] random bits; different for different items of a user.
    """
    return draw(streams(0, users, 0, Purpose.TIES), items)


def integers(bits: Words, high: int) -> NDArray[np.int64]:
    """Uniform integers in [0, high) from random bits, high <= 2**32 (bias below high / 2**32)."""
    return (((bits >> _HALF) * np.uint64(high)) >> _HALF).astype(np.int64)


def uniforms(bits: Words) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) from random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(stream: Streams, count: int) -> NDArray[np.float64]:
    """[k, count] standard normal numbers of each stream (Box-Muller)."""
    pairs = (count + 1) // 2
    return np.concatenate(_pairs(stream[:, None], np.arange(pairs)[None, :], pairs), axis=1)[:, :count]


def _pairs(
    stream: Streams, pair: NDArray[np.integer], pairs: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Numbers `pair` and `pairs + pair` of the normal numbers of each stream; the arguments broadcast."""
    radius = np.sqrt(-2.0 * np.log1p(-uniforms(draw(stream, pair))))
    angle = 2.0 * np.pi * uniforms(draw(stream, pairs + pair))
    return radius * np.cos(angle), radius * np.sin(angle)


def some_normals(stream: Streams, counter: NDArray[np.integer], count: int) -> NDArray[np.float64]:
    """Single numbers out of `normals(stream, count)`, to the last digit.

    Args:
        stream: [n] the stream of each number.
        counter: [n] which number of its stream, below `count`.
    Returns:
        [n].
    """
    pairs = (count + 1) // 2
    second = counter >= pairs
    by_cosine, by_sine = _pairs(stream, np.where(second, counter - pairs, counter), pairs)
    return np.where(second, by_sine, by_cosine)


def laplace(stream: Streams, count: int, scale: float) -> NDArray[np.float64]:
    """[k, count] numbers of each stream from Laplace's distribution: density exp(-|x| / scale) / (2 scale)."""
    # The middle of each of 2^53 equal steps: never 0, so that the logarithm is finite.
    uniform = uniforms(draw(stream[:, None], np.arange(count)[None, :])) + 2.0**-54
    centred = uniform - 0.5
    return np.asarray(-scale * np.sign(centred) * np.log1p(-2.0 * np.abs(centred)))


def generator(seed: int, round_: int, purpose: Purpose, name: str = "") -> np.random.Generator:
    """A numpy generator for draws that belong to no user: initial shared arrays, sampling of users."""
    return np.random.default_rng([seed, round_, int(purpose), user_key(name)])
