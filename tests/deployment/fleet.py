"""Nodes in this process that vanish, fall silent, are late, come for the first time, or are one person's device."""

from __future__ import annotations

import csv
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict

from bouquet.device import Device
from bouquet.engines.local import LocalGrid
from bouquet.wire import TRAIN


class Fleet(LocalGrid):
    """A grid whose nodes can be tampered with by number, at the beginning of a round.

    Args:
        plan: round -> what is done before its first training message is answered; given the fleet.
        devices: folder of each device, instead of partitions.

    Attributes:
        offline: nodes that the SuperLink does not see.
        silent: nodes that are seen and do not answer before they are silent no more.
        mute: nodes that answer everything but requests to train.
        late: nodes whose answers come only when the next round has begun.
        hidden: nodes that have not come yet.
    """

    simulated = False

    def __init__(self, *arguments, plan=None, devices=()):
        super().__init__(*arguments)
        self.plan: dict[int, Callable] = plan or {}
        self.offline, self.silent, self.mute, self.late, self.hidden = set(), set(), set(), set(), set()
        self._held, self._round = {}, 0
        self._queue: list[Message] = []
        self.asked: list[tuple[int, str, int]] = []
        for number, folder in enumerate(devices):
            config = {"history": str(folder / "history.csv"), "state-dir": str(folder)}
            run_config = arguments[2]
            self._contexts[1000 + number] = Context(1, 1000 + number, config, RecordDict(), dict(run_config))

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node - 1000 not in self.offline | self.hidden]

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            if message.metadata.message_type == TRAIN and int(message.metadata.group_id) > self._round:
                self._round = int(message.metadata.group_id)
                self._replies |= self._held
                self._held = {}
                self.plan.get(self._round, lambda fleet: None)(self)
        for message in messages:
            self.asked.append((self._round, message.metadata.message_type, message.metadata.dst_node_id - 1000))
        here = [message for message in messages if not self._is_away(message)]
        identities = dict(zip(map(id, here), super().push_messages(here), strict=True))
        for message in messages:
            if id(message) not in identities:
                identities[id(message)] = identity = f"queued-{next(self._ids)}"
                message.metadata.__dict__["_message_id"] = identity
                self._queue.append(message)
            elif message.metadata.dst_node_id - 1000 in self.late:
                self._held[identities[id(message)]] = self._replies.pop(identities[id(message)])
        return [identities[id(message)] for message in messages]

    def pull_messages(self, message_ids):
        for message in [message for message in self._queue if not self._is_away(message)]:
            self._queue.remove(message)
            self._replies[message.metadata.message_id] = self._answer(message)
        return super().pull_messages(message_ids)

    def _is_away(self, message: Message) -> bool:
        mute = self.mute if message.metadata.message_type == TRAIN else set()
        return message.metadata.dst_node_id - 1000 in self.offline | self.silent | mute


def write_history(folder, items, user):
    """A device with a history of items, oldest first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "history.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "time"])
        writer.writerows((item, time) for time, item in enumerate(items))
    Device(folder).save_settings({"user": user, "history": str(path), "item_column": "item", "time_column": ""})
    return folder


def write_catalogue(path, items):
    """A catalogue file whose titles are "Title of ITEM"."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "title"])
        writer.writerows((item, f"Title of {item}") for item in items)
    return path
