"""`bouquet probe`: what a server can read out of updates, and anybody out of a published model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bouquet.config import parsed
from bouquet.errors import ConfigError
from bouquet.experiments.ground import ground_of
from bouquet.experiments.probes.membership import membership
from bouquet.experiments.probes.reading import TABLE, watch
from bouquet.experiments.probes.summed import recovery
from bouquet.experiments.settings import resolve
from bouquet.methods import METHODS
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.host import host_of

FILE = "membership.json"


def updates_command(config: Path | None, overrides: Sequence[str], rounds: int, sizes: str) -> None:
    """Train every user by itself for some rounds, and print how much of the histories sums over k users give away.

    Raises:
        ConfigError: the run trains no item table, or the sizes are no numbers.
    """
    settings = resolve(config, overrides)
    try:
        wanted = [int(size) for size in sizes.split(",")]
    except ValueError:
        wanted = []
    if not wanted or min(wanted) < 1:
        raise ConfigError(f"--users-per-sum takes whole numbers above 0, such as 1,5,20, and not '{sizes}'.")
    run = parsed(settings).run
    if (
        METHODS[run.strategy].kind == "sums"
        or run.personalization != "none"
        or TABLE not in host_of(settings, {}).model_specs
    ):
        raise ConfigError(
            f"{run.strategy} sends no changes of a plain item table: take a method that trains one, with backbone 'mf'."
        )
    with tempfile.TemporaryDirectory() as folder:
        watched = watch(settings, Path(folder), rounds)
    found = recovery(watched, wanted, run.seed)
    table = Table("users in a sum", "share of training items found")
    for size, share in found.by_size.items():
        table.add_row(f"{size:,}", f"{share:.3f}")
    table.add_row("most popular items, no update", f"{found.popular:.3f}")
    table.add_row("guessing blindly", f"{found.blind:.3f}")
    console = Console(highlight=False, width=100)
    console.print(f"{len(watched.truth):,} users, {rounds} round{'s' * (rounds != 1)}")
    console.print(table)


def model_command(path: Path) -> None:
    """Tell members from what is held out with nothing but the model that a run reports; writes `membership.json`.

    Raises:
        ConfigError: there is nothing in the model to read from.
        DataError: there is no finished run, or its model is gone.
    """
    directory = RunDirectory(path)
    best = int(directory.read_summary().get("best_round", 0))
    model = directory.reported.read_model(best)
    settings = directory.read_config()
    found = membership(model, ground_of(settings), parsed(settings).run.seed)
    directory.write_json(FILE, {"round": best, **vars(found)})
    Console(highlight=False, soft_wrap=True).print(
        f"A member scores above what is held out in {found.auc:.3f} ± {found.error:.3f} of pairs "
        f"({found.users:,} users; .5 says nothing). Saved in {directory.path / FILE}."
    )
