"""`bouquet deploy up` and `run`: a federation of real processes, started and used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from bouquet.cli.beforehand import model_digest, refuse_folder, refuse_nodes
from bouquet.cli.operate import Target
from bouquet.cli.resume import absolute_paths, refuse_finished, refuse_held, resumed_settings, take_back
from bouquet.cli.screen import Screen
from bouquet.config import DataOptions, RunConfig, Scalar, parsed
from bouquet.deployment.local import LocalDeployment
from bouquet.engines.app_folder import write_app_folder
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.settings import given_settings, resolve
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from client_app.node.histories import interactions_of
from strategies import without_other_methods


def up_command(
    folder: Path,
    nodes: int,
    overrides: Sequence[str],
    dataset: str,
    data_dir: str,
    data_file: str,
    policy: Mapping[str, str] | None = None,
    polling: Mapping[str, str] | None = None,
) -> None:
    """Start a SuperLink and SuperNodes; the users of a data set are partitioned over the nodes.

    Args:
        policy: what of `bouquet.policy` all nodes have; it counts for nodes that are started by this.
        polling: how often they ask for messages, and the SuperLink's executor for a run; likewise.
    Raises:
        BouquetError: the data cannot be used, or a process did not start.
    """
    given = {"dataset": dataset or ("file" if data_file else ""), "data-dir": data_dir, "data-file": data_file}
    settings = resolve(None, [*overrides, *(f'{key}="{value}"' for key, value in given.items() if value)])
    settings |= absolute_paths(settings)
    # Says at once when the users cannot be partitioned over these nodes.
    if nodes:
        refuse_nodes(interactions_of(parsed(settings).run), parsed(settings).run, nodes)
    plain = DataOptions().to_flat()
    kept = {key: settings[key] for key in plain if settings[key] != plain[key]}
    configs: dict[str, dict[str, Scalar]] = {
        f"node-{number + 1}": {"partition-id": number, "num-partitions": nodes, **(policy or {})}
        for number in range(nodes)
    }
    deployment = LocalDeployment(folder)
    if deployment.exists() and (known := len(deployment.plan.nodes)) != nodes:
        raise ConfigError(f"{deployment.folder} has {known} nodes. Start these, or name another folder with --dir.")
    try:
        deployment.up(configs, kept, polling)
    except BaseException:
        deployment.down()
        raise
    console = Console(highlight=False)
    console.print(f"SuperLink at {deployment.plan.fleet} with TLS, {nodes} registered nodes online.")
    console.print("Train: bouquet deploy run    Watch: bouquet deploy status    End: bouquet deploy down")


def run_command(
    target: Target,
    config_file: Path | None,
    overrides: Sequence[str],
    screen: Screen,
    out: str = "",
    compare_with: Sequence[str] = (),
) -> RunDirectory:
    """Submit a run, follow it, and fail if it failed.

    Args:
        out: folder for the results; "": a new one where the deployment keeps its runs.
        compare_with: rows of the final table beside this run, computed here from the data that lie here.

    Raises:
        BouquetError: the run failed; `summary.json` says so too.
        KeyboardInterrupt: stopped; the folder says so and can be resumed.
    """
    if not target.is_alive():
        raise RunFailed("The SuperLink does not answer. Start it with: bouquet deploy up")
    overrides = [*overrides, *([f"out={json.dumps(out)}"] if out else [])]
    settings, finished = {**resolve(config_file, overrides), **target.settings}, False
    if settings["resume"]:
        settings = resumed_settings({**given_settings(config_file, overrides), **target.settings}) | {"out": ""}
        finished = refuse_finished(RunDirectory(str(settings["resume"])), settings, bool(compare_with))
    settings |= absolute_paths(settings)
    settings["min-nodes"] = max(int(settings["min-nodes"]), target.nodes)
    settings["model-digest"] = model_digest(parsed(settings)) or settings["model-digest"]
    config = parsed(settings).run
    _refuse_comparison(config, compare_with)
    name = Path(run_name(config)).name
    directory = RunDirectory(config.resume or config.out or target.runs / name)
    refuse_held(directory, config)
    settings |= {"out": str(directory.path), "resume": str(directory.path) if config.resume else "", "state-dir": ""}
    refuse_folder(directory.path)
    engine: dict[str, Scalar] = {"engine": "deployment", "nodes": settings["min-nodes"]}
    if not finished:
        with directory.command():
            refuse_held(directory, config)
            directory.create(without_other_methods(settings, config.strategy), engine)
            if config.resume:
                take_back(directory)
            _carry_out(target, settings, config, directory, screen)
    if compare_with:
        from bouquet.experiments.baselines import comparison_rows

        directory.write_json("comparison.json", comparison_rows(settings, compare_with))
    return directory


def _refuse_comparison(config: RunConfig, names: Sequence[str]) -> None:
    """Refuse, before anything is trained, rows that could not be computed at the end.

    Raises:
        ConfigError: nobody knows such a row, or the histories lie on devices.
        DataError: the data cannot be used here.
    """
    if not names:
        return
    # Here, so that a run without such rows does without their models.
    from bouquet.experiments.baselines import check_names

    check_names(names)
    if config.catalogue_file:
        raise ConfigError("--compare-with needs all histories in one place, and those of devices stay on the devices.")
    interactions_of(config)


def _carry_out(
    target: Target, settings: dict[str, Scalar], config: RunConfig, directory: RunDirectory, screen: Screen
) -> None:
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
        directory.write_stopped()
        screen.stopped(directory, config, "bouquet deploy run")
        raise
    except BaseException as error:
        summary = directory.read_summary()
        if summary["status"] == "failed":
            raise RunFailed(f"The run failed: {summary['error']}") from error
        directory.write_failed(str(error))
        if any(directory.checkpoints.glob("*.safetensors")):
            raise RunFailed(f"{error}\nGo on with: bouquet deploy run -c 'resume=\"{directory.path}\"'") from error
        raise
