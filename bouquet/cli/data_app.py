"""The commands `bouquet data …`; what they do stands in `bouquet.cli.data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

data = typer.Typer(help="The data sets: what there is, what is in it, how to get it.", no_args_is_help=True)

DataDir = Annotated[str, typer.Option("--data-dir", help="Folder of the set, or of all sets; else the cache.")]


@data.command("list")
def list_data(data_dir: DataDir = "") -> None:
    """All data sets that are known by name."""
    from bouquet.cli.data import list_command

    list_command(data_dir)


@data.command()
def stats(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A known set, or the path of a file of your own.")] = "",
    data_dir: DataDir = "",
    min_interactions: Annotated[
        int, typer.Option("--min-interactions", min=0, help="Drop users with fewer items.")
    ] = 0,
    override: Annotated[list[str] | None, typer.Option("-c", help="How your file is read: 'key=value'.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder that gets how many users have how many, with a picture.")
    ] = None,
) -> None:
    """Count a data set, beside what papers print; or a file of your own, and what is wrong with it."""
    from bouquet.cli.data import stats_command

    stats_command(name, data_dir, min_interactions, override or [], out)


@data.command()
def fetch(name: Annotated[str, typer.Argument(metavar="NAME")], data_dir: DataDir = "") -> None:
    """Download a data set, or say which file to put where."""
    from bouquet.cli.data import fetch_command

    fetch_command(name, data_dir)


@data.command()
def shard(
    out: Annotated[Path, typer.Option("--out", help="Folder that gets one folder per node.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many nodes.")] = 3,
    name: Annotated[str, typer.Argument(metavar="NAME")] = "",
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings of the data: 'key=value'.")] = None,
) -> None:
    """Divide a data set, so that each node gets its own users only."""
    from bouquet.cli.data import shard_command

    shard_command(name, nodes, out, override or [])


@data.command("export")
def export_data(
    out: Annotated[Path, typer.Option("--out", help="Folder for the files.")],
    name: Annotated[str, typer.Argument(metavar="NAME")] = "",
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings of the data: 'key=value'.")] = None,
    blind: Annotated[bool, typer.Option("--blind", help="Without what is hidden for test.")] = False,
) -> None:
    """Write the split and the candidates of a run as Parquet, for any other program."""
    from bouquet.cli.data import export_command

    export_command(name, out, override or [], blind)
