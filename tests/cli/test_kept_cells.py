"""`bouquet table --cells`: tables out of what was committed, without data and without training."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import bouquet as api
from bouquet.config import RunConfig
from bouquet.errors import DataError
from bouquet.evaluation import Ranks, user_metrics
from bouquet.evaluation.metrics import METRICS
from bouquet.experiments import kept_cells, kept_runs
from bouquet.experiments.kept_cells import cell_files, read_cell, write_cell
from bouquet.experiments.kept_runs import of_run, revision_of
from bouquet.reporting.run_directory import RunDirectory
from models.centralized import REVISIONS

WRITTEN = ("table.md", "table.csv", "table.tex")


@pytest.fixture
def kept(small_table, tmp_path, bouquet):
    """(file of the table, folder of its kept cells), written from the finished table."""
    shutil.copytree(small_table, tmp_path / "out")
    file = shutil.copy(small_table.parent / "table.toml", tmp_path)
    ended = bouquet("table", file, "--out", tmp_path / "out", "--engine", "local", "--cells", tmp_path / "cells")
    assert ended.status == 0, ended.err
    return file, tmp_path / "cells"


def test_a_table_is_made_again_from_kept_cells_alone(small_table, kept, tmp_path, bouquet, monkeypatch):
    """Byte by byte, where nothing can be trained and no data can be read."""
    _, cells = kept
    monkeypatch.setattr("bouquet.cli.table.execute", None)
    monkeypatch.setattr("bouquet.cli.table.ground_of", None)
    monkeypatch.chdir(tmp_path)
    shutil.rmtree("out")
    ended = bouquet("table", "table.toml", "--out", "out", "--engine", "local", "--cells", cells)
    assert ended.status == 0, ended.err
    assert ended.out.count(": kept") == 5
    for name in WRITTEN:
        assert Path("out", name).read_bytes() == (small_table / name).read_bytes()
    assert len(cell_files(cells)) == 5
    for path in cell_files(cells):
        assert path.stat().st_size < 8000


def test_a_cell_of_other_settings_is_run_and_stands_beside_the_first(kept, tmp_path, bouquet):
    file, cells = kept
    arguments = ("table", file, "--out", tmp_path / "other", "--engine", "local", "--cells", cells, "--only", "fedavg")
    ended = bouquet(*arguments, "-c", "learning-rate=0.2")
    assert ended.status == 0, ended.err
    assert "fedavg, seed 0 is run: the nearest kept cell has learning-rate = 0.1 and not 0.2" in ended.out
    assert ": kept" not in ended.out
    assert len(cell_files(cells)) == 7
    # A place is no setting: what was run elsewhere is taken.
    shutil.rmtree(tmp_path / "other")
    ended = bouquet(*arguments, "-c", 'learning-rate=0.2 data-dir="/elsewhere"')
    assert ended.out.count(": kept") == 2


def test_a_cell_of_another_revision_is_not_taken(kept, tmp_path, bouquet, monkeypatch):
    file, cells = kept
    monkeypatch.setattr(kept_runs, "REVISION", 2)
    arguments = ("table", file, "--out", tmp_path / "other", "--cells", cells, "--only", "popularity")
    ended = bouquet(*arguments)
    assert "popularity, seed 0 is run: the nearest kept cell has revision = '1' and not '2'." in ended.out
    shutil.rmtree(tmp_path / "other")
    assert ": kept" in bouquet(*arguments).out


def test_a_pooled_model_has_a_revision_of_its_own():
    settings = RunConfig().to_flat()
    assert revision_of(settings, "mf-bpr") == f"{kept_runs.REVISION}.{REVISIONS['mf-bpr']}"
    assert revision_of(settings, "popularity") == str(kept_runs.REVISION)


@pytest.mark.parametrize("what", ["fedavg.seed-0", "users"])
def test_a_damaged_cell_is_named(kept, tmp_path, bouquet, what):
    file, cells = kept
    path = sorted(cells.rglob(f"{what}*"))[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    ended = bouquet("table", file, "--out", tmp_path / "other", "--cells", cells)
    assert ended.status == 1
    assert ended.err.startswith(f"{path} is damaged and cannot be read; remove it, and its cell is run again")
    assert len(ended.err.splitlines()) == 1
    path.unlink()
    if what == "users":
        with pytest.raises(DataError, match=r"users-.* is missing, which kept cells beside it need"):
            read_cell(cell_files(cells)[0])


def test_what_kept_cells_cannot_give_is_refused_before_any_run(kept, tmp_path, bouquet):
    file, cells = kept
    arguments = ("table", file, "--out", tmp_path / "other", "--cells", cells)
    own = tmp_path / "own.csv"
    own.write_text("user,item\na,b\n")
    assert "hold metrics of every person in it" in bouquet(*arguments, "-c", f'dataset="file" data-file="{own}"').err
    Path(file).write_text(Path(file).read_text().replace("seeds =", 'figure = {x = "round"}\nseeds ='))
    assert "draws rounds, which kept cells do not have" in bouquet(*arguments).err


def test_every_metric_comes_back_to_the_last_bit(small_table, tmp_path):
    """Ranks without ties as integers; ties, several held-out items and users without any as they are."""
    ranks = np.array([1, 2, 5, 10, 11, 20, 21, 1000, 40_981])
    one_each = user_metrics(Ranks(np.arange(10), ranks - 1, np.zeros(9, np.int64)))
    tied = user_metrics(Ranks(np.arange(3), np.array([0, 7]), np.array([1, 5])))
    several = user_metrics(Ranks(np.array([0, 3, 3]), np.array([0, 4, 30]), np.array([0, 0, 1])))
    rows = np.concatenate([one_each, tied, several]).astype(np.float32)
    assert np.isnan(rows[-1]).all()
    values = np.stack([np.stack([rows, rows[::-1]], 1), np.stack([rows[::-1], rows], 1)], 1)
    run = of_run(RunDirectory(small_table / "cells" / "fedavg" / "seed-0"))
    users, sizes = np.arange(len(rows), dtype=np.uint64) * 2**60, np.arange(len(rows)) * 300
    cell = kept_cells.KeptCell(run.settings, run.engine, run.versions, "1", run.summary, users, sizes, values)
    path = write_cell(tmp_path, cell)
    found = read_cell(path)
    assert found.values.tobytes() == values.tobytes()
    assert (found.users == users).all()
    assert (found.sizes == sizes).all()
    assert (found.settings, found.summary, found.versions) == (cell.settings, cell.summary, cell.versions)
    content = path.read_bytes()
    assert write_cell(tmp_path, cell).read_bytes() == content, "the same cell is the same file"
    codes, others = kept_cells._coded(values)
    assert codes[:9, 0, 0].tolist() == ranks.tolist()
    assert len(others) == 3


def test_kept_cells_as_dataframes(small_table, kept):
    """What a table shows, what its tests need, and cells as runs of `bouquet.compare`."""
    _, cells = kept
    table = api.kept_cells(cells)
    assert sorted(table["method"]) == ["fedavg"] * 4 + ["popularity"]
    run = RunDirectory(small_table / "cells" / "fedavg" / "seed-1")
    line = table[(table["method"] == "fedavg") & (table["seed"] == 1) & ~table["leaky"]].iloc[0]
    assert line["full/NDCG@10"] == run.read_summary()["test"]["full"]["NDCG@10"]
    assert line["best_round"] == run.read_summary()["best_round"]
    assert line["train_negatives"] == "honest"
    people = api.kept_cells(cells, per_user=True)
    assert len(people) == 5 * len(run.read_users()[0]) * 4
    mine = people[(people["file"] == line["file"]) & (people["part"] == "test") & (people["candidates"] == "full")]
    users, values = run.read_users()
    expected = dict(zip((f"{user:016x}" for user in users), values[:, 1, 0, METRICS.index("MRR")], strict=True))
    assert dict(zip(mine["user"], mine["MRR"], strict=True)) == pytest.approx(expected)
    files = table[(table["method"] == "fedavg") & ~table["leaky"]]["file"].tolist()
    one = api.compare([files, table[table["method"] == "popularity"]["file"].iloc[0]])
    other = api.compare([small_table / "cells" / "fedavg", small_table / "cells" / "popularity"])
    assert one.drop(columns="run").equals(other.drop(columns="run"))
    with pytest.raises(api.DataError, match="There are no kept cells in"):
        api.kept_cells(small_table / "nowhere")
