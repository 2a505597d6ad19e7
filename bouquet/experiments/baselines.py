"""The rows beside a run: what no federation, no model, and all data in one place reach on the same ground."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from bouquet.config import (
    AttackOptions,
    DataOptions,
    DifferentialPrivacyOptions,
    PrivacyOptions,
    RobustOptions,
    RunConfig,
    Scalar,
    lookup,
    parsed,
)
from bouquet.engines.local import LocalRun
from bouquet.errors import BouquetError, ConfigError
from bouquet.evaluation import evaluate_users, standard_error, summarise
from bouquet.experiments.settings import with_defaults
from bouquet.extras import need
from bouquet.methods import METHODS
from bouquet.ragged import Ragged, one_after_another
from bouquet.randomness import Purpose, generator
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.histories import Histories, histories_of, interactions_of, no_order
from models.centralized import IN_ORDER, POOLED, WITH_TORCH
from models.centralized.base import (
    CentralizedModel,
    LearnsOrder,
    ReadsHistories,
    Scores,
    ScoreUsers,
    ValidationScore,
)

if TYPE_CHECKING:
    from models.centralized import MostRecent, SequentialModel

ANOTHER_ROW = "take a row that reads no order, such as ease"
# Settings of centralized rows are chosen on so many users: the whole catalogue is scored for each of them.
VALIDATION_USERS = 2000
# Every user by itself; what all people like, and all data in one place; what somebody did last, where people come back
# to items; and a model that is trained, beside methods that only count.
ALONE, SIMPLE, LAST, TRAINED = "local", ("popularity", "ease"), "most-recent", "fedavg"


def check_names(names: Sequence[str]) -> None:
    """Refuse rows that nobody knows.

    Raises:
        ConfigError: names the first of them, and those that there are.
    """
    known = dict.fromkeys([ALONE, *POOLED, *METHODS])
    for name in names:
        lookup(known, "row to compare with", name)
        if name in WITH_TORCH:
            need("torch", f"The row {name}")


def usual_rows(strategy: str, repeats: str) -> tuple[str, ...]:
    """The rows beside a run of a method where nobody says which."""
    trains = lookup(METHODS, "strategy", strategy).kind == "gradients"
    return (ALONE if trains else TRAINED, *simple_rows(repeats))


def simple_rows(repeats: str) -> tuple[str, ...]:
    """The rows of pooled data among them."""
    return (*SIMPLE, LAST) if repeats == "keep" else SIMPLE


def comparison_rows(settings: Mapping[str, Scalar], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Evaluate the named rows on the split of a run.

    The run beside them is complete: nothing that goes wrong here may take it along.

    Args:
        settings: the run's configuration.
        names: "local", names of `models.centralized`, or of other methods, which run with their own defaults.
    Returns:
        name -> {"test": …, "validation": …, "standard_error": …} as in `summary.json`, and for centralized rows
        "chosen", the settings that validation chose; a row that cannot be computed has
        {"unavailable": reason} instead.
    """
    config = parsed(settings).run
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        try:
            if name in POOLED:
                rows[name] = centralized_row(config, name)
            else:
                rows[name] = _federated_row(alone(settings) if name == ALONE else as_method(settings, name))
        except BouquetError as error:
            rows[name] = {"unavailable": str(error)}
        except Exception as error:
            rows[name] = {"unavailable": f"{type(error).__name__}: {error}".rstrip(": ")}
    return rows


def centralized_row(config: RunConfig, name: str) -> dict[str, Any]:
    """A model that sees all training data at once, evaluated like every other one."""
    model = POOLED[name]()
    interactions = interactions_of(config)
    if name in IN_ORDER and not interactions.has_time:
        return {"unavailable": no_order(name, config, ANOTHER_ROW)}
    histories = histories_of(interactions, config)
    try:
        values, chosen = evaluate_centralized(model, histories, config)
    except (ValueError, BouquetError) as error:
        return {"unavailable": str(error)}
    return {**summarise(values), "standard_error": standard_error(values), "chosen": chosen}


