"""`bouquet search`: real trials, stopping and going on, pruning, what is chosen, and tables that take it over."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import threading
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.cli.search import search_command
from bouquet.errors import ConfigError, DataError
from bouquet.experiments.chosen import read_chosen
from bouquet.experiments.search_file import read_search_file, rows_of
from bouquet.experiments.search_report import at_edge
from bouquet.experiments.search_space import Parameter, draw, is_whole, settled, without_search
from bouquet.experiments.search_study import RowStudy, Trial, open_storage
from bouquet.experiments.settings import resolve, same_as
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from bouquet.extras import is_there
from bouquet.methods import METHODS, PLUG_INS
from bouquet.reporting.run_directory import RunDirectory
from tests.cli.conftest import start
from tests.cli.test_extras import without
from tests.conftest import REPOSITORY
from tests.runs.helpers import await_condition

needs_optuna = pytest.mark.skipif(not is_there("optuna"), reason="optuna comes with the extra search")

SEARCH = """
title = "A small search"
trials = 4
seed = 1
random-trials = 2
prune-after-trials = 1
prune-after-rounds = 1

[settings]
num-server-rounds = 3
evaluate-every = 1
min-interactions = 60
max-users = 120
backend = "numpy"

[search]
learning-rate = {log-uniform = [0.001, 1.0]}

[[rows]]
name = "plain"
label = "FedAvg"

[[rows]]
name = "even"
settings = {strategy = "fcf"}

