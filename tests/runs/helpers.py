"""Small real runs for the tests, here or by the program; what other packages use as well is in `bouquet.testing`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bouquet import testing
from bouquet.config import Scalar
from bouquet.testing import last_checkpoint, run_here, write_data, write_histories

__all__ = [
    "PROGRAM",
    "WITH_PLUG_INS",
    "await_condition",
    "bouquet",
    "last_checkpoint",
    "method",
    "pairs",
    "run_here",
    "small_settings",
    "start_bouquet",
    "write_data",
    "write_histories",
]

# Base methods with a device-side plug-in before them.
WITH_PLUG_INS = ("fcf+ace", "fcf+plgc", "fedrap+plgc", "pfedrec+ace", "pfedrec+plgc")
PROGRAM = [sys.executable, "-c", "from bouquet.cli.main import main; main()"]


def small_settings(folder: Path, **changes: Scalar) -> dict[str, Scalar]:
    """Settings of a run of seconds; keywords with underscores."""
    settings = testing.small_settings(folder, **changes)
    if settings["strategy"] == "hetefedrec" and "hetefedrec_sizes" not in changes:
        settings["hetefedrec-sizes"] = "2,3,4"
    return settings


def method(name: str) -> dict[str, Scalar]:
    """The settings of a strategy, or of one of WITH_PLUG_INS, for `small_settings`."""
    strategy, _, plug_in = name.partition("+")
    return {"strategy": strategy, "personalization": plug_in or "none"}


def pairs(settings: dict[str, Scalar]) -> list[str]:
    """Settings as arguments of the program."""
    return ["-c", " ".join(f'{key}="{v}"' if isinstance(v, str) else f"{key}={v}" for key, v in settings.items())]


def bouquet(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Call the program and wait for it."""
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=300, check=False, **options)


def start_bouquet(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Start the program and go on."""
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(environment or {})},
    )


def await_condition(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
