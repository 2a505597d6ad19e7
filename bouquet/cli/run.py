"""`bouquet run`: one federated training, watched from the first round to the table at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bouquet.cli.comparison import comparison_rows
from bouquet.cli.screen import Screen
from bouquet.cli.settings import data_options, keys_of, resolve
from bouquet.config import RunConfig, Scalar, own
from bouquet.engines.flower import FlowerSimulation
from bouquet.engines.local import LocalRun
from bouquet.errors import ConfigError, RunFailed
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from client_app.host import histories_of, interactions_of
from strategies.checkpoint import load_checkpoint

ENGINES = ("flower", "local")
# A resumed run must be the run that was stopped; these settings do not change what a round computes.
RESUMABLE = {"resume", "num-server-rounds", "checkpoint-every", "checkpoints-kept", "round-timeout", "node-timeout"}
RESUMABLE |= {"min-reply-fraction", "enough-reply-fraction", "min-nodes"}
PATHS = ("data-dir", "data-file", "catalogue-file", "state-dir", "out", "resume")
POLL_SECONDS = 0.1


def run_command(
    config_file: Path | None,
    overrides: Sequence[str],
    nodes: int,
    engine: str,
    out: str,
    compare_with: Sequence[str],
) -> None:
    """Run, follow, report.

    Raises:
        BouquetError: with the sentence to print and the exit status.
        KeyboardInterrupt: the run was stopped; the folder says so and can be resumed.
    """
    settings = resolve(config_file, [*overrides, *([f'out="{out}"'] if out else [])])
    if settings["resume"]:
        settings, before = _resumed(settings, overrides)
        nodes, engine = int(before["nodes"]), engine or str(before["engine"])
    engine = engine or ENGINES[0]
    if engine not in ENGINES:
        raise ConfigError(f"There is no engine '{engine}'. Known: {', '.join(ENGINES)}.")
    directory = execute(settings, nodes, engine, Screen())
    if compare_with:
        rows = comparison_rows(settings, compare_with)
        directory.write_json("comparison.json", rows)
    Screen().table(directory)


def execute(settings: dict[str, Scalar], nodes: int, engine: str, screen: Screen) -> RunDirectory:
    """One run in its folder, without the rows beside it.

    Raises:
        BouquetError: it failed; `summary.json` says so as well.
    """
    settings = settings | absolute_paths(settings)  # Flower's processes have working folders of their own
    config = own(settings, RunConfig)
    interactions = interactions_of(data_options(settings))
    histories_of(interactions, config, 0, nodes)  # says at once when the users cannot be laid over these nodes
    directory = RunDirectory(config.resume or config.out or run_name(config))
    if not config.resume and directory.summary.exists():
        raise ConfigError(f"{directory.path} already holds a run. Name another folder, or resume it with resume.")
    settings = settings | {"out": str(directory.path), "resume": str(directory.path) if config.resume else ""}
    settings["state-dir"] = config.state_dir or str(directory.nodes)
    mine = RunConfig().to_flat().keys() | keys_of(config)
    kept = {key: value for key, value in settings.items() if key in mine}
    directory.create(kept, {"engine": engine, "nodes": nodes})
    screen.header(config, interactions, nodes, engine)
    try:
        _follow(settings, nodes, engine, directory, screen)
    except KeyboardInterrupt:
        directory.write_summary({"status": "stopped", "rounds": len(directory.rounds())})
        screen.stopped(directory, config)
        raise
    except BaseException as error:
        summary = directory.read_summary()
        if summary["status"] == "failed":
            raise RunFailed(f"The run failed: {summary['error']}") from error
        directory.write_summary({"status": "failed", "error": str(error)})
        raise
    return directory


def absolute_paths(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Those settings that are paths, as absolute ones."""
    given = {key: str(settings[key]) for key in PATHS if settings[key]}
    return {key: str(Path(path).expanduser().absolute()) for key, path in given.items()}


def _follow(settings: dict[str, Scalar], nodes: int, engine: str, directory: RunDirectory, screen: Screen) -> None:
    def progress() -> bool:
        screen.progress(directory)
        return directory.read_summary()["status"] != "running"

    if engine == "flower":
        gpus = 0.0 if settings["device"] == "cpu" else 1.0
        with FlowerSimulation(nodes, settings, gpus_per_node=gpus) as simulation:
            simulation.run(progress)
    else:
        from client_app.app import app as client_app
        from server_app.app import app as server_app

        _in_thread(LocalRun(server_app, client_app, nodes, settings), progress)
    screen.progress(directory)
    if directory.read_summary()["status"] != "completed":
        raise RunFailed("The run did not complete.")


def _in_thread(run: LocalRun, progress: Callable[[], bool]) -> None:
    """Run in a thread, so that this one is free to show progress and to hear a Ctrl-C."""
    errors: list[BaseException] = []
    # Not `Thread.join`: interrupted by Ctrl-C, it may take a running thread for an ended one.
    ended = threading.Event()

    def work() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    threading.Thread(target=work, name="bouquet-run").start()
    try:
        while not ended.wait(POLL_SECONDS):
            progress()
    except BaseException:
        run.stop()
        ended.wait()
        raise
    if errors:
        raise errors[0]


def _resumed(settings: dict[str, Scalar], overrides: Sequence[str]) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """The stopped run's own settings, with the few that may change, and how it was carried out.

    Raises:
        ConfigError: there is nothing to go on from, or nothing left to do, or another run is asked for.
    """
    directory = RunDirectory(str(settings["resume"]))
    before = resolve(directory.config, []) | {"resume": str(directory.path)}
    given, plain = resolve(None, overrides), resolve(None, [])
    for key, value in given.items():
        if value != plain[key] and value != before.get(key) and key not in RESUMABLE:
            raise ConfigError(f"'{key}' cannot change when a run is resumed: it was {before.get(key)!r}.")
        if value != plain[key] and key in RESUMABLE:
            before[key] = value
    checkpoint = load_checkpoint(directory.checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{directory.path} has no checkpoint to go on from; start the run again in a new folder.")
    finished = directory.read_summary()["status"] == "completed"
    if finished and checkpoint.round >= int(before["num-server-rounds"]):
        raise ConfigError(f"{directory.path} has finished all {checkpoint.round} rounds; raise num-server-rounds.")
    engine = directory.engine()
    if "nodes" not in engine:
        raise ConfigError(f"{directory.path} was started with `flwr run`; resume it there, with as many SuperNodes.")
    return before, engine
