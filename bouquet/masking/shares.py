"""Shamir's sharing of secrets of 16 bytes, in GF(2^128), by PyCryptodome, on which Flower's own rests."""

from __future__ import annotations

from collections.abc import Mapping

from bouquet.errors import WireError

SECRET = 16
"""Bytes of a secret, and of a share of it."""


def split(secret: bytes, needed: int, holders: int) -> list[bytes]:
    """A share for each holder, of which so many are needed.

    Args:
        secret: 16 bytes.
        needed: at least 1.
    """
    if needed == 1:
        return [secret] * holders
    # Not at the top: most processes share no secrets.
    from Crypto.Protocol.SecretSharing import Shamir

    return [bytes(share) for _, share in sorted(Shamir.split(needed, holders, secret, ssss=False))]


def combine(shares: Mapping[int, bytes], needed: int) -> bytes:
    """The secret.

    Args:
        shares: by the holder's place, from 0; the first of those that are needed are taken.
    Raises:
        WireError: there are too few.
    """
    if len(shares) < needed:
        raise WireError(f"there are {len(shares)} shares of a secret where {needed} are needed")
    taken = sorted(shares.items())[:needed]
    if needed == 1:
        return taken[0][1]
    from Crypto.Protocol.SecretSharing import Shamir

    return bytes(Shamir.combine([(place + 1, share) for place, share in taken], ssss=False))
