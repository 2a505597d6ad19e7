"""Certificates and keys: what is made, for whom, and that nothing is made twice."""

import contextlib
import ssl

import pytest
from cryptography import x509

from bouquet.deployment.keys import make_keys
from bouquet.errors import ConfigError, StateError


def names_of(folder):
    certificate = x509.load_pem_x509_certificate((folder / "server" / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(name.value) for name in names}


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_role_gets_what_it_needs_and_nothing_else(tmp_path):
    make_keys(tmp_path, ["hub.example", "10.0.0.7"], ["node-1"])
    assert {str(path) for path in content(tmp_path)} == {
        "ca/ca.key",
        "executor/ca.crt",
        "executor/executor.crt",
        "executor/executor.key",
        "executor/executor.secret",
        "nodes/node-1/ca.crt",
        "nodes/node-1/local-ca.crt",
        "nodes/node-1/local.crt",
        "nodes/node-1/local.key",
        "nodes/node-1/node.crt",
        "nodes/node-1/node.key",
        "nodes/node-1/node.pub",
        "nodes/node-1/state.key",
        "operator/ca.crt",
        "operator/node-1.pub",
        "operator/operator.crt",
        "operator/operator.key",
        "server/ca.crt",
        "server/executor.secret",
        "server/server.crt",
        "server/server.key",
    }
    assert names_of(tmp_path) == {"hub.example", "10.0.0.7", "localhost", "127.0.0.1", "::1"}


def test_private_files_are_for_their_owner_only(tmp_path):
    make_keys(tmp_path, [], ["node-1"])
    for path in tmp_path.rglob("*"):
        if path.suffix in (".key", ".secret"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_nothing_is_made_twice_and_nodes_can_be_added(tmp_path):
    ours = ["operator certificate", "executor certificate"]
    assert make_keys(tmp_path, [], ["node-1"]) == [
        "certificate authority",
        "server certificate",
        *ours,
        "keys of node-1",
    ]
    before = content(tmp_path)
    assert make_keys(tmp_path, [], ["node-1", "node-2"]) == ["keys of node-2"]
    after = content(tmp_path)
    assert {path: after[path] for path in before} == before


def test_a_new_name_of_the_server_needs_a_new_certificate_only(tmp_path):
    make_keys(tmp_path, ["old.example"], ["node-1"])
    before = content(tmp_path)
    assert make_keys(tmp_path, ["new.example"], []) == ["server certificate"]
    assert names_of(tmp_path) >= {"old.example", "new.example"}
    changed = {str(path) for path, text in content(tmp_path).items() if before[path] != text}
    assert changed == {"server/server.crt", "server/server.key"}


@pytest.mark.parametrize(
    ("folder", "certificate", "authority"), [("server", "server", "ca"), ("nodes/n", "local", "local-ca")]
)
def test_a_certificate_is_accepted_by_its_authority_and_key(tmp_path, folder, certificate, authority):
    """OpenSSL loads the pair and completes a handshake with it, in memory."""
    make_keys(tmp_path, [], ["n"])
    here = tmp_path / folder
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(here / f"{certificate}.crt", here / f"{certificate}.key")
    calling = ssl.create_default_context(cafile=here / f"{authority}.crt")
    handshake(serving, calling, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, calling, "elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(serving, ssl.create_default_context(), "localhost")


def handshake(serving, calling, name):
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    client = calling.wrap_bio(to_client, to_server, server_hostname=name)
    for _ in range(6):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    assert client.version()


def test_bad_names_and_damaged_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="not '../x'"):
        make_keys(tmp_path, [], ["../x"])
    make_keys(tmp_path, [], [])
    (tmp_path / "ca" / "ca.key").write_text("nonsense")
    with pytest.raises(StateError, match=r"ca\.key is no private key"):
        make_keys(tmp_path, [], [])
