"""What a device uses: one round's question to local training, the model after it, and how well it ranks what is hidden.

Fine-tuning (CF-FedSR, eq. 11 and 12) trains the model that came from the server on the user's own data, and uses
γ w_local + (1 - γ) w. Of common tables only the rows that it touched differ from user to user, and only they are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bouquet.config import TrainingOptions
from bouquet.evaluation import evaluate_users
from bouquet.evaluation.evaluate import ScoreBlock
from bouquet.packed import by_entry, surely_finite
from bouquet.ragged import Ragged, one_after_another
from client_app.node.host import Host
from client_app.node.lists import blocks
from client_app.node.scoring import reads_histories, scorer
from client_app.personalization.round import Changes, Given, Tuning
from client_app.state.row_overrides import OwnRows
from client_app.training import BACKENDS, Backend, LocalTask
from data_partition import training_negatives


def backend_of(options: TrainingOptions) -> Backend:
    """How local training is computed."""
    compiled = "numba" if options.device == "cpu" else "torch"
    return BACKENDS[compiled if options.backend == "auto" else options.backend]


def training_of(host: Host) -> Backend:
    """How the users of a node train: as the run computes it, in the way of its methods."""
    training = backend_of(host.config)
    for method in reversed(host.methods):
        training = partial(method.train, training)
    return training


def local_task(
    host: Host, given: Given, positions: NDArray[np.int64], round_: int, options: TrainingOptions | None = None,
    negatives: Ragged | None = None,
) -> LocalTask:  # fmt: skip
    """One round of local training for some hosted users, from what they were given.

    Args:
        negatives: what `negatives_of` gives, where it is known already.
    """
    methods = tuple(method for method in host.methods if method.in_loss)
    # What is kept for another purpose than the loss, such as the aggregate under a disguise, takes no part in training.
    read = frozenset[str]().union(*(method.fixed for method in methods))
    return LocalTask(
        backbone=host.backbone,
        options=options or host.config,
        users=host.histories.users[positions],
        round=round_,
        draws=host.draws,
        positives=host.histories.train.take(positions),
        negatives=negatives_of(host, positions, round_) if negatives is None else negatives,
        shared=given.shared,
        private=given.own,
        reported=given.reported,
        frozen={name: values for name, values in given.frozen.items() if name in read},
        anchors={name: values for name, values in given.anchors.items() if name in read},
        personalizations=methods,
    )


def tune(host: Host, given: Given, positions: NDArray[np.int64], round_: int, tuning: Tuning) -> tuple[Given, OwnRows]:
    """Fine-tune what some users were given, and mix it with what it was: γ w_local + (1 - γ) w."""
    options = host.config.model_copy(update={"local_epochs": tuning.epochs})
    tuned = replace(given, own={name: values.copy() for name, values in given.own.items()})
    # The draws of the next round: nothing has been trained with them yet.
    task = local_task(host, tuned, positions, round_ + 1, options)
    changes = list(backend_of(options)(task))
    for name, values in tuned.own.items():
        values *= np.float32(tuning.gamma)
        values += np.float32(1 - tuning.gamma) * given.own[name]
    return after(tuned, changes, len(positions), tuning.gamma)


def after(given: Given, changes: Sequence[Changes], count: int, share: float = 1.0) -> tuple[Given, OwnRows]:
    """What users have after training: common arrays plus a share of what training changed.

    Args:
        given: where they started, with `own` as it is now.
        changes: of all `count` users.
    """
    for name in given.shared:
        if any(name in part.dense for part in changes):
            own = np.empty((count, *given.shared[name].shape), np.float32)
            for part in changes:
                own[part.users] = given.shared[name] + share * part.dense[name]
            given = given.with_own(name, own)
    return given, OwnRows.after(given.shared, changes, share)


def rank(
    host: Host, given: Given, positions: NDArray[np.int64], round_: int, own_rows: OwnRows | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How some users' models rank what is held out: [k, parts, candidate sets, metrics].

    A model that reads a history reads the training items at validation, and at test what `test-history` says. Beside it
    [k] whether a user's scores are finite; what stands in the metrics of one whose are not means nothing.
    """
    histories = host.histories
    train, validation = histories.train.take(positions), histories.validation.take(positions)
    fit = np.ones(len(positions), dtype=bool)

    def after(read: Ragged, *, shown: bool = False) -> ScoreBlock:
        score = scorer(host.backbone, host.methods, given, read, round_, own_rows=own_rows)
        return _noting_unfit(host.watched(score, positions) if shown else score, fit)

    scores: ScoreBlock | dict[str, ScoreBlock]
    # What a device would recommend now goes on after everything that is known.
    if not reads_histories(host.backbone, host.methods):  # one scoring serves both parts
        scores = after(train, shown=True)
    else:
        now = after(one_after_another(train, validation), shown=True)
        if host.config.test_history == "known":
            scores = {"validation": after(train), "test": now}
        else:
            scores = after(train)
            for rows in blocks(len(positions), histories.num_items) if host.on_scores else []:
                now(rows)
    values = evaluate_users(
        scores,
        num_items=histories.num_items,
        train=histories.had.take(positions),
        validation=validation,
        test=histories.test.take(positions),
        candidates={part: drawn.take(positions) for part, drawn in histories.candidates.items()},
        exclude_known=host.config.repeats == "drop",
    )
    return values, fit


def _noting_unfit(score: ScoreBlock, fit: NDArray[np.bool_]) -> ScoreBlock:
    """The same scores, but zeros for users one of whose scores is not finite; they are marked in `fit`."""

    def scores(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        values = score(rows)
        if not surely_finite(values):
            good = by_entry(np.isfinite(values))
            fit[rows[~good]] = False
            values = np.where(good[:, None], values, np.float32(0))
        return values

    return scores


def negatives_of(host: Host, positions: NDArray[np.int64], round_: int) -> Ragged:
    """[k] rows of items that some hosted users are trained against in a round."""
    histories, options = host.histories, host.config
    positives = histories.train.take(positions)
    forbidden = positives if options.train_negatives == "honest" else histories.whole.take(positions)
    return training_negatives(
        positives,
        forbidden,
        histories.num_items,
        options.negatives_per_positive,
        histories.users[positions],
        host.draws,
        round_,
    )