def evaluate_centralized(
    model: CentralizedModel | SequentialModel | MostRecent, histories: Histories, config: RunConfig
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Per-user metrics [n, parts, candidate sets, metrics] of a centralized model, and what validation chose for it.

    The model is fitted here, on training items alone. What it chooses from (epochs, λ of EASE, neighbours) it chooses
    by NDCG@10 on the validation items of a sample of users. At validation a model that reads histories reads the
    training items, at test what `test-history` says.
    """
    train, exclude_known = histories.train, config.repeats == "drop"
    parts: dict[str, Any] = {
        "num_items": histories.num_items,
        "train": histories.had,
        "validation": histories.validation,
        "test": histories.test,
        "candidates": histories.candidates,
        "exclude_known": exclude_known,
    }
    score = _validation_score(histories, exclude_known)
    if isinstance(model, LearnsOrder):
        model.fit(train, histories.num_items, seed=config.seed, validation_score=score)
    else:
        ones = np.ones(len(train.values), dtype=np.float32)
        matrix = csr_matrix((ones, train.values, train.indptr), shape=(len(histories.users), histories.num_items))
        model.fit(matrix, seed=config.seed, validation_score=score)
    if not isinstance(model, ReadsHistories):
        return evaluate_users(model.scores, **parts), model.chosen
    reader: ReadsHistories = model

    def after(read: Ragged) -> Callable[[NDArray[np.int64]], Scores]:
        return lambda rows: reader.scores_after(read.take(rows))

    if config.test_history == "training":
        return evaluate_users(after(train), **parts), model.chosen
    known = one_after_another(train, histories.validation)
    return evaluate_users({"validation": after(train), "test": after(known)}, **parts), model.chosen


def _validation_score(histories: Histories, exclude_known: bool) -> ValidationScore | None:
    """NDCG@10 over the whole catalogue, of a random sample of users who hold something out; None if nobody does."""
    some = np.flatnonzero(histories.validation.lengths)
    if not len(some):
        return None
    if len(some) > VALIDATION_USERS:  # not the first ones: in many files users stand in order of time or of size
        draws = generator(histories.split_seed, 0, Purpose.USERS, "validation")
        some = np.sort(draws.choice(some, VALIDATION_USERS, replace=False))
    had, held_out = histories.had.take(some), histories.validation.take(some)
    nothing = Ragged.from_lengths(np.zeros(len(some)), [])

    def score(scores: ScoreUsers) -> float:
        values = evaluate_users(
            lambda rows: scores(some[rows]),
            num_items=histories.num_items,
            train=had,
            validation=held_out,
            test=nothing,
            candidates={"validation": histories.candidates["validation"].take(some), "test": nothing},
            exclude_known=exclude_known,
        )
        return summarise(values)["validation"]["full"]["NDCG@10"]

    return score


# What is there for others to be kept from something.
_PROTECTIONS = (PrivacyOptions, DifferentialPrivacyOptions, RobustOptions, AttackOptions)


def alone(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The same local training, of the same model on the same data, with nothing of a federation.

    As many rounds with as large a share of users stay, and so does patience: a user is trained as often as in the run.
    """
    plain = RunConfig().to_flat()
    # A plug-in works on what is shared, updates are what protections are for, and the users of one process live on one
    # node, whatever nodes the run had.
    federal = ["personalization", "exchange", "update-bound", "partition", "min-nodes", "users-per-node"]
    federal += ["min-reply-fraction", "enough-reply-fraction", "catalogue-file", "resume", "tracker"]
    federal += [key for options in _PROTECTIONS for key in options().to_flat()]
    changed = {**settings, **{key: plain[key] for key in federal}, "checkpoint-every": 0}
    single = METHODS[str(settings["strategy"])].alone
    if single is None:
        raise ConfigError("this method trains nothing that a user could train alone")
    return {**changed, **single}


def as_method(settings: Mapping[str, Scalar], name: str) -> dict[str, Scalar]:
    """Another method with its own defaults, on the same ground: data, split, what may be read, and seed."""
    same = [*DataOptions().to_flat(), "seed"]
    return with_defaults({**{key: settings[key] for key in same if key in settings}, "strategy": name})


def _federated_row(settings: Mapping[str, Scalar]) -> dict[str, Any]:
    from client_app.app import app as client_app
    from server_app.app import app as server_app

    with tempfile.TemporaryDirectory(prefix="bouquet-local-") as folder:
        changed = {**settings, "checkpoint-every": 0, "recommendations": 0, "out": folder, "state-dir": folder}
        RunDirectory(folder).create(changed, {"engine": "local", "nodes": 1})
        LocalRun(server_app, client_app, 1, changed)()
        summary = RunDirectory(folder).read_summary()
    return {key: summary[key] for key in ("test", "validation", "standard_error")}
