"""Small real runs: a data file, its settings, one run in this process, and what its nodes were told and said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from flwr.app import Array, Context, Message, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Specs
from bouquet.config import Scalar, defaults
from bouquet.engines.local import LocalGrid, LocalRun
from bouquet.experiments.settings import option_classes
from bouquet.records import Report
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import ROSTER, TRAIN, RosterReply, TrainReply, TrainRequest
from client_app.app import app as client_app
from data_partition import synthetic
from server_app.app import app as server_app
from strategies.federation.checkpoint import Checkpoint, load_checkpoint
from strategies.federation.user_rows import rows_of

Log = list[tuple[Message, Message]]
Fault = Callable[[Message, Callable[[], Message]], Message]

# What two equal runs have in common; times differ.
FIGURES = ("test", "validation", "best_round", "rounds", "fairness", "users", "series")


# -- data and settings -----------------------------------------------------------------------------------------------


def write_data(path: Path, users: int = 40, items: int = 60, length: float = 15.0) -> Path:
    """A CSV with columns user, item, time."""
    made = synthetic(users, items, mean_length=length)
    rows = made.histories.row_of_value
    order = np.arange(len(rows)) - made.histories.indptr[rows]
    table = pd.DataFrame({"user": rows, "item": made.histories.values, "time": order})
    table.to_csv(path, index=False)
    return path


def write_histories(path: Path, histories: Sequence[Sequence[int]]) -> Path:
    """A CSV of the given histories, oldest item first; the catalogue is what somebody has."""
    rows = [(f"u{u}", f"i{item}", time) for u, history in enumerate(histories) for time, item in enumerate(history)]
    pd.DataFrame(rows, columns=["user", "item", "time"]).to_csv(path, index=False)
    return path


def small_settings(folder: Path, **changes: Scalar) -> dict[str, Scalar]:
    """Settings of a run of seconds; keywords with underscores."""
    data = folder / "data.csv"
    if not data.exists():
        write_data(data)
    settings: dict[str, Scalar] = defaults(option_classes()) | {
        "dataset": "file",
        "data-file": str(data),
        "time-column": "time",
        "num-server-rounds": 6,
        "evaluate-every": 2,
        "checkpoint-every": 2,
        "embedding-size": 4,
        "batch-size": 32,
        "node-timeout": 60.0,
    }
    return settings | {key.replace("_", "-"): value for key, value in changes.items()}


# -- runs ------------------------------------------------------------------------------------------------------------


class Recording(LocalGrid):
    """Keeps every request and reply."""

    def __init__(self, *arguments: Any, log: Log) -> None:
        super().__init__(*arguments)
        self.log = log

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        for content in (message.content, reply.content if reply.has_content() else RecordDict()):
            for record in content.array_records.values():
                for array in record.values():
                    _ = array.data  # what is lent for a round alone is kept as it is now
        self.log.append((message, reply))
        return reply


class Faulty(LocalGrid):
    """Nodes whose partition is in `bad` do `fault` instead of answering."""

    def __init__(self, *arguments: Any, fault: Fault, bad: Collection[int], kind: str = TRAIN) -> None:
        super().__init__(*arguments)
        self.fault, self.bad, self.kind = fault, bad, kind
        real = self._client_app

        def app(message: Message, context: Context) -> Message:
            if message.metadata.message_type == self.kind and context.node_config["partition-id"] in self.bad:
                return self.fault(message, lambda: real(message, context))
            return real(message, context)

        self._client_app = app  # type: ignore[assignment]


def raises(message: Message, answer: Callable[[], Message]) -> Message:
    """The fault of a node that fails."""
    raise RuntimeError("the battery is empty")


def run_here(
    folder: Path, settings: Mapping[str, Scalar], nodes: int, grid: type[LocalGrid] = LocalGrid, **arguments: Any
) -> RunDirectory:
    """Run in this process, with results and private state under `folder`."""
    directory = RunDirectory(folder)
    changed = {**settings, "out": str(folder), "state-dir": str(folder / "nodes")}
    if not directory.summary.exists():
        directory.create(changed, {"engine": "local", "nodes": nodes})
    run = LocalRun(server_app, client_app, nodes, changed)
    run.grid = grid(client_app, nodes, changed, **arguments)
    run()
    return directory


# -- what came of them -----------------------------------------------------------------------------------------------


def last_checkpoint(directory: RunDirectory) -> Checkpoint:
    """The newest checkpoint of a run, with what the method keeps of users in files of its own."""
    checkpoint = load_checkpoint(directory.checkpoints)
    assert checkpoint is not None
    return replace(checkpoint, extra=rows_of(directory.rows_by_user, checkpoint.extra))


def figures_of(value: Any, path: str = "") -> dict[str, Any]:
    """Every plain value of a nested document, by its path."""
    if isinstance(value, dict):
        return {name: v for key, part in value.items() for name, v in figures_of(part, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {name: v for key, part in enumerate(value) for name, v in figures_of(part, f"{path}/{key}").items()}
    return {path: value}


def assert_equal_runs(found: RunDirectory, expected: RunDirectory, exact: bool = True) -> None:
    """Nodes with keys have other names for their users, and so another order in which these are added up: not exact."""
    import pytest

    tolerance = 0 if exact else 1e-5
    for name, values in last_checkpoint(expected).shared.items():
        np.testing.assert_allclose(last_checkpoint(found).shared[name], values, rtol=0, atol=tolerance)
    for key in FIGURES:
        one, other = (figures_of(run.read_summary().get(key)) for run in (found, expected))
        assert one == (other if exact else pytest.approx(other, abs=tolerance, nan_ok=True)), key
    users, others = (run.read_users()[1].reshape(-1, run.read_users()[1][0].size) for run in (found, expected))
    if not exact:
        users, others = (rows[np.lexsort(rows.T)] for rows in (users, others))
    np.testing.assert_array_equal(users, others)
    assert [line["round"] for line in found.rounds()] == [line["round"] for line in expected.rounds()]
    if exact:
        assert_same_report(found, expected)


def assert_same_report(found: RunDirectory, expected: RunDirectory) -> None:
    """The reported model, and where the run is a simulation what it would recommend."""
    best = expected.read_summary()["best_round"]
    kept = [sorted(path.name for path in run.reported.path.glob("round-*")) for run in (found, expected)]
    assert kept[0] == kept[1]
    assert len(kept[0]) <= 2, "only the reported round stays"
    one, other = (run.reported.read_model(best) for run in (found, expected))
    assert one.arrays.keys() == other.arrays.keys()
    for name, values in other.arrays.items():
        np.testing.assert_array_equal(one.arrays[name], values)
    if expected.reported.lists(best).exists():
        lists, others = (vars(run.reported.read_lists(best)) for run in (found, expected))
        for name, values in others.items():
            np.testing.assert_array_equal(lists[name], values)


# -- what nodes were told and said -----------------------------------------------------------------------------------


def specs_of(log: Log) -> Specs:
    """The shared arrays, as the first node declared them."""
    reply = next(reply for message, reply in log if message.metadata.message_type == ROSTER)
    return RosterReply.decode(reply.content, repeats=True).specs


def trained(log: Log) -> list[TrainReply]:
    """The training replies of a log, decoded."""
    specs = specs_of(log)
    return [decoded(m.content, r.content, specs) for m, r in log if m.metadata.message_type == TRAIN]


def decoded(asked: RecordDict, answered: RecordDict, specs: Specs) -> TrainReply:
    """A training reply with what it counts for, as the server makes it."""
    request = TrainRequest.decode(asked, {name: specs[name] for name in asked["shared"]})
    changed = {name: specs[name] for name in arrays_in(answered)}
    told: Mapping[str, Array] = answered.array_records.get("reports", {})
    reports = {name: Report(tuple(array.shape[1:])) for name, array in told.items()}
    found = TrainReply.decode(answered, request.users, changed, request.update, reports)
    factor = float(request.weights[0]) if len(request.users) == 1 else 1.0
    return replace(found, factor=factor, weight=float(request.weights.sum()))


def arrays_in(answered: RecordDict) -> set[str]:
    """The arrays that a reply says something about."""
    return {name.rsplit("/", 1)[0] for name in answered["update"]}


def total_update(log: Log) -> tuple[dict[str, NDArray[np.float64]], float]:
    """What the replies of one round of sums add up to, by array, and the weight of their users."""
    specs = specs_of(log)
    total: dict[str, NDArray[np.float64]] = {}
    weight = 0.0
    for reply in trained(log):
        weight += reply.weight
        for name, packed in reply.sums.items():
            packed.add_to(total.setdefault(name, np.zeros(specs[name].shape)), reply.factor)
    return total, weight
