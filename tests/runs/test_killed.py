"""A run that was killed with SIGKILL at a named point, or at any moment, and resumed, equals one that was not."""

import importlib
import itertools
import multiprocessing
import os
import random
import signal
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file

from bouquet.cli.resume import refuse_finished, resumed_settings
from bouquet.errors import ConfigError
from bouquet.experiments.settings import given_settings
from bouquet.reporting.run_directory import RunDirectory
from bouquet.testing import assert_equal_runs
from tests.runs.helpers import bouquet, method, run_here, small_settings

STRATEGIES = ("fedavg", "fedca", "hetefedrec", "pfedrec+plgc", "cf-fedsr")
ROUNDS = 6
SAVE, LINE = (
    "strategies.federation.observers:save_checkpoint",
    "bouquet.reporting.run_directory:RunDirectory.append_round",
)
SUMMARY = "bouquet.reporting.run_directory:RunDirectory.write_summary"
USERS = "bouquet.reporting.run_directory:RunDirectory.write_users"
# Checkpoints are of rounds 2, 4 and 6; the first summary says "running".
POINTS = {
    "before the line of a round with a checkpoint": (LINE, "before", 4),
    "between the line and its checkpoint": (SAVE, "before", 2),
    "after a checkpoint": (SAVE, "after", 2),
    "between the last line and the last checkpoint": (SAVE, "before", 3),
    "after the last checkpoint": (SAVE, "after", 3),
    "before the users' file": (USERS, "before", 1),
    "between the users' file and the summary": (USERS, "after", 1),
    "before the summary": (SUMMARY, "before", 2),
}
OPERATIONS = {"open", "os.rename", "os.remove", "os.truncate"}
KILLED_RUNS = 5
# Of every round but for clocks.
CLOCKS = {"seconds", "node_seconds", "seconds_per_user"}


def without_clocks(value):
    if isinstance(value, dict):
        return {key: without_clocks(entry) for key, entry in value.items() if key not in CLOCKS}
    return [without_clocks(entry) for entry in value] if isinstance(value, list) else value


def assert_same_records(found: RunDirectory, expected: RunDirectory):
    """Every round once, every figure of the summary, every user's metrics."""
    assert_equal_runs(found, expected)
    assert [without_clocks(line) for line in found.rounds()] == [without_clocks(line) for line in expected.rounds()]
    assert without_clocks(found.read_summary()) == without_clocks(expected.read_summary())
    assert found.users.read_bytes() == expected.users.read_bytes()


def run_and_die(point, operation, counted, *arguments):
    """In a process of its own: a run that ends by SIGKILL, at a point or before a file operation of that number."""
    if point:
        kill_at(*POINTS[point])
    operations = itertools.count(1)

    def hook(name, details):
        if name in OPERATIONS and str(arguments[0]) in str(details[0]) and next(operations) == operation:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run_here(*arguments)
    counted.value = next(operations) - 1


def kill_at(place, when, count):
    """Have the COUNTth call of MODULE:NAME, or its return, end this process: nothing is flushed or cleaned up."""
    module, _, path = place.partition(":")
    *outer, name = path.split(".")
    owner = importlib.import_module(module)
    for part in outer:
        owner = getattr(owner, part)
    real, calls = getattr(owner, name), []

    def wrapped(*arguments, **options):
        calls.append(name)
        if len(calls) == count and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*arguments, **options)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


# Its processes are copies of one that has imported everything and has no threads.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.runs.helpers"])


def run_elsewhere(directory, settings, *, point=None, operation=0):
    """Run in another process; whether it was killed, and how many file operations it made if it was not."""
    counted = PROCESSES.Value("i", 0)
    arguments = (point, operation, counted, directory.path, settings, 2)
    process = PROCESSES.Process(target=run_and_die, args=arguments)
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0, counted.value


