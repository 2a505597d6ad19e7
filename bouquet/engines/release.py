"""All that depends on the release of Flower: names, flags, ports, environment variables."""

from __future__ import annotations

import os

from flwr.supercore.task_identity import TaskIdentity

# ErrorCode.CLIENT_APP_RAISED_EXCEPTION
CLIENT_RAISED = 2

# Flower would otherwise install the project's dependencies afresh for every run, and look for news of itself.
QUIET_ENVIRONMENT = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}


def use_task_identity() -> None:
    """Give this process the identity that Flower's messages ask for, when no Flower runtime did."""
    if TaskIdentity._run_id is None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1


def quiet_environment() -> dict[str, str]:
    """This process's environment without Flower's downloads and telemetry."""
    return {**os.environ, **QUIET_ENVIRONMENT}
