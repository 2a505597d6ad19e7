"""`bouquet deploy`: a federation of real processes, started, used, watched and ended."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bouquet.cli.run import absolute_paths
from bouquet.cli.screen import Screen
from bouquet.cli.settings import data_options, resolve
from bouquet.config import DataOptions, RunConfig, Scalar, own
from bouquet.deployment.keys import make_keys
from bouquet.deployment.local import SUPERLINK, LocalDeployment
from bouquet.engines.app_folder import write_app_folder
from bouquet.errors import ConfigError, RunFailed
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from client_app.host import histories_of, interactions_of
from strategies import without_other_methods
from strategies.checkpoint import load_checkpoint


def keys_command(folder: Path, hosts: Sequence[str], nodes: int, names: Sequence[str]) -> None:
    """Make certificates and keys."""
    made = make_keys(folder, hosts, [*names, *(f"node-{number}" for number in range(1, nodes + 1))])
    Console(highlight=False).print(f"{folder}: " + (", ".join(made) if made else "everything was there already") + ".")


def up_command(folder: Path, nodes: int, overrides: Sequence[str], dataset: str, data_dir: str, data_file: str) -> None:
    """Start a SuperLink and SuperNodes; the users of a data set are laid over the nodes.

    Raises:
        BouquetError: the data cannot be used, or a process did not start.
    """
    given = {"dataset": dataset or ("file" if data_file else ""), "data-dir": data_dir, "data-file": data_file}
    settings = resolve(None, [*overrides, *(f'{key}="{value}"' for key, value in given.items() if value)])
    settings |= absolute_paths(settings)
    # Says at once when the users cannot be laid over these nodes.
    histories_of(interactions_of(data_options(settings)), own(settings, RunConfig), 0, nodes)
    plain = DataOptions().to_flat()
    kept = {key: settings[key] for key in plain if settings[key] != plain[key]}
    configs: dict[str, dict[str, Scalar]] = {
        f"node-{number + 1}": {"partition-id": number, "num-partitions": nodes} for number in range(nodes)
    }
    deployment = LocalDeployment(folder)
    if deployment.exists() and (known := len(deployment.plan.nodes)) != nodes:
        raise ConfigError(f"{deployment.folder} has {known} nodes. Start these, or name another folder with --dir.")
    try:
        deployment.up(configs, kept)
    except BaseException:
        deployment.down()
        raise
    console = Console(highlight=False)
    console.print(f"SuperLink at {deployment.plan.fleet} with TLS, {nodes} registered nodes online.")
    console.print("Train: bouquet deploy run    Watch: bouquet deploy status    End: bouquet deploy down")


def run_command(folder: Path, config_file: Path | None, overrides: Sequence[str], screen: Screen) -> RunDirectory:
    """Submit a run, follow it, and fail if it failed.

    Raises:
        BouquetError: the run failed; `summary.json` says so too.
        KeyboardInterrupt: stopped; the folder says so and can be resumed.
    """
    deployment = LocalDeployment(folder)
    plan = deployment.plan
    if not deployment.processes(SUPERLINK):
        raise RunFailed(f"The SuperLink of {deployment.folder} is not running. Start it with: bouquet deploy up")
    settings = {**resolve(config_file, overrides), **plan.settings}
    if settings["resume"]:
        settings = _resumed(settings)
    settings |= absolute_paths(settings)
    settings["min-nodes"] = max(int(settings["min-nodes"]), len(plan.nodes))
    config = own(settings, RunConfig)
    directory = RunDirectory(config.resume or config.out or deployment.folder / run_name(config))
    if not config.resume and directory.summary.exists():
        raise ConfigError(f"{directory.path} already holds a run. Name another folder, or resume it with resume.")
    settings |= {"out": str(directory.path), "resume": str(directory.path) if config.resume else "", "state-dir": ""}
    engine: dict[str, Scalar] = {"engine": "deployment", "nodes": len(plan.nodes)}
    directory.create(without_other_methods(settings, config.strategy), engine)
    screen.header(config, interactions_of(data_options(settings)), len(plan.nodes), "deployment")
    app = deployment.folder / "app"
    shutil.rmtree(app, ignore_errors=True)
    write_app_folder(app, settings)
    run_id = ""

    def progress() -> bool:
        screen.progress(directory)
        return directory.read_summary()["status"] != "running"

    try:
        run_id = deployment.control.submit(app)
        deployment.control.follow(run_id, progress, lambda: bool(deployment.processes(SUPERLINK)))
        screen.progress(directory)
        if directory.read_summary()["status"] != "completed":
            raise RunFailed("The run did not complete.")
    except KeyboardInterrupt:
        if run_id:
            deployment.control.stop(run_id)
        directory.write_summary({"status": "stopped", "rounds": len(directory.rounds())})
        screen.stopped(directory, config, "bouquet deploy run")
        raise
    except BaseException as error:
        summary = directory.read_summary()
        if summary["status"] == "failed":
            raise RunFailed(f"The run failed: {summary['error']}") from error
        directory.write_summary({"status": "failed", "error": str(error)})
        if any(directory.checkpoints.glob("*.safetensors")):
            raise RunFailed(f"{error}\nGo on with: bouquet deploy run -c 'resume=\"{directory.path}\"'") from error
        raise
    return directory


def _resumed(settings: dict[str, Scalar]) -> dict[str, Scalar]:
    """The settings of the run that is resumed; only how long and how patiently can change."""
    from bouquet.cli.run import RESUMABLE

    directory = RunDirectory(str(settings["resume"]))
    before = resolve(directory.config, []) | {"resume": str(directory.path), "out": ""}
    plain = resolve(None, [])
    for key, value in settings.items():
        if value != plain[key] and value != before.get(key):
            if key not in RESUMABLE:
                raise ConfigError(f"'{key}' cannot change when a run is resumed: it was {before.get(key)!r}.")
            before[key] = value
    if load_checkpoint(directory.checkpoints) is None:
        raise ConfigError(f"{directory.path} has no checkpoint to go on from; start the run again in a new folder.")
    return before


def down_command(folder: Path, purge: bool) -> None:
    """End every process; with `purge` remove the folder too."""
    deployment = LocalDeployment(folder)
    count = deployment.down()
    if purge and deployment.exists():
        shutil.rmtree(deployment.folder)
    Console(highlight=False).print(f"{count} processes ended." + (f" {deployment.folder} is gone." if purge else ""))
