"""`bouquet table`: the runs of a table, stopping and going on, and what is written."""

from __future__ import annotations

import csv
import fcntl
import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from bouquet.cli.table import State, state_of
from bouquet.errors import ConfigError
from bouquet.evaluation import holm, metric_values, seeded_test
from bouquet.experiments.figures import figure
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from bouquet.reporting.run_directory import RunDirectory
from tests.cli.conftest import SMALL_TABLE, finish, start
from tests.conftest import REPOSITORY
from tests.runs.helpers import await_condition

LONG_TABLE = """
title = "A table that takes a while"
seeds = [0]
against = "popularity"

[settings]
num-server-rounds = 16
evaluate-every = 8
checkpoint-every = 2
min-interactions = 60

[[rows]]
name = "popularity"
centralized = "popularity"

[[rows]]
name = "fedavg"
"""


def wait_until(condition, process):
    def is_so():
        if condition():
            return True
        assert process.poll() is None, f"the program ended too early: {process.communicate()}"
        return False

    await_condition(is_so, 180)


def csv_lines(folder):
    with (folder / "table.csv").open() as file:
        return {(line["row"], line["candidates"], line["metric"]): line for line in csv.DictReader(file)}


def mean_of(folder, row, seed, candidates, metric):
    summary = json.loads((folder / "cells" / row / f"seed-{seed}" / "summary.json").read_text())
    return summary["test"][candidates][metric]


@pytest.fixture
def copied(small_table, tmp_path):
    """A copy of the finished table that a test may change: (file, folder)."""
    shutil.copytree(small_table, tmp_path / "out")
    return shutil.copy(small_table.parent / "table.toml", tmp_path), tmp_path / "out"


def test_a_stopped_table_goes_on_and_gives_the_same(tmp_path):
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    for folder in (stopped, whole):
        folder.mkdir()
        (folder / "table.toml").write_text(LONG_TABLE)
    arguments = ("table", "table.toml", "--out", "out", "--engine", "local")
    first, second = (RunDirectory(stopped / "out" / "cells" / row / "seed-0") for row in ("popularity", "fedavg"))

    process = start(*arguments, cwd=stopped, home=tmp_path)
    wait_until(lambda: any(second.checkpoints.glob("*.safetensors")) and len(second.rounds()) >= 3, process)
    process.send_signal(signal.SIGINT)
    ended = finish(process)
    assert ended.status == 130
    assert "The same command goes on here." in ended.out
    assert first.read_summary()["status"] == "completed"
    assert second.read_summary()["status"] == "stopped"
    assert not (stopped / "out" / "table.md").exists()
    popularity, round_one = first.summary.stat().st_mtime_ns, second.rounds()[0]

    again, other = start(*arguments, cwd=stopped, home=tmp_path), start(*arguments, cwd=whole, home=tmp_path)
    for process in (again, other):
        ended = finish(process)
        assert ended.status == 0, ended.err
    assert first.summary.stat().st_mtime_ns == popularity
    assert second.rounds()[0] == round_one  # with its seconds: the run was resumed and not started again
    assert len(second.rounds()) == 16
    for name in ("table.md", "table.csv"):
        assert (stopped / "out" / name).read_text() == (whole / "out" / name).read_text()


