"""`bouquet run`: one federated training, watched from the first round to the table at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from bouquet.catalogue import Catalogue
from bouquet.cli.beforehand import refuse_folder, refuse_nodes, refuse_too_much
from bouquet.cli.resume import absolute_paths, refuse_finished, refuse_held, resumed_settings, take_back
from bouquet.cli.screen import Screen
from bouquet.config import RunConfig, Scalar, parsed
from bouquet.engines.flower import FlowerSimulation
from bouquet.engines.local import LocalRun
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.baselines import check_names, comparison_rows, usual_rows
from bouquet.experiments.settings import given_settings, keys_of, resolve
from bouquet.extras import is_there, need
from bouquet.reporting.naming import run_name
from bouquet.reporting.run_directory import RunDirectory
from bouquet.reporting.trackers import refuse_missing
from client_app.node.histories import interactions_of
from client_app.node.movement import movement
from client_app.personalization import check_order

ENGINES = ("flower", "local")
POLL_SECONDS = 0.1


def run_command(
    config_file: Path | None,
    overrides: Sequence[str],
    nodes: int,
    engine: str,
    out: str,
    compare_with: Sequence[str] | None,
) -> None:
    """Run, follow, report.

    Args:
        compare_with: rows of the final table beside this run; None: the usual ones.

    Raises:
        BouquetError: with the sentence to print and the exit status.
        KeyboardInterrupt: the run was stopped; the folder says so and can be resumed.
    """
    overrides = [*overrides, *([f'out="{out}"'] if out else [])]
    settings = resolve(config_file, overrides)
    finished = False
    if settings["resume"]:
        settings = resumed_settings(given_settings(config_file, overrides))
    if compare_with is None:
        compare_with = usual_rows(str(settings["strategy"]), str(settings["repeats"]))
    if settings["resume"]:
        directory = RunDirectory(str(settings["resume"]))
        finished = refuse_finished(directory, settings, bool(compare_with))
        nodes, before = _carried_out(directory)
        engine = engine or before
    engine = engine_of(engine)
    check_names(compare_with)
    if not finished:
        directory = execute(settings, nodes, engine, Screen())
    if compare_with:
        rows = comparison_rows(settings, compare_with)
        directory.write_json("comparison.json", rows)
    Screen().table(directory)


def engine_of(asked: str) -> str:
    """What carries a run out: by default Flower's simulation, or this process where Ray is not installed.

    Raises:
        ConfigError: there is no such engine, or what it needs is not installed.
    """
    engine = asked or ("flower" if is_there("ray") else "local")
    if engine not in ENGINES:
        raise ConfigError(f"There is no engine '{engine}'. Known: {', '.join(ENGINES)}.")
    if engine == "flower":
        need("ray", "Flower's simulation (--engine flower)")
    return engine


def execute(settings: dict[str, Scalar], nodes: int, engine: str, screen: Screen) -> RunDirectory:
    """One run in its folder, without the rows beside it.

    Raises:
        BouquetError: it failed; `summary.json` says so as well.
    """
    refuse_missing(str(settings["tracker"]))
    settings = settings | absolute_paths(settings)  # Flower's processes have working folders of their own
    config = parsed(settings).run
    interactions = interactions_of(config)
    check_order(parsed(settings), interactions.has_time)
    refuse_nodes(interactions, config, nodes)
    directory = RunDirectory(config.resume or config.out or run_name(config))
    refuse_held(directory, config)
    settings = settings | {"out": str(directory.path), "resume": str(directory.path) if config.resume else ""}
    settings["state-dir"] = config.state_dir or str(directory.nodes)
    mine = RunConfig().to_flat().keys() | keys_of(config)
    kept = {key: value for key, value in settings.items() if key in mine}
    refuse_folder(directory.path)
    refuse_too_much(parsed(settings), interactions, nodes, engine, directory)
    with directory.command():
        refuse_held(directory, config)
        directory.create(kept, {"engine": engine, "nodes": nodes})
        items = Catalogue(tuple(interactions.item_ids.tolist()), interactions.titles)
        if interactions.reading:
            directory.write_json(
                "data.json", {**asdict(interactions.reading), "duplicates": interactions.duplicates}, private=True
            )
        directory.reported.write_ids(interactions.user_ids.tolist(), items)
        if config.resume:
            take_back(directory)
        screen.header(config, interactions, nodes, engine)
        try:
            _follow(settings, nodes, engine, directory, screen)
        except KeyboardInterrupt:
            directory.write_stopped()
            screen.stopped(directory, config)
            raise
        except BaseException as error:
            summary = directory.read_summary()
            if summary["status"] == "failed":
                raise RunFailed(f"The run failed: {summary['error']}") from error
            directory.write_failed(str(error))
            raise
        if moved := movement(settings, nodes):
            directory.write_summary(directory.read_summary() | {"moved": moved})
    return directory


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


def _carried_out(directory: RunDirectory) -> tuple[int, str]:
    """Nodes and engine of a run, which it is resumed with.

    Raises:
        ConfigError: it was no run of this program.
    """
    engine = directory.engine()
    if "nodes" not in engine:
        raise ConfigError(f"{directory.path} was started with `flwr run`; resume it there, with as many SuperNodes.")
    return int(engine["nodes"]), str(engine["engine"])
