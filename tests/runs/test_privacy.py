"""Invariant 2: what leaves a node is what the wire declares, and private arrays are not among it."""

import numpy as np
import pytest

from bouquet.config import parsed
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.testing import Recording
from bouquet.wire import EVALUATE, EVALUATE_ARRAYS, REPORTS, ROSTER, ROSTER_ARRAYS, TRAIN, TRAIN_ARRAYS
from tests.runs.helpers import WITH_PLUG_INS, method, run_here, small_settings

DECLARED = {ROSTER: ROSTER_ARRAYS, TRAIN: TRAIN_ARRAYS, EVALUATE: EVALUATE_ARRAYS}


@pytest.mark.parametrize("strategy", [*sorted(METHODS), *WITH_PLUG_INS])
@pytest.mark.parametrize("nodes", [1, 40])
def test_only_declared_arrays_leave_a_node(tmp_path, strategy, nodes):
    log = []
    settings = small_settings(tmp_path, **method(strategy), num_server_rounds=2)
    run_here(tmp_path / "run", settings, nodes, Recording, log=log)
    counts = strategy in METHODS and METHODS[strategy].kind == "sums"
    matrices = counted(settings) if counts else set()
    private = np.zeros((0, 4)) if counts else private_values(settings, tmp_path / "run" / "nodes", nodes)
    assert {message.metadata.message_type for message, _ in log} == {ROSTER, TRAIN, EVALUATE}
    seen = 0
    for message, reply in log:
        kind = message.metadata.message_type
        assert set(reply.content) <= {"users", "config", "update", "reports"}
        assert set(reply.content.array_records.get("reports", {})) <= REPORTS
        assert set(reply.content.array_records["users"]) <= DECLARED[kind]
        if "update" in reply.content:
            shared = set(message.content["shared"]) | set(message.content["personal"])
            assert {name.rsplit("/", 1)[0] for name in reply.content["update"]} <= shared | matrices
        for record in reply.content.array_records.values():
            for name, array in record.items():
                values = array.numpy()
                seen += 1
                if len(private) and values.dtype.kind == "f" and values.shape[-1:] == (4,):
                    distance = np.abs(values.reshape(-1, 1, 4) - private[None]).max(axis=2)
                    assert distance.min() > 1e-7, f"{name} holds a user embedding"
    assert seen > 0


def counted(settings):
    """The sums that a method which trains nothing declares: matrices of cells, and arrays."""
    found = parsed(settings)
    method = METHODS[found.run.strategy]
    device = class_at(method.device)(50, found.of(method.options))
    return {*device.traveling, *getattr(device, "specs", ())}


def private_values(settings, folder, nodes):
    """[n, 4] the user embeddings that the nodes keep, of all versions."""
    files = sorted(folder.glob(f"*/node-*-of-{nodes}/user_embedding.npy"))
    assert len(files) == nodes
    values = np.concatenate([np.load(file).reshape(-1, 4) for file in files])
    return values[np.abs(values).max(axis=1) > 0]
