"""Certificates and keys: an authority of one's own, a server certificate, a key for every node.

One folder per role, so that each machine or container gets what it needs and nothing else:

ca/          ca.key: signs; stays with the operator
server/      ca.crt, server.crt, server.key, executor.secret
executor/    ca.crt, executor.secret, executor.crt, executor.key: runs the ServerApp
operator/    ca.crt, operator.crt, operator.key, <node>.pub: what is registered with the SuperLink
nodes/<n>/   ca.crt, node.key, node.pub, node.crt, state.key, local-ca.crt, local.crt, local.key

`operator.*` and `executor.*` open the gate before the SuperLink's control port (`bouquet.deployment.tunnel`); no node
has anything that does. `node.key` says to the SuperLink who the node is, and `node.crt` to other nodes, in secure sums;
`local.*` protects the loopback between a SuperNode and its ClientApp; `state.key` encrypts the private state on the
node's disk and is known to nobody else.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bouquet.deployment.tunnel import ROLES, subject_of
from bouquet.errors import ConfigError, StateError
from bouquet.files import private_folder, write_atomically
from bouquet.masking.names import CERTIFICATE, USE

HOSTS = ("localhost", "127.0.0.1", "::1")
AUTHORITY_DAYS, SERVER_DAYS = 3650, 825
_NODE_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_Key = ec.EllipticCurvePrivateKey


def make_keys(folder: Path, hosts: Iterable[str], nodes: Sequence[str]) -> list[str]:
    """Make what is missing; what is there stays, so nodes can be added later.

    Args:
        folder: of all roles.
        hosts: names and addresses under which nodes reach the SuperLink.
        nodes: names of nodes.
    Returns:
        What was made, for a person to read.
    Raises:
        ConfigError: a node's name cannot be a folder's.
        StateError: a file that is there cannot be read.
    """
    for name in nodes:
        if not _NODE_NAME.fullmatch(name):
            raise ConfigError(f"A node's name is made of small letters, digits and '-', not '{name}'.")
    made = []
    authority_key, authority = folder / "ca" / "ca.key", folder / "server" / "ca.crt"
    if not (authority_key.exists() and authority.exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate("bouquet authority", key, None, key, (), AUTHORITY_DAYS)
        _private(authority_key, _pem(key))
        _public(authority, certificate.public_bytes(serialization.Encoding.PEM))
        made.append("certificate authority")
    key, certificate = _read_key(authority_key), _read_certificate(authority)
    if _signed(folder / "server", "server", "bouquet superlink", sorted({*hosts, *HOSTS}), key, certificate):
        made.append("server certificate")
    if not (secret := folder / "server" / "executor.secret").exists():
        _private(secret, secrets.token_hex(32).encode())
    _private(folder / "executor" / "executor.secret", secret.read_bytes())
    for role in ROLES:
        _public(folder / role / "ca.crt", authority.read_bytes())
        if _signed(folder / role, role, subject_of(role), (), key, certificate):
            made.append(f"{role} certificate")
    for name in nodes:
        if make_node_keys(folder / "nodes" / name):
            made.append(f"keys of {name}")
        own = folder / "nodes" / name
        _public(own / "ca.crt", authority.read_bytes())
        if not (own / CERTIFICATE).exists():
            _public(own / CERTIFICATE, _node_certificate(own / "node.pub", key, certificate))
        _public(folder / "operator" / f"{name}.pub", (folder / "nodes" / name / "node.pub").read_bytes())
    return made


def certify(folder: Path, public: Path) -> Path:
    """Certify the registered key of a node that has made its own, so that it can take part in secure sums.

    Args:
        folder: of all roles, with the authority's key.
        public: NODE.pub, as it is registered.
    Returns:
        the certificate, NODE.crt beside it, which belongs into the node's folder of keys as `node.crt`.
    Raises:
        StateError: a file cannot be read.
    """
    key, authority = _read_key(folder / "ca" / "ca.key"), _read_certificate(folder / "server" / "ca.crt")
    path = public.with_suffix(".crt")
    _public(path, _node_certificate(public, key, authority))
    return path


def _node_certificate(public: Path, authority_key: _Key, authority: x509.Certificate) -> bytes:
    """PEM; for one use, which opens no gate."""
    try:
        registered = serialization.load_ssh_public_key(public.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(f"{public} is no public key of a node ({error}).") from None
    if not isinstance(registered, ec.EllipticCurvePublicKey):
        raise StateError(f"{public} is no public key of a node: it is of another kind.")
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bouquet registered node")]))
        .issuer_name(authority.subject)
        .public_key(registered)
        .serial_number(x509.random_serial_number())
        # Clocks of small devices are late or early.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(x509.ExtendedKeyUsage([x509.ObjectIdentifier(USE)]), True)
    )
    return builder.sign(authority_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def make_node_keys(folder: Path) -> bool:
    """A node's own keys, made on the node or by the operator; whether something was made."""
    node, local, state = folder / "node.key", folder / "local.key", folder / "state.key"
    made = not (node.exists() and local.exists() and state.exists())
    if not node.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        _private(node, _pem(key, serialization.PrivateFormat.OpenSSH))
        encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        _public(folder / "node.pub", key.public_key().public_bytes(encoding, form))
    if not local.exists():
        # An authority of its own, whose key is forgotten at once: nobody can make another loopback certificate.
        authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("bouquet node", authority_key, None, authority_key, (), AUTHORITY_DAYS)
        certificate = _certificate("bouquet node", key, authority, authority_key, HOSTS, AUTHORITY_DAYS)
        _public(folder / "local-ca.crt", authority.public_bytes(serialization.Encoding.PEM))
        _public(folder / "local.crt", certificate.public_bytes(serialization.Encoding.PEM))
        _private(local, _pem(key))
    if not state.exists():
        _private(state, secrets.token_hex(32).encode())
    return made


def _signed(
    folder: Path, name: str, subject: str, hosts: Sequence[str], key: _Key, authority: x509.Certificate
) -> bool:
    """Make NAME.crt and NAME.key anew unless those that are there are good for all hosts and a month to come.

    Args:
        hosts: of a server; none: the certificate is a client's.
    """
    path = folder / f"{name}.crt"
    if path.exists() and (folder / f"{name}.key").exists():
        current = _read_certificate(path)
        known = set[str]()
        if hosts:
            names = current.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            known = {str(host.value) for host in names}
            hosts = sorted({*hosts, *known})
        if set(hosts) <= known and current.not_valid_after_utc > datetime.now(UTC) + timedelta(days=30):
            return False
    own = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(subject, own, authority, key, hosts, SERVER_DAYS)
    _private(folder / f"{name}.key", _pem(own))
    _public(path, certificate.public_bytes(serialization.Encoding.PEM))
    return True


def _certificate(
    name: str, key: _Key, issuer: x509.Certificate | None, issuer_key: _Key, hosts: Sequence[str], days: int
) -> x509.Certificate:
    """A certificate of a server for `hosts`, of a client where there are none, of an authority without an issuer."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of small devices are late or early.
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
        .add_extension(_usage(authority=issuer is None), True)
    )
    if issuer:
        use = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: _Key, form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _read_key(path: Path) -> _Key:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is no private key ({error}).") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is no certificate ({error}).") from None


def _private(path: Path, content: bytes) -> None:
    """A file that only its owner reads, from its first moment on."""
    private_folder(path.parent)
    write_atomically(path, content, private=True)


def _public(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
