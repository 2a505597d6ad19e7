"""What a resumed run is: the one that was stopped, with the few settings that may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bouquet.config import RunConfig, Scalar
from bouquet.errors import ConfigError
from bouquet.experiments.settings import resolve
from bouquet.reporting.run_directory import RunDirectory
from strategies.federation.checkpoint import last_round, load_checkpoint, refuse_other_lines

# These do not change what a round computes.
RESUMABLE = {"resume", "num-server-rounds", "checkpoint-every", "checkpoints-kept", "round-timeout", "node-timeout"}
RESUMABLE |= {
    "min-reply-fraction",
    "enough-reply-fraction",
    "min-nodes",
    "registered-nodes",
    "users-per-node",
    "reply-poll-interval",
    "model-digest",
    "tracker",
}
PATHS = ("data-dir", "data-file", "catalogue-file", "state-dir", "out", "resume")


def absolute_paths(settings: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Those settings that are paths, as absolute ones."""
    given = {key: str(settings[key]) for key in PATHS if settings.get(key)}
    return {key: str(Path(path).expanduser().absolute()) for key, path in given.items()}


def resumed_settings(given: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The stopped run's own settings, with those of the given ones that may change.

    A run whose rounds are all done but that was ended before its summary is resumed too: only its end is left.

    Args:
        given: what was asked for by name, `resume` among it; defaults are no part of it, so that a setting can be
            changed back to its default.
    Raises:
        ConfigError: there is nothing to go on from, or another run is asked for.
        StateError: a file that the run goes on from is damaged.
    """
    given = {**given, **absolute_paths(given)}
    directory = RunDirectory(str(given["resume"]))
    if directory.config.exists():
        directory.check_config()
    before = resolve(directory.config, []) | {"resume": str(directory.path)}
    for key, value in given.items():
        if value != before[key] and key not in RESUMABLE:
            raise ConfigError(f"'{key}' cannot change when a run is resumed: it was {before[key]!r}.")
    settings = before | {key: value for key, value in given.items() if key in RESUMABLE}
    checkpoint = load_checkpoint(directory.checkpoints)
    if checkpoint is None:
        raise ConfigError(f"{directory.path} has no checkpoint to go on from; start the run again in a new folder.")
    refuse_other_lines(checkpoint, directory)
    rounds = int(settings["num-server-rounds"])
    if checkpoint.round >= rounds and rounds != before["num-server-rounds"]:
        raise ConfigError(
            f"num-server-rounds = {rounds} is too few: {directory.path} goes on after its checkpoint of round "
            f"{checkpoint.round}."
        )
    return settings


def refuse_finished(directory: RunDirectory, settings: Mapping[str, Scalar], comparison: bool = False) -> bool:
    """Whether the rounds and the summary of a resumed run are there, and only the rows beside it are left.

    Args:
        settings: from `resumed_settings`.
        comparison: rows beside the run are wanted.
    Raises:
        ConfigError: nothing is left.
    """
    rounds = int(settings["num-server-rounds"])
    done = last_round(directory.checkpoints)
    if directory.read_summary()["status"] != "completed" or done < rounds:
        return False
    if comparison and not directory.read_json("comparison.json"):
        return True
    raise ConfigError(f"{directory.path} has finished all {done} rounds; raise num-server-rounds.")


def refuse_held(directory: RunDirectory, config: RunConfig) -> None:
    """Refuse to begin a run in the folder of another one.

    Raises:
        ConfigError: there is one, and it is not what is resumed.
    """
    if not config.resume and directory.summary.exists():
        raise ConfigError(f"{directory.path} already holds a run. Name another folder, or resume it with resume.")


def take_back(directory: RunDirectory) -> None:
    """Remove the lines of rounds after the last checkpoint, before anyone follows the rounds to come.

    The ServerApp does so as well; whoever is reading meanwhile would find itself in the middle of another line.
    """
    directory.begin(last_round(directory.checkpoints))
