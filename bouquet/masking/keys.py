"""The keys that a node makes for one round, and what two nodes make of them.

Four things are told: X25519 keys for shares (c) and for masks (s), an Ed25519 key that signs all that the node says in
the round (v), and a commitment to the self-mask (b). Whatever is derived is bound to the round's transcript T.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from bouquet.errors import WireError
from bouquet.masking.shares import SECRET

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

KEY, SIGNATURE, TAG = 32, 64, 16
PUBLIC = 4 * KEY
"""Bytes of what a node tells: the keys c, s and v, and the commitment to b."""
SEALED = 2 * SECRET + TAG
"""Bytes of the shares of two secrets, encrypted."""


@dataclass(frozen=True, repr=False)
class Secrets:
    """What a node keeps to itself in a round.

    Attributes:
        sharing, signing: private keys, 32 bytes.
        masking: what the mask key follows from, 16 bytes; shared.
        own: what the self-mask b follows from, 16 bytes; shared.
    """

    sharing: bytes
    masking: bytes
    signing: bytes
    own: bytes

    @classmethod
    def fresh(cls) -> Secrets:
        """New ones."""
        return cls(*(secrets.token_bytes(size) for size in (KEY, SECRET, KEY, SECRET)))

    @property
    def public(self) -> bytes:
        """What the others are told: 128 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        signing = Ed25519PrivateKey.from_private_bytes(self.signing).public_key().public_bytes_raw()
        return _public(self.sharing) + mask_public(self.masking) + signing + commitment(self.own)

    def sign(self, content: bytes) -> bytes:
        """A signature of 64 bytes."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.signing).sign(content)


@dataclass(frozen=True)
class Public:
    """The parts of what a node tells."""

    sharing: bytes
    masking: bytes
    signing: bytes
    commitment: bytes

    @classmethod
    def of(cls, content: bytes) -> Public:
        """From 128 bytes."""
        return cls(*(content[start : start + KEY] for start in range(0, PUBLIC, KEY)))

    def verify(self, signature: bytes, content: bytes) -> bool:
        """Whether the node has signed this."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, content)
        except (InvalidSignature, ValueError):
            return False
        return True


def commitment(own: bytes) -> bytes:
    """What binds a node to its self-mask and does not tell it: 32 bytes."""
    return sha256(b"bouquet self-mask" + own).digest()


def mask_public(masking: bytes) -> bytes:
    """The public mask key that follows from the shared secret, by which it is known when it was found: 32 bytes."""
    return MaskKey(masking).public


def self_mask(own: bytes, transcript: bytes) -> bytes:
    """The key of PRG(b)."""
    return _derived(own, b"self-mask", transcript)


class MaskKey:
    """A private mask key.

    Args:
        masking: the secret that it follows from.
    """

    def __init__(self, masking: bytes) -> None:
        self._private = _private(_derived(masking, b"mask key", b""))

    @property
    def public(self) -> bytes:
        """What the others are told: 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def pair(self, other: bytes, transcript: bytes) -> bytes:
        """The key of PRG(s_ij), the same on both sides.

        Args:
            other: the other one's public mask key.
        Raises:
            WireError: that is no key.
        """
        return _derived(_agreed(self._private, other), b"pair-mask", transcript)


class Channels:
    """What one node tells the others over the server, encrypted.

    Args:
        sharing: the private key of this node.
        transcript: T.
    """

    def __init__(self, sharing: bytes, transcript: bytes) -> None:
        self._private, self._transcript = _private(sharing), transcript

    def to(self, other: bytes) -> Channel:
        """The channel to one other node.

        Args:
            other: its public key.
        Raises:
            WireError: that is no key.
        """
        return Channel(_agreed(self._private, other), self._transcript)


class Channel:
    """Encrypts what two nodes tell each other; as `Channels.to`."""

    def __init__(self, secret: bytes, transcript: bytes) -> None:
        self._secret, self._transcript = secret, transcript

    def close(self, content: bytes, sender: int, receiver: int) -> bytes:
        """Encrypt; each direction has a key of its own, for one text."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        return ChaCha20Poly1305(self._key(sender, receiver)).encrypt(bytes(12), content, self._transcript)

    def open(self, sealed: bytes, sender: int, receiver: int) -> bytes | None:
        """Decrypt; None where it is not what the sender wrote."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        try:
            return ChaCha20Poly1305(self._key(sender, receiver)).decrypt(bytes(12), sealed, self._transcript)
        except InvalidTag:
            return None

    def _key(self, sender: int, receiver: int) -> bytes:
        return _derived(self._secret, b"shares %d %d" % (sender, receiver), self._transcript)


def _agreed(private: X25519PrivateKey, other: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return private.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # all zeros, or another point of small order
        raise WireError("a node's public key is none") from None


def _public(private: bytes) -> bytes:
    return _private(private).public_key().public_bytes_raw()


def _private(content: bytes) -> X25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(content)


def _derived(secret: bytes, purpose: bytes, transcript: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), KEY, transcript or None, b"bouquet secure sums: " + purpose).derive(secret)
