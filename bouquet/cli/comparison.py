"""The rows beside a run: what no federation, no model, and all data in one place reach on the same ground."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from bouquet.config import RunConfig, Scalar, lookup, own
from bouquet.engines.local import LocalRun
from bouquet.evaluation import evaluate_users, standard_error, summarise
from bouquet.reporting.run_directory import RunDirectory
from client_app.host import Histories, histories_of, interactions_of
from models.centralized import CENTRALIZED


def comparison_rows(settings: Mapping[str, Scalar], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Evaluate the named rows on the split of a run.

    Args:
        settings: the run's configuration.
        names: "local", or names of `models.centralized`.
    Returns:
        name -> {"test": …, "validation": …, "standard_error": …} as in `summary.json`; a row that cannot be
        computed on this data has {"unavailable": reason} instead.
    """
    config = own(settings, RunConfig)
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        if name == "local":
            rows[name] = _local_row(settings)
        else:
            rows[name] = centralized_row(config, name)
    return rows


def centralized_row(config: RunConfig, name: str) -> dict[str, Any]:
    """A model that sees all training data at once, evaluated like every other one."""
    model = lookup(CENTRALIZED, "centralised model", name)()
    histories = histories_of(interactions_of(config), config)
    try:
        values = evaluate_centralized(model, histories, config.seed)
    except ValueError as error:
        return {"unavailable": str(error)}
    return _row(values)


def evaluate_centralized(model: Any, histories: Histories, seed: int) -> NDArray[np.float64]:
    """Per-user metrics [n, parts, candidate sets, metrics] of a centralised model."""
    train = histories.train
    shape = (len(histories.users), histories.num_items)
    ones = np.ones(len(train.values), dtype=np.float32)
    model.fit(csr_matrix((ones, train.values, train.indptr), shape=shape), seed=seed)
    return evaluate_users(
        model.scores,
        num_items=histories.num_items,
        train=train,
        validation=histories.validation,
        test=histories.test,
        candidates=histories.candidates,
    )


def _local_row(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    """The same local training without any federation."""
    from client_app.app import app as client_app
    from server_app.app import app as server_app

    with tempfile.TemporaryDirectory(prefix="bouquet-local-") as folder:
        changed: dict[str, Scalar] = {
            "strategy": "local",
            "resume": "",
            "out": folder,
            "state-dir": folder,
            "checkpoint-every": 0,
        }
        directory = RunDirectory(folder)
        directory.create({**settings, **changed}, {"engine": "local", "nodes": 1})
        LocalRun(server_app, client_app, 1, {**settings, **changed})()
        summary = directory.read_summary()
    return {key: summary[key] for key in ("test", "validation", "standard_error")}


def _row(values: NDArray[np.float64]) -> dict[str, Any]:
    return {**summarise(values), "standard_error": standard_error(values)}
