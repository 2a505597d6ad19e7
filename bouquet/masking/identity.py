"""Registered identities in secure sums: keys of a round signed with a node's registered key, which is certified.

The certificate is of the federation's own authority, made by the operator for this one use; whoever has the authority's
key can invent nodes, and nobody else. A node that has a certificate takes part with certified nodes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from bouquet.errors import ConfigError, WireError
from bouquet.masking.key_messages import KeysReply, SharesRequest
from bouquet.masking.names import AUTHORITY, CERTIFICATE, KEY, USE

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate


@dataclass(frozen=True)
class Members:
    """Whom an authority has certified.

    Attributes:
        authority: its certificate, PEM.
    """

    authority: bytes

    def refuse_stranger(self, keys: KeysReply, series: str, round_: int) -> bytes:
        """Refuse keys of a round that no certified node has signed.

        Returns:
            The registered key, DER.
        Raises:
            WireError: says what is wrong.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        if not keys.certificate:
            raise WireError("a node has no certificate")
        found = self._certified(keys.certificate)
        registered = found.public_key()
        if not isinstance(registered, EllipticCurvePublicKey):
            raise WireError("a node's registered key is of another kind than nodes have")
        try:
            registered.verify(keys.endorsement, keys.endorsed(series, round_), ECDSA(SHA256()))
        except InvalidSignature:
            raise WireError("a node's keys are not signed with its registered one") from None
        return registered.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def refuse_strangers(self, keys: SharesRequest) -> None:
        """As `Identity.refuse_strangers`."""
        registered = {self.refuse_stranger(found, keys.series, keys.round) for found in keys.keys}
        if len(registered) < len(keys.keys):
            raise WireError("a registered node stands twice among the nodes of a round")

    def _certified(self, content: bytes) -> Certificate:
        from cryptography.exceptions import InvalidSignature
        from cryptography.x509 import ExtendedKeyUsage, ExtensionNotFound, ObjectIdentifier, load_der_x509_certificate

        try:
            found = load_der_x509_certificate(content)
            found.verify_directly_issued_by(self._authority)
            use = found.extensions.get_extension_for_class(ExtendedKeyUsage).value
            now = datetime.now(UTC)
            good = ObjectIdentifier(USE) in use and found.not_valid_before_utc <= now <= found.not_valid_after_utc
        except (ValueError, TypeError, InvalidSignature, ExtensionNotFound):
            good = False
        if not good:
            raise WireError("a node's certificate is none of this federation's authority, or has run out")
        return found

    @cached_property
    def _authority(self) -> Certificate:
        from cryptography.x509 import load_pem_x509_certificate

        try:
            return load_pem_x509_certificate(self.authority)
        except ValueError as error:
            raise ConfigError(f"The authority's certificate cannot be read ({error}).") from None


@dataclass(frozen=True, repr=False)
class Registered(Members):
    """A node with a certificate; an `Identity`.

    Attributes:
        certificate: of its registered key, DER.
        key: the registered key.
    """

    certificate: bytes
    key: EllipticCurvePrivateKey

    @classmethod
    def at(cls, folder: Path, certificate: Path | None = None) -> Registered:
        """The node whose keys lie in a folder.

        Args:
            certificate: its file, where it does not lie there yet.
        Raises:
            ConfigError: a file is missing or cannot be read, or they do not belong together.
        """
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, load_ssh_private_key
        from cryptography.x509 import load_pem_x509_certificate

        path = certificate or folder / CERTIFICATE
        try:
            authority = (folder / AUTHORITY).read_bytes()
            found = load_pem_x509_certificate(path.read_bytes())
            key = load_ssh_private_key((folder / KEY).read_bytes(), None)
        except (OSError, ValueError) as error:
            raise ConfigError(f"The keys of this node in {folder} cannot be read ({error}).") from None
        if not isinstance(key, EllipticCurvePrivateKey) or key.public_key() != found.public_key():
            raise ConfigError(f"The certificate {path} is of another key than the node's.")
        made = cls(authority, found.public_bytes(Encoding.DER), key)
        try:
            # With a wrong one all other nodes would refuse a round, and none would say whose it is.
            made._certified(made.certificate)
        except WireError:
            raise ConfigError(
                f"The certificate {path} is none of the authority of {folder / AUTHORITY}, or has run out."
            ) from None
        return made

    def sign(self, content: bytes) -> bytes:
        """With the registered key: ECDSA over SHA-256."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256

        return self.key.sign(content, ECDSA(SHA256()))
