"""Searched settings that hang together: drawn, settled, drawn again, and carried out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.errors import ConfigError
from bouquet.experiments.chosen import read_chosen
from bouquet.experiments.search_file import read_search_file, rows_of
from bouquet.experiments.search_space import Parameter, draw, is_whole, settled, without_search
from tests.cli.searches import needs_optuna, search, study_of, trials_of

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
