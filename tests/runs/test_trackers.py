"""Trackers: what another program reads of a run, and that a resumed run tells no round twice."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from bouquet.errors import RunFailed
from bouquet.reporting.trackers import values_of
from strategies.federation.observers import Tracking
from tests.runs.helpers import run_here, small_settings


def scalars(directory):
    """Tag -> [(step, value)] as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(directory.path / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    found = defaultdict(list)
    for tag in reader.Tags()["scalars"]:
        found[tag] = [(event.step, event.value) for event in reader.Scalars(tag)]
    return found, reader


@pytest.fixture
def tensorboard():
    pytest.importorskip("tensorboard", reason="the extra tensorboard is not installed")


LINE = {
    "users": 3,
    "failures": [],
    "loss": float("nan"),
    "bytes": {"down_per_user": 10.0, "up_per_user": 5.0, "wire_down": 1},
    "seconds": {"total": 0.5},
    "validation": {"full": {"HR@10": 0.25, "NDCG@10": None}},
    "test": {"full": {"HR@10": 0.5}},
}


def test_figures_of_a_line_without_those_of_the_test_and_without_what_is_no_number():
    assert values_of(LINE) == {
        "users": 3.0,
        "failures": 0.0,
        "bytes/down_per_user": 10.0,
        "bytes/up_per_user": 5.0,
        "seconds/total": 0.5,
        "validation/full/HR@10": 0.25,
    }


def stopped_and_resumed(folder, **changes):
    """The folder of a run of 3 rounds whose last checkpoint is of the 2nd, and of the same until round 5."""
    settings = small_settings(folder, num_server_rounds=3, checkpoint_every=2, evaluate_every=1, **changes)
    directory = run_here(folder / "run", settings, 1)
    # As if it had been killed before its last checkpoint: rounds are taken back.
    max(directory.checkpoints.glob("*.safetensors")).unlink()
    resumed = {**settings, "num-server-rounds": 5, "resume": str(directory.path)}
    return run_here(directory.path, resumed, 1)


def test_tensorboard_has_every_round_once_also_when_the_run_is_resumed(tmp_path, tensorboard):
    directory = stopped_and_resumed(tmp_path, tracker="tensorboard")
    found, reader = scalars(directory)
    lines = directory.rounds()
    assert len(lines) == 5
    assert [step for step, _ in found["loss"]] == [1, 2, 3, 4, 5]
    assert [value for _, value in found["loss"]] == pytest.approx([line["loss"] for line in lines], rel=1e-6)
    validation = [line["validation"]["full"]["NDCG@10"] for line in lines]
    assert [value for _, value in found["validation/full/NDCG@10"]] == pytest.approx(validation, rel=1e-6)
    summary = directory.read_summary()
    assert found["reported/test/full/NDCG@10"] == [
        (summary["best_round"], pytest.approx(summary["test"]["full"]["NDCG@10"], rel=1e-6))
    ]
    assert "test/full/NDCG@10" not in found
    times = [event.wall_time for event in reader.Scalars("loss")]
    assert times == sorted(times)
    assert "_hparams_/session_start_info" in reader.Tags()["tensors"] or reader.summary_metadata


def test_a_tracker_that_fails_costs_the_run_nothing(tmp_path, tensorboard, capsys):
    """Where its folder should be lies a file."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensorboard").write_text("in the way")
    settings = small_settings(tmp_path, tracker="tensorboard", num_server_rounds=1)
    directory = run_here(tmp_path / "run", settings, 1)
    assert directory.read_summary()["status"] == "completed"
    assert "tracker 'tensorboard' is left out from here on: FileExistsError" in capsys.readouterr().err
    assert [e["event"] for e in directory.read_events()].count("tracker failed") == 1


def test_mlflow_has_every_round_once_also_when_the_run_is_resumed(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    directory = stopped_and_resumed(tmp_path, tracker="mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{directory.path / 'mlflow' / 'mlflow.db'}")
    run = client.get_run((directory.path / "mlflow" / "run-id").read_text())
    assert run.info.status == "FINISHED"
    assert run.data.params["strategy"] == "fedavg"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted(point.step for point in history) == [1, 2, 3, 4, 5]
    test = directory.read_summary()["test"]["full"]["NDCG@10"]
    assert run.data.metrics["reported/test/full/NDCG_at_10"] == pytest.approx(test)


@pytest.mark.parametrize(("how", "status"), [("fails", "FAILED"), ("is stopped", "KILLED")])
def test_mlflow_is_told_how_a_run_ended_that_has_no_result(tmp_path, monkeypatch, how, status):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = small_settings(tmp_path, tracker="mlflow", num_server_rounds=3, checkpoint_every=1)
    broken = KeyboardInterrupt if how == "is stopped" else RunFailed

    def look(tracking, server_round):
        told(tracking, server_round)
        if server_round == 2:
            raise broken

    told = Tracking.look
    monkeypatch.setattr(Tracking, "look", look)
    with pytest.raises(broken):
        run_here(tmp_path / "run", settings, 1)
    monkeypatch.setattr(Tracking, "look", told)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'run' / 'mlflow' / 'mlflow.db'}")
    identity = (tmp_path / "run" / "mlflow" / "run-id").read_text()
    assert client.get_run(identity).info.status == status
    directory = run_here(tmp_path / "run", settings | {"resume": str(tmp_path / "run")}, 1)
    assert client.get_run(identity).info.status == "FINISHED"
    assert directory.read_summary()["status"] == "completed"


def test_weights_and_biases_is_offline_and_has_every_round_once(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = stopped_and_resumed(tmp_path, tracker="wandb")
    assert [e for e in directory.read_events() if e["event"] == "tracker failed"] == []
    assert wandb_rounds(directory) == [1, 2, 3, 4, 5]


def wandb_rounds(directory):
    """Steps of all offline runs in the folder."""
    from wandb.proto import wandb_internal_pb2

    steps = []
    for path in sorted(directory.path.glob("wandb/wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()[7:]):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                steps += [json.loads(items["_step"])] if "loss" in items else []
    return steps


def log_records(content):
    """The records of a log in LevelDB's form; 7 bytes of a header of their own count as part of the first block."""
    block, place, whole = 2**15, 7, b""
    content = bytes(7) + content
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def test_a_run_without_a_tracker_has_none(tmp_path):
    directory = run_here(tmp_path / "run", small_settings(tmp_path, num_server_rounds=1), 1)
    assert not any((directory.path / name).exists() for name in ("tensorboard", "mlflow", "wandb"))
