"""`bouquet compare` and `bouquet report`."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import bouquet as api
from bouquet.errors import ConfigError, DataError
from bouquet.experiments.comparison import Sample, compared, differences_of
from bouquet.experiments.figures import figure, probability
from bouquet.reporting.run_directory import RunDirectory


@pytest.fixture
def runs(small_table, tmp_path):
    """Copies of finished runs that a test may change: name -> folder."""

    def copy(name: str):
        target = tmp_path / name.replace("/", "-")
        shutil.copytree(small_table / "cells" / name, target)
        return target

    return copy


def test_runs_side_by_side(small_table, bouquet):
    cells = small_table / "cells"
    ended = bouquet(
        "compare",
        cells / "fedavg/seed-0",
        cells / "fedavg-paper/seed-0",
        cells / "popularity/seed-0",
        "--metric",
        "MRR",
    )
    assert ended.status == 0
    assert "test-history known." in ended.out
    quality, cost, tests = ended.out.split("\n\n")[2::2]
    assert "paper, LEAKY" in quality.splitlines()[2]
    assert "honest" in quality.splitlines()[1]
    assert "popularity, all data pooled" in quality.splitlines()[3]
    assert "MRR" in quality.splitlines()[0]
    assert cost.splitlines()[1].count(" KB ") == 2
    assert len(tests.splitlines()) == 3
    assert "Difference to run 1 in MRR (full)" in ended.out
    assert "adjusted for 2 tests" in ended.out


def test_fairness_is_shown_for_both_candidate_sets_of_older_runs_too(runs, bouquet):
    """A summary from before there was a figure among sampled candidates, which the users' own metrics have."""
    folder = runs("fedavg/seed-0")
    directory = RunDirectory(folder)
    summary = directory.read_summary()
    sampled = summary["fairness"].pop("sampled-99")
    directory.write_summary(summary)
    ended = bouquet("compare", folder)
    assert ended.status == 0, ended.err
    heading, row = ended.out.split("\n\n")[4].splitlines()
    assert heading.split("seconds per round")[1].split("  ")[1:] == [
        *("of HR@10", "of NDCG@10", "of HR@10 of 100", "of NDCG@10 of 100")
    ]
    variances = [*summary["fairness"]["variance_of"].values(), *sampled["variance_of"].values()]
    assert row.split()[-4:] == [figure(variance) for variance in variances]


def test_a_run_does_not_differ_from_itself(runs, bouquet):
    folder = runs("fedavg/seed-0")
    ended = bouquet("compare", folder, folder)
    assert ended.status == 0
    assert ".000 ± .000   .000 to .000  1.000" in ended.out


def test_runs_are_matched_by_user_and_not_by_place(runs, bouquet):
    folder, shuffled = runs("fedavg/seed-0"), runs("fedavg/seed-1")
    users, values = RunDirectory(folder).read_users()
    order = np.random.default_rng(0).permutation(len(users))
    RunDirectory(shuffled).write_users(users[order], values[order])
    assert ".000 ± .000   .000 to .000  1.000" in bouquet("compare", folder, shuffled).out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("split-seed = 0", "split-seed = 1"), "'split-seed' is 1 in the one and 0 in the other."),
        (("min-interactions = 60", "min-interactions = 5"), "'min-interactions' is 5 in the one and 60 in the other."),
        (
            ('test-history = "known"', 'test-history = "training"'),
            "'test-history' is 'training' in the one and 'known' in the other.",
        ),
        (
            ('dataset = "synthetic"', 'dataset = "ml-1m"'),
            "'dataset' is 'ml-1m' in the one and 'synthetic' in the other.",
        ),
    ],
)
def test_other_data_is_refused(runs, bouquet, change, sentence):
    first, other = runs("fedavg/seed-0"), runs("fedavg/seed-1")
    config = RunDirectory(other).config
    assert change[0] in config.read_text()
    config.write_text(config.read_text().replace(*change))
    ended = bouquet("compare", first, other)
    assert ended.status == 2
    assert ended.out == ""
    assert ended.err == f"{other} cannot be compared with {first}: {sentence}\n"


def test_other_users_and_counts_are_refused(runs, bouquet):
    first, other = runs("fedavg/seed-0"), runs("fedavg/seed-1")
    directory = RunDirectory(other)
    users, values = directory.read_users()
    directory.write_users(users + 1, values)
    assert bouquet("compare", first, other).err.endswith(": their users are not the same.\n")
    summary = directory.read_summary()
    directory.write_summary(summary | {"interactions": summary["interactions"] + 1})
    ended = bouquet("compare", first, other)
    assert ended.status == 2
    assert "interactions and the other" in ended.err