[rows.search]
server-learning-rate = {log-uniform = [0.001, 0.3]}
embedding-size = {choices = [2, 4, 8]}
"""


def search(folder: Path, text: str = SEARCH, jobs: int = 1) -> Path:
    """A search, carried out in this process; its folder."""
    (folder / "search.toml").write_text(text)
    search_command(folder / "search.toml", folder / "out", [], nodes=2, engine="local", jobs=jobs)
    return folder / "out"


def trials_of(out: Path, *without: str) -> list[dict[str, str]]:
    """The lines of trials.csv, without how long they took."""
    with (out / "trials.csv").open() as file:
        return [{k: v for k, v in line.items() if k not in ("seconds", *without)} for line in csv.DictReader(file)]


@pytest.fixture(scope="module")
def searched(tmp_path_factory):
    """The folder of SEARCH, finished; tests must leave it as it is."""
    pytest.importorskip("optuna", reason="it comes with the extra search")
    return search(tmp_path_factory.mktemp("searched"))


@pytest.fixture
def copied(searched, tmp_path):
    """A copy of it that a test may change; the file lies beside it."""
    shutil.copy(searched.parent / "search.toml", tmp_path)
    return shutil.copytree(searched, tmp_path / "out")


def study_of(folder: Path, text: str = SEARCH) -> RowStudy:
    """The study of the first row of a search."""
    (folder / "search.toml").write_text(text)
    file = read_search_file(folder / "search.toml")
    return RowStudy(file, rows_of(file, folder, [])[0], open_storage(folder / "search.db"), {})


# -- a search ----------------------------------------------------------------------------------------------------------


def test_every_row_has_the_same_number_of_trials_and_the_best_is_chosen(searched):
    lines = trials_of(searched)
    chosen = read_chosen(searched)
    for name in ("plain", "even"):
        mine = [line for line in lines if line["row"] == name]
        assert [line["trial"] for line in mine] == ["1", "2", "3", "4"]
        assert all(line["learning-rate"] for line in mine)
        assert {bool(line["server-learning-rate"]) for line in mine} == {name == "even"}
        complete = [line for line in mine if line["state"] == "complete"]
        (best,) = [line for line in mine if line["chosen"] == "true"]
        assert float(best["validation_ndcg@10"]) == max(float(line["validation_ndcg@10"]) for line in complete)
        assert chosen[name].trials == chosen[name].ended == 4
        assert chosen[name].settings["learning-rate"] == float(best["learning-rate"])
    assert chosen["plain"].base["num-server-rounds"] == 3
    assert "backend" in chosen["plain"].base
    assert "Every row has 4 trials" in (searched / "search.md").read_text()


def test_one_row_alone_has_the_trials_that_it_has_among_others(searched, tmp_path):
    """And the same command without --only goes on with the others; what was found stays."""
    (tmp_path / "search.toml").write_text(SEARCH)
    what = [tmp_path / "search.toml", tmp_path / "out", []]

    def without_seconds(folder):
        return [{key: value for key, value in line.items() if key != "seconds"} for line in trials_of(folder)]

    among_others = without_seconds(searched)
    search_command(*what, nodes=2, engine="local", jobs=1, only=["even"])
    assert without_seconds(tmp_path / "out") == [line for line in among_others if line["row"] == "even"]
    assert list(read_chosen(tmp_path / "out")) == ["even"]
    assert "--only even" in (tmp_path / "out" / "search.md").read_text()
    search_command(*what, nodes=2, engine="local", jobs=1)
    assert without_seconds(tmp_path / "out") == among_others
    with pytest.raises(ConfigError, match="There is no row 'evn'. Did you mean 'even'"):
        search_command(*what, nodes=2, engine="local", jobs=1, only=["evn"])


def test_the_first_trial_has_the_settings_without_a_search(searched):
    """The embedding size is 16 there, which is none of the searched: that one is drawn."""
    first = {line["row"]: line for line in trials_of(searched) if line["trial"] == "1"}
    assert [first[name]["learning-rate"] for name in ("plain", "even")] == ["0.1", "0.1"]
    assert first["even"]["server-learning-rate"] == "0.03"
    assert first["even"]["embedding-size"] in ("2", "4", "8")
    assert all(line["state"] == "complete" for line in first.values())


@pytest.mark.parametrize(
    ("kind", "values", "value", "has"),
    [
        ("log-uniform", (0.1, 1.0), 0.1, True),
        ("log-uniform", (0.1, 1.0), 1, True),
        ("log-uniform", (0.1, 1.0), 0.0, False),
        ("uniform", (0.0, 1.0), 1.01, False),
        ("uniform", (0.0, 1.0), True, False),
        ("integer", (1, 5), 5, True),
        ("integer", (1, 5), 2.0, False),
        ("choices", (1, 2), 2, True),
        ("choices", (1, 2), True, False),
        ("choices", ("a", "b"), "c", False),
    ],
)
def test_values_that_are_among_the_searched(kind, values, value, has):
    assert Parameter(kind, values).has(value) == has


def run_again(folder: Path, line: dict[str, str], file: Path) -> list[float]:
    """Validation NDCG@10 by round of a run with the settings of a trial, without any pruning."""
    from bouquet.cli.run import execute
    from bouquet.cli.search_trials import TrialScreen

    row = next(r for r in rows_of(read_search_file(file), folder, []) if r.name == line["row"])
    settings = {**row.settings, **{key: tomllib.loads(f"v = {line[key]}")["v"] for key in row.space}}

    class Silent(TrialScreen):
        def __init__(self):
            pass

        def progress(self, directory):
            pass

    directory = execute({**settings, "out": str(folder / "again")}, 3, "local", Silent())
    return [round_["validation"]["full"]["NDCG@10"] for round_ in directory.rounds()]


def test_what_was_chosen_is_a_configuration_of_a_run(searched):
    chosen = read_chosen(searched)
    for name in ("plain", "even"):
        settings = resolve(searched / "chosen" / f"{name}.toml", [])
        assert {key: settings[key] for key in chosen[name].settings} == chosen[name].settings
        assert (settings["num-server-rounds"], settings["max-users"], settings["seed"]) == (3, 120, 0)
    assert settings["strategy"] == "fcf"


def test_a_trial_is_a_real_run(searched, tmp_path):
    line = next(line for line in trials_of(searched) if line["row"] == "even" and line["chosen"] == "true")
    figures = run_again(tmp_path, line, searched.parent / "search.toml")
    assert float(line["validation_ndcg@10"]) == pytest.approx(max(figures), rel=1e-4)
    assert int(line["best_round"]) == 1 + figures.index(max(figures))


def test_pruning_prunes(searched, tmp_path):
    """A pruned trial ended early, and up to there it was the run that it would have been."""
    line = next(line for line in trials_of(searched) if line["state"] == "pruned")
    assert int(line["rounds"]) < 3
    figures = run_again(tmp_path, line, searched.parent / "search.toml")
    assert float(line["validation_ndcg@10"]) == pytest.approx(max(figures[: int(line["rounds"])]), rel=1e-4)


def test_no_test_figure_is_kept(searched):
    """Runs have them; of a run of a trial nothing stays, and the files of a search know validation alone."""
    assert {path.name for path in searched.iterdir()} == {
        ".lock", "chosen", "chosen.toml", "search.db", "search.md", "trials.csv"
    }  # fmt: skip
    assert b"sampled-99" not in (searched / "search.db").read_bytes()
    assert not any("test" in name for name in trials_of(searched)[0])
    assert "Test items had no part in this search." in (searched / "search.md").read_text()


@needs_optuna
def test_a_trial_below_the_median_is_pruned(tmp_path):
    """Figures .1, .2 and .3 in round 2: a trial is worth going on from .2 on, and none is asked in round 1."""
    text = SEARCH.replace("trials = 4", "trials = 5", 1).replace("prune-after-trials = 1", "prune-after-trials = 3")
    study = study_of(tmp_path, text.replace("prune-after-rounds = 1", "prune-after-rounds = 2"))
    for value in (0.1, 0.2, 0.3):
        trial = study.claim()
        for server_round in (1, 2):
            assert not study.prune(trial.number, server_round, value)
        study.end(Trial(trial.number, "complete", trial.settings, value, 1, 2))
    low, high = study.claim(), study.claim()
    assert not study.prune(low.number, 1, 0.15)
    assert study.prune(low.number, 2, 0.15)
    assert not study.prune(high.number, 2, 0.25)


# -- stopping and going on ---------------------------------------------------------------------------------------------


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
    search(tmp_path)
    after = (out / "trials.csv").read_text().splitlines()
    # With their seconds: they were not run again. Which trial is the chosen one can have changed.
    seconds = [[line.split(",")[7] for line in lines] for lines in (before, after)]
    assert seconds[1][: len(before) - 1] == seconds[0][:-1]
    assert trials_of(out) == trials_of(searched)
    assert (out / "chosen.toml").read_text() == (searched / "chosen.toml").read_text()


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


RANDOM = SEARCH.partition('\n[[rows]]\nname = "even"')[0].replace("random-trials = 2", 'sampler = "random"')
RANDOM = RANDOM.replace("trials = 4", 'trials = 4\npruner = "none"', 1)


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


def test_a_search_that_is_done_runs_nothing_and_more_trials_may_be_asked_for(copied, capsys):
    text, before = (copied / "trials.csv").read_text(), trials_of(copied, "chosen")
    search(copied.parent)
    assert (copied / "trials.csv").read_text() == text
    assert "plain: 4 of 4 trials are done" in capsys.readouterr().out
    search(copied.parent, SEARCH.replace("trials = 4", "trials = 5", 1))
    lines = trials_of(copied, "chosen")
    assert len(lines) == 10
    assert [line for line in lines if line["trial"] != "5"] == before
    with pytest.raises(ConfigError, match="has 5 trials in .* and the file now says 4"):
        search(copied.parent)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("num-server-rounds = 3", "num-server-rounds = 4", "num-server-rounds = 3, and the file now says 4"),
        ("[0.001, 1.0]", "[0.001, 2.0]", "[search] learning-rate = {'log-uniform': [0.001, 1.0]}, and the file now"),
        ("random-trials = 2", "random-trials = 3", "the search's random-trials = 2, and the file now says 3"),
        ("seed = 1", "seed = 2", "seed = 1, and the file now says 2"),
    ],
)
def test_a_folder_with_another_search_is_refused(copied, old, new, sentence):
    with pytest.raises(ConfigError) as error:
        search(copied.parent, SEARCH.replace(old, new, 1))
    assert sentence in str(error.value)


@needs_optuna
def test_a_damaged_file_of_trials_is_one_sentence(tmp_path):
    (tmp_path / "search.db").write_text("no database at all, but long enough to look like one\n" * 100)
    with pytest.raises(DataError, match=r"search\.db cannot be read as the trials of a search"):
        study_of(tmp_path)


@needs_optuna
def test_a_trial_that_fails_is_recorded_and_the_others_go_on(tmp_path):
    """With such a rate every update is refused."""
    text = RANDOM.replace("{log-uniform = [0.001, 1.0]}", "{choices = [0.1, 1e30]}")
    out = search(tmp_path, text)
    states = {(line["learning-rate"], line["state"]) for line in trials_of(out)}
    assert states == {("0.1", "complete"), ("1e+30", "failed")}
    assert read_chosen(out)["plain"].settings == {"learning-rate": 0.1}
    assert "failed: The run failed: Round 1: only 0 of 120 users" in (out / "search.md").read_text()


DIVERGING = """
title = "One that diverges"
trials = 4
seed = 1
sampler = "random"

