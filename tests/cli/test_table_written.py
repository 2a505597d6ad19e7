"""What a table says: means and errors, tests, columns that are asked for, and what must not be overlooked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bouquet.evaluation import holm, metric_values, seeded_test
from bouquet.experiments.figures import figure
from bouquet.reporting.run_directory import RunDirectory
from tests.cli.conftest import SMALL_TABLE, finish, start
from tests.cli.tables import csv_lines, mean_of

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


def test_fairness_has_a_column_for_each_candidate_set(copied_table, bouquet):
    file, out = copied_table
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


PRINTED_TABLE = """
title = "Beside a paper"

[settings]
min-interactions = 3

[[rows]]
name = "popularity"
centralized = "popularity"
printed = {"sampled-99" = {"HR@10" = 0.412}}
printed-source = "a paper, Table 2"
"""
ELSEWHERE = "The printed figures in this table's file are of another data set, and left out."


def test_printed_figures_stand_beside_their_own_data_set_only(tmp_path, bouquet):
    (tmp_path / "table.toml").write_text(PRINTED_TABLE)
    rows = [f"{user},{(3 * user + place) % 20},{place}" for user in range(12) for place in range(4)]
    (tmp_path / "data.csv").write_text("\n".join(["user,item,time", *rows]))
    other = f'dataset="file" data-file="{tmp_path / "data.csv"}" time-column="time"'
    for given, printed in (('dataset="synthetic"', "0.412"), (other, "")):
        out = tmp_path / f"printed-{printed}"
        ended = bouquet("table", tmp_path / "table.toml", "--out", out, "-c", given)
        assert ended.status == 0, ended.err
        line = csv_lines(out)["popularity", "sampled-99", "HR@10"]
        assert (line["printed"], line["printed_source"]) == (printed, "a paper, Table 2" if printed else "")
        text = (out / "table.md").read_text()
        assert (ELSEWHERE in text, "Printed figures of popularity: a paper" in text) == (not printed, bool(printed))


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


def test_one_seed_is_marked_and_rows_are_tested_against_their_own_base(copied_table, bouquet):
    file, out = copied_table
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


def test_a_row_may_have_seeds_of_its_own(copied_table, bouquet):
    file, out = copied_table
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
    assert "Seeds 0, 1; FedAvg LEAKY: 1 alone; the reported round" in written
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


def test_a_table_to_choose_by_shows_validation(copied_table, bouquet):
    """The same cells, read again: figures and user-by-user differences are those of the validation items."""
    file, out = copied_table
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
