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
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from client_app.host import Histories, histories_of, interactions_of
from client_app.using import one_after_another
from models.centralized import CENTRALIZED, SEQUENTIAL, SequentialModel
from models.centralized.base import ScoreUsers, ValidationScore

# The epoch of a sequence model is chosen on so many users: the whole catalogue is scored for each of them.
_VALIDATION_USERS = 2000


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
    model = lookup({**CENTRALIZED, **SEQUENTIAL}, "centralised model", name)()
    histories = histories_of(interactions_of(config), config)
    try:
        values = evaluate_centralized(model, histories, config.seed, config.repeats == "drop")
    except ValueError as error:
        return {"unavailable": str(error)}
    return _row(values)


def evaluate_centralized(
    model: Any, histories: Histories, seed: int, exclude_known: bool = True
) -> NDArray[np.float64]:
    """Per-user metrics [n, parts, candidate sets, metrics] of a centralised model, fitted here.

    A sequence model chooses its epoch on validation, and at test it has read the validation item too.
    """
    train = histories.train
    parts: dict[str, Any] = {
        "num_items": histories.num_items,
        "train": train,
        "validation": histories.validation,
        "test": histories.test,
        "candidates": histories.candidates,
        "exclude_known": exclude_known,
    }
    if isinstance(model, SequentialModel):
        longer = one_after_another(train, histories.validation)
        model.fit(train, histories.num_items, seed=seed, validation_score=_validation_score(histories, exclude_known))
        before = {"validation": train, "test": longer}
        blocks = {part: lambda rows, read=read: model.scores_after(read.take(rows)) for part, read in before.items()}
        return evaluate_users(blocks, **parts)
    ones = np.ones(len(train.values), dtype=np.float32)
    matrix = csr_matrix((ones, train.values, train.indptr), shape=(len(histories.users), histories.num_items))
    model.fit(matrix, seed=seed)
    return evaluate_users(model.scores, **parts)


def _validation_score(histories: Histories, exclude_known: bool) -> ValidationScore:
    """NDCG@10 over the whole catalogue, of the first users who hold something out."""
    some = np.flatnonzero(histories.validation.lengths)[:_VALIDATION_USERS]
    train, held_out = histories.train.take(some), histories.validation.take(some)
    nothing = Ragged.from_lengths(np.zeros(len(some)), [])

    def score(scores: ScoreUsers) -> float:
        values = evaluate_users(
            lambda rows: scores(some[rows]),
            num_items=histories.num_items,
            train=train,
            validation=held_out,
            test=nothing,
            candidates={"validation": histories.candidates["validation"].take(some), "test": nothing},
            exclude_known=exclude_known,
        )
        return summarise(values)["validation"]["full"]["NDCG@10"]

    return score


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