def test_finished_cells_are_kept_and_freed(copied, bouquet):
    file, out = copied
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*")}
    table = (out / "table.csv").read_text()
    ended = bouquet("table", file, "--out", out, "--engine", "local")
    assert ended.status == 0
    assert ended.out.count(": done") == 5
    assert {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*")} == before
    assert (out / "table.csv").read_text() == table
    kept = {"config.toml", "events.jsonl", "metrics.jsonl", "summary.json", "users.safetensors"}
    assert {path.name for path in before} == kept


def test_a_cell_of_other_settings_is_refused(copied, bouquet):
    file, out = copied
    ended = bouquet("table", file, "--out", out, "--engine", "local", "-c", "num-server-rounds=3")
    assert ended.status == 2
    assert "num-server-rounds = 2, and the table now says 3" in ended.err


def test_the_place_of_the_data_does_not_matter(copied, bouquet, tmp_path):
    file, out = copied
    ended = bouquet("table", file, "--out", out, "--engine", "local", "-c", f'data-dir="{tmp_path}"')
    assert ended.status == 0
    assert str(tmp_path / "out") in (out / "table.md").read_text()
    assert "data-dir" not in (out / "table.md").read_text()


def test_unfinished_cells(small_table, tmp_path):
    """Without a checkpoint a cell starts again, with one it is resumed, and then its settings must be the same."""
    table = read_table_file(small_table.parent / "table.toml")
    shutil.copytree(small_table, tmp_path / "out")
    (cell,) = [c for c in cells_of(table, tmp_path, tmp_path / "out", []) if (c.row.name, c.seed) == ("fedavg", 1)]
    directory = RunDirectory(cell.path)
    assert state_of(cell) is State.DONE
    directory.write_summary({"status": "running"})
    assert state_of(cell) is State.START
    directory.checkpoints.mkdir()
    (directory.checkpoints / "round-000001.safetensors").touch()
    assert state_of(cell) is State.RESUME
    directory.summary.unlink()
    assert state_of(cell) is State.START


def test_a_failing_cell_stops_the_table_and_finished_ones_stay(tmp_path, bouquet):
    """Nodes of a simulation have no secret; the centralized row before does not care."""
    (tmp_path / "table.toml").write_text(SMALL_TABLE)
    arguments = ("--out", tmp_path / "out", "--engine", "local", "-c", "secret-draws=true")
    ended = bouquet("table", tmp_path / "table.toml", *arguments)
    assert ended.status == 2
    assert ended.err.startswith("Cell fedavg, seed 0: ")
    assert len(ended.err.splitlines()) == 1
    assert RunDirectory(tmp_path / "out" / "cells" / "popularity" / "seed-0").read_summary()["status"] == "completed"
    assert not (tmp_path / "out" / "table.md").exists()


def test_only_some_rows(tmp_path, bouquet):
    (tmp_path / "table.toml").write_text(SMALL_TABLE)
    arguments = ("table", tmp_path / "table.toml", "--out", tmp_path / "out", "--only")
    ended = bouquet(*arguments, "popularity")
    assert ended.status == 0
    text = (tmp_path / "out" / "table.md").read_text()
    assert "Not there yet: fedavg, fedavg-paper." in text
    assert "Difference to" not in text
    assert bouquet(*arguments, "popularty").err.startswith("There is no row 'popularty'. Did you mean 'popularity'?")


GROUPED_TABLE = """
title = "Groups"
metrics = ["Recall@20", "NDCG@20"]
candidates = ["full"]
digits = 4
seeds = [0]
extra = ["collapse", "groups"]

[settings]
split = "ratio"
num-server-rounds = 1
min-interactions = 60

[[rows]]
name = "fedavg"

[[rows]]
name = "hetefedrec"
settings = {strategy = "hetefedrec", hetefedrec-sizes = "2,3,4"}
"""


def test_groups_and_collapse_have_columns_where_a_method_knows_them(tmp_path):
    """In the order of the header, whatever the order in the file; four digits as asked for."""
    (tmp_path / "table.toml").write_text(GROUPED_TABLE)
    ended = finish(start("table", "table.toml", "--out", "out", "--engine", "local", cwd=tmp_path, home=tmp_path))
    assert ended.status == 0, ended.err
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("|")]
    assert cells[0][-3:-1] == ["by group, smallest data first", "variance of singular values"]
    assert cells[2][-3:-1] == ["–", "–"]
    summary = RunDirectory(tmp_path / "out" / "cells" / "hetefedrec" / "seed-0").read_summary()
    by_group = " / ".join(f"{group['test']['NDCG@20']:.4f}".removeprefix("0") for group in summary["groups"])
    assert cells[3][-3:-1] == [by_group, f"{summary['singular_variance']:.3g}"]
    assert cells[3][3] == f"{summary['test']['full']['NDCG@20']:.4f}".removeprefix("0")


MOVING_TABLE = """
title = "Private halves"
seeds = [0, 1]
extra = ["movement"]

[settings]
num-server-rounds = 1
min-interactions = 100

[[rows]]
name = "fedavg"

[[rows]]
name = "fedrap"
settings = {strategy = "fedrap"}
"""


