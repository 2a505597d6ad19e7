"""`bouquet table`: the runs of a table, stopping and going on, and what it refuses."""

from __future__ import annotations

import fcntl
import re
import shutil
import signal

from bouquet.cli.table import State, state_of
from bouquet.experiments.table_cells import cells_of
from bouquet.experiments.table_file import read_table_file
from bouquet.reporting.run_directory import RunDirectory
from tests.cli.conftest import SMALL_TABLE, finish, start
from tests.cli.tables import csv_lines
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


def test_finished_cells_are_kept_and_freed(copied_table, bouquet):
    file, out = copied_table
    before = {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*")}
    table = (out / "table.csv").read_text()
    ended = bouquet("table", file, "--out", out, "--engine", "local")
    assert ended.status == 0
    assert ended.out.count(": done") == 5
    assert {path: path.stat().st_mtime_ns for path in out.glob("cells/*/*/*")} == before
    assert (out / "table.csv").read_text() == table
    kept = {"config.toml", "events.jsonl", "metrics.jsonl", "summary.json", "users.safetensors"}
    assert {path.name for path in before} == kept


def test_a_cell_of_other_settings_is_refused(copied_table, bouquet):
    file, out = copied_table
    ended = bouquet("table", file, "--out", out, "--engine", "local", "-c", "num-server-rounds=3")
    assert ended.status == 2
    assert "num-server-rounds = 2, and the table now says 3" in ended.err


def test_the_place_of_the_data_does_not_matter(copied_table, bouquet, tmp_path):
    file, out = copied_table
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


def test_a_second_table_in_the_same_folder_is_refused(copied_table, bouquet):
    file, out = copied_table
    with (out / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = bouquet("table", file, "--out", out)
    assert ended.status == 2
    assert "Another bouquet table is at work" in ended.err


def test_cells_from_before_a_setting_existed_count_as_having_its_default(copied_table, bouquet):
    file, out = copied_table
    text = (out / "table.md").read_text()
    for config in out.glob("cells/*/*/config.toml"):
        lines = config.read_text().splitlines(keepends=True)
        config.write_text("".join(line for line in lines if not line.startswith(("max-users", "repeats"))))
    ended = bouquet("table", file, "--out", out)
    assert ended.status == 0, ended.err
    assert (out / "table.md").read_text().splitlines()[:12] == text.splitlines()[:12]