@pytest.mark.parametrize(
    ("strategy", "point"),
    [
        *(("fedavg", point) for point in POINTS),
        *((s, p) for s in STRATEGIES[1:] for p in ("after a checkpoint", "after the last checkpoint")),
        ("fedca", "between the line and its checkpoint"),
    ],
)
def test_a_run_that_was_killed_at_a_checkpoint_has_every_line_once(tmp_path, strategy, point):
    settings = small_settings(tmp_path, **method(strategy), num_server_rounds=ROUNDS)
    whole = run_here(tmp_path / "whole", settings, 2)
    killed = RunDirectory(tmp_path / "killed")
    assert run_elsewhere(killed, settings, point=point)[0]
    assert killed.read_summary() == {"status": "running"}, "a killed run must not look finished"
    run_here(killed.path, settings | {"resume": str(killed.path)}, 2)
    assert_same_records(killed, whole)
    for file in (whole.path / "fedca").glob("*.safetensors"):
        found = load_file(killed.path / "fedca" / file.name)
        for name, values in load_file(file).items():
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_the_program_brings_a_run_to_its_end_and_then_refuses_it(tmp_path):
    """Killed after the last checkpoint, and again before the rows beside it: the same command ends it each time."""
    settings = small_settings(tmp_path, num_server_rounds=ROUNDS)
    directory = RunDirectory(tmp_path / "killed")
    assert run_elsewhere(directory, settings, point="after the last checkpoint")[0]
    go_on = ("run", "-c", f'resume="{directory.path}"', "--compare-with")
    done = bouquet(*go_on, "")
    assert done.returncode == 0, done.stderr
    assert f"Saved in {directory.path}" in done.stdout
    assert directory.read_summary()["status"] == "completed"
    assert directory.read_summary()["rounds"] == ROUNDS
    done = bouquet(*go_on, "popularity")
    assert done.returncode == 0, done.stderr
    assert "most popular items" in done.stdout
    done = bouquet(*go_on, "popularity")
    assert done.returncode == 2
    assert f"has finished all {ROUNDS} rounds; raise num-server-rounds." in done.stderr


def test_what_is_given_by_name_counts_even_where_it_is_the_default(tmp_path):
    """num-server-rounds is 60 by default, and a run of 4 can be given 60; `seed` is 0 by default and was 1."""
    settings = small_settings(tmp_path, num_server_rounds=4, seed=1)
    directory = run_here(tmp_path / "run", settings, 2)

    def given(text, file=None):
        pairs = given_settings(file, [f'resume="{directory.path}" {text}'])
        return resumed_settings(pairs)

    longer = given("num-server-rounds=60")
    assert (longer["num-server-rounds"], longer["seed"]) == (60, 1)
    assert not refuse_finished(directory, longer)
    assert given("learning-rate=0.1")["num-server-rounds"] == 4
    with pytest.raises(ConfigError, match="'seed' cannot change when a run is resumed: it was 1"):
        given("seed=0")
    with pytest.raises(ConfigError, match="num-server-rounds = 3 is too few: .* its checkpoint of round 4"):
        given("num-server-rounds=3")
    (tmp_path / "longer.toml").write_text("num-server-rounds = 60\n")
    assert given("", tmp_path / "longer.toml")["num-server-rounds"] == 60


def test_a_run_cannot_end_with_a_round_that_was_not_evaluated(tmp_path):
    """Plain Flower asks nobody before: 2 rounds of a run of 6 that evaluates the 4th and the 6th."""
    settings = small_settings(tmp_path, num_server_rounds=ROUNDS, evaluate_every=4)
    directory = RunDirectory(tmp_path / "run")
    assert run_elsewhere(directory, settings, point="after a checkpoint")[0]
    (directory.checkpoints / "round-000004.safetensors").unlink()
    resumed = settings | {"resume": str(directory.path)}
    for rounds in (1, 2):
        with pytest.raises(ConfigError, match=f"of round 2, so the run cannot end with round {rounds}: raise"):
            run_here(directory.path, resumed | {"num-server-rounds": rounds}, 2)
    assert run_here(directory.path, resumed | {"num-server-rounds": 3}, 2).read_summary()["best_round"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_run_that_is_killed_at_any_moment_goes_on_exactly(tmp_path, strategy):
    """Killed before a random one of all opened, renamed and removed files, twice, and resumed each time."""
    settings = small_settings(tmp_path, **method(strategy), num_server_rounds=ROUNDS)
    whole = RunDirectory(tmp_path / "whole")
    killed, operations = run_elsewhere(whole, settings)
    assert not killed
    assert operations > 30
    source = random.Random(strategy)
    for repetition in range(KILLED_RUNS):
        directory = RunDirectory(tmp_path / f"killed-{repetition}")
        for operation in (source.randint(1, operations), source.randint(1, operations), 0):
            there = any(directory.checkpoints.glob("*.safetensors"))
            resumed = settings | {"resume": str(directory.path) if there else ""}
            run_elsewhere(directory, resumed, operation=operation)
        assert_same_records(directory, whole)
