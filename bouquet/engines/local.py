"""A `Grid` without Flower's runtime: nodes are called in this process, one after another.

Messages are the ones that Flower would carry, built and decoded by the same code, so a run gives the same
numbers as under Flower. It starts in no time, which is what research and tests want.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from bouquet.config import Scalar
from bouquet.engines.inside import use_task_identity
from bouquet.engines.release import CLIENT_RAISED


class LocalGrid(Grid):
    """Calls a ClientApp directly.

    Args:
        client_app: the device side.
        num_nodes: how many nodes the users are partitioned over.
        run_config: settings that every node sees.

    Attributes:
        simulated: no node of it is anybody's own.
    """

    simulated = True

    def __init__(self, client_app: ClientApp, num_nodes: int, run_config: Mapping[str, Scalar]) -> None:
        use_task_identity()
        self._client_app = client_app
        self._contexts = {
            1000 + partition: Context(
                run_id=1,
                node_id=1000 + partition,
                node_config={"partition-id": partition, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for partition in range(num_nodes)
        }
        self._ids = itertools.count(1)
        self.stopped = threading.Event()
        self._replies: dict[str, Message] = {}

    def set_run(self, run: object) -> None:
        """Nothing to set: there is one run."""

    @property
    def run(self) -> None:  # type: ignore[override]
        """There is no run record."""
        return

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """All nodes are there from the start."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Have every message answered at once."""
        ids = []
        for message in messages:
            if self.stopped.is_set():
                raise KeyboardInterrupt
            identity = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = identity
            self._replies[identity] = self._answer(message)
            ids.append(identity)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages, each given once."""
        return [self._replies.pop(identity) for identity in list(message_ids) if identity in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push, then pull; nothing is ever late."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        try:
            return self._client_app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            return Message(Error(code=CLIENT_RAISED, reason=str(error)), reply_to=message)


class LocalRun:
    """A whole federated training in this process.

    Args:
        server_app, client_app: the two sides.
        num_nodes: how many nodes the users are partitioned over.
        run_config: settings that both sides see.
    """

    def __init__(
        self, server_app: ServerApp, client_app: ClientApp, num_nodes: int, run_config: Mapping[str, Scalar]
    ) -> None:
        self._server_app = server_app
        self._config = dict(run_config)
        self.grid = LocalGrid(client_app, num_nodes, run_config)

    def __call__(self) -> None:
        """Run to the end.

        Raises:
            BouquetError: the run failed.
            KeyboardInterrupt: `stop` was called.
        """
        context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=self._config)
        self._server_app(self.grid, context)

    def stop(self) -> None:
        """Have the run end before its next message."""
        self.grid.stopped.set()
