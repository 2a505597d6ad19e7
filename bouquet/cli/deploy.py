"""`bouquet deploy up` and `run`: a federation of real processes, started and used."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bouquet.cli.operate import Target
from bouquet.cli.run import RESUMABLE, absolute_paths
from bouquet.cli.screen import Screen
from bouquet.cli.settings import data_options, resolve
from bouquet.config import DataOptions, RunConfig, Scalar, own
from bouquet.deployment.local import LocalDeployment
from bouquet.engines.app_folder import write_app_folder
from bouquet.errors import ConfigError, RunFailed
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from client_app.host import histories_of, interactions_of
from strategies import without_other_methods
from strategies.checkpoint import load_checkpoint


def up_command(folder: Path, nodes: int, overrides: Sequence[str], dataset: str, data_dir: str, data_file: str) -> None:
    """Start a SuperLink and SuperNodes; the users of a data set are laid over the nodes.

    Raises:
        BouquetError: the data cannot be used, or a process did not start.
    """
    given = {"dataset": dataset or ("file" if data_file else ""), "data-dir": data_dir, "data-file": data_file}
    settings = resolve(None, [*overrides, *(f'{key}="{value}"' for key, value in given.items() if value)])
    settings |= absolute_paths(settings)
    # Says at once when the users cannot be laid over these nodes.
    if nodes:
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


def run_command(target: Target, config_file: Path | None, overrides: Sequence[str], screen: Screen) -> RunDirectory:
    """Submit a run, follow it, and fail if it failed.

    Raises:
        BouquetError: the run failed; `summary.json` says so too.
        KeyboardInterrupt: stopped; the folder says so and can be resumed.
    """
    if not target.is_alive():
        raise RunFailed("The SuperLink does not answer. Start it with: bouquet deploy up")
    settings = {**resolve(config_file, overrides), **target.settings}
    if settings["resume"]:
        settings = _resumed(settings)
    settings |= absolute_paths(settings)
    settings["min-nodes"] = max(int(settings["min-nodes"]), target.nodes)
    config = own(settings, RunConfig)
    name = Path(run_name(config)).name
    directory = RunDirectory(config.resume or config.out or target.runs / name)
    if not config.resume and directory.summary.exists():
        raise ConfigError(f"{directory.path} already holds a run. Name another folder, or resume it with resume.")
    settings |= {"out": str(directory.path), "resume": str(directory.path) if config.resume else "", "state-dir": ""}
    engine: dict[str, Scalar] = {"engine": "deployment", "nodes": settings["min-nodes"]}
    directory.create(without_other_methods(settings, config.strategy), engine)
    screen.deployment_header(config)
    app = target.control.home / "app"
    shutil.rmtree(app, ignore_errors=True)
    write_app_folder(app, settings)
    run_id = ""

    def progress() -> bool:
        screen.progress(directory)
        return directory.read_summary()["status"] != "running"

    try:
        run_id = target.control.submit(app)
        target.control.follow(run_id, progress, target.is_alive)
        screen.progress(directory)
        if directory.read_summary()["status"] != "completed":
            raise RunFailed("The run did not complete.")
    except KeyboardInterrupt:
        if run_id:
            target.control.stop(run_id)
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