[settings]
strategy = "fcf"
num-server-rounds = 40
evaluate-every = 1
patience = 40
min-interactions = 60
max-users = 120
local-epochs = 5
user-learning-rate = 20.0
server-optimizer = "sgd"
server-learning-rate = 200.0

[search]
learning-rate = {choices = [0.1, 100.0]}

[[rows]]
name = "far"
label = "Far"
"""


@needs_optuna
def test_what_diverged_is_not_chosen_whatever_it_had_reached(tmp_path):
    """As a run on its own it has a best round, which a table reports."""
    out = search(tmp_path, DIVERGING)
    diverged = [line for line in trials_of(out) if line["learning-rate"] == "100.0"]
    assert 0 < len(diverged) < 4
    for line in diverged:
        assert line["state"] == "failed"
        assert float(line["validation_ndcg@10"]) > 0
        assert line["error"].startswith("Training diverged in round")
    assert read_chosen(out)["far"].settings == {"learning-rate": 0.1}


def test_a_table_says_which_seeds_diverged(tmp_path, bouquet):
    text = DIVERGING.split("[search]")[0].replace("trials = 4\n", "").replace('sampler = "random"\n', "")
    text = text.replace("seed = 1", "seeds = [0, 1]").replace("[settings]", "[settings]\nlearning-rate = 100.0")
    (tmp_path / "table.toml").write_text(text + '[[rows]]\nname = "far"\nlabel = "Far"\n')
    out = tmp_path / "table"
    ended = bouquet("table", tmp_path / "table.toml", "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    rounds = [RunDirectory(out / "cells" / "far" / f"seed-{s}").read_summary()["diverged"]["round"] for s in (0, 1)]
    words = f"Far (seed 0 in round {rounds[0]}, seed 1 in round {rounds[1]})"
    assert f"Training diverged, and the best round before it is reported: {words}." in (out / "table.md").read_text()


def test_without_optuna_one_is_told_the_extra(tmp_path):
    (tmp_path / "search.toml").write_text(SEARCH)
    done = without(["optuna"], "search", str(tmp_path / "search.toml"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr == '`bouquet search` needs optuna, which is not installed: pip install "bouquet[search]".\n'
    assert not (tmp_path / "out").exists()


# -- edges -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "kind", "values", "value", "edge"),
    [
        # A twentieth of log 100 is log 1.26.
        ("learning-rate", "log-uniform", (0.01, 1.0), 0.0125, "lowest"),
        ("learning-rate", "log-uniform", (0.01, 1.0), 0.0127, ""),
        ("learning-rate", "log-uniform", (0.01, 1.0), 0.8, "highest"),
        ("init-scale", "uniform", (1.0, 3.0), 2.95, "highest"),
        ("init-scale", "uniform", (1.0, 3.0), 2.85, ""),
        ("weight-decay", "uniform", (0.0, 1.0), 0.01, ""),  # the setting ends there
        ("learning-rate-decay", "uniform", (0.5, 1.0), 0.99, ""),  # and here
        ("learning-rate-decay", "uniform", (0.5, 1.0), 0.51, "lowest"),
        ("local-epochs", "integer", (1, 5), 1, ""),
        ("local-epochs", "integer", (1, 5), 5, "highest"),
        ("local-epochs", "integer", (2, 5), 2, "lowest"),
        ("local-epochs", "integer", (2, 50), 3, ""),
        ("embedding-size", "choices", (32, 8, 16), 32, "highest"),
        ("embedding-size", "choices", (32, 8, 16), 8, "lowest"),
        ("embedding-size", "choices", (8, 16), 16, ""),  # one of two is always at an edge
        ("optimizer", "choices", ("sgd", "even"), "sgd", ""),
    ],
)
def test_edges(key, kind, values, value, edge):
    assert at_edge(key, Parameter(kind, values), value) == edge


def test_edges_are_said(searched):
    """The last round is one: the search is of three rounds, and more would be better."""
    text, chosen = (searched / "search.md").read_text(), read_chosen(searched)
    edges = [edge for row in chosen.values() for edge in row.edges]
    assert "the best round is the last, 3" in edges
    assert "**At an edge of what was searched**" in text
    for edge in edges:
        assert edge in text


# -- settings that hang together ---------------------------------------------------------------------------------------

TOGETHER = """
title = "Settings that hang together"
trials = 12
sampler = "random"

