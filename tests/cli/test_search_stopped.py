"""Searches that are killed, interrupted, or asked for again in the same folder."""

from __future__ import annotations

import os
import shutil
import signal
import threading

import pytest

from bouquet.errors import ConfigError, DataError
from bouquet.experiments.search_study import Trial
from tests.cli.conftest import start
from tests.cli.searches import RANDOM, SEARCH, needs_optuna, search, study_of, trials_of
from tests.runs.helpers import await_condition


def test_a_killed_search_goes_on_and_gives_the_same(searched, tmp_path):
    (tmp_path / "search.toml").write_text(SEARCH)
    arguments = ("search", "search.toml", "--out", "out", "--engine", "local", "--nodes", "2")
    process = start(*arguments, cwd=tmp_path, home=tmp_path)
    out = tmp_path / "out"

    def is_in_a_later_trial():
        assert process.poll() is None, process.communicate()
        done = (out / "trials.csv").exists() and len(trials_of(out)) >= 2
        return done and any((out / "runs").glob("*/metrics.jsonl"))

    await_condition(is_in_a_later_trial)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = (out / "trials.csv").read_text().splitlines()
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "out").mkdir(parents=True)
    for file in out.glob("search.db*"):  # with the journal of what the kill may have cut off
        shutil.copy(file, elsewhere / "out")
    search(tmp_path)
    after = (out / "trials.csv").read_text().splitlines()
    # With their seconds: they were not run again. Which trial is the chosen one can have changed.
    seconds = [[line.split(",")[7] for line in lines] for lines in (before, after)]
    assert seconds[1][: len(before) - 1] == seconds[0][:-1]
    assert trials_of(out) == trials_of(searched)
    assert (out / "chosen.toml").read_text() == (searched / "chosen.toml").read_text()
    # So does what its database alone, on another machine, goes on from.
    there = (search(elsewhere) / "trials.csv").read_text().splitlines()
    assert [line.split(",")[7] for line in there][: len(before) - 1] == seconds[0][:-1]
    assert trials_of(elsewhere / "out") == trials_of(searched)


@needs_optuna
def test_an_interrupted_trial_is_run_anew_with_its_settings(tmp_path):
    """Killed at any moment: with a number and settings, or with nothing but an entry."""
    study = study_of(tmp_path)
    first, second = study.claim(), study.claim()
    study.end(Trial(first.number, "complete", first.settings, 0.1, 1, 3))
    study._study().ask()
    again = study_of(tmp_path)
    again.mark_interrupted()
    assert [trial.number for trial in again.trials()] == [1]
    claimed = again.claim()
    assert (claimed.number, claimed.settings) == (2, second.settings)
    assert again.claim().number == 3


@needs_optuna
def test_processes_share_the_trials_and_end_with_their_command(tmp_path):
    """Two processes whose command is killed; a search of two processes goes on, and the trials are those of one."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    text = RANDOM.replace("num-server-rounds = 3", "num-server-rounds = 8").replace("trials = 4", "trials = 3")
    (killed / "search.toml").write_text(text)
    arguments = ("search", "search.toml", "--out", "out", "--engine", "local", "--jobs", "2")
    process = start(*arguments, cwd=killed, home=tmp_path)
    await_condition(lambda: any((killed / "out" / "runs").glob("*/metrics.jsonl")))
    process.send_signal(signal.SIGKILL)
    process.communicate()  # returns when its processes have let go of its output
    search(killed, text, jobs=2)
    search(whole, text)
    assert trials_of(killed / "out") == trials_of(whole / "out")
    assert len(trials_of(whole / "out")) == 3


def test_a_search_that_is_done_runs_nothing_and_more_trials_may_be_asked_for(copied_search, capsys):
    text, before = (copied_search / "trials.csv").read_text(), trials_of(copied_search, "chosen")
    search(copied_search.parent)
    assert (copied_search / "trials.csv").read_text() == text
    assert "plain: 4 of 4 trials are done" in capsys.readouterr().out
    search(copied_search.parent, SEARCH.replace("trials = 4", "trials = 5", 1))
    lines = trials_of(copied_search, "chosen")
    assert len(lines) == 10
    assert [line for line in lines if line["trial"] != "5"] == before
    with pytest.raises(ConfigError, match="has 5 trials in .* and the file now says 4"):
        search(copied_search.parent)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("num-server-rounds = 3", "num-server-rounds = 4", "num-server-rounds = 3, and the file now says 4"),
        ("[0.001, 1.0]", "[0.001, 2.0]", "[search] learning-rate = {'log-uniform': [0.001, 1.0]}, and the file now"),
        ("random-trials = 2", "random-trials = 3", "the search's random-trials = 2, and the file now says 3"),
        ("seed = 1", "seed = 2", "seed = 1, and the file now says 2"),
    ],
)
def test_a_folder_with_another_search_is_refused(copied_search, old, new, sentence):
    with pytest.raises(ConfigError) as error:
        search(copied_search.parent, SEARCH.replace(old, new, 1))
    assert sentence in str(error.value)


@needs_optuna
def test_a_damaged_file_of_trials_is_one_sentence(tmp_path):
    (tmp_path / "search.db").write_text("no database at all, but long enough to look like one\n" * 100)
    with pytest.raises(DataError, match=r"search\.db cannot be read as the trials of a search"):
        study_of(tmp_path)


@needs_optuna
def test_a_second_search_in_the_same_folder_is_refused(tmp_path):
    import fcntl

    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match="Another bouquet search is at work"):
            search(tmp_path)


@needs_optuna
def test_after_ctrl_c_it_goes_on(tmp_path, capsys):
    def interrupt():
        await_condition(lambda: any((tmp_path / "out" / "runs").glob("*/metrics.jsonl")))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path, RANDOM.replace("num-server-rounds = 3", "num-server-rounds = 3000"))
    thread.join()
    assert "Stopped. The same command goes on here." in capsys.readouterr().out
    assert not list((tmp_path / "out" / "runs").iterdir())