@pytest.mark.parametrize("command", ["compare", "report"])
@pytest.mark.parametrize("status", ["running", "stopped", "failed"])
def test_unfinished_runs_are_refused_by_name_and_status(runs, bouquet, command, status):
    folder = runs("fedavg/seed-0")
    RunDirectory(folder).write_summary({"status": status, "error": "no nodes"})
    ended = bouquet(command, folder)
    assert ended.status == 1
    assert ended.err == f"{folder} is not finished: its status is '{status}'.\n"


def test_a_folder_that_is_no_run(tmp_path, bouquet):
    assert bouquet("compare", tmp_path).status == 1
    assert "is not the folder of a run" in bouquet("report", tmp_path).err


def test_unknown_metric(runs, bouquet):
    ended = bouquet("compare", runs("fedavg/seed-0"), "--metric", "NDCG")
    assert ended.status == 2
    assert ended.err.startswith("There is no metric 'NDCG'. Did you mean 'NDCG@5'?")


def test_report_prints_the_table_again(runs, bouquet):
    ended = bouquet("report", runs("fedavg/seed-0"))
    assert ended.status == 0
    assert "this run (fedavg)" in ended.out


def test_report_does_not_say_that_pooled_data_stayed_on_nodes(runs, bouquet):
    ended = bouquet("report", runs("popularity/seed-0"))
    assert ended.status == 1
    assert "no federated run" in ended.err


def test_users_whose_node_failed_are_left_out_of_a_test():
    """Only users 0 and 3 are evaluated in both: differences 1 and 3, mean 2."""
    first = np.array([0.0, np.nan, 1.0, 0.0])
    other = np.array([1.0, 1.0, np.nan, 3.0])
    ((difference, _),) = differences_of([(Sample(other[None]), Sample(first[None]))])
    assert (difference.users, difference.mean) == (2, 2.0)
    with pytest.raises(DataError):
        differences_of([(Sample(np.array([[np.nan, 1.0]])), Sample(np.array([[1.0, np.nan]])))])


def test_a_row_of_a_table_is_one_method_with_all_its_seeds(small_table, runs, bouquet):
    """Three ways to the same numbers: the folder of the row, and its runs in a list."""
    rows = [small_table / "cells" / name for name in ("fedavg", "fedavg-paper", "popularity")]
    ended = bouquet("compare", *rows)
    assert ended.status == 0, ended.err
    quality, _, tests = ended.out.split("\n\n")[2::2]
    assert " 0, 1 " in quality.splitlines()[1]
    assert "(a test over users and seeds, p adjusted for 2 tests)" in ended.out
    table = api.compare([rows[0], [rows[1] / "seed-0", rows[1] / "seed-1"], rows[2]])
    assert table["seeds"].tolist() == [2, 2, 1]
    assert table["over"].tolist()[1:] == ["users and seeds"] * 2, "no seed changes popularity"
    means = [np.mean([run.summary["test"]["full"]["NDCG@10"] for run in compared([row]).runs]) for row in rows]
    assert table["value"].tolist() == pytest.approx(means)
    assert table["difference"].tolist()[1:] == pytest.approx([mean - means[0] for mean in means[1:]])
    assert figure(table["low"][1]) in tests
    assert probability(table["p"][1]) in tests
    single = api.compare([rows[0] / "seed-0", rows[1] / "seed-0"])
    assert single["over"][1] == "users", "one seed says nothing of another"
    other = runs("fedavg-paper/seed-1")
    with pytest.raises(ConfigError, match="not one method under two seeds: 'train-negatives' is 'paper' in the one"):
        api.compare([rows[0], [rows[0] / "seed-0", other]])
    with pytest.raises(ConfigError, match="both have seed 0"):
        api.compare([[rows[0] / "seed-0", rows[0] / "seed-0"]])


def test_figures_in_words():
    values = (0.12345, 1.0, -0.0213, -0.0001, float("nan"), None)
    assert [figure(value) for value in values] == [".123", "1.000", "−.021", ".000", "–", "–"]
    assert [probability(value) for value in (0.0001, 0.04, 1.0)] == ["<.001", ".040", "1.000"]