[settings]
num-server-rounds = 3

[search]
learning-rate = {log-uniform = [0.01, 1.0]}
server-optimizer = {choices = ["adam", "sgd"]}
server-learning-rate = {log-uniform = [0.003, 0.3], if = {server-optimizer = "adam"}, else = 1.0}

[[rows]]
name = "fedrap"
settings = {strategy = "fedrap"}

[rows.search]
fedrap-personal-learning-rate = {log-uniform = [0.01, 100.0], times = "learning-rate"}
user-learning-rate = {uniform = [1.0, 4.0], times = "init-scale"}
"""


@needs_optuna
def test_a_trial_is_settled_from_what_was_drawn(tmp_path):
    """Plain averaging has the rate 1 and nothing is drawn for it; a rate that is a factor goes with the other one."""
    study = study_of(tmp_path, TOGETHER)
    trials = [study.claim() for _ in range(12)]
    plain = [trial for trial in trials if trial.settings["server-optimizer"] == "sgd"]
    assert 0 < len(plain) < 12
    for trial in trials:
        assert ("server-learning-rate" in trial.drawn) == (trial not in plain)
        rate, factor = trial.settings["learning-rate"], trial.drawn["fedrap-personal-learning-rate"]
        assert 0.01 <= factor <= 100
        assert trial.settings["fedrap-personal-learning-rate"] == rate * factor
        assert trial.settings["user-learning-rate"] == pytest.approx(0.01 * trial.drawn["user-learning-rate"])
    assert all(trial.settings["server-learning-rate"] == 1 for trial in plain)
    assert all(0.003 <= t.settings["server-learning-rate"] <= 0.3 for t in trials if t not in plain)
    again = study_of(tmp_path, TOGETHER).trials()
    assert [(trial.settings, trial.drawn) for trial in again] == [(trial.settings, trial.drawn) for trial in trials]


@needs_optuna
def test_the_first_of_such_trials_is_the_row_without_a_search(tmp_path):
    """fedrap-personal-learning-rate is 0, the same as learning-rate: the factor 1. 2 is no 1 to 4 times .01."""
    first = study_of(tmp_path, TOGETHER).claim()
    assert first.drawn["fedrap-personal-learning-rate"] == 1
    known = ("learning-rate", "server-optimizer", "server-learning-rate", "fedrap-personal-learning-rate")
    assert [first.settings[key] for key in known] == [0.1, "adam", 0.03, 0.1]
    assert 0.01 <= first.settings["user-learning-rate"] <= 0.04


@needs_optuna
def test_an_interrupted_trial_without_a_setting_that_others_leave_out_is_whole(tmp_path):
    study = study_of(tmp_path, TOGETHER)
    trials = [study.claim() for _ in range(12)]
    plain = next(trial for trial in trials if "server-learning-rate" not in trial.drawn)
    again = study_of(tmp_path, TOGETHER)
    again.mark_interrupted()
    claimed = [again.claim() for _ in range(plain.number)][-1]
    assert (claimed.number, claimed.settings, claimed.drawn) == (plain.number, plain.settings, plain.drawn)


RATE = Parameter("log-uniform", (0.01, 1.0))
WHOLE_SPACE = {
    "way": Parameter("choices", ("a", "b", "c")),
    "rate": RATE,
    "own": Parameter("log-uniform", (0.01, 100.0), times="rate"),
    "of-b": Parameter("log-uniform", (0.1, 1.0), times="rate", condition=("way", "b"), otherwise=7.0),
}


@given(
    way=st.sampled_from("abc"), rate=st.floats(0.01, 1), own=st.floats(0.01, 100), of_b=st.floats(0.1, 1)
)  # fmt: skip
def test_what_is_settled_can_be_drawn_again(way, rate, own, of_b):
    values = {"way": way, "rate": rate, "own": own, "of-b": of_b}
    drawn = draw(WHOLE_SPACE, lambda key, _: values[key])
    assert drawn.keys() == values.keys() - ({"of-b"} if way != "b" else set())
    assert is_whole(WHOLE_SPACE, drawn)
    assert not is_whole(WHOLE_SPACE, {key: value for key, value in drawn.items() if key != "rate"})
    assert is_whole(WHOLE_SPACE, values) == (way == "b")
    settings = settled(WHOLE_SPACE, drawn, {})
    assert settings["of-b"] == (of_b * rate if way == "b" else 7)
    back = without_search(WHOLE_SPACE, settings, {})
    for key in back:  # up to rounding at the ends of a range
        assert back[key] == (pytest.approx(drawn[key]) if key != "way" else way)
    assert back["way"] == way


@needs_optuna
def test_such_a_search_runs_and_is_told(tmp_path):
    """The table of trials has rates, the edge is that of the factor, and a folder with other factors is refused."""
    text = TOGETHER.replace("trials = 12", "trials = 2").replace(
        "num-server-rounds = 3", "num-server-rounds = 2\nmin-interactions = 60\nmax-users = 60"
    )
    text = text.replace("[0.01, 100.0], times", "[0.9, 9e9], times")
    out = search(tmp_path, text)
    first, second = trials_of(out)
    assert (first["fedrap-personal-learning-rate"], first["server-learning-rate"]) == ("0.1", "0.03")
    assert float(second["fedrap-personal-learning-rate"]) > float(second["learning-rate"])
    written = (out / "search.md").read_text()
    assert "- server-learning-rate: 0.003 to 0.3, log, with server-optimizer = adam; else 1.0" in written
    assert "- fedrap-personal-learning-rate: 0.9 to 9e+09, log, times learning-rate" in written
    if read_chosen(out)["fedrap"].settings["fedrap-personal-learning-rate"] == 0.1:
        assert "fedrap-personal-learning-rate = 0.1, near the lowest searched (0.9 to 9e+09, log, times" in written
    with pytest.raises(ConfigError, match="'times': 'learning-rate'}, and the file now says"):
        search(tmp_path, text.replace('times = "learning-rate"', 'times = "init-scale"'))


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (", else = 1.0", "", "needs both if = {setting = value} and else = the value that it has otherwise"),
        ('"adam"}, else', '"adagrad"}, else', "is searched if 'server-optimizer' is 'adagrad', so 'server-optimizer'"),
        ("if = {server-optimizer", "if = {optimizer", "'optimizer' must be searched by choices, of which that is one"),
        ("else = 1.0", "else = 0.0", "'server-learning-rate' must be a number greater than 0, not 0.0"),
        ("[0.003, 0.3], if", "[0.003, 0.3], unless", "must be searched by one of log-uniform"),
        ('times = "learning-rate"', 'times = "lerning-rate"', "'lerning-rate': this row has no such number"),
        ('times = "learning-rate"', 'times = "backbone"', "'backbone': this row has no such number"),
        ('times = "learning-rate"', "times = 3", "'times' of 'fedrap-personal-learning-rate' must name a setting"),
        ('times = "learning-rate"', 'times = "server-learning-rate"', "which must then be a range of its own"),
        ("log-uniform = [0.01, 100.0]", "choices = [0.1, 1.0]", "what is drawn be log-uniform or uniform"),
    ],
)
def test_mistakes_in_what_hangs_together(tmp_path, old, new, sentence):
    path = tmp_path / "search.toml"
    assert old in TOGETHER
    path.write_text(TOGETHER.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        rows_of(read_search_file(path), tmp_path, [])
    assert sentence in str(error.value)


# -- tables ------------------------------------------------------------------------------------------------------------

TABLE = """
title = "With what was chosen"
seeds = [0]
settings-from = "out"

