"""The contract of a method: the same run on any number of nodes, exact resumes, and nothing leaves that should not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import client_app.node.host
from bouquet.arrays import Array, ArraySpec
from bouquet.config import RunConfig, Scalar, Settings, lookup, wrong_options
from bouquet.experiments.settings import validate
from bouquet.methods import METHODS, PLUG_INS
from bouquet.methods.manifest import Method, PlugIn, class_at
from bouquet.randomness import Words, user_keys
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing.runs import (
    Faulty,
    Log,
    Recording,
    arrays_in,
    assert_equal_runs,
    last_checkpoint,
    raises,
    run_here,
    small_settings,
    total_update,
    write_data,
    write_histories,
)
from bouquet.wire import (
    EVALUATE,
    EVALUATE_ARRAYS,
    REPORTS,
    ROSTER,
    ROSTER_ARRAYS,
    TRAIN,
    TRAIN_ARRAYS,
)
from client_app.node.groups import models_of
from client_app.personalization.base import Personalization
from client_app.training.drawn import drawn_private
from strategies.federation.base import BaseStrategy

USERS, ITEMS = 12, 40
NODES = (1, 3, USERS)
DECLARED = {ROSTER: ROSTER_ARRAYS, TRAIN: TRAIN_ARRAYS, EVALUATE: EVALUATE_ARRAYS}
TINY = ([0], [1], [2, 0], [0, 1], [1, 2, 0], [2, 3, 1], [0], [3, 2])
# The user that is broken.
BAD = user_keys(["5"])[0]


class MethodContract:
    """Derive a class whose name begins with Test, and name the method.

    Attributes:
        method: a strategy, a personalization, or both with a "+" between them.
        settings: those of the run that are not the defaults.
        tolerance: how far two values may be apart that differ in the order of sums only.
    """

    method: ClassVar[str]
    settings: ClassVar[Mapping[str, Scalar]] = {}
    tolerance: ClassVar[float] = 2e-5

    def chosen(self) -> dict[str, Scalar]:
        """The settings that choose the method."""
        strategy, _, plug_in = self.method.partition("+")
        if strategy in PLUG_INS and strategy not in METHODS:
            strategy, plug_in = RunConfig().strategy, strategy
        return {"strategy": strategy, "personalization": plug_in or "none", **self.settings}

    def manifests(self) -> list[Method | PlugIn]:
        """Those of the strategy and the personalization."""
        strategy, plug_in = (str(self.chosen()[key]) for key in ("strategy", "personalization"))
        both = lookup(METHODS, "strategy", strategy), lookup(PLUG_INS, "personalization", plug_in)
        return [manifest for manifest in both if manifest is not None]

    def small(self, folder: Path, **changes: Scalar) -> dict[str, Scalar]:
        """Settings of a run of twelve users."""
        if not (folder / "data.csv").exists():
            write_data(folder / "data.csv", USERS, ITEMS, 10.0)
        given = {"num-server-rounds": 4, "update-bound": 0.0, **self.chosen()}
        return small_settings(folder, **(given | changes))

    def run(self, folder: Path, nodes: int, **changes: Scalar) -> RunDirectory:
        """A run, as `small` has it."""
        return run_here(folder / f"on-{nodes}", self.small(folder, **changes), nodes)

    # -- the questions ---------------------------------------------------------------------------------------------

    def test_the_manifest_says_what_is_so(self, tmp_path: Path) -> None:
        """Classes are where it says, keys begin with the name, and the settings can be used together."""
        validate({"dataset": "file", "data-file": str(tmp_path), "time-column": "time", **self.chosen()})
        for manifest in self.manifests():
            assert wrong_options(manifest.name, manifest.options) == ""
            if isinstance(manifest, Method):
                assert issubclass(class_at(manifest.strategy), BaseStrategy)
            if manifest.device is not None:
                assert issubclass(class_at(manifest.device), Personalization)

    @pytest.mark.parametrize("fraction", [1.0, 0.5])
    def test_the_same_run_on_one_node_on_three_and_with_one_user_each(self, tmp_path: Path, fraction: float) -> None:
        first, *others = (self.run(tmp_path, nodes, **{"fraction-train": fraction}) for nodes in NODES)
        expected = first.read_summary()
        assert expected["status"] == "completed"
        for nodes, directory in zip(NODES[1:], others, strict=True):
            found = directory.read_summary()
            for part in ("test", "validation"):
                for candidates, metrics in expected[part].items():
                    assert found[part][candidates] == pytest.approx(metrics, abs=1e-5), f"{part} on {nodes} nodes"
            for key in ("down_per_user_round", "up_per_user_round"):
                assert found["bytes"][key] == pytest.approx(expected["bytes"][key]), f"{key} on {nodes} nodes"
            for name, values in last_checkpoint(first).shared.items():
                other = last_checkpoint(directory).shared[name]
                np.testing.assert_allclose(other, values, atol=self.tolerance, err_msg=f"{name} on {nodes} nodes")

    def test_the_update_of_a_node_is_the_sum_over_its_users(self, tmp_path: Path) -> None:
        """Round 1, where all start alike: one node of all users against a node for each."""
        logs: dict[int, Log] = {1: [], USERS: []}
        for nodes, log in logs.items():
            settings = self.small(tmp_path, **{"num-server-rounds": 1})
            run_here(tmp_path / f"on-{nodes}", settings, nodes, Recording, log=log)
            self.refuse_other_updates(log)
        (one, weight), (many, weights) = (total_update(log) for log in logs.values())
        assert many.keys() == one.keys()
        assert weights == pytest.approx(weight)
        for name, values in one.items():
            largest = np.abs(values).max(initial=0.0)
            np.testing.assert_allclose(many[name], values, atol=1e-4 * largest, err_msg=name)

    def refuse_other_updates(self, log: Log) -> None:
        """Skip the test of a method whose nodes send no sums."""
        asked = next(message.content for message, _ in log if message.metadata.message_type == TRAIN)
        if asked.config_records["config"]["update"] != "sum":
            pytest.skip("every user's change is sent on its own")

    @pytest.mark.parametrize("fraction", [1.0, 0.5])
    def test_a_run_that_is_resumed_equals_one_that_was_not_stopped(self, tmp_path: Path, fraction: float) -> None:
        """Exactly: whatever the method keeps must be in its checkpoint."""
        settings = self.small(tmp_path, **{"fraction-train": fraction, "evaluate-every": 3, "checkpoint-every": 3})
        whole = run_here(tmp_path / "whole", settings | {"num-server-rounds": 6}, 3)
        run_here(tmp_path / "parts", settings | {"num-server-rounds": 3}, 3)
        resumed = settings | {"num-server-rounds": 6, "resume": str(tmp_path / "parts")}
        assert_equal_runs(run_here(tmp_path / "parts", resumed, 3), whole)

    @pytest.mark.parametrize("nodes", [1, USERS])
    def test_only_declared_arrays_leave_a_node(self, tmp_path: Path, nodes: int) -> None:
        log: Log = []
        settings = self.small(tmp_path, **{"num-server-rounds": 2})
        run_here(tmp_path / "run", settings, nodes, Recording, log=log)
        private = self.private_rows(settings, tmp_path / "run" / "nodes", nodes)
        for message, reply in log:
            kind = message.metadata.message_type
            assert not reply.has_error(), reply.error
            assert set(reply.content) <= {"users", "config", "update", "reports"}
            assert set(reply.content.array_records.get("reports", {})) <= REPORTS
            assert set(reply.content.array_records["users"]) <= DECLARED[kind]
            if "update" in reply.content:
                assert arrays_in(reply.content) <= {*message.content["shared"], *message.content["personal"]}
            for record in reply.content.array_records.values():
                for name, array in record.items():
                    values = array.numpy()
                    for kept, rows in private.items():
                        if values.dtype.kind == "f" and values.shape[-1:] == rows.shape[1:]:
                            assert not any_equal(values.reshape(-1, rows.shape[1]), rows), (
                                f"{name} of a reply holds rows of {kept}, which is private"
                            )

    def private_rows(self, settings: Mapping[str, Scalar], folder: Path, nodes: int) -> dict[str, NDArray[np.floating]]:
        """[n, d] what the nodes keep of each private array, in all versions; without rows that say nothing."""
        found = {}
        for name, spec in self.private_specs(settings).items():
            files = folder.glob(f"*/node-*-of-{nodes}/{name}.npy")
            rows = [np.load(file).reshape(-1, spec.shape[-1]) for file in files]
            values = np.concatenate(rows) if rows else np.zeros((0, spec.shape[-1]))
            found[name] = values[np.abs(values).max(axis=1, initial=0.0) > 1e-4]
        return found

    def private_specs(self, settings: Mapping[str, Scalar]) -> dict[str, ArraySpec]:
        """Private arrays of vectors; one that starts at 0 may well be the change of a shared one."""
        specs: dict[str, ArraySpec] = {}
        for model in models_of(Settings(settings), ITEMS):
            specs |= model.backbone.private
            for side in model.methods:
                specs |= side.private
        return {name: spec for name, spec in specs.items() if spec.shape[-1:] > (1,) and spec.init != "zeros"}

    @pytest.mark.parametrize("nodes", [1, USERS])
    def test_a_user_with_nan_costs_nobody_else(
        self, tmp_path: Path, nodes: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = self.small(tmp_path)
        if not self.private_specs(settings):
            pytest.skip("nobody has private arrays in which NaN could stand")

        def drawn(name: str, spec: ArraySpec, seed: int, users: Words, out: Array) -> None:
            drawn_private(name, spec, seed, users, out)
            out[users == BAD] = np.nan

        monkeypatch.setattr(client_app.node.host, "drawn_private", drawn)
        directory = self.finished(run_here(tmp_path / "run", settings, nodes))
        reasons = [failure["reason"] for line in directory.rounds() for failure in line["failures"]]
        assert reasons
        for line in directory.rounds():
            assert line["asked"] - line["users"] <= 1, line["failures"]
        assert all(f"user {int(BAD):016x}" in reason for reason in reasons), reasons

    def test_a_node_that_fails_costs_nobody_else(self, tmp_path: Path) -> None:
        grid = run_here(tmp_path / "run", self.small(tmp_path), 3, Faulty, fault=raises, bad={1})
        directory = self.finished(grid)
        assert directory.read_summary()["failures"] > 0
        assert all(line["users"] > 0 for line in directory.rounds())

    @pytest.mark.parametrize("nodes", [1, len(TINY)])
    def test_histories_of_one_to_three_items(self, tmp_path: Path, nodes: int) -> None:
        write_histories(tmp_path / "data.csv", TINY)
        self.finished(self.run(tmp_path, nodes))

    def finished(self, directory: RunDirectory) -> RunDirectory:
        """A run that came to its end with numbers."""
        assert directory.read_summary()["status"] == "completed"
        checkpoint = last_checkpoint(directory)
        for name, values in {**checkpoint.shared, **checkpoint.extra}.items():
            assert values.dtype.kind != "f" or np.isfinite(values).all(), f"{name} is not finite"
        return directory


def any_equal(values: NDArray[np.floating], rows: NDArray[np.floating]) -> bool:
    """Whether one of the rows is among the values."""
    apart = np.abs(values[:, None] - rows[None]).max(axis=2)
    return bool((apart <= 1e-7).any())
