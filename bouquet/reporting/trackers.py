"""What other programs draw curves from: TensorBoard, MLflow, Weights & Biases.

A tracker is told what stands in `metrics.jsonl` anyway, and never what single users did. Test figures come once, of the
reported round: a curve of them would be chosen by. When a run is resumed, no round is written twice.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from bouquet.extras import need
from bouquet.files import write_atomically
from bouquet.reporting.run_directory import RunDirectory

Values = Mapping[str, float]


def refuse_missing(tracker: str) -> None:
    """Refuse a tracker whose package is not there.

    Raises:
        ConfigError: names the extra that it comes with.
    """
    if tracker != "none":
        need(tracker, f"tracker '{tracker}'")


def tracker_of(name: str, directory: RunDirectory) -> Tracker | None:
    """The tracker of a run; None: it has none.

    Raises:
        ConfigError: its package is missing.
    """
    refuse_missing(name)
    kinds: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}
    return kinds[name](directory) if name in kinds else None


class Tracker(ABC):
    """Writes rounds for another program.

    Args:
        directory: of the run; what is written on this machine lies in a folder of it with the tracker's name.
    """

    name: str

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self.folder = directory.path / self.name

    def begin(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Open what is written to, and catch up with the rounds that the run goes on after."""
        self.folder.mkdir(parents=True, exist_ok=True)
        there = self.open(self._directory.read_config() | {"engine": self._directory.engine().get("engine", "")})
        times = self._times()
        for line in lines:
            if line["round"] > there:
                self.write(line["round"], values_of(line), times.get(line["round"], time.time()))
        self._there = there

    def round(self, server_round: int, line: Mapping[str, Any]) -> None:
        """A round that has just ended; one that was written before the run was stopped is left as it was."""
        if server_round > self._there:
            self.write(server_round, values_of(line), time.time())

    @abstractmethod
    def open(self, settings: Mapping[str, Any]) -> int:
        """Begin or go on; returns the last round that is there already."""

    @abstractmethod
    def write(self, server_round: int, values: Values, at: float) -> None:
        """Write the figures of a round; `at` is when it ended, in seconds since 1970."""

    @abstractmethod
    def close(self, best_round: int, values: Values) -> None:
        """Write the figures of the reported round, and end."""

    @abstractmethod
    def abandon(self, stopped: bool) -> None:
        """End without figures: the run was stopped, and may be resumed, or else failed."""

    def _times(self) -> dict[int, float]:
        """When rounds ended, by the events of the run."""
        return {
            event["round"]: datetime.fromisoformat(event["time"]).timestamp()
            for event in self._directory.read_events()
            if event.get("event") == "round"
        }


class TensorBoard(Tracker):
    """Event files, written anew from the first round on whenever the run begins or is resumed."""

    name = "tensorboard"

    def open(self, settings: Mapping[str, Any]) -> int:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        shutil.rmtree(self.folder)
        self._writer = EventFileWriter(str(self.folder))
        self._add(hparams_pb(dict(settings)), 0, time.time())
        return 0

    def write(self, server_round: int, values: Values, at: float) -> None:
        self._scalars(values, server_round, at)

    def close(self, best_round: int, values: Values) -> None:
        self._scalars(values, best_round, time.time())
        self._writer.close()

    def abandon(self, stopped: bool) -> None:
        # Event files know no status.
        self._writer.close()

    def _scalars(self, values: Values, step: int, at: float) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._add(Summary(value=scalars), step, at)

    def _add(self, summary: Any, step: int, at: float) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=at, step=step, summary=summary))
        self._writer.flush()


class MLflow(Tracker):
    """A run in the store of MLFLOW_TRACKING_URI, or in a SQLite file in the folder of the run."""

    name = "mlflow"

    def open(self, settings: Mapping[str, Any]) -> int:
        from mlflow import MlflowClient

        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder / 'mlflow.db'}"
        self._client = MlflowClient(tracking_uri=store)
        known = self.folder / "run-id"
        if known.exists():
            self._run = known.read_text().strip()
            self._client.update_run(self._run, status="RUNNING")
            return max((point.step for point in self._client.get_metric_history(self._run, "round")), default=0)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "bouquet"
        found = self._client.get_experiment_by_name(name)
        place = found.experiment_id if found else self._client.create_experiment(name)
        self._run = self._client.create_run(place, run_name=self._directory.path.name).info.run_id
        write_atomically(known, self._run)
        for key, value in settings.items():
            self._client.log_param(self._run, key, value)
        return 0

    def write(self, server_round: int, values: Values, at: float) -> None:
        # "round" comes last: what was cut off before it is written again, and shown once, as it is of the same step.
        self._log({**values, "round": float(server_round)}, server_round, at)

    def close(self, best_round: int, values: Values) -> None:
        self._log(values, best_round, time.time())
        self._client.set_terminated(self._run)

    def abandon(self, stopped: bool) -> None:
        self._client.set_terminated(self._run, "KILLED" if stopped else "FAILED")

    def _log(self, values: Values, step: int, at: float) -> None:
        from mlflow.entities import Metric

        # A name of MLflow has no @.
        metrics = [Metric(name.replace("@", "_at_"), value, int(1000 * at), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)


class WandB(Tracker):
    """A run of Weights & Biases: offline in the folder of the run, unless WANDB_MODE or WANDB_API_KEY is there."""

    name = "wandb"

    def open(self, settings: Mapping[str, Any]) -> int:
        import wandb

        known, self._written = self.folder / "run-id", self.folder / "last-round"
        if not known.exists():
            write_atomically(known, uuid.uuid4().hex[:8])
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "bouquet",
            name=self._directory.path.name,
            id=known.read_text().strip(),
            resume="allow",
            dir=str(self.folder),
            mode=mode,
            config=dict(settings),
            settings=wandb.Settings(console="off", silent=True),
        )
        return int(self._written.read_text()) if self._written.exists() else 0

    def write(self, server_round: int, values: Values, at: float) -> None:
        # First, so that a run that is killed in between lacks a round there, and has none twice.
        write_atomically(self._written, str(server_round), durable=False)
        self._run.log(dict(values), step=server_round)

    def close(self, best_round: int, values: Values) -> None:
        self._run.summary.update({**values, "best_round": best_round})
        self._run.finish()

    def abandon(self, stopped: bool) -> None:
        # As a shell says it of a program: 130 of one that was interrupted.
        self._run.finish(exit_code=130 if stopped else 1)


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a line of `metrics.jsonl`, by names with slashes; without test figures."""
    found: dict[str, Any] = {"loss": line.get("loss"), "users": line["users"], "failures": len(line["failures"])}
    found |= {f"bytes/{way}_per_user": line["bytes"][f"{way}_per_user"] for way in ("down", "up")}
    found |= {f"seconds/{part}": value for part, value in line["seconds"].items()}
    found |= metric_values("validation", line.get("validation", {}))
    return {name: float(v) for name, v in found.items() if isinstance(v, int | float) and math.isfinite(v)}


def metric_values(part: str, means: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """part/candidate set/metric -> mean over users."""
    return {f"{part}/{kind}/{name}": value for kind, metrics in means.items() for name, value in metrics.items()}


def report_failure(tracker: str, error: Exception) -> str:
    """Say that a tracker has failed; the run goes on without it."""
    words = f"tracker '{tracker}' is left out from here on: {type(error).__name__}: {error}".rstrip(": ")
    print(words, file=sys.stderr, flush=True)
    return words
