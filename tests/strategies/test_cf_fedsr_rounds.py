"""CF-FedSR in whole runs: who is asked, what is kept, what ends a run."""

import numpy as np
import pytest

from bouquet.evaluation.metrics import CANDIDATE_SETS
from bouquet.testing import Recording, assert_equal_runs
from bouquet.wire import RosterReply
from tests.runs.helpers import last_checkpoint, run_here, small_settings

SEQUENCES = {"strategy": "cf-fedsr", "backbone": "gru4rec", "fraction_train": 0.4, "cf_fedsr_lambda_1": 12}


def lines(directory, key="cf-fedsr"):
    return [line[key] for line in directory.rounds()]


@pytest.mark.parametrize("backbone", ["gru4rec", "sasrec"])
@pytest.mark.parametrize("exchange", ["auto", "all"])
def test_the_same_run_on_one_node_on_seven_and_with_one_user_each(tmp_path, backbone, exchange):
    # Norms of embeddings near 0, and Adam's of small changes, would blow up the last digits until ranks differ.
    changed = {"backbone": backbone, "exchange": exchange, "init_scale": 0.1, "server_optimizer": "sgd"}
    changed |= {"server_learning_rate": 1.0}
    settings = small_settings(tmp_path, **{**SEQUENCES, **changed})
    runs = [run_here(tmp_path / str(nodes), settings, nodes) for nodes in (1, 7, 40)]
    first = runs[0].read_summary()
    for run in runs[1:]:
        summary = run.read_summary()
        for candidates in CANDIDATE_SETS:
            for name, value in first["test"][candidates].items():
                assert summary["test"][candidates][name] == pytest.approx(value, abs=1e-5), name
        assert summary["best_round"] == first["best_round"]
        assert [choice["chosen"] for choice in lines(run)] == [choice["chosen"] for choice in lines(runs[0])]
        for name, values in last_checkpoint(runs[0]).shared.items():
            np.testing.assert_allclose(last_checkpoint(run).shared[name], values, atol=5e-4)


def test_only_users_with_data_come_first_and_everybody_later(tmp_path):
    """λ_1 = 12 lets some of the 40 users take part; from round 4, after λ_2 = 3, all may."""
    log = []
    settings = small_settings(tmp_path, **SEQUENCES, cf_fedsr_lambda_2=3)
    run = run_here(tmp_path / "run", settings, 1, Recording, log=log)
    roster = RosterReply.decode(log[0][1].content)
    sizes = dict(zip(roster.users.tolist(), roster.sizes.tolist(), strict=True))
    large = sum(size > 12 for size in sizes.values())
    assert 16 <= large < 40
    assert [choice["eligible"] for choice in lines(run)] == [large] * 3 + [40] * 3
    asked = [m.content["users"]["user"].numpy() for m, _ in log if m.metadata.message_type == "train"]
    assert all(sizes[int(user)] > 12 for users in asked[:3] for user in users)
    assert any(sizes[int(user)] <= 12 for users in asked[3:] for user in users)
    assert [len(users) for users in asked] == [16] * 6


def test_users_come_from_all_clusters_once_interests_are_known(tmp_path):
    """Nobody's interests are known in round 1; those who trained have told theirs; after an evaluation all have."""
    settings = small_settings(tmp_path, **SEQUENCES, cf_fedsr_lambda_2=0, cf_fedsr_clusters=3)
    choices = lines(run_here(tmp_path / "run", settings, 3))
    assert choices[0]["clusters"] == [40]
    assert choices[1]["clusters"][0] == 24
    assert len(choices[1]["clusters"]) == 4
    for choice in choices[2:]:
        assert len(choice["clusters"]) == 3
        assert sum(choice["clusters"]) == 40
        assert sum(choice["chosen"]) == 16
        assert min(choice["chosen"]) > 0