def test_how_far_private_tables_moved_stands_beside_the_row(tmp_path, bouquet):
    (tmp_path / "table.toml").write_text(MOVING_TABLE)
    ended = bouquet("table", tmp_path / "table.toml", "--out", tmp_path / "out", "--engine", "local")
    assert ended.status == 0, ended.err
    text = (tmp_path / "out" / "table.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("|")]
    folders = [RunDirectory(tmp_path / "out" / "cells" / "fedrap" / f"seed-{seed}") for seed in (0, 1)]
    moved = np.mean([folder.read_summary()["moved"]["tables"]["personal_item_embedding"] for folder in folders])
    assert [line[-2] for line in cells] == ["private tables moved by", cells[1][-2], "–", f"{100 * moved:.3g} %"]
    assert "Private tables moved by: distance of a user's own item table" in text


def test_fairness_has_a_column_for_each_candidate_set(copied, bouquet):
    file, out = copied
    with_fairness = Path(file).read_text().replace("seeds = [0, 1]", 'seeds = [0, 1]\nextra = ["fairness"]')
    Path(file).write_text(with_fairness)
    ended = bouquet("table", file, "--out", out)
    assert ended.status == 0, ended.err
    cells = [[c.strip() for c in line.split("|")] for line in (out / "table.md").read_text().splitlines()]
    heading = next(line for line in cells if len(line) > 1)
    assert heading[-3:-1] == ["variance over users, full", "variance over users, sampled-99"]
    runs = [RunDirectory(out / "cells" / "fedavg" / f"seed-{seed}").read_summary()["fairness"] for seed in (0, 1)]
    full, sampled = (np.mean([run["variance"] for run in of]) for of in (runs, [run["sampled-99"] for run in runs]))
    assert next(line for line in cells if line[1:2] == ["FedAvg"])[-3:-1] == [figure(full), figure(sampled)]


ONE_ROW = """
title = "Popular items among those who know {least}"
seeds = [0]

[settings]
min-interactions = {least}

[[rows]]
name = "popularity"
centralized = "popularity"
"""


def test_several_tables_are_made_by_one_command(tmp_path, bouquet):
    files = [tmp_path / f"{name}.toml" for name in ("first", "second")]
    for file, least in zip(files, (60, 70), strict=True):
        file.write_text(ONE_ROW.format(least=least))
    ended = bouquet("table", *files, "--out", tmp_path / "out")
    assert ended.status == 0, ended.err
    page = (tmp_path / "out/tables.md").read_text()
    assert re.findall("^#.*", page, flags=re.MULTILINE) == [
        "## Popular items among those who know 60",
        "## Popular items among those who know 70",
    ]
    for name in ("first", "second"):
        assert csv_lines(tmp_path / "out" / name)["popularity", "full", "HR@10"]["seeds"] == "1"
        assert f"bouquet table {tmp_path / name}.toml --out {tmp_path / 'out' / name}" in page

    # A mistake in the last is found before the first is run.
    files[1].write_text(ONE_ROW.format(least="none"))
    ended = bouquet("table", *files, "--out", tmp_path / "other")
    assert ended.status == 2
    assert not (tmp_path / "other").exists()
    ended = bouquet("table", files[0], files[0], "--out", tmp_path / "other")
    assert ended.status == 2
    assert "Two of the tables have one name" in ended.err


def test_a_second_table_in_the_same_folder_is_refused(copied, bouquet):
    file, out = copied
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = bouquet("table", file, "--out", out)
    assert ended.status == 2
    assert "Another bouquet table is at work" in ended.err


def test_cells_from_before_a_setting_existed_count_as_having_its_default(copied, bouquet):
    file, out = copied
    text = (out / "table.md").read_text()
    for config in out.glob("cells/*/*/config.toml"):
        lines = config.read_text().splitlines(keepends=True)
        config.write_text("".join(line for line in lines if not line.startswith(("max-users", "repeats"))))
    ended = bouquet("table", file, "--out", out)
    assert ended.status == 0, ended.err
    assert (out / "table.md").read_text().splitlines()[:12] == text.splitlines()[:12]


def test_figures_are_means_and_errors_over_seeds(small_table):
    """With two seeds, s = |a - b| / sqrt 2, so the standard error of the mean is |a - b| / 2."""
    lines = csv_lines(small_table)
    for column in (("full", "NDCG@10"), ("sampled-99", "HR@10")):
        a, b = (mean_of(small_table, "fedavg", seed, *column) for seed in (0, 1))
        line = lines["fedavg", *column]
        assert float(line["mean"]) == pytest.approx((a + b) / 2, rel=1e-5)
        assert float(line["standard_error_seeds"]) == pytest.approx(abs(a - b) / 2, rel=1e-4)
    single = lines["popularity", "sampled-99", "HR@10"]
    assert (single["seeds"], single["standard_error_seeds"], single["printed"]) == ("1", "", "0.412")
    assert lines["popularity", "full", "HR@10"]["printed"] == ""


def by_seed(folder, row, seeds, candidates, metric):
    cells = [RunDirectory(folder / "cells" / row / f"seed-{seed}").read_users() for seed in seeds]
    order = [np.argsort(users) for users, _ in cells]
    return np.stack(
        [metric_values(v[o].astype(float), "test", candidates, metric) for (_, v), o in zip(cells, order, strict=True)]
    )


def test_tests_are_over_users_and_seeds_and_adjusted_for_the_whole_table(small_table):
    """Two rows in four columns: Holm over eight tests. Popularity has one seed because none matters to it."""
    expected = {}
    for candidates in ("full", "sampled-99"):
        for metric in ("HR@10", "NDCG@10"):
            fedavg = by_seed(small_table, "fedavg", (0, 1), candidates, metric)
            popular = by_seed(small_table, "popularity", (0,), candidates, metric)
            paper = by_seed(small_table, "fedavg-paper", (0, 1), candidates, metric)
            expected["popularity", candidates, metric] = seeded_test(popular, fedavg, seedless=(True, False))
            expected["fedavg-paper", candidates, metric] = seeded_test(paper, fedavg)
    adjusted = holm([test.p_value for test in expected.values()])
    lines = csv_lines(small_table)
    for (key, test), p_value in zip(expected.items(), adjusted, strict=True):
        line = lines[key]
        assert float(line["difference"]) == pytest.approx(test.mean, rel=1e-4, abs=1e-9)
        assert float(line["difference_standard_error"]) == pytest.approx(test.standard_error, rel=1e-4)
        assert float(line["difference_high"]) == pytest.approx(test.interval[1], rel=1e-4)
        assert float(line["p_adjusted"]) == pytest.approx(p_value, rel=1e-4)
        assert line["tested_over"] == "users and seeds"
    assert lines["fedavg", "full", "NDCG@10"]["p_adjusted"] == ""
    text = (small_table / "table.md").read_text()
    assert "p is adjusted for all 8 tests of this table (Holm)." in text
    assert "over users and seeds, crossed" in text
    assert "†" not in text


def test_one_seed_is_marked_and_rows_are_tested_against_their_own_base(copied, bouquet):
    file, out = copied
    text = Path(file).read_text().replace("seeds = [0, 1]", "seeds = [0]")
    Path(file).write_text(text.replace("settings = {train-neg", 'base = "popularity"\nsettings = {train-neg'))
    ended = bouquet("table", file, "--out", out)
    assert ended.status == 0, ended.err
    written = (out / "table.md").read_text()
    assert "Difference to FedAvg, with its 95 % interval." in written
    own = written[written.index("Difference to the own base") :].splitlines()
    assert [cell.strip() for cell in own[4].split("|")][1:3] == [
        "FedAvg **LEAKY**",
        "Most popular items (not federated)",
    ]
    assert own[4].count("†") == 4, "one seed of FedAvg: users only"
    assert "adjusted for all 12 tests of this table" in written
    assert "† Users only (sign-flip test)" in written
    assert "crossed" not in written
    lines = csv_lines(out)
    paper, popular = (lines[row, "full", "HR@10"] for row in ("fedavg-paper", "popularity"))
    assert float(paper["base_difference"]) == pytest.approx(float(paper["mean"]) - float(popular["mean"]), abs=1e-5)
    assert (paper["base"], paper["base_tested_over"], popular["base"]) == ("popularity", "users", "")
    assert "Difference to the own base" in (out / "table.tex").read_text()


def test_a_row_may_have_seeds_of_its_own(copied, bouquet):
    file, out = copied
    text = Path(file).read_text()
    assert text.count('name = "fedavg-paper"') == 1
    Path(file).write_text(text.replace('name = "fedavg-paper"', 'name = "fedavg-paper"\nseeds = [1]'))
    ended = bouquet("table", file, "--out", out)
    assert ended.status == 0, ended.err
    lines, written = csv_lines(out), (out / "table.md").read_text()
    assert [lines[row, "full", "HR@10"]["seeds"] for row in ("fedavg", "fedavg-paper")] == ["2", "1"]
    assert float(lines["fedavg-paper", "full", "HR@10"]["mean"]) == pytest.approx(
        mean_of(out, "fedavg-paper", 1, "full", "HR@10"), abs=1e-6
    )
    assert "Seeds 0, 1; FedAvg: 1 alone; the reported round" in written
    assert "† Users only (sign-flip test)" in written


def test_what_a_reader_must_not_overlook_is_said(small_table):
    text = (small_table / "table.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert any(line.startswith("| Most popular items (not federated) ") and ".412" in line for line in rows)
    assert any(line.startswith("| FedAvg **LEAKY** ") for line in rows)
    assert any(line.startswith("| FedAvg  ") for line in rows)
    assert "Printed figures of Most popular items: a paper, Table 2." in text
    assert "users with fewer than 60 items are left out" in text
    assert "have read all that is known by then, the validation item too." in text
    assert "bouquet table table.toml --out out\n" in text


def test_a_table_to_choose_by_shows_validation(copied, bouquet):
    """The same cells, read again: figures and user-by-user differences are those of the validation items."""
    file, out = copied
    text = SMALL_TABLE.replace("seeds =", 'part = "validation"\nseeds =')
    Path(file).write_text(text)
    done = bouquet("table", str(file), "--out", str(out), "--engine", "local")
    assert done.status == 0, done.err
    line = csv_lines(out)["fedavg-paper", "full", "HR@10"]
    folders = [out / "cells" / name / f"seed-{seed}" for name in ("fedavg-paper", "fedavg") for seed in (0, 1)]
    means = [json.loads((folder / "summary.json").read_text())["validation"]["full"]["HR@10"] for folder in folders]
    assert float(line["mean"]) == pytest.approx(np.mean(means[:2]), rel=1e-5)
    assert float(line["difference"]) == pytest.approx(np.mean(means[:2]) - np.mean(means[2:]), abs=1e-5)
    assert "All figures are those of the validation items" in (out / "table.md").read_text()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("seeds = [0, 1]", 'seeds = [0]\npart = "validation"\nextra = ["traffic"]', "'extra' are columns of the test"),
        ("against", "aganst", "there is no key 'aganst'. Did you mean 'against'?"),
        ('title = "A small table"', "", "'title' is missing."),
        ('label = "Most popular items"', "label = 3", "'label' in row 1 cannot be 3: input should be a valid string."),
        ('label = "Most popular items"', "lable = 3", "there is no key 'lable' in row 1. Did you mean 'label'?"),
        ('"HR@10", ', '"HR@11", ', "There is no metric 'HR@11'. Did you mean 'HR@10'?"),
        ('"full", ', '"all", ', "There is no candidate set 'all'."),
        ('{"HR@10" =', '{"HR" =', "There is no metric 'HR'."),
        ("seeds = [0, 1]", "seeds = [1, 1]", "A seed stands twice in seeds."),
        ('name = "fedavg"', 'name = "fedavg"\nseeds = [2, 2]', "A seed stands twice in seeds."),
        ("seeds = [0, 1]", "seeds = [-1]", "'seeds.0' cannot be -1: input should be greater than or equal to 0."),
        ('against = "fedavg"', 'against = "fedca"', "There is no row 'fedca'."),
        ('label = "FedAvg"\n', 'base = "fedca"\n', "There is no row 'fedca'."),
        ('label = "FedAvg"\n', 'base = "fedavg"\n', "row 'fedavg' is its own base."),
        ('name = "fedavg-paper"', 'name = "fedavg"', "There are two rows 'fedavg'."),
        ('name = "fedavg-paper"', 'name = "../x"', "'name' in row 3 cannot be '../x'"),
        ('centralized = "popularity"', 'centralized = "popular"', "There is no centralized model 'popular'."),
        ('label = "Most popular items"', "settings = {split-seed = 1}", "row 'popularity' is centralized"),
        ("num-server-rounds", "num-server-round", "There is no setting 'num-server-round'."),
        ("evaluate-every = 1", "seed = 1", "'seed' is set by the table for every cell; leave it out."),
        (
            "settings = {train",
            "settings = {split-seed = 1, train",
            "'split-seed' is 0 in row 'popularity' and 1 in row",
        ),
        (
            "settings = {train",
            'settings = {test-history = "training", train',
            "'test-history' is 'known' in row 'popularity' and 'training' in row",
        ),
        ('label = "FedAvg"\n', 'config = "absent.toml"\n', "There is no configuration file"),
    ],
)
def test_mistakes_in_the_file(tmp_path, old, new, sentence):
    path = tmp_path / "table.toml"
    assert old in SMALL_TABLE
    path.write_text(SMALL_TABLE.replace(old, new, 1))
    with pytest.raises(ConfigError) as error:
        cells_of(read_table_file(path), tmp_path, tmp_path / "out", [])
    assert sentence in str(error.value)


