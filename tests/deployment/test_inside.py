"""Flower is as this program has it: whatever is taken from its inner modules is there, and takes what it is given.

A failure here says what another release of Flower has changed. Read its code again, then `bouquet/engines/inside.py`.
"""

import ast
import hashlib
import importlib
import inspect
from pathlib import Path

import flwr
import pytest
from flwr.app import Array
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from bouquet.engines import release
from tests.conftest import REPOSITORY

INSIDE = REPOSITORY / "bouquet/engines/inside.py"

# What is called by name there, and with which names.
GIVEN = {
    "flwr.app:Metadata": "run_id message_id src_node_id dst_node_id message_type group_id ttl reply_to_message_id "
    "created_at",
    "flwr.app.message:make_message": "metadata error",
    "flwr.supercore.inflatable.inflatable_object:get_object_head_values_from_object_content": "object_content",
    "flwr.supercore.inflatable.inflatable_object:iterate_object_tree": "tree",
    "flwr.supercore.inflatable.inflatable_protobuf_utils:make_pull_object_fn_protobuf": "pull_object_protobuf node "
    "run_id",
    "flwr.supercore.inflatable.inflatable_utils:inflate_object_from_contents": "object_id object_contents",
    "flwr.supercore.inflatable.inflatable_utils:pull_objects": "object_ids pull_object_fn",
    "flwr.supercore.inflatable.inflatable_utils:pull_and_inflate_object_from_tree": "initial_backoff backoff_cap "
    "max_tries_per_object",
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": "token",
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": "component_name",
    "flwr.supercore.interceptors:SuperExecAuthHttpInterceptor": "master_secret protected_methods",
    "flwr.supercore.retry:make_simple_http_retry_invoker": "",
    "flwr.supercore.runtime:RuntimeHttpClient.from_server_address": "server_address insecure root_certificates "
    "interceptors retry_invoker",
    "flwr.supernode.start_client_internal:_pull_and_store_message": "receive",
    "flwr.supernode.cli:flower_supernode": "",
    "flwr.superlink.cli:flower_superlink": "",
}
FIELDS = {
    "flwr.proto.message_pb2:ConfirmMessageReceivedRequest": "node run_id message_object_id",
    "flwr.proto.runtime_pb2:AcquireTaskRequest": "supported_task_types",
    "flwr.proto.runtime_pb2:AcquireTaskResponse": "task token",
    "flwr.proto.runtime_pb2:PullAppMessagesRequest": "message_ids",
    "flwr.proto.runtime_pb2:PullAppMessagesResponse": "messages_list message_object_trees",
}


