"""`bouquet node status`: what a device's folder says of it, whether or not it is running."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from bouquet.cli import node_record as states
from bouquet.cli.node import conditions_of, keys_of, refuse_format
from bouquet.cli.public_keys import fingerprint, named
from bouquet.device import Device
from bouquet.errors import DataError
from bouquet.history import LeftOut, read_events
from bouquet.masking.names import CERTIFICATE
from bouquet.policy import Policy
from bouquet.sealing import read_seal


def status_command(state: Path, format_: str) -> None:
    """Say how a device is doing.

    Raises:
        ConfigError: there is no such format.
        StateError: the folder is no device's, or a file in it is damaged.
    """
    refuse_format(format_)
    found = collect(state)
    print(json.dumps(found, indent=2) if format_ == "json" else "\n".join(lines(found)))


def collect(state: Path) -> dict[str, Any]:
    """Everything about a device, as plain values.

    Returns:
        `folder`, `user`, `forgotten`; `running`, and if it is its `process`, `connection` (see
        `bouquet.cli.node_record`) with its `reason`, and `since` when; of the last `bouquet node` its `superlink`, when
        it `started`, and `ended` if it did in order; the device's public `key`, its `fingerprint`, and whether it has a
        `certificate`; `last_round`, `history`, `catalogue_items`, `private_state`, `conditions` and `accepts`.
    """
    settings = Device(state).settings()
    keys = keys_of(state, settings).absolute()
    seal = keys / "state.key"
    device = Device(state, read_seal(seal if seal.exists() else ""))
    record, running = states.read_record(state), states.is_running(state)
    catalogue = device.catalogue()
    now = record if running else {}
    return {
        "folder": str(state.absolute()),
        "user": settings["user"],
        "forgotten": bool(settings.get("forgotten")),
        "running": running,
        **{key: now.get(key) for key in ("process", "connection", "reason", "since")},
        **{key: record.get(key) for key in ("superlink", "started", "ended")},
        "key": str(keys / "node.pub"),
        "fingerprint": fingerprint(keys / "node.pub"),
        "certificate": (keys / CERTIFICATE).exists(),
        "last_round": device.last_round() or None,
        "history": _history(settings),
        "catalogue_items": len(catalogue.items) if catalogue else None,
        "private_state": _private_state(state / "private"),
        "conditions": _conditions(settings, now),
        "accepts": {name.replace("_", "-"): value for name, value in asdict(Policy.of(settings)).items()},
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """For a person."""
    history, last, kept, items = (found[name] for name in ("history", "last_round", "private_state", "catalogue_items"))
    trained = f"{last['round']} of a run of {last['strategy']}, {_when(last['time'])}" if last else "none yet"
    return [
        f"Device     {found['folder']}" + (", whose person asked to be forgotten" if found["forgotten"] else ""),
        f"Node       {_node(found)}",
        f"SuperLink  {_connection(found)}",
        f"Conditions {_conditions_words(found)}",
        f"Last round {trained}" + (f", with {last['items']} items" if last else ""),
        f"History    {history.get('error') or '{items} items in {path}'.format_map(history)}",
        *([f"           {history['left_out_words']}"] if history.get("left_out") else []),
        "Catalogue  " + ("none yet" if items is None else f"{items:,} items"),
        f"State      {kept['bytes'] / 1e6:.1f} MB of {kept['runs']} run{'s' * (kept['runs'] != 1)}",
        f"Masks      {_masks(found)}",
        f"Accepts    {'; '.join(_accepts(Policy.of(found['accepts'])))}",
    ]


def _history(settings: Mapping[str, str]) -> dict[str, Any]:
    said: list[LeftOut] = []
    path = Path(settings["history"])
    try:
        events = read_events(path, settings["item_column"], settings["time_column"], said.append)
    except DataError as error:
        return {"path": str(path), "error": str(error)}
    found = {"path": str(path), "items": len({item for _, item in events}), "lines": len(events), "left_out": 0}
    for left_out in said:
        found |= {"left_out": left_out.count, "left_out_words": str(left_out)}
    return found


def _private_state(folder: Path) -> dict[str, int]:
    runs = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    # What it takes of the disk: files of rows that are rarely filled are longer than that.
    size = sum(path.stat().st_blocks * 512 for run in runs for path in run.rglob("*") if path.is_file())
    return {"bytes": size, "runs": len(runs)}


def _conditions(settings: Mapping[str, str], record: Mapping[str, str]) -> dict[str, Any]:
    """The conditions, and what the running node knows of them; it alone asks them."""
    connection = record.get("connection")
    resting = connection == states.RESTING
    hold = None if connection is None else not resting
    return {"asked": conditions_of(settings), "hold": hold, "reason": record.get("reason", "") if resting else ""}


def _node(found: Mapping[str, Any]) -> str:
    if found["running"]:
        return f"running since {_when(found['started'])}, process {found['process']}"
    if not found["started"]:
        return "never started here"
    if found["ended"]:
        return f"not running; ended {_when(found['ended'])}"
    return f"not running; started {_when(found['started'])}, and did not end in order"


def _connection(found: Mapping[str, Any]) -> str:
    where, since = found["superlink"], _when(found["since"])
    if not where:
        return "none yet"
    if not found["running"]:
        return f"{where}, when it was last running"
    return f"{where}: " + {
        states.CONNECTING: f"connecting since {since}",
        states.CONNECTED: f"connected since {since}",
        states.LOST: f"no answer since {since}; tried again by itself",
        states.UNREACHABLE: f"no answer since {since}; tried again by itself",
        states.WAITING: f"waiting to be let in since {since}; the operator registers {named(Path(found['key']))} "
        f"with: bouquet deploy register {found['key']}",
        states.FAILED: f"no connection since {since}: {found['reason']}; tried again by itself",
        states.RESTING: f"not connected since {since}, while it rests",
    }.get(str(found["connection"]), "unknown")


def _masks(found: Mapping[str, Any]) -> str:
    if found["certificate"]:
        return "as a certified node"
    return f"without a certificate; the operator makes one with: bouquet deploy keys --certify {found['key']}"


def _conditions_words(found: Mapping[str, Any]) -> str:
    conditions = found["conditions"]
    if not conditions["asked"]:
        return "none; takes part at any time"
    listed = "; ".join(conditions["asked"])
    if conditions["hold"] is None:
        return f"{listed} (asked only while the node runs)"
    return f"{listed} (all hold)" if conditions["hold"] else f"{listed} (resting: {conditions['reason']})"


def _accepts(policy: Policy) -> list[str]:
    """What a run must be like to be accepted."""
    words = {
        f"update-clip of at most {policy.accept_clip:g}": policy.accept_clip,
        f"update-noise of at least {policy.accept_noise:g}": policy.accept_noise,
        f"decoy-rows of at least {policy.accept_decoys}": policy.accept_decoys,
        "secret-draws only": policy.accept_secret_draws,
        "updates as sums only": policy.accept_updates == "sum",
        f"updates in secure sums of {policy.accept_nodes} nodes or more": policy.accept_updates == "secure",
        f"noise of nodes with a dp-noise-multiplier of at least {policy.accept_dp_noise:g}": policy.accept_dp_noise,
        "code that comes with a run": policy.accept_apps,
    }
    most = f"catalogues of at most {policy.accept_items:,} items and {policy.accept_catalogue_bytes / 2**20:g} MiB"
    return [word for word, chosen in words.items() if chosen] + [most]


def _when(time: str | None) -> str:
    """A time of a file, on this machine's clock."""
    return f"{datetime.fromisoformat(time).astimezone():%Y-%m-%d %H:%M:%S}" if time else "never"