def test_settings_go_over_one_another(tmp_path):
    """Configuration file, then the table, then the row, then -c."""
    (tmp_path / "base.toml").write_text(
        "embedding-size = 4\nlocal-epochs = 4\nlearning-rate = 0.4\nweight-decay = 0.4\nbatch-size = 4\n"
    )
    path = tmp_path / "table.toml"
    path.write_text(
        'title = "t"\n[settings]\nlocal-epochs = 5\nlearning-rate = 0.5\nweight-decay = 0.5\n'
        '[[rows]]\nname = "a"\nconfig = "base.toml"\nsettings = {learning-rate = 0.6, weight-decay = 0.6}\n'
    )
    cells = cells_of(read_table_file(path), tmp_path, tmp_path / "out", ["weight-decay=0.7"])
    assert [cell.settings["seed"] for cell in cells] == [0, 1, 2]
    keys = ("embedding-size", "local-epochs", "learning-rate", "weight-decay", "batch-size", "optimizer")
    assert [cells[0].settings[key] for key in keys] == [4, 5, 0.6, 0.7, 4, "sgd"]


@pytest.mark.parametrize("path", sorted((REPOSITORY / "configs" / "tables").glob("*.toml")), ids=lambda path: path.stem)
def test_tables_of_the_project_are_sound(path, tmp_path):
    cells = cells_of(read_table_file(path), path.parent, tmp_path, ['data-dir="/data"'])
    assert {cell.settings["data-dir"] for cell in cells} == {"/data"}


