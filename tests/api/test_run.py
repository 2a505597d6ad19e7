"""`bouquet.run` and what it gives back: a small simulation out of a DataFrame, carried out once for all tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import bouquet
from bouquet.evaluation import METRICS
from bouquet.randomness import user_keys
from bouquet.reporting.run_directory import RunDirectory
from tests.conftest import REPOSITORY
from tests.loaded import loaded_by
from tests.runs.helpers import await_condition

SMALL = {"num_server_rounds": 6, "evaluate_every": 2, "checkpoint_every": 2, "embedding_size": 4, "engine": "local"}


def people() -> pd.DataFrame:
    """40 people, called by words, of 60 films, of whom neighbours like the same."""
    source = np.random.default_rng(0)
    rows = []
    for user in range(40):
        weights = np.exp(-((np.arange(60) - 1.5 * user) ** 2) / 50) + 0.01
        liked = source.choice(60, size=14, replace=False, p=weights / weights.sum())
        rows += [(f"person-{user}", f"film {item}", 1_600_000_000 + place) for place, item in enumerate(liked)]
    return pd.DataFrame(rows, columns=["person", "film", "when"])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and the other one that it is compared with."""
    out = tmp_path_factory.mktemp("api") / "run"
    columns = {"user_column": "person", "item_column": "film", "time_column": "when"}
    return bouquet.run("fedavg", people(), nodes=3, out=out, progress=False, learning_rate=0.5, **columns, **SMALL)


def test_the_run_is_what_the_program_says_of_it(run):
    summary = RunDirectory(run.path).read_summary()
    assert run.summary == summary
    assert (summary["users"], summary["items"], summary["nodes"]) == (40, 60, 3)
    assert run.settings["learning_rate"] == 0.5
    assert run.settings["strategy"] == "fedavg"
    value = run.metrics.set_index(["part", "candidates", "metric"]).loc[("test", "full", "NDCG@10")]
    assert value["value"] == summary["test"]["full"]["NDCG@10"]
    assert value["standard_error"] == summary["standard_error"]["test"]["full"]["NDCG@10"]
    assert len(run.metrics) == 2 * 2 * len(METRICS)
    assert f"NDCG@10 {value['value']:.3f}" in repr(run)
    assert bouquet.load(run.path).metrics.equals(run.metrics)


def test_users_are_those_of_the_table_and_their_means_the_figures(run):
    assert set(run.per_user["user"]) == {f"person-{user}" for user in range(40)}
    means = run.per_user.groupby(["part", "candidates"])[list(METRICS)].mean().stack()
    given = run.metrics.set_index(["part", "candidates", "metric"])["value"]
    np.testing.assert_allclose(means.loc[given.index], given, rtol=1e-6)


def test_rounds_are_rows(run):
    assert list(run.rounds.index) == [1, 2, 3, 4, 5, 6]
    scores = run.rounds["validation/full/NDCG@10"]
    assert scores.notna().tolist() == [False, True] * 3
    assert scores.idxmax() == run.best_round
    assert (run.rounds["users"] == 40).all()
    assert (run.rounds["failures"] == 0).all()


def test_recommendations_are_new_to_a_user_and_hit_as_often_as_reported(run):
    """HR@10 of the lists is the reported one: the item that is hidden for test is among the ten or is not."""
    table = people()
    lists = run.recommendations(10)
    assert (lists.groupby("user").size() == 10).all()
    hits = 0
    for user, rows in table.groupby("person"):
        *known, hidden = rows.sort_values("when")["film"]
        shown = run.recommend(user, 10)
        assert shown["rank"].tolist() == list(range(1, 11))
        assert (shown["score"].diff().dropna() <= 0).all()
        assert not set(shown["item"]) & set(known)
        assert shown["item"].tolist() == lists.loc[lists["user"] == user, "item"].tolist()
        hits += hidden in set(shown["item"])
    assert hits / 40 == pytest.approx(run.summary["test"]["full"]["HR@10"], abs=1e-9)
    assert hits > 0


def test_the_model_and_the_best_round_belong_together(run):
    model = run.model
    assert model.round == run.best_round
    assert model.arrays["item_embedding"].shape == (60, 4)
    assert set(model.items) == set(people()["film"])
    assert model.titles == ("",) * 60
    assert "item_embedding [60, 4]" in repr(model)


def test_what_cannot_be_recommended_is_one_sentence(run):
    with pytest.raises(bouquet.ConfigError, match=r"There is no user 'person-44' in .*\. Did you mean 'person-"):
        run.recommend("person-44")
    with pytest.raises(bouquet.ConfigError, match="kept 100 items of each user, and 200 are asked for"):
        run.recommend("person-4", 200)
    assert len(run.recommend("person-4", 60)) == 60 - 13, "all that the person does not have"


