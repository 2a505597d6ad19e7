"""All of Flower's commands that depends on its release: names, flags, ports, environment variables, what they print.

What is inside Flower is in `bouquet.engines.inside`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from bouquet.engines.inside import is_in_memory
from bouquet.engines.polling import Polling
from bouquet.errors import ConfigError
from bouquet.own_packages import command as own_program
from bouquet.policy import Policy

if TYPE_CHECKING:  # a device at rest does without pydantic
    from bouquet.config import Scalar

# ErrorCode.CLIENT_APP_RAISED_EXCEPTION
CLIENT_RAISED = 2

# Flower would otherwise install the project's dependencies afresh for every run, and look for news of itself.
QUIET_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def is_simulated(grid: object) -> bool:
    """Whether the nodes behind a grid live in this run alone: they get other ids in the next, and fall silent never."""
    return bool(getattr(grid, "simulated", False)) or is_in_memory(grid)


def quiet_environment() -> dict[str, str]:
    """This process's environment without Flower's downloads and telemetry."""
    return {**os.environ, **QUIET_ENVIRONMENT}


# What a SuperNode says once it was let in, and when it was not: its key is unknown, or in use by a node that is online.
LET_IN, REFUSED = "SuperNode ID:", "Failed to activate SuperNode"
# What it says when the SuperLink does not answer any more, and when it does again.
LOST, FOUND = "Connection attempt failed, retrying", "Connection successful after"
# What stands before the reason why one of Flower's programs ended.
EXIT = "Exit Code:"


# -- the command lines of Flower's programs ----------------------------------------------------------------------------

EXECUTOR_POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"


def executor_environment(polling: Polling | None = None) -> dict[str, str]:
    """How often a SuperExec asks for the ServerApp of a run; Flower's own is a whole second."""
    return {EXECUTOR_POLL: repr((polling or Polling()).busy)}


def has_fleet_port() -> bool:
    """Whether a SuperLink has an address for nodes alone.

    Up to 1.39 nodes speak gRPC, at an address of their own; from 1.40 on HTTP, at the address of operators.
    """
    major, minor = version("flwr").split(".")[:2]
    return (int(major), int(minor)) < (1, 40)


def superlink_command(
    host: str, port: int, fleet: str, database: Path, keys: Path, *, executor_apart: bool = False, health: str = ""
) -> list[str]:
    """A SuperLink with TLS that only lets registered SuperNodes in.

    Args:
        host, port: of the control and runtime APIs, for operators and the ServerApp.
        fleet: HOST:PORT for SuperNodes.
        keys: folder with ca.crt, server.crt, server.key and executor.secret.
        executor_apart: the ServerApp is run by a SuperExec of its own.
        health: HOST:PORT of a plain gRPC health service; "" for none.
    Raises:
        ConfigError: nodes shall have an address of their own, and this release has none for them.
    """
    command = [*own_program("bouquet.engines.superlink"), "--host", host, "--port", str(port)]
    if has_fleet_port():
        command += ["--fleet-api-address", fleet]
    elif fleet != f"{host}:{port}":
        raise ConfigError(
            f"Flower {version('flwr')} lets nodes in where operators are, so no gate can be between the two. Install "
            'the release that serves nodes over gRPC at an address of their own: pip install "flwr==1.39.*".'
        )
    command += ["--database", str(database), "--enable-supernode-auth"]
    command += ["--disable-runtime-dependency-installation", *_server_tls(keys, "server")]
    if executor_apart:
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(keys / "executor.secret")]
    return command + (["--health-server-address", health] if health else [])


def executor_command(address: str, keys: Path, health: str = "") -> list[str]:
    """A SuperExec that runs the ServerApps of a SuperLink elsewhere."""
    command = ["flower-superexec", "--runtime-api-address", address, "--root-certificates", str(keys / "ca.crt")]
    command += ["--superexec-auth-secret-file", str(keys / "executor.secret")]
    return command + (["--health-server-address", health] if health else [])


def supernode_command(
    superlink: str,
    keys: Path,
    node_config: Mapping[str, Scalar],
    health: str = "",
    only_when: Sequence[str] = (),
    polling: Polling | None = None,
) -> list[str]:
    """A SuperNode with its executor: outgoing TLS to the SuperLink, its own key, and TLS on the loopback between both.

    Args:
        superlink: HOST:PORT of the fleet API.
        keys: folder with ca.crt, node.key, local-ca.crt, local.crt and local.key.
        node_config: what the ClientApp finds in `context.node_config`.
        only_when: conditions for taking part, as `bouquet.conditions` has them.
        polling: how often it asks for messages; None: as usual.
    """
    command = [*own_program("client_app.edge.supernode"), "--superlink", superlink]
    command += ["--root-certificates", str(keys / "ca.crt")]
    command += ["--auth-supernode-private-key", str(keys / "node.key")]
    command += _server_tls(keys, "local", "local-ca.crt")
    if Policy.of(node_config).accept_apps:
        command.append("--accept-apps")
    # One word each: a command may begin with a hyphen.
    command += [f"--only-when={condition}" for condition in only_when]
    command += polling.words() if polling else []
    # Where the certificate is, or will be, by which other nodes know it.
    command += ["--node-config", node_config_text({**node_config, "identity": str(keys.absolute())})]
    return command + (["--health-server-address", health] if health else [])


def node_config_text(values: Mapping[str, Scalar]) -> str:
    """Settings of a node as SuperNode's command line takes them: TOML values, separated by blanks."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())


def secure_connection(address: str, authority: Path) -> dict[str, Scalar]:
    """A named connection in Flower's `config.toml`."""
    return {"address": address, "root-certificates": str(authority)}


def _server_tls(keys: Path, name: str, authority: str = "ca.crt") -> list[str]:
    parts = {"--ssl-certfile": f"{name}.crt", "--ssl-keyfile": f"{name}.key", "--ssl-ca-certfile": authority}
    return [word for flag, file in parts.items() for word in (flag, str(keys / file))]
