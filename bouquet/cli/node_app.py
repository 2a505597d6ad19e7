"""The commands `bouquet node …` and `bouquet recommend`; what they do stands in `bouquet.cli.node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

node = typer.Typer(help="One person's device: trains on its own file, recommends offline.", invoke_without_command=True)

State = Annotated[Path, typer.Option("--state", help="Folder of everything that the device remembers.")]
Superlink = Annotated[str, typer.Option("--superlink", help="HOST:PORT where SuperNodes connect.")]
STATE = Path("state")


@node.callback(invoke_without_command=True)
def run_node(
    context: typer.Context,
    superlink: Superlink = "",
    data: Annotated[Path | None, typer.Option("--data", help="CSV of the history; it may grow.")] = None,
    state: State = STATE,
    ca: Annotated[Path | None, typer.Option("--ca", help="The SuperLink's ca.crt; needed the first time.")] = None,
    keys: Annotated[
        Path | None, typer.Option("--keys", help="Keys made elsewhere; else the device makes its own.")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Name of the user; else a random one, the first time.")] = "",
    item_column: Annotated[str, typer.Option("--item-column", help="Column of the items.")] = "item",
    time_column: Annotated[str, typer.Option("--time-column", help="Column of the times; else 'time' if there.")] = "",
) -> None:
    """Take part in a federation with one history. Connects outwards only, and again after a loss."""
    if context.invoked_subcommand:
        return
    from bouquet.cli.node import node_command

    node_command(superlink, data, state, ca, keys, user, item_column, time_column)


@node.command()
def forget(
    state: State = STATE,
    superlink: Superlink = "",
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for a run to hear of it.")] = 60.0,
) -> None:
    """Delete the person's state on this device, and have the server drop what it keeps."""
    from bouquet.cli.node import forget_command

    forget_command(state, superlink, wait)


def recommend(
    state: State = STATE,
    k: Annotated[int, typer.Option("-k", min=1, help="How many.")] = 10,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """What the device would recommend, offline."""
    from bouquet.cli.node import recommend_command

    recommend_command(state, k, format_)
