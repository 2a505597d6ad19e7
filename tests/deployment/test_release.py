"""What a release of Flower allows; the releases beside the installed one are known here by their numbers alone."""

from pathlib import Path

import pytest

from bouquet.engines import release
from bouquet.errors import ConfigError

KEYS, DATABASE = Path("keys"), Path("superlink.db")


@pytest.mark.parametrize(
    ("installed", "apart"), [("1.39.0", True), ("1.40.0", False), ("1.42.1", False), ("2.0", False)]
)
def test_nodes_have_an_address_of_their_own_up_to_1_39(monkeypatch, installed, apart):
    monkeypatch.setattr(release, "version", lambda _: installed)
    assert release.has_fleet_port() == apart
    command = release.superlink_command("127.0.0.1", 8000, "127.0.0.1:8000", DATABASE, KEYS)
    assert ("--fleet-api-address" in command) == apart


def test_a_gate_cannot_stand_before_an_address_that_nodes_share(monkeypatch):
    monkeypatch.setattr(release, "version", lambda _: "1.42.0")
    with pytest.raises(ConfigError, match=r"Flower 1\.42\.0 lets nodes in where operators are.*flwr==1\.39"):
        release.superlink_command("127.0.0.1", 8000, "0.0.0.0:9092", DATABASE, KEYS)