def test_without_its_parts_it_is_federated_averaging(tmp_path):
    """Selection, fair weights and fine-tuning off: FedAvg with embeddings exchanged, up to the order of sums."""
    common = {"backbone": "gru4rec", "fraction_train": 0.4, "exchange": "embedding"}
    off = {"cf_fedsr_selection": False, "cf_fedsr_fair": False, "cf_fedsr_tuning_epochs": 0}
    plain = run_here(tmp_path / "a", small_settings(tmp_path, **common), 2)
    without = run_here(tmp_path / "b", small_settings(tmp_path, strategy="cf-fedsr", **common, **off), 2)
    found, expected = (last_checkpoint(run).shared["item_embedding"] for run in (without, plain))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert without.read_summary()["test"]["full"]["MRR"] == pytest.approx(plain.read_summary()["test"]["full"]["MRR"])


@pytest.mark.parametrize("backbone", ["gru4rec", "sasrec"])
def test_networks_and_histories_stay_on_the_device(tmp_path, backbone):
    """What leaves: rows of the item table, and the declared reports; of the network nothing."""
    log = []
    settings = small_settings(tmp_path, **{**SEQUENCES, "backbone": backbone})
    run_here(tmp_path / "run", settings, 5, Recording, log=log)
    names = set()
    for _, reply in log:
        names |= {f"{record}/{name}" for record, arrays in reply.content.array_records.items() for name in arrays}
    assert names == {
        *(f"users/{name}" for name in ("user", "size", "loss", "upload_bytes", "metrics")),
        *(f"update/item_embedding/{part}" for part in ("rows", "values", "indptr")),
        "reports/representation",
        "reports/performance",
    }
    kept = {path.stem for path in (tmp_path / "run" / "nodes").glob("*/*/*.npy")}
    assert "item_embedding" not in kept
    assert kept >= ({"hidden_weight", "output_weight"} if backbone == "gru4rec" else {"query", "position_embedding"})


def test_a_node_gets_each_shared_array_once(tmp_path):
    """The message to a node with eight users is as large as the message for one, but for their keys."""
    log = []
    run_here(tmp_path / "run", small_settings(tmp_path, **{**SEQUENCES, "fraction_train": 1.0}), 5, Recording, log=log)
    for message, _ in log:
        if message.metadata.message_type in ("train", "evaluate"):
            assert list(message.content["shared"]) == ["item_embedding"]
            assert len(message.content["personal"]) == 0


@pytest.mark.parametrize("strategy", ["cf-fedsr", "fedavg"])
def test_a_stopped_run_goes_on_exactly(tmp_path, strategy):
    """Private networks, representations and the server's moments included."""
    settings = small_settings(tmp_path, **{**SEQUENCES, "strategy": strategy, "exchange": "embedding"})
    settings |= {"evaluate-every": 3, "checkpoint-every": 3}
    whole = run_here(tmp_path / "whole", settings | {"num-server-rounds": 6}, 3)
    run_here(tmp_path / "parts", settings | {"num-server-rounds": 3}, 3)
    resumed = settings | {"num-server-rounds": 6, "resume": str(tmp_path / "parts")}
    assert_equal_runs(run_here(tmp_path / "parts", resumed, 3), whole)


@pytest.mark.parametrize("patience", [1, 2])
def test_a_run_ends_when_it_has_not_got_better(tmp_path, patience):
    """A rate so small that no rank changes: the first evaluation stays the best, and `patience` more are waited for."""
    settings = small_settings(
        tmp_path, num_server_rounds=30, evaluate_every=2, patience=patience, server_learning_rate=1e-12,
        user_learning_rate=1e-12, learning_rate=1e-12, server_optimizer="sgd",
    )  # fmt: skip
    run = run_here(tmp_path / "run", settings, 2)
    summary = run.read_summary()
    assert summary["best_round"] == 2
    assert summary["rounds"] == 2 + 2 * patience
    assert last_checkpoint(run).round == summary["rounds"]
    again = run_here(tmp_path / "run", settings | {"resume": str(run.path)}, 2)
    assert again.read_summary()["rounds"] == summary["rounds"]
    line = run.rounds()[0]["bytes"]
    assert summary["bytes"]["training_to_best_round"] == pytest.approx(
        2 * 40 * (line["down_per_user"] + line["up_per_user"]), 0.2
    )
