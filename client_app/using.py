"""What a device uses: one round's question to local training, the model after it, and how well it ranks what is hidden.

Fine-tuning (CF-FedSR, eq. 11 and 12) trains the model that came from the server on the user's own data, and uses
γ w_local + (1 - γ) w. Of common tables only the rows that it touched differ from user to user, and only they are held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bouquet.config import TrainingOptions
from bouquet.evaluation import evaluate_users
from bouquet.ragged import Ragged
from client_app.host import Host
from client_app.own_rows import OwnRows
from client_app.personalization.base import Changes, Given, Tuning
from client_app.scoring import scorer
from client_app.training import BACKENDS, Backend, LocalTask
from data_partition import training_negatives
from models import SequenceBackbone


def backend_of(options: TrainingOptions) -> Backend:
    """How local training is computed."""
    return BACKENDS["numba" if options.backend == "auto" else options.backend]


def local_task(
    host: Host, given: Given, positions: NDArray[np.int64], round_: int, options: TrainingOptions | None = None
) -> LocalTask:
    """One round of local training for some hosted users, from what they were given."""
    return LocalTask(
        backbone=host.backbone,
        options=options or host.config,
        users=host.histories.users[positions],
        round=round_,
        seed=host.draw_seed,
        positives=host.histories.train.take(positions),
        negatives=_negatives(host, positions, round_),
        shared=given.shared,
        private=given.own,
        reported=given.reported,
        frozen=given.frozen,
        anchors=given.anchors,
        personalizations=tuple(method for method in host.methods if method.in_loss),
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
) -> NDArray[np.float64]:
    """How some users' models rank what is held out: [k, parts, candidate sets, metrics].

    A sequence model reads what came before: at test the validation item too.
    """
    histories = host.histories
    train, validation = histories.train.take(positions), histories.validation.take(positions)
    before = {"validation": train, "test": one_after_another(train, validation)}
    scores = {
        part: scorer(host.backbone, host.methods, given, train, round_, histories=read, own_rows=own_rows)
        for part, read in before.items()
    }
    # What a device would recommend now: a sequence goes on after everything that is known.
    shown = "test" if isinstance(host.backbone, SequenceBackbone) else "validation"
    scores[shown] = host.watched(scores[shown])
    return evaluate_users(
        scores if isinstance(host.backbone, SequenceBackbone) else scores["validation"],
        num_items=histories.num_items,
        train=train,
        validation=validation,
        test=histories.test.take(positions),
        candidates={part: drawn.take(positions) for part, drawn in histories.candidates.items()},
        exclude_known=host.config.repeats == "drop",
    )


def one_after_another(first: Ragged, second: Ragged) -> Ragged:
    """Row by row, the values of the first and then of the second."""
    owner = np.concatenate([first.row_of_value, second.row_of_value])
    return Ragged.from_pairs(owner, np.concatenate([first.values, second.values]), len(first))


def _negatives(host: Host, positions: NDArray[np.int64], round_: int) -> Ragged:
    histories, options = host.histories, host.config
    positives = histories.train.take(positions)
    forbidden = positives if options.train_negatives == "honest" else histories.whole.take(positions)
    return training_negatives(
        positives,
        forbidden,
        histories.num_items,
        options.negatives_per_positive,
        histories.users[positions],
        host.draw_seed,
        round_,
    )
