"""When a node takes part: conditions that its owner sets, each a command whose exit status 0 says yes.

A phone trains while it charges, lies idle and pays nothing for what it sends. What that is on a machine, only who sets
it up knows; two conditions are ready, as Linux tells them. Whatever cannot be told counts as no: a device that is not
sure takes no part.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bouquet.errors import ConfigError

# A command that has not answered by then has not said yes.
ANSWER_SECONDS = 10.0
# A node that asks for messages several times a second does not ask its conditions as often.
FRESH_SECONDS = 5.0
RESTS = "Conditions do not hold:"
"""How a SuperNode begins the line with which it leaves because of them."""

SUPPLIES, SYSTEM = Path("/sys/class/power_supply"), Path("/proc")
# Of all cores, by the load average of the last minute.
BUSY_SHARE = 0.5


def charging(supplies: Path = SUPPLIES) -> str:
    """Why the machine is not on mains power; "" if it is. One without a battery always is.

    A mouse has a battery too, of scope Device.
    """
    if not supplies.is_dir():
        return f"{supplies} is not there to tell"
    found = [folder for folder in sorted(supplies.iterdir()) if _word(folder / "scope") != "Device"]
    kinds = {folder: _word(folder / "type") for folder in found}
    batteries = [folder for folder in found if kinds[folder] == "Battery"]
    plugged = any(_word(folder / "online") == "1" for folder in found if kinds[folder] != "Battery")
    if plugged or not batteries or any(_word(battery / "status") in ("Charging", "Full") for battery in batteries):
        return ""
    return f"the battery says '{_word(batteries[0] / 'status')}'"


def idle(system: Path = SYSTEM, cores: int | None = None) -> str:
    """Why the machine has too much to do; "" if it has not. What the node itself computes counts too."""
    try:
        load = float((system / "loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return f"{system / 'loadavg'} is not there to tell"
    most = BUSY_SHARE * (cores or os.cpu_count() or 1)
    return "" if load <= most else f"the load average is {load:g}, above {most:g}"


READY: dict[str, Callable[[], str]] = {"charging": charging, "idle": idle}


class Conditions:
    """All conditions of one node.

    Args:
        commands: names of ready ones, and commands for the shell.
    """

    def __init__(self, commands: Sequence[str] = ()) -> None:
        self.commands = tuple(commands)
        self._asked, self._reason = -FRESH_SECONDS, ""

    def refuse_unknown(self) -> None:
        """Refuse a word that is no condition and no program: most likely a ready one, misspelt.

        Raises:
            ConfigError: names it.
        """
        for command in self.commands:
            if re.fullmatch(r"[\w-]+", command) and command not in READY and not shutil.which(command):
                close = difflib.get_close_matches(command, READY, 1)
                guess = f" Did you mean '{close[0]}'?" if close else ""
                raise ConfigError(
                    f"'{command}' is neither a condition nor a program.{guess} Known: {', '.join(READY)}; any other is "
                    "a command for the shell."
                )

    def against(self, fresh: float = 0.0) -> str:
        """Which condition says no now, and why; "" if all say yes.

        Args:
            fresh: seconds for which the last answer still counts.
        """
        now = time.monotonic()
        if now - self._asked >= fresh:
            self._reason, self._asked = self._ask(), now
        return self._reason

    def _ask(self) -> str:
        for command in self.commands:
            if reason := READY[command]() if command in READY else _refusal(command):
                return f"'{command}' says no, {reason}"
        return ""


def _refusal(command: str) -> str:
    """Why a command does not say yes."""
    # In a session of its own, so that all that it started can be ended with it.
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = process.wait(timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        return f"having given no answer within {ANSWER_SECONDS:g} s"
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"with exit status {status}" if status else ""


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