def test_what_validation_chose_is_said_below_the_table(tmp_path, bouquet):
    text = SMALL_TABLE.replace('name = "popularity"', 'name = "mf"').replace('= "popularity"', '= "mf-bce"')
    text = text.replace('label = "Most popular items"', 'label = "MF"')
    text = text[: text.index('[[rows]]\nname = "fedavg"')].replace('against = "fedavg"\n', "")
    ease = '[[rows]]\nname = "ease"\nlabel = "EASE"\ncentralized = "ease"\n'
    (tmp_path / "table.toml").write_text(text + ease)
    out = tmp_path / "out"
    ended = bouquet("table", tmp_path / "table.toml", "--out", out, "--engine", "local")
    assert ended.status == 0, ended.err
    chosen = {
        path.parent.parent.name + path.parent.name[-2:]: json.loads(path.read_text())["chosen"]
        for path in out.glob("cells/*/*/summary.json")
    }
    assert set(chosen) == {"mf-0", "mf-1", "ease-0"}
    epochs = [f"{chosen[name]['epochs']}" for name in ("mf-0", "mf-1")]
    epochs = epochs[:1] if epochs[0] == epochs[1] else epochs
    sentence = (
        "Chosen by NDCG@10 (full) on the validation items, of at most 2,000 users drawn at random: "
        f"MF (not federated): epochs {' / '.join(epochs)}; "
        f"EASE (not federated): regularization {chosen['ease-0']['regularization']:g}."
    )
    assert sentence in (out / "table.md").read_text()
