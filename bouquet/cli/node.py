"""`bouquet node`, `bouquet node forget` and `bouquet recommend`: a device, without a model in this process."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bouquet.catalogue import Catalogue, read_catalogue
from bouquet.cli.node_record import NodeRecord, is_running, running
from bouquet.conditions import Conditions
from bouquet.deployment.supervise import Program, supervise
from bouquet.device import Device
from bouquet.errors import ConfigError, RunFailed, StateError
from bouquet.files import private_folder, write_atomically
from bouquet.history import read_events
from bouquet.masking.names import CERTIFICATE
from bouquet.policy import KEYS as POLICY_KEYS
from bouquet.reporting.words import harmless_line
from bouquet.sealing import read_seal

# What Flower's programs say, in the folder of the device.
LOG = "flower.log"


def node_command(
    superlink: str,
    data: Path | None,
    state: Path,
    authority: Path | None,
    keys: Path | None,
    user: str,
    item_column: str,
    time_column: str,
    policy: Mapping[str, str],
    only_when: Sequence[str] | None = None,
    polling: Mapping[str, str] | None = None,
    certificate: Path | None = None,
) -> None:
    """Run a device until it is ended.

    Args:
        policy: what of `bouquet.policy` was given this time; the rest stays as it was.
        only_when: conditions for taking part; None: as before.
        polling: what of `bouquet.engines.polling` was given this time.
        certificate: of the device's registered key, by which other nodes know it in secure sums.

    Raises:
        ConfigError: something that is needed was not given, or the device is running already.
        KeyboardInterrupt: it was ended.
    """
    if not superlink:
        raise ConfigError("Say where the SuperLink is: bouquet node --superlink HOST:PORT --data FILE --state DIR")
    given = {"item_column": item_column, "time_column": time_column, **policy, **(polling or {})}
    if only_when is not None:
        # An empty one takes back those that were given before.
        Conditions(chosen := [command for command in only_when if command]).refuse_unknown()
        given["only-when"] = json.dumps(chosen)
    settings = _prepared(state, data, keys, user, given)
    private_folder(state)
    with running(state):
        Device(state).save_settings(settings)
        folder = _keys(state, settings, authority, certificate)
        if settings.get("forgotten"):
            print("This device asked to be forgotten and only tells the server so. Begin anew in another --state.")
        # Here, so that `bouquet recommend` does without.
        from bouquet.cli.node_screen import NodeScreen

        # A catalogue comes with the first message of a run.
        record = NodeRecord(state, superlink)
        screen = NodeScreen(superlink, folder, state / LOG, record, known=(state / "catalogue.json").exists())
        program = Program(*_supernode(superlink, state, folder, settings), state / LOG)
        try:
            supervise(program, screen, Conditions(conditions_of(settings)))
        finally:
            record.ends()


def forget_command(state: Path, superlink: str, wait: float) -> None:
    """Delete what is kept of the person here, tell the server, and wait until it has deleted what it kept.

    Raises:
        StateError: the folder is no device's.
        RunFailed: the server has not said so; everything here is gone all the same.
    """
    device = Device(state)
    if not device.settings().get("forgotten"):
        device.forget()
    print("The state of this person on this device is gone.")
    settings = device.settings()
    if settings.get("told"):
        print("Nothing of this person is left on the server.")
        return
    program = None
    if superlink and not is_running(state):  # one that runs tells the server by itself
        program = Program(*_supernode(superlink, state, keys_of(state, settings), settings), state / LOG)
    deadline = time.monotonic() + wait
    try:
        if program:
            program.start()
        while not device.settings().get("told") and time.monotonic() < deadline:
            time.sleep(0.5)
    finally:
        if program:
            program.close()
    if not device.settings().get("told"):
        raise RunFailed(
            f"No run has said within {wait:g} s that nothing of this person is left on the server. Run the command "
            "again while a run goes on, with --superlink if `bouquet node` is not running."
        )
    print("Nothing of this person is left on the server.")


def recommend_command(state: Path, k: int, format_: str) -> None:
    """Print the best items that the person does not have yet.

    Raises:
        ConfigError: there is no such format.
        StateError: there is nothing to recommend from yet, or a file is damaged.
    """
    refuse_format(format_)
    settings = Device(state).settings()
    key = keys_of(state, settings) / "state.key"
    device = Device(state, read_seal(key if key.exists() else ""))
    if settings.get("forgotten"):
        raise StateError(f"The person of {state} asked to be forgotten.")
    columns = settings["item_column"], settings["time_column"]
    if device.model.exists():
        catalogue = device.catalogue()
        if catalogue is None:
            raise StateError(f"{state} has no catalogue.")
        _print_best(
            _from_model(device.model, catalogue, Path(settings["history"]), columns, settings["user"]), k, format_
        )
        return
    found = device.recommendations()
    if not found:
        raise StateError(f"{state} has no model yet: it comes with the first evaluated round of a run.")
    had = {item for _, item in _events(Path(settings["history"]), columns)}
    entries = zip(found["items"], found["titles"], found["scores"], strict=True)
    _print_best([entry for entry in entries if entry[0] not in had], k, format_)


def recommend_from_model(model: Path, catalogue: Path, history: Path, k: int, format_: str) -> None:
    """Print the best items for a history that took part in nothing.

    Args:
        catalogue: the CSV of items and titles that the server publishes.
        history: a CSV with a column `item` and, if it is known, `time`.
    Raises:
        ConfigError: there is no such format.
        DataError, StateError: a file is missing, damaged, or does not fit the others.
    """
    refuse_format(format_)
    _print_best(_from_model(model, read_catalogue(catalogue), history, ("item", ""), ""), k, format_)


def recommend_from_run(run: Path, user: str, k: int, format_: str) -> None:
    """Print the best items of a user of a finished simulation.

    Raises:
        ConfigError: there is no such format or user, or so many items were not kept.
        DataError: there is no finished run, or it kept no recommendations.
    """
    # Here, so that a device does without.
    from bouquet.reporting.recommendations import recommended
    from bouquet.reporting.run_directory import RunDirectory

    refuse_format(format_)
    _print_best(recommended(RunDirectory(run), user, k), k, format_)


def refuse_format(format_: str) -> None:
    """Raises: ConfigError: there is no such format."""
    if format_ not in ("text", "json"):
        raise ConfigError(f"There is no format '{format_}'. Known: text, json.")


def _from_model(
    path: Path, catalogue: Catalogue, history: Path, columns: tuple[str, str], user: str
) -> list[tuple[str, str, float]]:
    # Here, so that a device without such a model does without numpy.
    from bouquet.published import load_published
    from client_app.sums.recommend import recommended

    best = recommended(load_published(path), catalogue, _events(history, columns), user)
    return [(catalogue.items[row], catalogue.titles[row], round(score, 6)) for row, score in best]


def _events(history: Path, columns: tuple[str, str]) -> list[tuple[float, str]]:
    return read_events(history, *columns, lambda left_out: print(left_out, file=sys.stderr))


def _print_best(entries: Sequence[tuple[str, str, float]], k: int, format_: str) -> None:
    if format_ == "json":
        print(json.dumps([{"item": item, "title": title, "score": score} for item, title, score in entries[:k]]))
        return
    for place, (item, title, _) in enumerate(entries[:k], start=1):
        # Both are the server's words, and people read them in a terminal.
        print(f"{place:>3}  {harmless_line(title or item)}")


def conditions_of(settings: Mapping[str, str]) -> list[str]:
    """A device's conditions for taking part. To be forgotten needs none."""
    return [] if settings.get("forgotten") else list(json.loads(settings.get("only-when", "[]")))


