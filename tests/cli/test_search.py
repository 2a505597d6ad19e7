"""`bouquet search`: real trials, pruning, what fails, and what is chosen."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from bouquet.cli.search import search_command
from bouquet.errors import ConfigError
from bouquet.experiments.chosen import read_chosen
from bouquet.experiments.search_file import read_search_file, rows_of
from bouquet.experiments.search_report import at_edge
from bouquet.experiments.search_space import Parameter
from bouquet.experiments.search_study import Trial
from bouquet.experiments.settings import resolve
from bouquet.reporting.run_directory import RunDirectory
from tests.cli.searches import RANDOM, SEARCH, needs_optuna, search, study_of, trials_of
from tests.cli.test_extras import without


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
