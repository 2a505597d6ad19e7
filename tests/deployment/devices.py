"""Processes of a deployment, and devices of one person each: `bouquet node`, as a person starts it."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from bouquet.deployment.local import MARK
from bouquet.engines.control import CONNECTION
from tests.runs.helpers import PROGRAM, await_condition


def with_programs(folder):
    """An environment in which Flower's programs are found, whether or not the shell has them."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "FLWR_HOME": str(folder / "home"), "PATH": path}


def write_history(path, items):
    """Items with times, oldest first."""
    lines = [f"{item},{time}\n" for time, item in enumerate(items)]
    path.write_text("item,time\n" + "".join(lines))


def kill(processes):
    """kill -9, as a power cut does it.

    The first that is killed may take others with it: a message's child ends with the node that it works for, and where
    it has been buried before its turn there is nobody to send a signal to.
    """
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def words_of(process):
    """The words of a process's command; none if it has ended since it was listed."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def log_of(deployment, rounds):
    """What `flwr log` has of the deployment's newest run, once it has the line of this round."""
    control, said = deployment.control, ""
    newest = control.call("ls", CONNECTION, "--format", "json")["runs"][0]["run-id"]

    def is_there():
        nonlocal said
        command = ["flwr", "log", str(newest), CONNECTION, "--show"]
        said = subprocess.run(command, env=control.environment, cwd=control.home, capture_output=True, text=True).stdout
        return f"round {rounds}/" in said

    await_condition(is_there, seconds=120)
    return said


def start_device(folder, deployment, said, *command):
    """`bouquet node` over `history.csv` and `state` in a folder, with what it prints in a file.

    Args:
        command: what the device shall do instead of taking part, with its options.
    """
    authority = deployment.keys / "operator" / "ca.crt"
    given = ["--data", str(folder / "history.csv"), "--ca", str(authority)]
    arguments = command or tuple(given)
    with said.open("w") as file:
        return subprocess.Popen(
            [*PROGRAM, "node", *arguments, "--superlink", deployment.plan.fleet, "--state", str(folder / "state")],
            env={**with_programs(folder), MARK: str(deployment.folder)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
