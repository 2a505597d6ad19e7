"""Encryption at rest: AES-256-GCM with a key that the node alone has.

A sealed text begins with its nonce and cannot be moved: what it belongs to (file, user, round) is authenticated with
it. Whoever has the disk without the key learns sizes and times, and cannot change anything unnoticed.
"""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from bouquet.errors import ConfigError, StateError

if TYPE_CHECKING:
    from bouquet.randomness import Words

NONCE, TAG = 12, 16
OVERHEAD = NONCE + TAG


class Seal:
    """Encrypts and decrypts with one key.

    Args:
        key: 32 bytes.
    """

    def __init__(self, key: bytes) -> None:
        # Not at the top: most processes have no key, and a device starts one for every message.
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher, self._invalid = AESGCM(key), InvalidTag
        self._key = key

    def subkey(self, label: str) -> bytes:
        """32 bytes that follow from the key and do not tell it, nor the bytes of another label."""
        return blake2b(label.encode(), key=self._key, digest_size=32).digest()

    def pseudonyms(self, users: Words) -> Words:
        """[k] other keys for these user keys: the same as long as the key is, and nobody without it can find out whose.

        Args:
            users: [k] hashes of raw ids, which who can list the ids can compute.
        """
        # Not at the top: a device recommends without it.
        import numpy as np

        salt = self.subkey("users")
        hashes = [blake2b(int(user).to_bytes(8, "little"), key=salt, digest_size=8).digest() for user in users]
        return np.frombuffer(b"".join(hashes), "<u8").astype(np.uint64)

    def close(self, content: bytes, belongs_to: str) -> bytes:
        """Encrypt; the result is OVERHEAD bytes longer."""
        # Random nonces are safe for 2**32 texts of a key; a device writes a few in a round.
        nonce = os.urandom(NONCE)
        return nonce + self._cipher.encrypt(nonce, content, belongs_to.encode())

    def open(self, sealed: bytes, belongs_to: str, path: Path) -> bytes:
        """Decrypt.

        Raises:
            StateError: the key is another one, or the content was changed; names the file.
        """
        try:
            return self._cipher.decrypt(sealed[:NONCE], sealed[NONCE:], belongs_to.encode())
        except (self._invalid, ValueError):
            raise StateError(f"{path} cannot be decrypted: it is damaged, or the key is another one.") from None


def read_seal(path: str | Path) -> Seal | None:
    """The seal of a key file of 64 hexadecimal digits; None for "".

    Raises:
        ConfigError: there is no such file, or it holds no key.
    """
    if not str(path):
        return None
    try:
        key = bytes.fromhex(Path(path).read_text().strip())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no key file: it needs 64 hexadecimal digits ({error}).") from None
    if len(key) != 32:
        raise ConfigError(f"{path} is no key file: it needs 64 hexadecimal digits, not {2 * len(key)}.")
    return Seal(key)