[settings]
num-server-rounds = 2

[[rows]]
name = "plain"
label = "FedAvg"

[[rows]]
name = "even"
settings-from = "out"

[[rows]]
name = "popularity"
centralized = "popularity"

[[rows]]
name = "other"
settings = {min-interactions = 60, max-users = 120}
"""


def cells(folder: Path, text: str = TABLE):
    (folder / "table.toml").write_text(text)
    return cells_of(read_table_file(folder / "table.toml"), folder, folder / "table", [])


def test_a_table_takes_its_settings_from_a_search(copied):
    """What was chosen, under what it was chosen under; the table's own settings go over the latter."""
    chosen = read_chosen(copied)
    common = TABLE.replace("num-server-rounds = 2", "num-server-rounds = 2\nmin-interactions = 60\nmax-users = 120")
    by_name = {cell.row.name: cell.settings for cell in cells(copied.parent, common)}
    assert by_name["plain"]["learning-rate"] == chosen["plain"].settings["learning-rate"]
    assert by_name["even"]["strategy"] == "fcf"
    assert by_name["even"]["embedding-size"] == chosen["even"].settings["embedding-size"]
    assert by_name["even"]["server-learning-rate"] == chosen["even"].settings["server-learning-rate"]
    assert {settings["num-server-rounds"] for name, settings in by_name.items() if name != "popularity"} == {2}
    assert by_name["plain"]["evaluate-every"] == 1
    assert by_name["other"]["evaluate-every"] == 5


