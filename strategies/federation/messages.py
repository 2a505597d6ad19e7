"""The messages of a round: what is asked of whom, and what the valid replies say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.attacks import exposure_reports
from bouquet.errors import WireError
from bouquet.records import Report, message_bytes, pack, payload_bytes, unpack
from bouquet.training_part import training_reports
from bouquet.wire import (
    EVALUATE,
    TRAIN,
    EvaluateReply,
    EvaluateRequest,
    TrainReply,
    TrainRequest,
    most_evaluate_bytes,
    most_train_bytes,
    refuse_other_round,
)
from strategies.federation.bounds import bounded
from strategies.federation.evaluation import Evaluation
from strategies.federation.hooks import Hooks
from strategies.federation.masking import Summed
from strategies.federation.nodes import Nodes
from strategies.federation.replies import Received, Sent, receive, require_enough
from strategies.federation.robust import robust_reply
from strategies.numerics.checks import refuse_broken_state

_NOBODY, _NOTHING = np.zeros(0, np.int64), np.zeros(0, np.float32)


class Messages:
    """Asks the users of a method's rounds, and reads what comes back.

    Args:
        method: its roster is there when the first message is made.

    Attributes:
        nodes: learns who has answered.
        sent: the messages that were made last.
        summed: what came of the round under masks, where they are asked for.
    """

    nodes: Nodes

    def __init__(self, method: Hooks) -> None:
        self._method = method
        self.sent: list[Sent] = []
        self.summed: Summed | None = None
        self._shared: Arrays = {}
        self._reports: dict[str, Report] = {}
        self._evaluation: Evaluation | None = None

    def to_train(self, server_round: int, arrays: ArrayRecord) -> list[Message]:
        """One message to every node that hosts users of this round."""
        method, shared = self._method, unpack(arrays)
        privacy = method.privacy
        self.sent, self._shared = [], shared
        self._reports = method.reports(server_round, shared) | (privacy.reports() if privacy else {})
        returning, cells, needed = (
            method.returning(method.roster.specs),
            method.summed(method.roster.num_items),
            method.needed(shared),
        )
        personal_bytes = 0
        chosen = privacy.sample(method.roster, server_round) if privacy else method.select_users(server_round)
        for node, users in method.roster.by_node(chosen):
            addressed = method.addressed(users)
            personal = method.personal(users if addressed is None else users[addressed])
            personal_bytes += payload_bytes(personal)
            request = TrainRequest(
                series=method.series,
                round=server_round,
                users=method.roster.users[users],
                versions=method.versions[users],
                kept=method.kept_versions[users],
                shared=dict(method.meant_for(needed, users)),
                personal=personal,
                update=method.update,
                weights=method.weights(users),
                reports=tuple(self._reports),
                clip=privacy.clip_to_send() if privacy else 0.0,
                addressed=addressed,
                telling=method.telling(users),
            )
            most = most_train_bytes(returning, method.update, len(users), self._reports, cells)
            self.sent.append(Sent(_message(request.encode(), node, TRAIN, server_round), users, most))
        method.line = {"bytes": self._sent_bytes(needed, personal_bytes), "asked": self._asked()}
        return [item.message for item in self.sent]

    def trained(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        """Decode the replies, leave out invalid ones, and let the method aggregate.

        Raises:
            RunFailed: too few users gave a valid reply.
        """
        method = self._method
        specs = method.returning(method.roster.specs)
        if summed := self.summed:
            self.summed = None
            received, weighed = summed.received, [summed.reply]
            method.line["bytes"]["down_per_user"] += summed.down
            method.line["bytes"]["wire_down"] += summed.wire_down
            method.note(clipped=summed.clipped)
        else:
            received, weighed = self._read(server_round, replies)
        self.nodes.after(received, TRAIN, server_round)
        if self.sent or not method.privacy:  # a sample can be of nobody
            require_enough(received, self._asked(), method.config.min_reply_fraction, f"Round {server_round}")
        users = np.concatenate([_NOBODY, *received.users])
        counted, of_users = weighed, [users] if summed else received.users
        if method.privacy and method.update == "sum":
            counted, of_users = [method.privacy.summed(server_round, weighed, specs)], [users]
        if method.config.robust_aggregation != "none":
            by_user = [method.weights(of_reply) for of_reply in received.users]
            counted, of_users = [robust_reply(weighed, by_user, specs, method.config)], [users]
        with np.errstate(over="ignore"):  # what is infinite is refused with its name
            shared = method.aggregate(server_round, self._shared, counted, of_users)
        refuse_broken_state({**shared, **method.extra_arrays()}, f"Round {server_round} broke the model")
        method.versions[users] = server_round
        loss = np.concatenate([_NOTHING, *(reply.loss for reply in weighed)]).astype(float)
        upload = np.concatenate([_NOBODY, *(reply.upload_bytes for reply in weighed)])
        metrics: dict[str, Any] = {
            "loss": float(np.nanmean(loss)) if np.isfinite(loss).any() else float("nan"),
            "users": len(users),
            "up_per_user": float(upload.mean()) if len(upload) else 0.0,
        }
        method.line["bytes"] |= {"up_per_user": metrics["up_per_user"], "wire_up": received.bytes}
        method.note(
            users=metrics["users"],
            node_seconds={"train": sum(reply.seconds for reply in received.replies)},
            loss=metrics["loss"],
            failures=[vars(failure) for failure in received.failures],
        )
        if method.privacy:
            method.line |= method.privacy.published(method.line, specs)
        return pack(shared), MetricRecord(metrics)

    def _read(self, server_round: int, replies: Iterable[Message]) -> tuple[Received, list[TrainReply]]:
        """The valid replies, held to their bounds, with what they count for."""
        method, reports = self._method, self._reports
        specs, cells, keys = (
            method.returning(method.roster.specs),
            method.summed(method.roster.num_items),
            method.roster.users,
        )

        def decode(content: RecordDict, users: NDArray[np.int64]) -> TrainReply:
            refuse_other_round(content, method.series, server_round)
            reply = TrainReply.decode(
                content, keys[users], method.expected(users, specs), method.update, reports, cells
            )
            if reason := method.refusal(reply, users[np.isin(keys[users], reply.users)]):
                raise WireError(reason)
            if method.privacy and (reason := method.privacy.refusal(reply)):
                raise WireError(reason)
            return reply

        received = receive(self.sent, replies, keys, decode)
        return self._bounded(received, specs)

    def to_evaluate(self, server_round: int, arrays: ArrayRecord) -> list[Message]:
        """One message to every node with users of the next part: all are evaluated, those that did not train too."""
        method, shared = self._method, unpack(arrays)
        self.sent, self._shared = [], shared
        self._reports = method.evaluation_reports(server_round, shared)
        self._reports |= exposure_reports(method.config) | training_reports(method.config)
        evaluation = self._evaluation = self._evaluation or Evaluation(method)
        personal_bytes = 0
        for node, users in method.roster.by_node(evaluation.parts.pop(0)):
            addressed = method.addressed_to_evaluate(users)
            personal = method.personal_to_evaluate(users if addressed is None else users[addressed])
            personal_bytes += payload_bytes(personal)
            request = EvaluateRequest(
                series=method.series,
                round=server_round,
                users=method.roster.users[users],
                versions=method.versions[users],
                shared=dict(method.meant_for(shared, users)),
                personal=personal,
                reports=tuple(self._reports),
                addressed=addressed,
            )
            most = most_evaluate_bytes(len(users), self._reports)
            self.sent.append(Sent(_message(request.encode(), node, EVALUATE, server_round), users, most))
        evaluation.sent(shared, self.sent, personal_bytes)
        return [item.message for item in self.sent]

    def evaluated(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Means over users, and the best round so far; None where another part of the users is to be asked.

        Raises:
            RunFailed: too few users gave a valid reply.
        """
        reports, keys = self._reports, self._method.roster.users

        def decode(content: RecordDict, users: NDArray[np.int64]) -> EvaluateReply:
            refuse_other_round(content, self._method.series, server_round)
            return EvaluateReply.decode(content, keys[users], reports)

        received = receive(self.sent, replies, keys, decode)
        self.nodes.after(received, EVALUATE, server_round)
        evaluation = self._evaluation
        assert evaluation
        evaluation.received(received)
        if evaluation.parts:
            return None
        self._evaluation = None
        return evaluation.end(server_round)

    def _asked(self) -> int:
        return sum(len(item.users) for item in self.sent)

    def _sent_bytes(self, shared: Arrays, personal_bytes: int) -> dict[str, float]:
        """What goes down: to each user as if its message were for it alone, and all messages as they are."""
        users = np.concatenate([_NOBODY, *(item.users for item in self.sent)])
        each = float(self._method.down_bytes(shared, users).mean()) + personal_bytes / len(users) if len(users) else 0.0
        return {
            "down_per_user": each,
            "wire_down": sum(message_bytes(item.message.content) for item in self.sent),
        }

    def _bounded(self, received: Received, specs: Specs) -> tuple[Received, list[TrainReply]]:
        """The replies with what they count for, held to `update-bound`; and what was received without those refused."""
        method = self._method
        weighed = [
            self._weighed(*parts) for parts in zip(received.replies, received.users, received.asked, strict=True)
        ]
        bounds = bounded(weighed, specs, method.update_bound)
        method.note(bounded={"users": bounds.users, "nodes": bounds.nodes})
        nodes = [int(method.roster.node_of[users[0]]) for users in received.users]
        return received.held(bounds.replies, bounds.kept, bounds.refused, nodes, method.roster.users), bounds.replies

    def _weighed(self, reply: TrainReply, users: NDArray[np.int64], asked: int) -> TrainReply:
        """A reply with what it counts for: a single user's sum came unweighted."""
        weights = self._method.weights(users)
        return replace(reply, factor=float(weights[0]) if asked == 1 else 1.0, weight=float(weights.sum()))


def _message(content: RecordDict, node: int, kind: str, server_round: int) -> Message:
    return Message(content, dst_node_id=node, message_type=kind, group_id=str(server_round))
