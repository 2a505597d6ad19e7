"""`bouquet diagnose`: what a run has made of its item tables, as sums over users."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bouquet.config import defaults
from bouquet.errors import ConfigError
from bouquet.experiments.settings import option_classes, read_config_file
from bouquet.randomness import user_keys
from bouquet.reporting.diagnosed import write_picture
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.diagnostics import Diagnosis, diagnose
from client_app.node.host import host_of
from strategies.federation.checkpoint import load_checkpoint

FILE, PICTURE = "diagnostics.json", "diagnostics.png"


def diagnose_command(path: Path, consenting: str) -> None:
    """Look at every node of a run, add up, write `diagnostics.json` with a picture and print its means.

    Args:
        consenting: the user whose heat map is told; "" for none.
    Raises:
        ConfigError: the run has no checkpoint, no private state in reach, or no tables to look at.
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
    if consenting and "heat map" not in told:
        raise ConfigError(
            f"There is no heat map: no user '{consenting}' is here, or the run has no two views of items."
        )
    directory.write_json(FILE, told)
    # A person's heat map does not outlive the next look, whether that can draw or not.
    (directory.path / PICTURE).unlink(missing_ok=True)
    drawn = write_picture(directory.path / PICTURE, told)
    _show(told)
    also = f" and {directory.path / PICTURE}" if drawn else ""
    Console(highlight=False, soft_wrap=True).print(f"Saved in {directory.path / FILE}{also}.")


def _show(told: dict[str, Any]) -> None:
    groups = list(told["users"])
    table = Table("", *groups)
    table.add_row("users", *(f"{told['users'][group]:,}" for group in groups))
    for name, means in told.items():
        if isinstance(means, dict) and name != "users" and isinstance(means["all"], float):
            table.add_row(name, *(f"{means[group]:.3g}" for group in groups))
    Console(highlight=False, width=160).print(table)