def test_the_table_says_where_its_settings_come_from(copied, bouquet):
    text = TABLE.replace("num-server-rounds = 2", "num-server-rounds = 2\nmin-interactions = 60\nmax-users = 100")
    text = text.replace(", max-users = 120", "")
    (copied.parent / "table.toml").write_text(text)
    out = copied.parent / "table"
    ended = bouquet("table", copied.parent / "table.toml", "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    written = (out / "table.md").read_text()
    assert "Settings chosen by the search in `out`, by NDCG@10 (full) on the validation items: FedAvg (best" in written
    assert "FedAvg (best of 4 trials, searched with max-users = 120" in written
    assert "at an edge of what was searched: " in written
    assert "Not searched: other." in written
    kept = RunDirectory(out / "cells" / "plain" / "seed-0").read_config()
    assert kept["learning-rate"] == read_chosen(copied)["plain"].settings["learning-rate"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "even"', 'name = "evne"', "There is no row in the search out 'evne'. Did you mean 'even'?"),
        ("num-server-rounds = 2", "learning-rate = 0.1", "'learning-rate' is set here and was chosen by the search in"),
        ("num-server-rounds = 2", 'strategy = "fcf"', "was one of strategy = 'fedavg', and this row has 'fcf'."),
        (
            'settings-from = "out"\n\n[settings]',
            'settings-from = "no"\n\n[settings]',
            "no is not the folder of a search",
        ),
        ('centralized = "popularity"', 'centralized = "popularity"\nsettings-from = "out"', "is centralized: it takes"),
    ],
)
def test_what_a_table_cannot_take(copied, old, new, sentence):
    assert old in TABLE
    with pytest.raises(ConfigError) as error:
        cells(copied.parent, TABLE.replace(old, new, 1))
    assert sentence in str(error.value)


def test_a_search_that_has_not_ended_is_refused(copied):
    chosen = copied / "chosen.toml"
    chosen.write_text(chosen.read_text().replace("ended = 4", "ended = 3"))
    with pytest.raises(ConfigError, match="Row 'plain': the search in out has 3 of 4 trials for it; go on with"):
        cells(copied.parent)
    chosen.write_text("[rows.plain]\ntrials = 'many'\n")
    with pytest.raises(ConfigError, match=r"chosen\.toml is damaged"):
        cells(copied.parent)


VARIANT = """
title = "One thing changed"
seeds = [0]

[settings]
num-server-rounds = 2
min-interactions = 60
max-users = 100

[[rows]]
name = "plain"
label = "FedAvg"
settings-from = "out"

[[rows]]
name = "slow"
label = "slower"
variant-of = "plain"
settings = {learning-rate = 0.001}
"""


