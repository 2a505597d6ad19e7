"""Invariants 1 and 4: the same run however users are spread over nodes, and a shard is its users."""

import numpy as np
import pytest

from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.testing import Recording
from bouquet.testing.runs import total_update, trained
from tests.runs.helpers import WITH_PLUG_INS, last_checkpoint, method, run_here, small_settings

ALL = [*sorted(METHODS), *WITH_PLUG_INS]


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_the_same_run_on_one_node_on_seven_and_with_one_user_each(tmp_path, strategy, fraction):
    runs = {}
    for nodes in (1, 7, 40):
        # Adam makes whole steps of gradients that are rounding only. A deep network has many, and so has a term that
        # pulls a table towards one that it has hardly left. Scaffold corrects steps of SGD.
        optimizer = "sgd" if strategy in ("fed3cr", "gpfedrec", "scaffold", *WITH_PLUG_INS) else "adam"
        # Rounding is divided by what holds the vectors of iALS down, where no user has a part: .013 with its defaults.
        held = {"ials_regularization": 0.01} if strategy == "ials" else {}
        settings = small_settings(tmp_path, **method(strategy), fraction_train=fraction, optimizer=optimizer, **held)
        runs[nodes] = run_here(tmp_path / str(nodes), settings, nodes)
    first = runs[1]
    for nodes, directory in runs.items():
        summary, expected = directory.read_summary(), first.read_summary()
        assert summary["nodes"] == nodes
        for part in ("test", "validation"):
            for candidates, metrics in expected[part].items():
                for name, value in metrics.items():
                    assert summary[part][candidates][name] == pytest.approx(value, abs=1e-5), (nodes, name)
        assert summary["best_round"] == expected["best_round"]
        assert summary["bytes"]["up_per_user_round"] == expected["bytes"]["up_per_user_round"]
        assert summary["bytes"]["down_per_user_round"] == expected["bytes"]["down_per_user_round"]
        for name, values in last_checkpoint(first).shared.items():
            np.testing.assert_allclose(last_checkpoint(directory).shared[name], values, atol=2e-5)


@pytest.mark.parametrize("setting", [{"plgc_tables": "base"}, {"plgc_mixing": "none"}])
def test_plgc_on_the_tables_of_its_base_is_the_same_on_every_layout(tmp_path, setting):
    """The local table is fedrap's own, or the common one: no table of the plug-in's is kept, and none travels."""
    given = {**method("fedrap+plgc"), "fedrap_personal_learning_rate": 1.0, "optimizer": "sgd", **setting}
    one, many = (run_here(tmp_path / str(nodes), small_settings(tmp_path, **given), nodes) for nodes in (1, 40))
    assert {path.name for path in (tmp_path / "1").rglob("*_embedding.npy")} == {
        "user_embedding.npy", "personal_item_embedding.npy"
    }  # fmt: skip
    found, expected = last_checkpoint(many).shared, last_checkpoint(one).shared
    np.testing.assert_allclose(found["item_embedding"], expected["item_embedding"], atol=2e-5)
    assert many.read_summary()["test"]["full"]["NDCG@10"] == pytest.approx(
        one.read_summary()["test"]["full"]["NDCG@10"], abs=1e-5
    )


def test_other_layouts_of_users_do_not_matter_either(tmp_path):
    by_size = run_here(tmp_path / "a", small_settings(tmp_path, partition="by-size"), 5)
    alone = run_here(tmp_path / "b", small_settings(tmp_path, partition="one-per-node"), 40)
    found, expected = last_checkpoint(alone).shared, last_checkpoint(by_size).shared
    np.testing.assert_allclose(found["item_embedding"], expected["item_embedding"], atol=2e-5)


def test_a_training_share_is_the_same_on_every_layout(tmp_path):
    """Nodes keep the same items of each user, and send sizes of what is kept."""
    one, many = (
        run_here(tmp_path / str(nodes), small_settings(tmp_path, training_share=0.3), nodes) for nodes in (1, 7)
    )
    found, expected = last_checkpoint(many).shared, last_checkpoint(one).shared
    np.testing.assert_allclose(found["item_embedding"], expected["item_embedding"], atol=2e-5)
    whole = run_here(tmp_path / "whole", small_settings(tmp_path), 1)
    sizes, all_sizes = (directory.read_sizes() for directory in (one, whole))
    # Rounded half up, which NumPy's round does not do.
    np.testing.assert_array_equal(sizes, np.maximum(np.floor(0.3 * all_sizes + 0.5 + 1e-9), 1))


@pytest.mark.parametrize(
    "strategy", [name for name, m in METHODS.items() if class_at(m.strategy).update == "sum" and name != "local"]
)
def test_the_update_of_a_shard_is_the_sum_over_its_users(tmp_path, strategy):
    """Round 1, where all start alike: 1 node of 40 users against 40 nodes of one, update by update."""
    logs = {1: [], 40: []}
    for nodes, log in logs.items():
        settings = small_settings(tmp_path, strategy=strategy, num_server_rounds=1)
        run_here(tmp_path / str(nodes), settings, nodes, Recording, log=log)
    totals = {nodes: total_update(log) for nodes, log in logs.items()}
    for nodes, log in logs.items():
        for reply in trained(log):
            for packed in reply.sums.values():
                assert packed.values.dtype == (np.float64 if nodes == 1 else np.float32)
    (one, weight), (many, weights) = totals[1], totals[40]
    assert many.keys() == one.keys()
    for name, values in one.items():
        np.testing.assert_allclose(many[name], values, atol=1e-4 * np.abs(values).max())
    assert weights == weight


def test_the_bytes_of_a_user_are_the_bytes_of_its_own_message(tmp_path):
    """What a shard reports per user is what a node of one user really sends: the arrays of its update."""
    log = []
    run_here(tmp_path / "run", small_settings(tmp_path, num_server_rounds=1), 40, Recording, log=log)
    for reply in trained(log):
        packed = reply.sums["item_embedding"]
        rows = 0 if packed.rows is None else packed.rows.nbytes
        assert reply.upload_bytes[0] == rows + packed.values.nbytes
