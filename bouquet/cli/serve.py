"""`bouquet serve`: one role of a deployment, in the foreground, with TLS and keys; it becomes Flower's own process."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bouquet.config import Scalar
from bouquet.engines import release
from bouquet.engines.ports import free_port, is_healthy
from bouquet.errors import ConfigError, RunFailed
from data_partition import read_shard

_HEALTH_SECONDS = 5.0


def superlink_command(keys: Path, database: Path, host: str, port: int, fleet: str, health: str) -> None:
    """Become a SuperLink."""
    _require(keys, "ca.crt", "server.crt", "server.key", "executor.secret")
    database.parent.mkdir(parents=True, exist_ok=True)
    _become(release.superlink_command(host, port, fleet, database, keys, executor_apart=True, health=health))


def executor_command(superlink: str, keys: Path, health: str) -> None:
    """Become the executor of ServerApps."""
    _require(keys, "ca.crt", "executor.secret")
    _become(release.executor_command(superlink, keys, health))


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
) -> None:
    """Become a SuperNode with its own shard, or with a part of a data set that lies here as a whole.

    Raises:
        ConfigError: a key is missing, the part is none, or both a shard and another place of data were named.
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
    _become(release.supernode_command(superlink, keys, config, free_port(), health))


def check_command(address: str, authority: Path | None) -> None:
    """Fail unless a role is well.

    Raises:
        RunFailed: it is not.
    """
    if authority:
        if not is_healthy(address, authority / "ca.crt"):
            raise RunFailed(f"The SuperLink at {address} does not answer.")
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


def _become(command: Sequence[str]) -> None:
    environment = {**release.quiet_environment(), **release.EXECUTOR_POLL}
    os.execvpe(command[0], list(command), environment)