def test_runs_are_compared_user_by_user(run, tmp_path):
    settings = {key: value for key, value in run.settings.items() if key not in ("seed", "strategy")}
    other = bouquet.run("local", nodes=1, engine="local", out=tmp_path / "other", progress=False, seed=3, **settings)
    table = bouquet.compare([run, other.path], metric="HR@10")
    assert table["strategy"].tolist() == ["fedavg", "local"]
    assert table["value"].tolist() == [one.summary["test"]["full"]["HR@10"] for one in (run, other)]
    assert table.loc[0, ["difference", "p", "over", "users"]].isna().all()
    assert table.loc[1, "difference"] == pytest.approx(table["value"][1] - table["value"][0])
    assert 0 < table.loc[1, "p"] <= 1
    assert table.loc[1, "users"] == 40
    assert other.model.arrays == {}, "nothing is shared"
    assert len(other.recommend("person-7", 5)) == 5
    with pytest.raises(bouquet.ConfigError, match="takes a list of runs"):
        bouquet.compare(run)


def test_a_wrong_table_is_refused_before_anything_is_written(tmp_path):
    table = people()
    out = tmp_path / "run"
    for arguments, sentence in [
        (
            {"dataset": table},
            "The DataFrame has no column 'user', only person, film, when. Name yours with user_column.",
        ),
        ({"dataset": [1, 2]}, "dataset is a list, and can be the name of a data set, a path or a DataFrame of pandas."),
        ({"dataset": table, "data_file": "x.csv"}, "The dataset is a DataFrame, so leave data_file out."),
        ({"seed": [1]}, "seed must be a text, a number, True or False, not list."),
    ]:
        with pytest.raises(bouquet.ConfigError) as refused:
            bouquet.run(out=out, **arguments)
        assert str(refused.value) == sentence
    assert not out.exists()


def test_what_the_program_refuses_is_raised_with_its_sentence(tmp_path):
    with pytest.raises(bouquet.ConfigError, match=r"^There is no setting 'learning-rte'\. Did you mean 'learning-rate"):
        bouquet.run(out=tmp_path / "run", learning_rte=0.1)
    with pytest.raises(bouquet.DataError, match="not finished|is not the folder of a run"):
        bouquet.load(tmp_path)


def test_an_interrupted_run_ends_and_can_go_on(tmp_path):
    """As by the button of a notebook: the caller gets a KeyboardInterrupt, and nothing goes on behind it."""
    code = "import bouquet, sys; bouquet.run(num_server_rounds=10**5, engine='local', out=sys.argv[1], "
    caller = subprocess.Popen(
        [sys.executable, "-c", code + "evaluate_every=2, checkpoint_every=2)", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    directory = RunDirectory(tmp_path / "run")
    await_condition(lambda: len(directory.rounds()) >= 3)
    caller.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in caller.communicate(timeout=60)[1]
    assert directory.read_summary()["status"] == "stopped"
    assert not directory.is_at_work()
    done = len(directory.rounds())
    run = bouquet.run(resume=directory.path, num_server_rounds=done + 3, progress=False)
    assert (run.path, run.summary["rounds"]) == (directory.path, done + 3)
    assert run.model.round == run.best_round


def test_the_import_is_light_and_a_run_stays_outside():
    """Nothing of what only a training needs, and no package whose name others have too, is ever loaded here."""
    never = {"torch", "ray", "flwr", "numba", "models", "strategies", "client_app", "server_app", "data_partition"}
    assert not loaded_by("import bouquet") & (never | {"numpy", "pandas", "pydantic", "rich"})
    assert not loaded_by("import bouquet; [getattr(bouquet, name) for name in bouquet.__all__]") & (never | {"pandas"})


def test_the_names_are_those_that_type_checkers_see():
    import ast
    from pathlib import Path

    (typed,) = (node for node in ast.parse(Path(bouquet.__file__).read_text()).body if isinstance(node, ast.If))
    parts = [part for part in typed.body if isinstance(part, ast.ImportFrom)]
    seen = {alias.asname or alias.name: part.module for part in parts for alias in part.names}
    assert seen == bouquet._PLACES
    assert set(bouquet.__all__) == {*seen, "__version__"}
    for name in bouquet.__all__:
        assert getattr(bouquet, name) is not None
    assert user_keys(["x"]).shape == (1,)
