"""The commands `bouquet node …` and `bouquet recommend`; what they do stands in `bouquet.cli.node`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bouquet.engines.polling import BUSY, REST, Polling, polling_settings
from bouquet.errors import ConfigError

node = typer.Typer(help="One person's device: trains on its own file, recommends offline.", invoke_without_command=True)

# What a node accepts; `bouquet serve node` has the same options.
Clip = Annotated[
    float | None, typer.Option("--accept-clip", help="Refuse runs without update-clip, or with a larger one; 0: any.")
]
Noise = Annotated[float | None, typer.Option("--accept-noise", help="Refuse runs with less update-noise.")]
Decoys = Annotated[int | None, typer.Option("--accept-decoys", help="Refuse runs with fewer decoy-rows.")]
Secret = Annotated[
    bool | None, typer.Option("--accept-secret-draws/--accept-any-draws", help="Refuse runs without secret-draws.")
]
Updates = Annotated[
    str | None,
    typer.Option(
        "--accept-updates",
        help="sum: refuse runs that want every user's own update; secure: runs without secure-sums, too; or any.",
    ),
]
SumNodes = Annotated[int | None, typer.Option("--accept-nodes", help="Least nodes of a secure sum; 3 at least.")]
DpNoise = Annotated[
    float | None,
    typer.Option(
        "--accept-dp-noise", help="Refuse runs in which nodes add no noise under masks, or less: dp-noise-multiplier."
    ),
]
Items = Annotated[int | None, typer.Option("--accept-items", help="Most items of a published catalogue.")]
CatalogueBytes = Annotated[
    int | None, typer.Option("--accept-catalogue-bytes", help="Most bytes of its items' names and titles.")
]
KeepSeries = Annotated[
    int | None, typer.Option("--keep-series", help="Keep the state of so many runs, those that trained last.")
]

Apps = Annotated[
    bool | None,
    typer.Option("--accept-apps/--accept-own-app", help="Run the code that comes with a run, not what is installed."),
]

Poll = Annotated[
    float | None,
    typer.Option(
        f"--{BUSY}", help=f"Seconds between two questions for work while there is some; else {Polling.busy:g}."
    ),
]
RestPoll = Annotated[
    float | None, typer.Option(f"--{REST}", help=f"The same while there is none; else {Polling.rest:g}.")
]
OnlyWhen = Annotated[
    list[str] | None,
    typer.Option(
        "--only-when",
        metavar="CONDITION",
        help="Take part only when this says yes: charging, idle, or a command by exit status 0; can be repeated, "
        "and '' takes all back.",
    ),
]
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
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="The device's NODE.crt, from the operator, for secure sums.")
    ] = None,
    user: Annotated[str, typer.Option("--user", help="Name of the user; else a random one, the first time.")] = "",
    item_column: Annotated[str, typer.Option("--item-column", help="Column of the items.")] = "item",
    time_column: Annotated[str, typer.Option("--time-column", help="Column of the times; else 'time' if there.")] = "",
    accept_clip: Clip = None,
    accept_noise: Noise = None,
    accept_decoys: Decoys = None,
    accept_secret_draws: Secret = None,
    accept_updates: Updates = None,
    accept_nodes: SumNodes = None,
    accept_dp_noise: DpNoise = None,
    accept_items: Items = None,
    accept_catalogue_bytes: CatalogueBytes = None,
    keep_series: KeepSeries = None,
    accept_apps: Apps = None,
    only_when: OnlyWhen = None,
    poll_interval: Poll = None,
    rest_poll_interval: RestPoll = None,
) -> None:
    """Take part in a federation with one history. Connects outwards only, and again after a loss."""
    if context.invoked_subcommand:
        return
    from bouquet.cli.node import node_command
    from bouquet.policy import settings_of

    policy = settings_of(
        accept_clip=accept_clip,
        accept_noise=accept_noise,
        accept_decoys=accept_decoys,
        accept_secret_draws=accept_secret_draws,
        accept_updates=accept_updates,
        accept_nodes=accept_nodes,
        accept_dp_noise=accept_dp_noise,
        accept_items=accept_items,
        accept_catalogue_bytes=accept_catalogue_bytes,
        keep_series=keep_series,
        accept_apps=accept_apps,
    )
    polling = polling_settings(poll_interval, rest_poll_interval)
    columns = item_column, time_column
    node_command(superlink, data, state, ca, keys, user, *columns, policy, only_when or None, polling, certificate)


@node.command()
def status(
    state: State = STATE, format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text"
) -> None:
    """How the device is doing: its connection, its last round, its history, its conditions."""
    from bouquet.cli.node_status import status_command

    status_command(state, format_)


@node.command()
def forget(
    state: State = STATE,
    superlink: Superlink = "",
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for a run that drops the person.")] = 180.0,
) -> None:
    """Delete the person's state on this device, and have the server drop what it keeps."""
    from bouquet.cli.node import forget_command

    forget_command(state, superlink, wait)


def recommend(
    state: State = STATE,
    k: Annotated[int, typer.Option("-k", min=1, help="How many.")] = 10,
    format_: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
    model: Annotated[Path | None, typer.Option("--model", help="A published model, instead of a device's.")] = None,
    catalogue: Annotated[Path | None, typer.Option("--catalogue", help="With --model: the published CSV.")] = None,
    history: Annotated[Path | None, typer.Option("--history", help="With --model: a CSV of items, and times.")] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Folder of a finished run, instead of a device's.")] = None,
    user: Annotated[str, typer.Option("--user", help="With --run: a user, as the data set names it.")] = "",
) -> None:
    """What the device would recommend, offline; with --model, what anybody would be who has a history; with --run,
    what a user of a simulation would be."""
    from bouquet.cli.node import recommend_command, recommend_from_model, recommend_from_run

    if (run is None) != (not user):
        raise ConfigError("--run and --user belong together: give both, or none.")
    if run is not None:
        if model or catalogue or history:
            raise ConfigError("--run recommends from a run and --model from a published model: give one of them.")
        recommend_from_run(run, user, k, format_)
    elif model is None and catalogue is None and history is None:
        recommend_command(state, k, format_)
    elif model is None or catalogue is None or history is None:
        raise ConfigError("--model, --catalogue and --history belong together: give all three, or none.")
    else:
        recommend_from_model(model, catalogue, history, k, format_)
