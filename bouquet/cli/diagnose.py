"""`bouquet diagnose`: what a run has made of its item tables, as sums over users."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bouquet.cli.run import run_command
from bouquet.config import defaults
from bouquet.errors import ConfigError
from bouquet.experiments.settings import option_classes, read_config_file
from bouquet.randomness import user_keys
from bouquet.reporting.diagnosed import write_numbers, write_picture
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.diagnostics import Diagnosis, diagnose
from client_app.node.host import host_of
from strategies.federation.checkpoint import load_checkpoint

FILE, NUMBERS, PICTURE = "diagnostics.json", "diagnostics.csv", "diagnostics.png"


def run_and_diagnose(
    path: Path, consenting: str, config: Path | None, overrides: Sequence[str], nodes: int, engine: str
) -> None:
    """`diagnose_command`, of a run that is made first where settings are given.

    Raises:
        ConfigError: there is a run already, or as for `run_command` and `diagnose_command`.
    """
    if config or overrides:
        if RunDirectory(path).summary.exists():
            raise ConfigError(f"{path} has a run already: leave --config and -c out to look at it, or name another.")
        run_command(config, overrides, nodes, engine, str(path), [])
    diagnose_command(path, consenting)


def diagnose_command(path: Path, consenting: str) -> None:
    """Look at every node of a run, add up, write `diagnostics.json` with its lines and a picture, and print its means.

    Args:
        consenting: the user whose heat map and whose map of items are told; "" for none.
    Raises:
        ConfigError: the run has no checkpoint, no private state in reach, no tables to look at, or no such user.
        DataError: there is no run.
    """
    directory = RunDirectory(path)
    directory.read_summary()
    settings = defaults(option_classes()) | read_config_file(directory.config)
    settings["state-dir"] = str(settings["state-dir"] or directory.nodes.absolute())
    checkpoint, nodes = load_checkpoint(directory.checkpoints), directory.engine().get("nodes")
    if checkpoint is None or not nodes:
        raise ConfigError(
            f"{directory.path} has no checkpoint and private state of nodes beside it. Run it with `bouquet run` and "
            "checkpoint-every above 0; `bouquet table` removes both."
        )
    user = int(user_keys([consenting])[0]) if consenting else None
    versions = {int(key): int(value) for key, value in zip(checkpoint.users, checkpoint.versions, strict=True)}
    total = Diagnosis()
    for partition in range(nodes):
        host = host_of(settings, {"partition-id": partition, "num-partitions": nodes})
        total += diagnose(host, checkpoint.series, checkpoint.round, checkpoint.shared, versions, user)
    told = {"round": checkpoint.round, **total.told()}
    if consenting and "items of the map" not in told:
        raise ConfigError(f"Nothing can be told of user '{consenting}': nobody of that name is here.")
    directory.write_json(FILE, told, private=True)
    # A person's maps do not outlive the next look, whether that can draw or not.
    (directory.path / PICTURE).unlink(missing_ok=True)
    write_numbers(directory.path / NUMBERS, told)
    drawn = write_picture(directory.path / PICTURE, told)
    _show(told)
    others = [NUMBERS, PICTURE] if drawn else [NUMBERS]
    Console(highlight=False, soft_wrap=True).print(
        f"Saved in {directory.path / FILE}{''.join(f', {name}' for name in others)}."
    )


def _show(told: dict[str, Any]) -> None:
    groups = list(told["users"])
    table = Table("", *groups)
    table.add_row("users", *(f"{told['users'][group]:,}" for group in groups))
    for name, means in told.items():
        if isinstance(means, dict) and name != "users" and isinstance(means.get("all"), float):
            table.add_row(name, *(f"{means[group]:.3g}" for group in groups))
    Console(highlight=False, width=160).print(table)
