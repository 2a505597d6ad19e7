"""Flower's inside: all that this program takes from modules that Flower does not document, or replaces in them.

Documented are `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.simulation`. All else may be another with the
next release, and is imported here alone. A test holds that, and says which name or signature a release has changed
(tests/deployment/test_inside.py). Commands, environment variables and what programs print stand in
`bouquet.engines.release`.

Every function imports what it needs: a device's first process is forked before anything of Flower is there, and a
simulation needs next to nothing of this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Error, Message
    from flwr.serverapp import Grid


# -- a process of a ServerApp or ClientApp -----------------------------------------------------------------------------


def use_task_identity() -> None:
    """Give this process the identity that Flower's messages ask for, when no Flower runtime did."""
    from flwr.supercore.task_identity import TaskIdentity

    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


def is_in_memory(grid: object) -> bool:
    """Whether a grid is that of Flower's simulation."""
    # Looked up, not imported: where it was not imported, no grid is one.
    module = sys.modules.get("flwr.superlink.grid.inmemory_grid")
    return bool(module and isinstance(grid, module.InMemoryGrid))


# -- replies as the SuperLink holds them -------------------------------------------------------------------------------


class NotWhole(Exception):
    """A reply was not uploaded to its end, and never will be."""


class _NotYet(Exception):
    """A part of a reply is still on its way."""


class Mailbox:
    """What a SuperLink holds for a ServerApp, part by part, where `Grid.pull_messages` puts it together at once.

    Args:
        grid: one whose nodes are behind a SuperLink, see `is_remote`.
    """

    def __init__(self, grid: Any) -> None:
        self._client, self._run, self.node = grid._runtime_client, grid._run.run_id, grid.node

    def replies(self, asked: Sequence[str]) -> list[tuple[Any, Any]]:
        """Metadata and tree of parts of the replies that are there, of each once: the SuperLink forgets that it has it.

        Raises:
            httpx.HTTPError: the SuperLink does not answer, or with a status that says why not.
        """
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest

        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=asked))
        heads = (message.metadata for message in answer.messages_list)
        return list(zip(heads, answer.message_object_trees, strict=True))

    @staticmethod
    def parts(tree: Any) -> Iterator[str]:
        """Names of the parts of a reply, some perhaps several times."""
        from flwr.supercore.inflatable.inflatable_object import iterate_object_tree

        return (part.object_id for part in iterate_object_tree(tree))

    def fetch(self, parts: Sequence[str], keep: Callable[[str, bytes], None]) -> bool:
        """Have parts of a reply handed over, as they come; does not wait for one that is not there yet.

        Args:
            keep: called with the name and content of each, from several threads; what it raises ends this.
        Returns:
            whether all of them came.
        Raises:
            NotWhole: a part will never come.
        """
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectUnavailableError, pull_objects

        pull = make_pull_object_fn_protobuf(
            pull_object_protobuf=self._client.PullObject, node=self.node, run_id=self._run
        )

        def pulled(name: str) -> bytes:
            try:
                content = pull(name)
            except ObjectUnavailableError:
                raise _NotYet from None  # which ends all pulls, where Flower's own would have it tried again
            keep(name, content)
            return content

        try:
            pull_objects(list(parts), pulled)
        except _NotYet:
            return False
        except ObjectPullError as error:
            raise NotWhole(str(error)) from None
        return True

    def confirm(self, metadata: Any) -> None:
        """Say that a reply was taken, so that the SuperLink drops it."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self._run, message_object_id=metadata.message_id)
        )


def is_remote(grid: Grid) -> bool:
    """Whether nodes are behind a SuperLink elsewhere, and not in this process or Flower's simulation."""
    return hasattr(grid, "_runtime_client")


def head(content: bytes) -> tuple[str, list[str], int]:
    """Of a part as it travels: its class, the names of the parts under it, and where its body begins.

    Raises:
        ValueError, IndexError: it is not as Flower makes it.
    """
    from flwr.supercore.constant import HEAD_BODY_DIVIDER
    from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content

    kind, children, _ = get_object_head_values_from_object_content(content)
    return kind, children, content.find(HEAD_BODY_DIVIDER) + len(HEAD_BODY_DIVIDER)


def put_together(name: str, contents: Mapping[str, bytes]) -> Any:
    """What a part and all under it are.

    Raises:
        Exception: whatever Flower raises for parts that do not fit together.
    """
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    return inflate_object_from_contents(name, dict(contents))


def sent_by(message: Message, metadata: Any) -> None:
    """Have a message say what the SuperLink says of it, and not what its bytes do: which it is, and from whom."""
    message.metadata.__dict__.update(_message_id=metadata.message_id, _src_node_id=metadata.src_node_id)


def error_message(metadata: Any, source: int, error: Error) -> Message:
    """An error in the place of a reply.

    Args:
        metadata: of the reply, as the SuperLink has it.
        source: the node that the error is of.
    """
    from flwr.app import Metadata
    from flwr.app.message import make_message
    from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE

    return make_message(
        metadata=Metadata(
            run_id=metadata.run_id,
            message_id="",
            src_node_id=source,
            dst_node_id=metadata.dst_node_id,
            message_type=SYSTEM_MESSAGE_TYPE,
            group_id="",
            ttl=0,
            reply_to_message_id=metadata.reply_to_message_id,
            created_at=metadata.created_at,
        ),
        error=error,
    )


# -- a SuperLink -------------------------------------------------------------------------------------------------------


