"""The commands `bouquet probe …`; what they do stands in `bouquet.cli.probe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

probe = typer.Typer(help="What can be read out of updates, and out of a published model.", no_args_is_help=True)


@probe.command("updates")
def probe_updates(
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")] = None,
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings: 'key=value key=value'.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds that the server reads.")] = 3,
    users_per_sum: Annotated[
        str, typer.Option("--users-per-sum", help="Over how many users it sees sums; several with commas.")
    ] = "1,2,5,20,100",
) -> None:
    """How much of the histories a server reads out of updates, and out of sums of them."""
    from bouquet.cli.probe import updates_command

    updates_command(config, override or [], rounds, users_per_sum)


@probe.command("model")
def probe_model(directory: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a finished run.")]) -> None:
    """Whether the reported model tells that one interaction was trained on."""
    from bouquet.cli.probe import model_command

    model_command(directory)
