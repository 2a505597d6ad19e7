"""Invariant: where a run trains changes nothing but rounding. With every method, on a GPU and on the processor."""

import numpy as np
import pytest
import torch

from bouquet.methods import METHODS
from client_app.personalization import plgc_redundancy
from client_app.training import stacked
from tests.pretended_gpu import pretended_gpu
from tests.runs.helpers import last_checkpoint, run_here, small_settings, write_histories
from tests.runs.populations import MIXED, combinations

TRAINED = [chosen for chosen in combinations() if METHODS[chosen[0]].kind == "gradients"]
# Plug-ins stand before the others as they stand before these.
PRETENDED = [
    chosen if chosen[2] == "none" or chosen[0] in ("fcf", "fedrap") else pytest.param(*chosen, marks=pytest.mark.slow)
    for chosen in TRAINED
]
# torch knows one kind of accelerator in a process.
real = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
pretended = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a real GPU")
SMALL = {"learning_rate": 0.05, "user_learning_rate": 0.2, "max_length": 4, "num_server_rounds": 2, "evaluate_every": 1}


def assert_equal_runs(folder, tolerance, there, **changes):
    """Metrics of all users and all shared arrays, with local training on the processor and elsewhere."""
    write_histories(folder / "data.csv", MIXED)
    found = []
    for device in ("cpu", there):
        chosen = small_settings(folder, backend="torch", device=device, **{**SMALL, **changes})
        directory = run_here(folder / device, chosen, 2)
        assert directory.read_summary()["failures"] == 0, directory.events.read_text()
        found.append((directory.read_users()[1], last_checkpoint(directory).shared))
    np.testing.assert_allclose(found[1][0], found[0][0], atol=1e-5)
    for name, values in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], values, atol=tolerance, err_msg=name)


@pretended
@pytest.mark.parametrize(("strategy", "backbone", "plug_in"), PRETENDED, ids=["-".join(one) for one in TRAINED])
def test_nothing_is_left_behind(tmp_path, monkeypatch, strategy, backbone, plug_in):
    # Compiled loops, which a GPU does not have, add in another order than torch, and this regulariser amplifies it.
    monkeypatch.setattr(plgc_redundancy, "redundancy_kernels", lambda: None)
    with pretended_gpu() as gpu:
        changes = {"strategy": strategy, "backbone": backbone, "personalization": plug_in}
        assert_equal_runs(tmp_path, 1e-6, "cuda:0", **changes)
    assert gpu.moved > 0


@real
@pytest.mark.parametrize(("strategy", "backbone", "plug_in"), TRAINED, ids=["-".join(one) for one in TRAINED])
def test_a_real_gpu_rounds_otherwise_and_nothing_else(tmp_path, strategy, backbone, plug_in):
    changes = {"strategy": strategy, "backbone": backbone, "personalization": plug_in}
    assert_equal_runs(tmp_path, 5e-4, "cuda", **changes)


@pretended
def test_what_is_forgotten_here_is_noticed():
    """The pretended GPU refuses what a real one would."""
    with pretended_gpu() as gpu:
        there = torch.ones(2, 2).to(torch.device("cuda:0"))
        assert (gpu.moved, (there @ there).cpu().tolist()) == (1, [[2.0, 2.0], [2.0, 2.0]])
        with pytest.raises(RuntimeError, match="tensors on two devices"):
            there @ torch.ones(2, 2)
        with pytest.raises(RuntimeError, match="not supported"):
            there.numpy()


@pretended
def test_many_more_users_are_stacked_on_a_gpu(tmp_path, monkeypatch):
    """Of nine users on one node one stack, where a bound as small as the processor's makes several of them."""
    made = []
    original = stacked.Chunk.__init__

    def counting(chunk, task, users, rows):
        made.append(len(users))
        original(chunk, task, users, rows)

    monkeypatch.setattr(stacked.Chunk, "__init__", counting)
    monkeypatch.setattr(stacked, "CHUNK_VALUES", 50)
    write_histories(tmp_path / "data.csv", MIXED)
    for device, alone in (("cpu", False), ("cuda:0", True)):
        made.clear()
        with pretended_gpu():
            chosen = small_settings(tmp_path, backend="torch", device=device, **{**SMALL, "num_server_rounds": 1})
            run_here(tmp_path / device, chosen, 1)
        assert sum(made) == 9
        assert (len(made) == 1) == alone
