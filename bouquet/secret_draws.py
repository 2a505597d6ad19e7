"""Draws that only the node can compute: AES-256 in counter mode, under keys that follow from the node's secret.

Number c of user u in round t for purpose p is half of a keystream block,

    number(u, t, p, c) = first 64 bits of AES-256_K(u ‖ c),    K = BLAKE2b-256_secret("streams" ‖ t ‖ p)

u and c being 64 bits each: blocks of one key never repeat, and keys differ by round and purpose. A block can be asked
for on its own, so a whole array of users and counters is one call of the cipher. From any numbers that were seen,
neither others nor the secret follow.

What comes from where:

- Negatives, decoys, dropout: one number of the keystream each. What an update touches tells which items were drawn,
  and that tells nothing about other draws.
- Noise: one number of a keystream for each uniform number. Its key depends on the values that it hides, too: who asks
  for a round twice with different models would otherwise get the same noise twice, and its difference would be clean;
  who asks the same thing twice gets the same answer, over which nothing can be averaged.
- The order of batches: one number of the keystream per user and round, from which compiled loops make their numbers
  with SplitMix64. Nothing that is computed from these leaves the node but through the order in which samples are summed
  up; whoever found them out would know the batches of one user in one round, and with them nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.randomness import Purpose, Words

# Blocks of 16 bytes that are made at once: input and output stay in the cache.
_BLOCKS = 2**15


@dataclass(frozen=True, repr=False)
class SecretStreams:
    """[k] streams under one key.

    Attributes:
        key: 32 bytes.
        users: what tells the streams from each other, in the shape that counters broadcast with.
    """

    key: bytes
    users: Words

    def __getitem__(self, index: Any) -> SecretStreams:
        return SecretStreams(self.key, self.users[index])

    def __len__(self) -> int:
        return len(self.users)

    def at(self, counter: Words) -> Words:
        """Number `counter` of each stream, as 64 random bits; shapes broadcast."""
        # Not at the top: most processes have no secret, and a device starts one for every message.
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        # Counter mode with counters of our own choice: every block that is encrypted is another one.
        encryptor = Cipher(algorithms.AES256(self.key), modes.ECB()).encryptor()
        users, counters = np.broadcast_arrays(self.users, counter)
        found = np.empty(users.shape, np.uint64)
        flat, users, counters = found.reshape(-1), users.reshape(-1), counters.reshape(-1)
        blocks = np.empty((min(len(flat), _BLOCKS), 2), "<u8")
        for start in range(0, len(flat), _BLOCKS):
            part = slice(start, min(start + _BLOCKS, len(flat)))
            count = part.stop - part.start
            blocks[:count, 0], blocks[:count, 1] = users[part], counters[part]
            flat[part] = np.frombuffer(encryptor.update(blocks[:count].tobytes()), "<u8")[::2]
        return found


@dataclass(frozen=True, repr=False)
class SecretDraws:
    """The draws of a node.

    They do not depend on the run or its seed, which the server chooses: the decoys of a user who is in two runs are the
    same in both.

    Attributes:
        secret: 32 bytes.
    """

    secret: bytes

    def streams(self, users: Words, round_: int, purpose: Purpose) -> SecretStreams:
        """As `Draws.streams`."""
        return SecretStreams(self._key(b"streams", round_, purpose), np.asarray(users, np.uint64))

    def seeds(self, users: Words, round_: int, purpose: Purpose) -> Words:
        """As `Draws.seeds`."""
        return self.streams(users, round_, purpose).at(np.zeros(1, np.uint64))

    def noise(
        self, user: np.uint64, round_: int, purpose: Purpose, hidden: NDArray[np.floating], array: int = 0
    ) -> SecretStreams:
        """As `Draws.noise`: the same for the same values, and independent for others."""
        values = np.ascontiguousarray(hidden)
        about = blake2b(f"{array} {values.dtype.str} {values.shape} ".encode() + values.tobytes()).digest()
        return SecretStreams(self._key(b"noise", round_, purpose, about), np.array([user], np.uint64))

    def _key(self, kind: bytes, round_: int, purpose: Purpose, about: bytes = b"") -> bytes:
        text = b"%s %d %d " % (kind, round_, purpose) + about
        return blake2b(text, key=self.secret, digest_size=32).digest()