def test_a_variant_changes_one_thing_of_what_was_chosen(copied, bouquet):
    """All other settings are the row's, chosen or not; it is tested against it, and is said not to be searched."""
    plain, slow = cells(copied.parent, VARIANT)
    assert slow.settings["learning-rate"] == 0.001 != plain.settings["learning-rate"]
    assert {**slow.settings, "learning-rate": 0} == {**plain.settings, "learning-rate": 0}
    out = copied.parent / "table"
    ended = bouquet("table", copied.parent / "table.toml", "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    written = (out / "table.md").read_text()
    assert "One thing changed, and nothing searched anew: slower (FedAvg with learning-rate = 0.001)." in written
    assert "Not searched" not in written
    tests = written.partition("Difference to the own base")[2]
    assert [cell.strip() for cell in tests.splitlines()[4].split("|")][1:3] == ["slower", "FedAvg"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('variant-of = "plain"', 'variant-of = "plian"', "There is no earlier row 'plian'. Did you mean 'plain'?"),
        ('variant-of = "plain"', 'variant-of = "slow"', "There is no earlier row 'slow'"),
        ('variant-of = "plain"', 'variant-of = "plain"\nsettings-from = "out"', "has the settings of 'plain': leave"),
        ("settings = {learning-rate = 0.001}", "", "is a variant of 'plain' and has no settings of its own"),
        ("{learning-rate = 0.001}", "{max-users = 100}", "'max-users' is 100 in row 'plain', too; leave it out."),
        ("{learning-rate = 0.001}", "{seed = 3}", "'seed' is set by the table for every cell; leave it out."),
        ("{learning-rate = 0.001}", '{split = "ratio"}', "All rows of a table are on the same data and split"),
        ('label = "FedAvg"\nsettings-from = "out"', 'centralized = "ease"', "of 'plain', which is centralized."),
    ],
)
def test_what_a_variant_cannot_be(copied, old, new, sentence):
    assert old in VARIANT
    with pytest.raises(ConfigError) as error:
        cells(copied.parent, VARIANT.replace(old, new, 1))
    assert sentence in str(error.value)


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("trials = 4", "", "'trials' is missing."),
        ("trials = 4", "trials = 0", "'trials' cannot be 0"),
        ("random-trials = 2", 'sampler = "grid"', "'sampler' cannot be 'grid'"),
        ("random-trials = 2", "random-trail = 2", "there is no key 'random-trail'. Did you mean 'random-trials'?"),
        ('label = "FedAvg"', 'labl = "FedAvg"', "there is no key 'labl' in row 1. Did you mean 'label'?"),
        ('name = "even"', 'name = "plain"', "There are two rows 'plain'."),
        ('label = "FedAvg"', 'centralized = "ease"', "row 'plain' is centralized: such a row chooses its settings"),
        ("log-uniform = [0.001, 1.0]", "log-unifrom = [0.001, 1.0]", "Did you mean 'log-uniform'?"),
        ("{log-uniform = [0.001, 1.0]}", "0.1", "'learning-rate' must be searched by one of log-uniform, uniform"),
        ("[0.001, 1.0]", "[1.0, 0.001]", "'learning-rate' needs log-uniform = [lowest, highest], two numbers in this"),
        ("[0.001, 1.0]", "[0.0, 1.0]", "so its lowest value must be above 0, not 0.0."),
        ("log-uniform = [0.001", "uniform = [0.0", "Row 'plain': 'learning-rate' must be a number greater than 0"),
        ("log-uniform = [0.001", "integer = [0.5", "'learning-rate' needs integer = [lowest, highest], two whole"),
        ("choices = [2, 4, 8]", "choices = [2]", "the choices of 'embedding-size' must be two or more different"),
        ("choices = [2, 4, 8]", "choices = [2, 2.5]", "'embedding-size' must be a whole number, not 2.5."),
        ("embedding-size = {choices", "embeding-size = {choices", "There is no setting 'embeding-size'. Did you mean"),
        ("embedding-size = {choices", "split-seed = {choices", "'split-seed' is the same for all trials of a row"),
        ("embedding-size = {choices", "patience = {choices", "'patience' is the same for all trials"),
        ("embedding-size = {choices", "seed = {choices", "'seed' is the same for all trials"),
        ('{strategy = "fcf"}', '{strategy = "fcf", learning-rate = 0.1}', "'learning-rate' is set and searched"),
        ('{strategy = "fcf"}', '{strategy = "fcf", seed = 1}', "'seed' is set by the search for every trial"),
        ('{strategy = "fcf"}', '{strategy = "fcf", split-seed = 1}', "'split-seed' is 0 in row 'plain' and 1 in row"),
        ("embedding-size = {choices", "fedca-k = {choices", "'fedca-k' is a setting of fedca, and this run uses fcf"),
        ('[search]\nlearning-rate = {log-uniform = [0.001, 1.0]}', "", "Row 'plain': there is nothing to search"),
        ("evaluate-every = 1", 'split = "ratio"\nvalidation-share = 0.0', "without validation items there is nothing"),
        (
            "[search]\n",
            "[search]\nupdate-noise = {uniform = [0.1, 1.0]}\n",
            "Row 'plain': update-noise is a multiple of update-clip",
        ),
        (
            "[search]\n",
            "[search]\nupdate-noise = {uniform = [0.0, 1.0]}\n",
            "Row 'plain': with update-noise = 1.0, update-noise is a multiple of update-clip",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_the_file(tmp_path, old, new, sentence):
    path = tmp_path / "search.toml"
    assert old in SEARCH
    path.write_text(SEARCH.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        rows_of(read_search_file(path), tmp_path, [])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_that_need_each_other_can_be_searched_together(tmp_path):
    beside = "[search]\nupdate-clip = {choices = [0.5, 1.0]}\nupdate-noise = {uniform = [0.1, 1.0]}\n"
    (tmp_path / "search.toml").write_text(SEARCH.replace("[search]\n", beside, 1))
    assert "update-noise" in rows_of(read_search_file(tmp_path / "search.toml"), tmp_path, [])[0].space


def test_settings_go_over_one_another_and_a_row_can_have_its_own_range(tmp_path):
    (tmp_path / "base.toml").write_text("batch-size = 4\nlocal-epochs = 4\nlearning-rate = 0.4\n")
    text = SEARCH.replace('label = "FedAvg"', 'config = "base.toml"\nsettings = {local-epochs = 3}')
    text += "learning-rate = {uniform = [0.1, 0.2]}\n"
    (tmp_path / "search.toml").write_text(text)
    plain, even = rows_of(read_search_file(tmp_path / "search.toml"), tmp_path, ["max-users=130"])
    assert [plain.settings[key] for key in ("batch-size", "local-epochs", "max-users")] == [4, 3, 130]
    assert plain.space["learning-rate"] == Parameter("log-uniform", (0.001, 1.0))
    assert even.space["learning-rate"] == Parameter("uniform", (0.1, 0.2))


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "search").glob("*.toml")), ids=lambda path: path.stem)
def test_searches_of_the_project_are_sound(path):
    rows = rows_of(read_search_file(path), path.parent, ['data-dir="/data"'])
    assert {row.settings["data-dir"] for row in rows} == {"/data"}
    assert f"bouquet search configs/search/{path.name}" in path.read_text()