def _prepared(state: Path, data: Path | None, keys: Path | None, user: str, given: dict[str, str]) -> dict[str, str]:
    """The device's settings with what is given this time; at the first start they are made."""
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
    return settings


def keys_of(state: Path, settings: Mapping[str, str]) -> Path:
    """Where a device's keys lie."""
    return Path(settings["keys"]) if "keys" in settings else state / "keys"


def _keys(state: Path, settings: dict[str, str], authority: Path | None, certificate: Path | None) -> Path:
    folder = keys_of(state, settings)
    own = "keys" not in settings
    if own and not all((folder / name).exists() for name in ("node.key", "local.key", "state.key")):
        # Here, so that a device that has its keys does without what makes them.
        from bouquet.deployment.keys import make_node_keys

        make_node_keys(folder)
        print(f"New keys. The operator lets this device in with {folder / 'node.pub'}.")
    if authority:
        write_atomically(folder / "ca.crt", authority.read_bytes())
    if not (folder / "ca.crt").exists():
        raise ConfigError("Give the certificate that the SuperLink's is signed with: --ca ca.crt, from the operator.")
    if certificate:
        # Here, so that a device that is given none does without.
        from bouquet.masking.identity import Registered

        Registered.at(folder, certificate)
        write_atomically(folder / CERTIFICATE, certificate.read_bytes())
    if settings.get("accept-updates") == "secure" and not (folder / CERTIFICATE).exists():
        print(
            "This device takes part in secure sums alone, and has no certificate by which other nodes would know it. "
            f"The operator makes one from {folder / 'node.pub'}, with:\n  bouquet deploy keys --certify node.pub\n"
            f"It counts from the next round once it lies in {folder} as {CERTIFICATE}, or is given with --certificate."
        )
    return folder


def _supernode(superlink: str, state: Path, keys: Path, settings: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the device's SuperNode."""
    # Here, so that `bouquet recommend` does without.
    from bouquet.engines.polling import Polling
    from bouquet.engines.release import quiet_environment, supernode_command

    config = {
        "history": settings["history"],
        "item-column": settings["item_column"],
        "time-column": settings["time_column"],
        **{key: settings[key] for key in POLICY_KEYS if key in settings},
        "state-dir": str(state.absolute()),
        "state-key": str((keys / "state.key").absolute()),
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**quiet_environment(), "FLWR_HOME": str(state.absolute() / "flower"), "PATH": path}
    command = supernode_command(
        superlink,
        keys.absolute(),
        config,
        only_when=conditions_of(settings),
        polling=Polling.of(settings),
    )
    return command, environment
