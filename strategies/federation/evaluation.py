"""One evaluation of all users: what they are sent and what they say, put together from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.attacks import EXPOSURE, exposure, liars
from bouquet.evaluation import flattened, summarise
from bouquet.records import message_bytes, payload_bytes
from bouquet.training_part import TRAINING, training_means
from bouquet.wire import METRIC_SHAPE
from strategies.federation.hooks import Hooks
from strategies.federation.replies import Received, Sent, require_enough


class Evaluation:
    """The users of an evaluation, part by part.

    Args:
        method: whose users are asked.

    Attributes:
        parts: positions in the roster of the users of each part that was not asked yet.
    """

    def __init__(self, method: Hooks) -> None:
        self._method = method
        self.parts = method.parts_to_evaluate()
        self._users: list[NDArray[np.int64]] = []
        self._down = np.zeros(0)
        self._personal_bytes = self._wire_down = 0
        self._received = Received([], [], [], 0)

    def sent(self, shared: Arrays, sent: Sequence[Sent], personal_bytes: int) -> None:
        """The messages of a part are made."""
        users = [item.users for item in sent]
        self._users += users
        self._personal_bytes += personal_bytes
        self._wire_down += sum(message_bytes(item.message.content) for item in sent)
        if users:
            self._down = np.concatenate([self._down, self._method.down_bytes(shared, np.concatenate(users))])

    def received(self, part: Received) -> None:
        """What came of them; who is left out of it is in none of its replies."""
        before = self._received
        self._received = replace(
            before,
            replies=before.replies + part.replies,
            users=before.users + part.users,
            failures=before.failures + part.failures,
            bytes=before.bytes + part.bytes,
            silent=before.silent + part.silent,
        )

    def end(self, server_round: int) -> MetricRecord:
        """Means over users, which the best round so far and the round's line are told as well.

        Raises:
            NodesGone, RunFailed: too few users gave a valid reply.
        """
        method, received = self._method, self._received
        config, keys, asked = method.config, method.roster.users, sum(map(len, self._users))
        require_enough(received, asked, config.min_reply_fraction, f"Evaluation of round {server_round}")
        values = np.full((len(keys), *METRIC_SHAPE), np.nan)
        exposed = np.full((len(keys), 2), np.nan)
        learned = np.full((len(keys), *METRIC_SHAPE[1:]), np.nan)
        told = 0
        for reply, users in zip(received.replies, received.users, strict=True):
            values[users] = reply.metrics
            told += payload_bytes({"metrics": reply.metrics, **reply.reports})
            method.take_evaluation(reply, users)
            exposed[users] = reply.reports.get(EXPOSURE, np.nan)
            learned[users] = reply.reports.get(TRAINING, np.nan)
        answered = sum(map(len, received.users))
        method.line["bytes"]["evaluation"] = {
            "down_per_user": float(self._down.mean()) + self._personal_bytes / asked if asked else 0.0,
            "wire_down": self._wire_down,
            "up_per_user": told / answered,
            "wire_up": received.bytes,
            "asked": asked,
            "users": answered,
        }
        if config.attack_fraction > 0:
            lying = liars(config, keys)
            values[lying] = np.nan
            learned[lying] = np.nan
            method.note(exposure=exposure(exposed, lying))
        if config.evaluate_training:
            method.note(training=training_means(learned))
        means: Any = summarise(values)
        privacy = method.privacy
        if privacy and not privacy.simulated:
            means, values = privacy.means(values, server_round), np.full(values.shape, np.nan)
        method.best.offer(server_round, means, values, last=privacy is not None)
        method.note(**means)
        method.line["node_seconds"]["evaluate"] = sum(reply.seconds for reply in received.replies)
        method.note(evaluation_failures=[vars(failure) for failure in received.failures])
        return MetricRecord(dict(flattened(means)))