def at(place):
    module, _, name = place.partition(":")
    found = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def taken():
    """Every module and name of Flower's that is imported there."""
    for node in ast.walk(ast.parse(INSIDE.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr"):
            yield from (f"{node.module}:{alias.name}" for alias in node.names)


@pytest.mark.parametrize("place", sorted(set(taken())))
def test_what_is_imported_is_there(place):
    try:
        at(place)
    except AttributeError:
        importlib.import_module(place.replace(":", "."))


@pytest.mark.parametrize("place", GIVEN)
def test_what_is_called_takes_these_names(place):
    names = list(inspect.signature(at(place)).parameters)
    assert set(GIVEN[place].split()) <= set(names)
    # Those that are given by their place come first.
    if place.endswith(
        (":pull_objects", ":inflate_object_from_contents", ":get_object_head_values_from_object_content")
    ):
        wanted = GIVEN[place].split()[:2]
        assert names[: len(wanted)] == wanted


@pytest.mark.parametrize("place", FIELDS)
def test_messages_of_its_programs_have_these_fields(place):
    assert set(FIELDS[place].split()) <= {field.name for field in at(place).DESCRIPTOR.fields}


def test_a_task_has_an_identity_in_its_process():
    identity = at("flwr.supercore.task_identity:TaskIdentity")
    assert hasattr(identity, "_run_id")
    assert {"run_id", "task_id", "node_id"} <= set(dir(type(identity)))


def test_a_grid_is_told_by_its_class_or_by_what_it_calls():
    assert isinstance(HttpGrid._runtime_client, property)
    assert not hasattr(InMemoryGrid, "_runtime_client")
    assert at("flwr.superlink.grid.inmemory_grid:InMemoryGrid") is InMemoryGrid


def test_replies_are_still_pulled_as_there():
    """Read `HttpGrid.pull_messages` and `Array.inflate` again, and then renew these digits."""
    source = inspect.getsource(HttpGrid.pull_messages) + inspect.getsource(Array.inflate)
    assert hashlib.sha256(source.encode()).hexdigest()[:16] == "59d401f4d31b7e65"


def test_what_is_replaced_in_a_supernode_is_looked_up_where_it_is_replaced():
    lines = [line.strip() for line in inspect.getsource(at("flwr.supernode:start_client_internal")).splitlines()]
    waits = [line for line in lines if line.startswith("time.")]
    assert waits == ["time.sleep(3)", "time.sleep(0.5)", "time.sleep(0.5)"]
    assert "run_id = _pull_and_store_message(" in lines
    if release.has_fleet_port():
        assert "retry_invoker = make_simple_grpc_retry_invoker()" in lines
    assert "self.should_giveup(_exception)" in inspect.getsource(at("flwr.supercore.retry.retry_invoker:RetryInvoker"))
    for name in ("pull_objects", "pull_and_inflate_object_from_tree"):
        pull = at(f"flwr.supercore.inflatable.inflatable_utils:{name}")
        assert {"initial_backoff", "backoff_cap", "max_tries_per_object"} <= pull.__kwdefaults__.keys()


def test_what_is_replaced_in_a_message_is_looked_up_where_it_is_replaced():
    run = at("flwr.supernode.runtime:run_clientapp").run_clientapp
    source = inspect.getsource(run)
    assert "install_from_fab(fab.content" in source
    assert "load_client_app_fn = get_load_client_app_fn(" in source
    assert "load_client_app_fn(\n            run.fab_id, run.fab_version, fab.hash_str\n        )" in source
    given = ["runtime_api_address", "token", "insecure", "certificates", "parent_pid", "runtime_dependency_install"]
    assert list(inspect.signature(run).parameters) == given
    assert at("flwr.supercore.constant:TaskType").CLIENT_APP == "flwr-clientapp"


def test_what_is_replaced_in_a_superlink_is_looked_up_where_it_is_replaced():
    state = at("flwr.server.superlink.linkstate.sql_linkstate:SqlLinkState")
    core, mixin = at("flwr.supercore.corestate.sql_corestate:SqlCoreState"), at("flwr.supercore:sql_mixin")
    assert state._cleanup_expired_task_tokens is core._cleanup_expired_task_tokens
    assert "self._cleanup_expired_task_tokens()" in inspect.getsource(state.get_run_status)
    assert ("busy_timeout", "5000") in mixin.SQLITE_PRAGMAS
    assert "in SQLITE_PRAGMAS:" in inspect.getsource(mixin._set_sqlite_pragmas)
    assert "= create_engine(self.database_url, **engine_kwargs)" in inspect.getsource(mixin)


@pytest.mark.parametrize(
    ("said", "module"),
    [
        (release.LET_IN, "supernode/start_client_internal.py"),
        (release.REFUSED, "supercore/error/catalog.py"),
        (release.LOST, "supercore/retry/grpc_retry.py"),
        (release.FOUND, "supercore/retry/grpc_retry.py"),
        (release.EXIT, "supercore/exit/exit.py"),
        (release.EXECUTOR_POLL, "supercore/superexec/run_superexec.py"),
        *((name, "") for name in release.QUIET_ENVIRONMENT),
    ],
)
def test_its_programs_say_and_read_these_words(said, module):
    root = Path(flwr.__file__).parent
    assert any(said in path.read_text() for path in ([root / module] if module else root.rglob("*.py")))
