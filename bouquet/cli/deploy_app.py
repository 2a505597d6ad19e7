"""The commands `bouquet deploy …` and `bouquet serve …`; what they do stands in `bouquet.cli.deploy` and `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bouquet.cli.node_app import (
    Apps,
    Clip,
    Decoys,
    DpNoise,
    KeepSeries,
    Noise,
    OnlyWhen,
    Poll,
    RestPoll,
    Secret,
    SumNodes,
    Updates,
)
from bouquet.engines.polling import Polling, polling_settings

deploy = typer.Typer(help="A federation of real processes: TLS, registered nodes, gRPC.", no_args_is_help=True)
serve = typer.Typer(help="One role of a deployment, in the foreground: for containers and services.")

Dir = Annotated[Path, typer.Option("--dir", help="Folder of a deployment on this machine.")]
Superlink = Annotated[
    str, typer.Option("--superlink", envvar="BOUQUET_SUPERLINK", help="HOST:PORT of a SuperLink elsewhere.")
]
Keys = Annotated[Path, typer.Option("--keys", envvar="BOUQUET_KEYS", help="Folder with the keys of this role.")]
Runs = Annotated[
    Path, typer.Option("--runs", envvar="BOUQUET_RUNS", help="Folder of results that the ServerApp writes.")
]
Health = Annotated[str, typer.Option("--health", help="HOST:PORT of a plain gRPC health service; none by default.")]
DEPLOYMENT, KEYS, RUNS = Path("deployment-local"), Path("keys"), Path("runs")


@deploy.command()
def keys(
    out: Annotated[Path, typer.Option("--out", help="Folder of all keys; what is there stays.")] = KEYS,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Name or address of the SuperLink; can be repeated.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="Make keys of node-1 to node-N.")] = 0,
    node: Annotated[list[str] | None, typer.Option("--node", help="Name of a node; can be repeated.")] = None,
    certify: Annotated[
        list[Path] | None,
        typer.Option("--certify", help="NAME.pub of a device: make NAME.crt, for secure sums; can be repeated."),
    ] = None,
) -> None:
    """Make certificates and keys: authority, SuperLink, nodes."""
    from bouquet.cli.operate import keys_command

    keys_command(out, host or [], nodes, node or [], certify or [])


@deploy.command()
def up(
    nodes: Annotated[
        int, typer.Option("--nodes", min=0, help="SuperNodes that the users are partitioned over; 0: none yet.")
    ] = 3,
    dataset: Annotated[str, typer.Option("--dataset", help="Name of a data set.")] = "",
    data_dir: Annotated[str, typer.Option("--data-dir", help="Folder of the set, or of all sets.")] = "",
    data_file: Annotated[str, typer.Option("--data-file", help="A CSV, TSV or Parquet file of your own.")] = "",
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings of the data: 'key=value'.")] = None,
    directory: Dir = DEPLOYMENT,
    accept_apps: Apps = None,
    poll_interval: Poll = None,
    rest_poll_interval: RestPoll = None,
) -> None:
    """Start a SuperLink and SuperNodes on this machine."""
    from bouquet.cli.deploy import up_command
    from bouquet.policy import settings_of

    policy = settings_of(accept_apps=accept_apps)
    polling = polling_settings(poll_interval, rest_poll_interval)
    up_command(directory, nodes, override or [], dataset, data_dir, data_file, policy, polling)


@deploy.command()
def run(
    override: Annotated[list[str] | None, typer.Option("-c", help="Settings: 'key=value key=value'.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="TOML file with settings.")] = None,
    directory: Dir = DEPLOYMENT,
    superlink: Superlink = "",
    keys: Keys = KEYS,
    runs: Runs = RUNS,
    out: Annotated[str, typer.Option("--out", help="Folder for the results; else a new one in --runs.")] = "",
    compare_with: Annotated[
        str, typer.Option("--compare-with", help="Rows of the final table beside this run, if the data lie here.")
    ] = "",
) -> None:
    """Train on a running deployment, and exit with 0 only if the run completed."""
    from bouquet.cli.deploy import run_command
    from bouquet.cli.operate import target_of
    from bouquet.cli.screen import Screen

    screen = Screen()
    target = target_of(directory, superlink, keys, runs)
    screen.table(run_command(target, config, override or [], screen, out, compare_with.split()))


@deploy.command()
def status(
    directory: Dir = DEPLOYMENT,
    superlink: Superlink = "",
    keys: Keys = KEYS,
    runs: Runs = RUNS,
    format_: Annotated[str, typer.Option("--format", help="text, json, or prometheus.")] = "text",
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT to serve /metrics on, until interrupted.")] = "",
) -> None:
    """Round, nodes, users, failures, bytes and the last metrics of a deployment."""
    from bouquet.cli.operate import status_command, target_of

    status_command(target_of(directory, superlink, keys, runs), format_, listen)


@deploy.command()
def down(
    purge: Annotated[bool, typer.Option("--purge", help="Remove the folder too: keys, private state, runs.")] = False,
    directory: Dir = DEPLOYMENT,
) -> None:
    """End every process of a deployment on this machine."""
    from bouquet.cli.operate import down_command

    down_command(directory, purge)


@deploy.command()
def register(
    public: Annotated[
        list[Path] | None, typer.Argument(metavar="[KEY.pub]…", help="Public keys; left out: all of --keys.")
    ] = None,
    directory: Dir = DEPLOYMENT,
    superlink: Superlink = "",
    keys: Keys = KEYS,
) -> None:
    """Let nodes in whose public keys are given."""
    from bouquet.cli.operate import register_command, target_of

    register_command(target_of(directory, superlink, keys, RUNS), public or [], keys)


@serve.command("superlink")
def serve_superlink(
    keys: Keys = KEYS,
    database: Annotated[Path, typer.Option("--database", help="File that survives a restart.")] = Path("superlink.db"),
    host: Annotated[str, typer.Option("--host", help="Where operators and the executor connect.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Where operators and the executor connect.")] = 8000,
    fleet: Annotated[str, typer.Option("--fleet", help="HOST:PORT where SuperNodes connect.")] = "0.0.0.0:9092",
    health: Health = "",
) -> None:
    """The SuperLink; its ServerApp runs in `bouquet serve executor`."""
    from bouquet.cli.serve import superlink_command

    superlink_command(keys, database, host, port, fleet, health)


@serve.command("executor")
def serve_executor(superlink: Superlink, keys: Keys = KEYS, health: Health = "", poll_interval: Poll = None) -> None:
    """The executor of ServerApps."""
    from bouquet.cli.serve import executor_command

    executor_command(superlink, keys, health, Polling.of(polling_settings(poll_interval, None)))


@serve.command("node")
def serve_node(
    superlink: Superlink,
    keys: Keys = KEYS,
    partition: Annotated[
        str, typer.Option("--partition", envvar="BOUQUET_PARTITION", help="I/N: part I of N, from 1, of the data set.")
    ] = "",
    shard: Annotated[
        str, typer.Option("--shard", help="Folder with this node's users alone, from `bouquet data shard`.")
    ] = "",
    data_dir: Annotated[str, typer.Option("--data-dir", help="Folder of the data on this node.")] = "",
    data_file: Annotated[str, typer.Option("--data-file", help="File of the data on this node.")] = "",
    state: Annotated[Path, typer.Option("--state", help="Folder of private state.")] = Path("state"),
    health: Health = "",
    accept_clip: Clip = None,
    accept_noise: Noise = None,
    accept_decoys: Decoys = None,
    accept_secret_draws: Secret = None,
    accept_updates: Updates = None,
    accept_nodes: SumNodes = None,
    accept_dp_noise: DpNoise = None,
    keep_series: KeepSeries = None,
    accept_apps: Apps = None,
    only_when: OnlyWhen = None,
    poll_interval: Poll = None,
    rest_poll_interval: RestPoll = None,
) -> None:
    """A SuperNode with a part of a data set."""
    from bouquet.cli.serve import node_command
    from bouquet.policy import settings_of

    policy = settings_of(
        accept_clip=accept_clip,
        accept_noise=accept_noise,
        accept_decoys=accept_decoys,
        accept_secret_draws=accept_secret_draws,
        accept_updates=accept_updates,
        accept_nodes=accept_nodes,
        accept_dp_noise=accept_dp_noise,
        keep_series=keep_series,
        accept_apps=accept_apps,
    )
    places = {"shard": shard, "partition": partition, "data_dir": data_dir, "data_file": data_file}
    polling = Polling.of(polling_settings(poll_interval, rest_poll_interval))
    conditions = [condition for condition in only_when or () if condition]
    node_command(superlink, keys, state, health, **places, policy=policy, only_when=conditions, polling=polling)


@serve.command("check")
def serve_check(
    address: Annotated[str, typer.Argument(help="HOST:PORT of a health service, or of a SuperLink with --keys.")],
    keys: Annotated[Path | None, typer.Option("--keys", help="Keys of operator or executor, for a SuperLink.")] = None,
) -> None:
    """Exit with 0 if a role is well: for health checks."""
    from bouquet.cli.serve import check_command

    check_command(address, keys)