# docs/results/protocol.md, "Settings" and "Rounds".
PROTOCOL = {
    "learning-rate": Parameter("log-uniform", (0.01, 1.0)),
    "user-learning-rate": Parameter("log-uniform", (0.1, 10.0)),
    "local-epochs": Parameter("integer", (1, 5)),
    "negatives-per-positive": Parameter("integer", (1, 8)),
    "embedding-size": Parameter("choices", (8, 16, 32, 64)),
    "server-optimizer": Parameter("choices", ("adam", "sgd")),
    "server-learning-rate": Parameter(
        "log-uniform", (0.003, 0.3), condition=("server-optimizer", "adam"), otherwise=1.0
    ),
}
ADAM = {
    "learning-rate": Parameter("log-uniform", (0.0003, 0.03)),
    "user-learning-rate": Parameter("log-uniform", (0.1, 10.0), times="learning-rate"),
}
SERVER = {"server-optimizer", "server-learning-rate"}
# What a row cannot have, by its strategy or backbone.
WITHOUT = {
    "local": SERVER,
    "fedca": SERVER,
    "pfedgraph": SERVER,
    "hetefedrec": {"embedding-size"},
    "gru4rec": {"user-learning-rate"},
}
# All but the first look at a small scale.
DECLARED = [path for path in sorted((REPOSITORY / "configs" / "search").glob("*.toml")) if "small" not in path.stem]


def declared_rows():
    return [(path, row) for path in DECLARED for row in rows_of(read_search_file(path), path.parent, [])]


@pytest.mark.parametrize("path", DECLARED, ids=lambda path: path.stem)
def test_declared_searches_have_the_space_and_the_rounds_of_the_protocol(path):
    search = read_search_file(path)
    assert (search.trials, search.seed, search.sampler) == (30, 0, "tpe")
    for row in rows_of(search, path.parent, []):
        settings = row.settings
        few_at_once = settings["fraction-train"] < 0.05
        rounds = [500, 20 if few_at_once else 5, 6]
        assert [settings[key] for key in ("num-server-rounds", "evaluate-every", "patience")] == rounds
        assert settings["train-negatives"] == "honest"
        assert path.stem.startswith(settings["dataset"])
        left_out = WITHOUT.get(settings["strategy"], set()) | WITHOUT.get(settings["backbone"], set())
        shared = {key: value for key, value in PROTOCOL.items() if key not in left_out}
        if settings["optimizer"] == "adam":
            shared |= ADAM
        assert {key: row.space.get(key) for key in shared} == shared, row.name
        assert not left_out & row.space.keys()
        own = {key for key in row.space if key not in PROTOCOL}
        methods = (settings["strategy"], settings["personalization"])
        assert {key for key in own if not key.startswith(methods)} <= {"ace-hidden-layers", "exchange"}


def test_every_private_rate_is_searched_over_what_the_protocol_says():
    """Wherever a method has such a rate, its rows search it by the same range; a plug-in without a table has none."""
    rates = {key for key, other in same_as().items() if other == "learning-rate"} - {"user-learning-rate"}
    rates -= {"ace-learning-rate"}  # of a network that travels
    assert rates == {"plgc-learning-rate", "fedrap-personal-learning-rate", "fed3cr-personal-learning-rate"}
    range_ = Parameter("log-uniform", (0.01, 100.0), times="learning-rate")
    for path, row in declared_rows():
        has = {key for key in rates if key.startswith((row.settings["strategy"], row.settings["personalization"]))}
        if row.settings["plgc-tables"] == "base" or row.settings["plgc-mixing"] == "none":
            has.discard("plgc-learning-rate")
        assert {key for key in rates if key in row.space} == has, (path.name, row.name)
        assert all(row.space[key] == range_ for key in has)


def test_every_method_that_trains_a_model_has_a_declared_search():
    """But for those that the papers of this project do not have as rows."""
    searched = {row.settings["strategy"] for _, row in declared_rows()}
    searched |= {row.settings["personalization"] for _, row in declared_rows()}
    trained = {name for name, method in METHODS.items() if method.kind == "gradients"} | set(PLUG_INS)
    assert trained - searched == {"fedprox", "scaffold"}


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
