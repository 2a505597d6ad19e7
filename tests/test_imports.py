"""What a process has loaded after doing something: heavy packages stay off every path that does not need them.

Everything is done in a process of its own, because whatever this one has loaded stays.
"""

from __future__ import annotations

import json

import pytest

from bouquet.config import DataOptions
from client_app.node.histories import interactions_of
from data_partition import write_shards
from tests.loaded import loaded_by

HEAVY = ("torch", "pandas", "pyarrow", "ray", "cvxpy", "sklearn", "matplotlib")

# A device of one person: two rounds of training and an evaluation, as messages from a server ask for them.
DEVICE = """
import json, sys
from dataclasses import replace
from pathlib import Path
import numpy as np
import client_app.app
from bouquet.arrays import initial_shared
from bouquet.catalogue import Catalogue
from bouquet.device import Device
from bouquet.wire import EvaluateRequest, RosterRequest, TrainRequest
from client_app.edge.handlers import before_training, device_node, device_roster

folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
update = "rows" if settings["strategy"] == "cf-fedsr" else "sum"
(folder / "history.csv").write_text("item,time\\n" + "".join(f"i{n},{n}\\n" for n in range(12)))
state = folder / "state"
Device(state).save_settings({"user": "anna"})
node = {"history": str(folder / "history.csv"), "state-dir": str(state)}
catalogue = Catalogue(tuple(f"i{n}" for n in range(40)), ("",) * 40)
roster = device_roster(RosterRequest("s", catalogue.edition, catalogue, update), settings, node)
shared = initial_shared(roster.specs, 0)
asked = TrainRequest(
    "s", 1, roster.users, np.zeros(1, np.int64), np.zeros(1, np.int64), shared, update=update, weights=np.ones(1)
)
for round_ in (1, 2):
    device = device_node(settings, node, round_)
    before_training(device, node)
    assert not device.train(replace(asked, round=round_, versions=np.array([round_ - 1]))).left_out
found = device_node(settings, node, 2).evaluate(EvaluateRequest("s", 2, roster.users, np.array([2]), shared))
assert found.metrics.shape[0] == 1
"""


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("strategy", ["fedavg", "fcf", "pfedrec", "cf-fedsr"])
def test_a_device_trains_matrix_factorisation_without_torch(tmp_path, strategy, backend):
    settings = {"strategy": strategy, "backend": backend, "secret-draws": False}
    loaded = loaded_by(DEVICE, str(tmp_path), json.dumps(settings))
    assert loaded.isdisjoint(HEAVY)
    assert "numba" in loaded or backend == "numpy"


GATEWAY = """
import json, sys
import client_app.app
from client_app.side import node_of

node = node_of(json.loads(sys.argv[2]), {"shard": sys.argv[1], "state-dir": sys.argv[1] + "-state"})
assert len(node.roster().users) == 300
"""


def test_a_gateway_reads_its_shard_without_pandas(tmp_path):
    options = DataOptions()
    part, _ = write_shards(interactions_of(options), 2, "contiguous", options.to_flat(), tmp_path)
    assert loaded_by(GATEWAY, str(part), json.dumps({"strategy": "fedavg"})).isdisjoint(HEAVY)


def test_the_same_device_loads_torch_for_a_network(tmp_path):
    """So the test above would see it."""
    assert "torch" in loaded_by(DEVICE, str(tmp_path), json.dumps({"strategy": "fedavg", "backbone": "ncf"}))


@pytest.mark.parametrize(
    "name", ["main", "run", "serve", "operate", "deploy", "node", "data", "table", "resume", "evaluate", "search"]
)
def test_no_command_loads_what_only_some_runs_need(name):
    assert loaded_by(f"import bouquet.cli.{name}, bouquet.cli.main, server_app.app").isdisjoint(HEAVY)
