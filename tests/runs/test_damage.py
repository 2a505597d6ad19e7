"""Every byte of what a run goes on from counts: flipped or cut off, it is an error that names the file, or harmless.

Harmless is proven: what was read is then what was written. Of a run's folder that holds for rows of versions that
nobody asks for any more, blanks in headers of `.npy` files, and the checkpoints before the last.
"""

import json
import random
import re

import numpy as np
import pytest

from bouquet.catalogue import Catalogue
from bouquet.device import Device
from bouquet.errors import BouquetError
from client_app.node.host import host_of
from strategies.federation.checkpoint import load_checkpoint, refuse_other_lines
from tests.runs.helpers import run_here, small_settings, write_data

FLIPS, CUTS = 40, 12


def damages(name, content):
    """Keyed by the file's name: one bit or a whole byte flipped, spread over the file, and lengths from 0 to n - 1."""
    source = random.Random(name)
    step = max(len(content) // FLIPS, 1)
    for start in range(0, len(content), step):
        place = start + source.randrange(min(step, len(content) - start))
        damaged = bytearray(content)
        damaged[place] ^= source.choice([1 << source.randrange(8), 0xFF, 1 + source.randrange(255)])
        yield f"byte {place}", bytes(damaged)
    for cut in range(CUTS):
        length = len(content) * cut // CUTS
        yield f"cut at {length}", content[:length]
    yield "cut by one", content[:-1]


def assert_noticed_or_harmless(path, read, expected):
    """For every damage of the file; how many were noticed."""
    content, noticed = path.read_bytes(), 0
    for name, damaged in damages(path.name, content):
        path.write_bytes(damaged)
        found, said = outcome(read)
        path.write_bytes(content)
        assert path.name in said or (not said and found == expected), (path.name, name, said)
        noticed += bool(said)
    return noticed


def outcome(read):
    """What was read, or the sentence of the error."""
    try:
        return read(), ""
    except BouquetError as error:
        return None, str(error)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of four rounds of 12 users, with private arrays and own rows of common tables."""
    home = tmp_path_factory.mktemp("damage")
    write_data(home / "data.csv", 12, 40, 12.0)
    settings = small_settings(home, strategy="pfedrec", num_server_rounds=4)
    directory = run_here(home / "run", settings, 1)
    directory.reported.write_ids([f"u{n}" for n in range(12)], Catalogue(("a", "b"), ("A", "")))
    return directory, settings | {"state-dir": str(directory.nodes), "out": str(directory.path)}


def contents(arrays):
    return {name: (values.dtype.str, values.shape, values.tobytes()) for name, values in arrays.items()}


def everything(directory, settings):
    """What resuming reads, and what is read of a finished run by user."""
    directory.check_config()
    checkpoint = load_checkpoint(directory.checkpoints)
    refuse_other_lines(checkpoint, directory)
    directory.begin(checkpoint.round)
    host = host_of(settings, {"partition-id": 0, "num-partitions": 1})
    state = host.state(checkpoint.series, checkpoint.shared)
    positions = host.positions(checkpoint.users)
    private = state.read(positions, checkpoint.versions)
    own = state.own_rows(positions, checkpoint.versions)
    origins = state.origins(positions, checkpoint.versions)
    tables = {str(origin): contents(state.origin(origin)) for origin in np.unique(origins)}
    users, metrics = directory.read_users()
    reported, best = directory.reported, checkpoint.best.round
    model = reported.read_model(best)
    of_checkpoint = {name: getattr(checkpoint, name) for name in ("users", "sizes", "versions", "owners")}
    return {
        "config": directory.config.read_bytes() and (directory.read_config(), directory.engine()),
        "lines": directory.rounds(),
        "summary": directory.read_summary(),
        "shared": contents(checkpoint.shared) | contents(checkpoint.extra) | contents(of_checkpoint),
        "rest": (checkpoint.series, checkpoint.round, checkpoint.best.round, checkpoint.best.values.tobytes()),
        "private": contents(private) | contents(own.values) | contents({"rows": own.rows.values}),
        "tables": tables,
        "by user": contents({"users": users, "metrics": metrics}),
        "reported": (contents(model.arrays), contents(vars(reported.read_lists(best)))),
        "ids": (reported.read_users(), reported.read_catalogue()),
    }


# The least share of a file's damages that must be noticed: most of three versions of a row are nobody's any more.
FILES = {
    "config.toml": 1.0,
    "metrics.jsonl": 0.98,
    "summary.json": 0.95,
    "users.safetensors": 1.0,
    "reported/round-00000?.safetensors": 1.0,
    "reported/round-00000?-lists.safetensors": 1.0,
    "reported/catalogue.json": 0.9,
    "reported/users.json": 0.9,
    "checkpoints/round-000004.safetensors": 1.0,
    "checkpoints/round-000002.safetensors": 0.0,
    "nodes/*/node-0-of-1/index.safetensors": 1.0,
    "nodes/*/node-0-of-1/user_embedding.npy": 0.1,
    "nodes/*/node-0-of-1/own_rows.npy": 0.1,
    "nodes/*/node-0-of-1/origin-*.safetensors": 0.0,
}


@pytest.mark.parametrize("pattern", FILES)
def test_a_damaged_file_of_a_run_is_named_or_what_is_read_is_what_was_written(folder, pattern):
    directory, settings = folder
    expected = everything(directory, settings)
    paths = sorted(directory.path.glob(pattern))
    assert paths
    shares = []
    for path in paths:
        noticed = assert_noticed_or_harmless(path, lambda: everything(directory, settings), expected)
        shares.append(noticed / len(list(damages(path.name, path.read_bytes()))))
    assert max(shares) >= FILES[pattern]
    if "origin" in pattern:
        assert max(shares) == 1.0, "the tables that the checkpoint's versions are from"


def test_every_file_of_a_run_is_looked_at(folder):
    """But events, which nothing reads, and locks, which are empty."""
    directory, _ = folder
    known = {path for pattern in FILES for path in directory.path.glob(pattern)}
    others = {path.name for path in directory.path.rglob("*") if path.is_file() and path not in known}
    assert {re.sub(r"node-0-of-1", "node", name) for name in others} <= {"events.jsonl", ".lock", "node.lock"}


def test_a_damaged_file_of_a_device_is_named_or_what_is_read_is_what_was_written(tmp_path):
    """Without a key: with one, everything but device.json and catalogue.json is sealed."""
    device = Device(tmp_path / "device")
    items = tuple(f"item {n}" for n in range(20))
    catalogue = Catalogue(items, tuple(f"Títle {n}" for n in range(20)))
    device.save_settings({"user": "ann", "history": "/data/history.csv", "item_column": "item", "time_column": ""})
    catalogue.save(device.folder / "catalogue.json")
    device.mark_trained(items[:9])
    device.save_recommendations(catalogue, [3, 1, 2], [0.5, 0.25, 0.125], 7)

    def read():
        return device.settings(), device.catalogue(), device.trained(), device.recommendations()

    expected = read()
    for path in device.folder.iterdir():
        cases = len(list(damages(path.name, path.read_bytes())))
        assert assert_noticed_or_harmless(path, read, expected) >= 0.95 * cases, path.name


def test_a_device_of_a_version_without_digests_goes_on(tmp_path):
    (tmp_path / "device.json").write_text(json.dumps({"user": "ann", "format": 1}))
    device = Device(tmp_path)
    assert device.settings()["user"] == "ann"
    device.save_settings(device.settings())
    assert json.loads((tmp_path / "device.json").read_text())["format"] == 2
