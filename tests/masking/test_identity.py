"""Identities in secure sums: a server cannot invent nodes where registered ones are certified."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bouquet.deployment.keys import certify, make_keys, make_node_keys
from bouquet.errors import ConfigError, WireError
from bouquet.masking.identity import Members, Registered
from bouquet.masking.key_messages import KeysRequest, SharesRequest
from bouquet.masking.participant import Participant
from bouquet.masking.rules import Rules
from tests.masking.protocol import ROUND, SERIES, numbers, secure_sum

NODES = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Keys of four nodes, and of one that made its own and was certified."""
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["localhost"], [f"node-{number}" for number in range(NODES)])
    make_node_keys(own := folder / "device")
    (own / "node.crt").write_bytes(certify(folder, own / "node.pub").read_bytes())
    (own / "ca.crt").write_bytes((folder / "server" / "ca.crt").read_bytes())
    return folder


@pytest.fixture(scope="module")
def identities(folder):
    names = [*(f"nodes/node-{number}" for number in range(NODES)), "device"]
    return [Registered.at(folder / name) for name in names]


def test_certified_nodes_make_a_sum(identities):
    values = numbers(5, 10, 1)
    total, survivors, _ = secure_sum(values, Rules(), {"input": [2]}, identities)
    assert survivors == [0, 1, 3, 4]
    np.testing.assert_array_equal(total, values[0] + values[1] + values[3] + values[4])


def asked(keys):
    return SharesRequest(SERIES, ROUND, tuple(keys))


def test_a_node_that_the_server_invents_is_refused_whatever_it_shows(folder, identities, tmp_path):
    """Without a certificate, with that of another, with one of another authority, or twice under one key."""
    request = KeysRequest(SERIES, ROUND)
    begun = [Participant.begin(request, identity) for identity in identities[:3]]
    node, keys = begun[0][0], [reply for _, reply in begun]
    node.share(asked(keys), Rules(), identity=identities[0])

    invented = Participant.begin(request)[1]
    make_keys(tmp_path, ["localhost"], ["stranger"])
    stranger = Participant.begin(request, Registered.at(tmp_path / "nodes" / "stranger"))[1]
    stolen = replace(invented, certificate=keys[1].certificate, endorsement=keys[1].endorsement)
    again = Participant.begin(request, identities[1])[1]
    executor = (folder / "executor" / "executor.crt").read_bytes()
    for wrong, said in [
        (invented, "a node has no certificate"),
        (stolen, "not signed with its registered one"),
        (stranger, "none of this federation's authority"),
        (replace(invented, certificate=der(executor)), "none of this federation's authority"),
        (replace(invented, certificate=b"nothing"), "none of this federation's authority"),
        (again, "stands twice"),
    ]:
        with pytest.raises(WireError, match=said):
            node.share(asked([*keys, wrong]), Rules(), identity=identities[0])
    # A server that knows the authority leaves the stranger out by itself, and the others go on.
    members = Members((folder / "server" / "ca.crt").read_bytes())
    for reply in keys:
        members.refuse_stranger(reply, SERIES, ROUND)
    with pytest.raises(WireError, match="none of this federation's authority"):
        members.refuse_stranger(stranger, SERIES, ROUND)


def der(pem):
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509 import load_pem_x509_certificate

    return load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def test_keys_of_another_round_are_not_taken(identities):
    """What a node has signed for one round says nothing in the next."""
    late = Participant.begin(KeysRequest(SERIES, ROUND - 1), identities[1])[1]
    request = KeysRequest(SERIES, ROUND)
    begun = [Participant.begin(request, identity) for identity in (identities[0], identities[2])]
    with pytest.raises(WireError, match="not signed with its registered one"):
        begun[0][0].share(asked([begun[0][1], late, begun[1][1]]), Rules(), identity=identities[0])


def test_files_that_do_not_belong_together_are_refused(folder, tmp_path):
    for name in ("ca.crt", "node.key", "node.crt"):
        (tmp_path / name).write_bytes((folder / "nodes" / "node-0" / name).read_bytes())
    assert Registered.at(tmp_path).certificate
    (tmp_path / "node.crt").write_bytes((folder / "nodes" / "node-1" / "node.crt").read_bytes())
    with pytest.raises(ConfigError, match="is of another key than the node's"):
        Registered.at(tmp_path)
    (tmp_path / "node.crt").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        Registered.at(tmp_path)
