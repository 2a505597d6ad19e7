"""A SuperLink in this process: Flower's own state, database and handlers, without the network between."""

from collections.abc import Callable
from pathlib import Path

from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.app.message.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.message_handler import message_handler as fleet
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, iterate_object_tree
from flwr.supercore.object_store.object_store_factory import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.runtime import runtime_handlers

DAY = 86_400.0


class SuperLink:
    """One with a run that goes on. To the ServerApp's grid it is what a client of the runtime API is.

    Attributes:
        given: names of all parts that were given out, in order.
    """

    def __init__(self, folder: Path) -> None:
        database = str(folder / "superlink.db")
        self.state = LinkStateFactory(database, NoOpFederationManager(), ObjectStoreFactory(database)).state()
        self.run_id = self.state.create_run(
            "bouquet/bouquet", "1", "digest", {}, "@none/default", None, "nobody", "flwr-serverapp"
        )
        (self.task,) = self.state.get_tasks(run_ids=[self.run_id])
        self.state.claim_task(self.task.task_id)
        assert self.state.activate_task(self.task.task_id)
        self.given: list[str] = []

    def node(self) -> int:
        """The id of a new SuperNode, which is there."""
        key = str(len(self.state.get_nodes(self.run_id))).encode()
        node = self.state.create_node("nobody", "nobody", key, DAY)
        assert self.state.activate_node(node, DAY)
        return node

    def PushMessages(self, request):
        return runtime_handlers.push_messages(request, self.state, self.task)

    def PushObject(self, request):
        return runtime_handlers.push_object(request, self.state, self.task)

    def PullMessages(self, request):
        return runtime_handlers.pull_messages(request, self.state, self.task)

    def PullObject(self, request):
        answer = runtime_handlers.pull_object(request, self.state, self.task)
        if answer.object_available:
            self.given.append(request.object_id)
        return answer

    def ConfirmMessageReceived(self, request):
        return runtime_handlers.confirm_message_received(request, self.state, self.task)

    def holds(self, part: str) -> bool:
        """Whether a part is there, or waited for."""
        return self.state.get_object(self.run_id, part) is not None


class HereGrid(HttpGrid):
    """Flower's grid of a ServerApp, with a SuperLink of this process at the other end."""

    def __init__(self, link: SuperLink) -> None:
        super().__init__(token="in this process")
        self._link, (self._run,) = link, link.state.get_run_info(run_ids=[link.run_id])

    @property
    def _runtime_client(self):
        return self._link

    def push_messages(self, messages):
        for message in messages:  # which a process of a ServerApp makes with the id of its own run
            message.metadata.__dict__["_run_id"] = self._link.run_id
        return super().push_messages(messages)


class Reply:
    """What a SuperNode pushes as a reply: first that it is there, then its parts, as soon as it likes.

    Args:
        asked: the message that it answers, as it was pushed.
        claims: id of the message that its own bytes say it answers; None: the same.
        changed: makes other bytes of a part; all parts above it then name these.
    """

    def __init__(
        self,
        link: SuperLink,
        asked: Message,
        content: RecordDict,
        claims: str | None = None,
        changed: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._link, self.node, answers = link, asked.metadata.dst_node_id, asked.metadata.message_id
        of = Metadata(link.run_id, "", self.node, 1, claims or answers, "", asked.metadata.created_at, 60.0, "train")
        message = make_message(metadata=of, content=content)
        self.parts: dict[str, bytes] = {}
        renamed: dict[str, str] = {}
        # Flower names the parts under a part before the part itself.
        for name, part in get_all_nested_objects(message).items():
            inside = part.deflate()
            for before, after in renamed.items():
                inside = inside.replace(before.encode(), after.encode())
            inside = changed(inside)
            renamed[name] = get_object_id(inside)
            self.parts[renamed[name]] = inside
        self.root = renamed[message.object_id]
        metadata = message.metadata
        metadata.__dict__.update(_message_id=self.root, _reply_to_message_id=answers)
        tree = ObjectTree(
            object_id=self.root, children=[ObjectTree(object_id=part) for part in self.parts if part != self.root]
        )
        request = PushMessagesRequest(
            node=Node(node_id=self.node),
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[tree],
        )
        answer = fleet.push_messages(request, link.state)
        assert answer.session_id
        self._session = answer.session_id
        order = [part.object_id for part in iterate_object_tree(tree)]
        self._unsent = [part for part in order if part in set(answer.objects_to_push)]

    def push(self, parts: int | None = None) -> None:
        """Push so many more of its parts; None: all that are left."""
        for part in self._unsent[:parts]:
            request = PushObjectRequest(
                node=Node(node_id=self.node),
                run_id=self._link.run_id,
                object_id=part,
                object_content=self.parts[part],
                session_id=self._session,
            )
            assert fleet.push_object(request, self._link.state).stored
        self._unsent = self._unsent[parts:] if parts else []


def ask(grid: HttpGrid, *nodes: int) -> list[Message]:
    """Messages to nodes, pushed by the ServerApp."""
    messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
    assert all(grid.push_messages(messages))
    return messages
