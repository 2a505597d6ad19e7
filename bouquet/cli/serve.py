"""`bouquet serve`: one role of a deployment, in the foreground, with TLS and keys.

A node becomes Flower's own process; one with conditions is started whenever they hold. The SuperLink and the executor
run beside the gate and the tunnel of `bouquet.deployment.tunnel`, and both end together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from bouquet.conditions import Conditions
from bouquet.config import Scalar
from bouquet.deployment.supervise import Listener, Program, run_once, supervise
from bouquet.deployment.tunnel import LOOPBACK, ROLES, Gate, Tunnel
from bouquet.engines import release
from bouquet.engines.polling import Polling
from bouquet.engines.ports import free_port, is_healthy
from bouquet.engines.processes import GRACE_SECONDS, Tree
from bouquet.errors import ConfigError, RunFailed
from data_partition import read_shard

_HEALTH_SECONDS = 5.0


def superlink_command(keys: Path, database: Path, host: str, port: int, fleet: str, health: str) -> None:
    """Run a SuperLink whose control port is on the loopback, behind a gate at `host` and `port`.

    Raises:
        SystemExit: it ended; with its status.
        KeyboardInterrupt: this process was asked to end.
    """
    _require(keys, "ca.crt", "server.crt", "server.key", "executor.secret")
    database.parent.mkdir(parents=True, exist_ok=True)
    inner = free_port()
    command = release.superlink_command(LOOPBACK, inner, fleet, database, keys, executor_apart=True, health=health)
    with Gate(host, port, inner, keys):
        _run(command, {})


def executor_command(superlink: str, keys: Path, health: str, polling: Polling | None = None) -> None:
    """Run the executor of ServerApps, and the tunnel to its SuperLink.

    Args:
        polling: how often it asks for the ServerApp of a run; None: as usual.
    Raises:
        SystemExit: it ended; with its status.
        KeyboardInterrupt: this process was asked to end.
    """
    _require(keys, "executor.secret")
    with Tunnel(superlink, keys, "executor") as tunnel:
        beside = {**tunnel.environment, **release.executor_environment(polling)}
        _run(release.executor_command(superlink, keys, health), beside)


def node_command(
    superlink: str,
    keys: Path,
    state: Path,
    health: str,
    *,
    shard: str = "",
    partition: str = "",
    data_dir: str = "",
    data_file: str = "",
    policy: Mapping[str, str] | None = None,
    only_when: Sequence[str] = (),
    polling: Polling | None = None,
) -> None:
    """Become a SuperNode with its own shard, or with a part of a data set that lies here as a whole.

    Args:
        only_when: conditions for taking part, as `bouquet.conditions` has them.
    Raises:
        ConfigError: a key is missing, the part is none, a condition is none, or both a shard and another place of data
            were named.
        KeyboardInterrupt: a node with conditions was asked to end.
        DataError: the shard is none.
    """
    _require(keys, "ca.crt", "node.key", "local.crt", "local.key", "state.key")
    config: dict[str, Scalar] = {}
    if shard:
        if partition or data_dir or data_file:
            raise ConfigError("--shard names all data of this node; leave out --partition, --data-dir and --data-file.")
        read_shard(Path(shard))
    else:
        match = re.fullmatch(r"(\d+)/(\d+)", partition or "1/1")
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise ConfigError(f"--partition is I/N with I from 1 to N, for example 2/3, not '{partition}'.")
        config = {"partition-id": int(match[1]) - 1, "num-partitions": int(match[2])}
    paths = {
        "shard": shard,
        "data-dir": data_dir,
        "data-file": data_file,
        "state-dir": str(state),
        "state-key": str(keys / "state.key"),
    }
    config |= {key: str(Path(path).absolute()) for key, path in paths.items() if path}
    config |= policy or {}
    command = release.supernode_command(superlink, keys, config, health, only_when, polling)
    if only_when:
        conditions = Conditions(only_when)
        conditions.refuse_unknown()
        supervise(Program(command, _environment()), _Rests(), conditions)
    else:
        _become(command)


def check_command(address: str, keys: Path | None) -> None:
    """Fail unless a role is well.

    Raises:
        RunFailed: it is not.
    """
    if keys:
        role = next((role for role in ROLES if (keys / f"{role}.crt").exists()), ROLES[0])
        with Tunnel(address, keys, role) as tunnel:
            if not is_healthy(address, keys / "ca.crt", tunnel.proxy):
                raise RunFailed(f"The SuperLink at {address} does not answer, or does not know this {role}.")
        return
    import grpc
    from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
    from grpc_health.v1.health_pb2_grpc import HealthStub

    try:
        with grpc.insecure_channel(address) as channel:
            answer = HealthStub(channel).Check(HealthCheckRequest(), timeout=_HEALTH_SECONDS)
    except grpc.RpcError as error:
        raise RunFailed(f"{address} does not answer ({error.code().name}).") from None
    if answer.status != HealthCheckResponse.SERVING:
        raise RunFailed(f"{address} is not serving.")


def _require(keys: Path, *names: str) -> None:
    for name in names:
        if not (keys / name).is_file():
            raise ConfigError(f"{keys / name} is missing. Make keys with: bouquet deploy keys")


def _run(command: Sequence[str], beside: Mapping[str, str]) -> None:
    if status := run_once(Program(command, {**_environment(), **beside})):
        raise SystemExit(status)


def _become(command: Sequence[str]) -> None:
    # What a role starts ends with it, even if it is killed; a SuperNode says goodbye first.
    tree = Tree(grace=GRACE_SECONDS, become=True)
    os.execvpe(command[0], list(command), {**_environment(), **tree.environment})


def _environment() -> dict[str, str]:
    return release.quiet_environment()


class _Rests(Listener):
    """Says for which reason a node takes no part, and when it does again."""

    def __init__(self) -> None:
        self._rests = False

    def rests(self, reason: str) -> None:
        if not self._rests:
            print(f"Resting: {reason}.", flush=True)
        self._rests = True

    def starts(self) -> None:
        if self._rests:
            print("All conditions hold: taking part again.", flush=True)
        self._rests = False
