"""`bouquet node`, `bouquet node forget` and `bouquet recommend`: a device, without a model in this process."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from pathlib import Path

from bouquet.deployment.supervise import end, start, supervise
from bouquet.device import Device
from bouquet.errors import ConfigError, RunFailed, StateError
from bouquet.files import write_atomically
from bouquet.history import read_history
from bouquet.sealing import read_seal


def node_command(
    superlink: str,
    data: Path | None,
    state: Path,
    authority: Path | None,
    keys: Path | None,
    user: str,
    item_column: str,
    time_column: str,
) -> None:
    """Run a device until it is ended.

    Raises:
        ConfigError: something that is needed was not given.
        KeyboardInterrupt: it was ended.
    """
    if not superlink:
        raise ConfigError("Say where the SuperLink is: bouquet node --superlink HOST:PORT --data FILE --state DIR")
    settings = _prepare(state, data, keys, user, item_column, time_column)
    folder = _keys(state, settings, authority)
    if settings.get("forgotten"):
        print("This device asked to be forgotten and only tells the server so. Begin anew in another --state.")
    supervise(*_supernode(superlink, state, folder, settings))


def forget_command(state: Path, superlink: str, wait: float) -> None:
    """Delete what is kept of the person here, and tell the server.

    Raises:
        StateError: the folder is no device's.
        RunFailed: the server was not told; everything here is gone all the same.
    """
    device = Device(state)
    if not device.settings().get("forgotten"):
        device.forget()
    print("The state of this person on this device is gone.")
    settings = device.settings()
    if settings.get("told"):
        print("The server knows.")
        return
    process = start(*_supernode(superlink, state, _folder(state, settings), settings)) if superlink else None
    deadline = time.monotonic() + wait
    try:
        while not device.settings().get("told") and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        if process:
            end(process)
    if not device.settings().get("told"):
        raise RunFailed(
            f"No run asked this device within {wait:g} s, so the server was not told yet. Run the command again while "
            "a run goes on, with --superlink if `bouquet node` is not running."
        )
    print("The server was told.")


def recommend_command(state: Path, k: int, format_: str) -> None:
    """Print the best items that the person does not have yet.

    Raises:
        ConfigError: there is no such format.
        StateError: there is nothing to recommend from yet, or a file is damaged.
    """
    if format_ not in ("text", "json"):
        raise ConfigError(f"There is no format '{format_}'. Known: text, json.")
    settings = Device(state).settings()
    key = _folder(state, settings) / "state.key"
    device = Device(state, read_seal(key if key.exists() else ""))
    if settings.get("forgotten"):
        raise StateError(f"The person of {state} asked to be forgotten.")
    found = device.recommendations()
    if not found:
        raise StateError(f"{state} has no model yet: it comes with the first evaluated round of a run.")
    had = set(read_history(Path(settings["history"]), settings["item_column"], settings["time_column"]))
    entries = zip(found["items"], found["titles"], found["scores"], strict=True)
    best = [entry for entry in entries if entry[0] not in had][:k]
    if format_ == "json":
        print(json.dumps([{"item": item, "title": title, "score": score} for item, title, score in best]))
        return
    for place, (item, title, _) in enumerate(best, start=1):
        print(f"{place:>3}  {title or item}")


def _prepare(
    state: Path, data: Path | None, keys: Path | None, user: str, item_column: str, time_column: str
) -> dict[str, str]:
    """The device's settings, made at the first start."""
    given = {"item_column": item_column, "time_column": time_column}
    if data:
        given["history"] = str(data.absolute())
    if keys:
        given["keys"] = str(keys.absolute())
    if (state / "device.json").exists():
        settings = Device(state).settings() | given
        if user and user != settings["user"]:
            raise ConfigError(f"{state} belongs to user '{settings['user']}', not '{user}'. Give each user a folder.")
    else:
        if not data:
            raise ConfigError("Say where the history is: --data history.csv, a CSV with a column 'item'.")
        # A random name tells the server nothing about the person.
        settings = {"user": user or secrets.token_hex(16), **given}
    if not Path(settings["history"]).is_file():
        raise ConfigError(f"There is no history file {settings['history']}.")
    state.mkdir(parents=True, exist_ok=True, mode=0o700)
    Device(state).save_settings(settings)
    return settings


def _folder(state: Path, settings: dict[str, str]) -> Path:
    return Path(settings["keys"]) if "keys" in settings else state / "keys"


def _keys(state: Path, settings: dict[str, str], authority: Path | None) -> Path:
    folder = _folder(state, settings)
    if "keys" not in settings:
        from bouquet.deployment.keys import make_node_keys

        if make_node_keys(folder):
            print(f"New keys. The operator lets this device in with {folder / 'node.pub'}.")
    if authority:
        write_atomically(folder / "ca.crt", authority.read_bytes())
    if not (folder / "ca.crt").exists():
        raise ConfigError("Give the certificate that the SuperLink's is signed with: --ca ca.crt, from the operator.")
    return folder


def _supernode(superlink: str, state: Path, keys: Path, settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the device's SuperNode."""
    # Here, so that `bouquet recommend` does without.
    from bouquet.engines.ports import free_port
    from bouquet.engines.release import EXECUTOR_POLL, quiet_environment, supernode_command

    config = {
        "history": settings["history"],
        "item-column": settings["item_column"],
        "time-column": settings["time_column"],
        "state-dir": str(state.absolute()),
        "state-key": str((keys / "state.key").absolute()),
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**quiet_environment(), **EXECUTOR_POLL, "FLWR_HOME": str(state.absolute() / "flower"), "PATH": path}
    return supernode_command(superlink, keys.absolute(), config, free_port()), environment