def be_superlink(seldom: Callable[[Callable[[Any], None]], Callable[[Any], None]], turn: float) -> None:
    """Be `flower-superlink`, with less work for its database; where what is replaced is not there, nothing is.

    Args:
        seldom: makes of the look for expired tokens, a method, one that looks more rarely.
        turn: seconds that a call waits for a connection to its database, and for its turn to write.
    """
    from flwr.supercore import sql_mixin
    from flwr.supercore.corestate.sql_corestate import SqlCoreState
    from flwr.superlink.cli import flower_superlink

    if look := getattr(SqlCoreState, "_cleanup_expired_task_tokens", None):
        setattr(SqlCoreState, look.__name__, seldom(look))
    if pragmas := getattr(sql_mixin, "SQLITE_PRAGMAS", ()):
        vars(sql_mixin)["SQLITE_PRAGMAS"] = tuple(
            (name, str(round(1000 * turn)) if name == "busy_timeout" else value) for name, value in pragmas
        )
    if create := getattr(sql_mixin, "create_engine", None):

        def patient(*arguments: Any, **given: Any) -> Any:
            # A database in memory has one connection, which nobody waits for.
            return create(*arguments, **(given if "poolclass" in given else {"pool_timeout": turn, **given}))

        vars(sql_mixin)["create_engine"] = patient
    sys.argv[0] = "flower-superlink"
    flower_superlink()


# -- a SuperNode -------------------------------------------------------------------------------------------------------


def be_supernode(words: Sequence[str]) -> None:
    """Be `flower-supernode` with this command line."""
    from flwr.supernode.cli import flower_supernode

    sys.argv = ["flower-supernode", *words]
    flower_supernode()


def supernode_sleeps(sleep: Callable[[float], None]) -> None:
    """Have a SuperNode call this where it sleeps: 3 s between two looks for a message, .5 s for its reply."""
    from flwr.supernode import start_client_internal as flower

    vars(flower)["time"] = SimpleNamespace(sleep=sleep)


def supernode_asks(replaced: Callable[[Callable[..., int | None]], Callable[..., int | None]]) -> None:
    """Replace how a SuperNode asks for one message and stores it.

    Args:
        replaced: makes the new function of the one that is there. It is called with names alone, `receive` among them,
            which gives the message or None, and returns the id of the run; None where there is no message for a child.
    """
    from flwr.supernode import start_client_internal as flower

    vars(flower)["_pull_and_store_message"] = replaced(vars(flower)["_pull_and_store_message"])


def supernode_tries_again(codes: Sequence[str]) -> None:
    """Have a SuperNode repeat calls that end with one of these codes of gRPC as it does where no server answers.

    One that speaks HTTP repeats such calls by itself.
    """
    from flwr.supernode import start_client_internal as flower

    make = vars(flower).get("make_simple_grpc_retry_invoker")
    if not make:
        return

    def patient() -> Any:
        found = make()
        gives_up = found.should_giveup
        found.should_giveup = lambda error: error.code().name not in codes and gives_up(error)
        return found

    vars(flower)["make_simple_grpc_retry_invoker"] = patient


def parts_come_soon(first: float, longest: float) -> None:
    """Have this process ask soon again for the parts of a message, which follow it; Flower waits a second or more.

    Args:
        first, longest: seconds until a part that is not there yet is asked for again: the first time, and at most. It
            asks as long as before in all, however often that is.
    """
    from flwr.supercore.inflatable import inflatable_utils

    for pull in (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree):
        soon = {"initial_backoff": first, "backoff_cap": longest, "max_tries_per_object": None}
        assert pull.__kwdefaults__
        assert soon.keys() <= pull.__kwdefaults__.keys()
        pull.__kwdefaults__.update(soon)


# -- what runs a SuperNode's messages ----------------------------------------------------------------------------------


def runtime_client(address: str, authority: bytes, secret: bytes) -> Any:
    """Calls a SuperNode as Flower's SuperExec does.

    Args:
        address: HOST:PORT of its runtime API.
        authority: the certificate that its own is signed with, PEM.
        secret: what it knows an executor by.
    """
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    known = SuperExecAuthHttpInterceptor(
        master_secret=secret, protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
    )
    return _runtime_client(address, authority, "SuperExec", known)


def _runtime_client(address: str, authority: bytes, component: str, known: Any) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=authority,
        interceptors=[RuntimeVersionHttpInterceptor(component_name=component), known],
        retry_invoker=make_simple_http_retry_invoker(),
    )


def next_task(client: Any) -> str:
    """The token of a message that waits for a child, or ""."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType

    answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
    return str(answer.token) if answer.HasField("task") else ""


def vouch(address: str, authority: bytes, token: str) -> None:
    """Tell a SuperNode that a child works on this message, as the child does that has come that far.

    Without a word for 30 s before, or for 60 s after it began, a SuperNode gives a message up. As `runtime_client`.
    """
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor

    client = _runtime_client(address, authority, "flwr-clientapp", RuntimeTokenHttpInterceptor(token))
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    finally:
        client.close()


def run_message(
    address: str, token: str, authority: bytes, parent: int, load: Callable[[str, str, str], Any] | None
) -> None:
    """Take one message from a SuperNode, run a ClientApp on it, and give the reply back.

    Args:
        address, authority: as for `runtime_client`.
        token: of the message.
        parent: the process with whose end this one ends.
        load: gives the ClientApp for an app's name, version and digest; None: the one that came with the run.
    """
    from flwr.supernode.runtime import run_clientapp as flower

    if load:
        vars(flower)["install_from_fab"] = lambda *_, **__: None
        vars(flower)["get_load_client_app_fn"] = lambda *_, **__: load
    flower.run_clientapp(
        runtime_api_address=address,
        token=token,
        insecure=False,
        certificates=authority,
        parent_pid=parent,
        runtime_dependency_install=False,
    )
