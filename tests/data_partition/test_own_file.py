"""A file of the user's own."""

from __future__ import annotations

import os
import re

import pandas as pd
import pytest

from bouquet.config import DataOptions
from bouquet.errors import ConfigError, DataError
from client_app.node.histories import interactions_of
from data_partition import load
from tests.data_partition.tables import raw_histories, write
from tests.runs.helpers import write_data

ROWS = [("anna", "007", "2026-01-02"), ("bob", "7", "2026-01-01"), ("anna", "7", "2026-01-01T10:00:00")]


@pytest.mark.parametrize(("ending", "separator"), [("csv", ","), ("tsv", "\t"), ("csv.gz", ","), ("tab", "\t")])
@pytest.mark.parametrize("dates", [True, False])
def test_text(tmp_path, ending, separator, dates):
    times = [row[2] for row in ROWS] if dates else ["2.5", "1", "1.5"]
    lines = [("who", "extra", "what", "when")]
    lines += [(user, "", item, time) for (user, item, _), time in zip(ROWS, times, strict=True)]
    path = write(tmp_path / f"mine.{ending}", "".join(separator.join(line) + "\n" for line in lines))
    made = load("file", data_file=str(path), user_column="who", item_column="what", time_column="when")
    assert raw_histories(made) == {"anna": ["7", "007"], "bob": ["7"]}
    assert made.has_time
    assert made.name == path.name
    assert raw_histories(load("file", data_file=str(path), user_column="who", item_column="what")) == {
        "anna": ["007", "7"],
        "bob": ["7"],
    }


@pytest.mark.parametrize("dates", ["text", "times", "zoned", "numbers"])
def test_parquet(tmp_path, dates):
    table = pd.DataFrame(ROWS, columns=["user", "item", "time"])
    if dates in ("times", "zoned"):
        table["time"] = pd.to_datetime(table["time"], format="ISO8601", utc=dates == "zoned")
    if dates == "numbers":
        table["time"] = [3, 1, 2]
    table.to_parquet(tmp_path / "mine.parquet")
    made = load("file", data_file=str(tmp_path / "mine.parquet"), time_column="time")
    assert raw_histories(made) == {"anna": ["7", "007"], "bob": ["7"]}


def test_parquet_whole_numbers_sort_as_numbers(tmp_path):
    pd.DataFrame({"user": [10, 9], "item": [1, 2]}).to_parquet(tmp_path / "mine.parquet")
    assert load("file", data_file=str(tmp_path / "mine.parquet")).user_ids.tolist() == ["9", "10"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("user,item,at\na,b,2026-01-01\na,c,soon\n", "mine.csv, line 3: time must be a date like 2026-11-21"),
        ("user,item,at\na,b,1\na,c,2\na,d,2026-01-01\n", "mine.csv, line 4: time must be a number, got '2026-01-01'"),
        (
            "user,item,at\na,b,1\na,c,2026-01-01\n",
            "mine.csv, line 2: time must be a date like 2026-11-21 or 2026-11-21T",
        ),
        ("user,item,at\na,b,1\na,c,\n", "mine.csv, line 3: time is missing"),
        ("user,item,at\na,b,2026-01-01\na,c,\n", "mine.csv, line 3: time is missing"),
        ("user,item,at\na,b,2026-01-01\na,c,NaT\n", "mine.csv, line 3: time is missing"),
        ("user,item,at\na, ,1\n", "mine.csv, line 2: item is missing"),
        ("user,item,at\na,,1\n", "mine.csv, line 2: item is missing"),
        ("user,item\na,b\n", "mine.csv, line 1: there is no column 'at', only user, item."),
        ("user,item,at\na,b\n", "mine.csv, line 2: expected user, item, at separated by commas, got 'a,b'"),
        ("user,item,at\na,b,1,x\n", "mine.csv, line 2: expected user, item, at separated by commas, got 'a,b,1,x'"),
        ("", "mine.csv is empty."),
    ],
)
def test_broken_text(tmp_path, content, message):
    path = write(tmp_path / "mine.csv", content)
    with pytest.raises(DataError, match=re.escape(message)):
        load("file", data_file=str(path), time_column="at")


def test_broken_parquet(tmp_path):
    path = tmp_path / "mine.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(DataError, match=r"mine\.parquet is not a Parquet file"):
        load("file", data_file=str(path))
    pd.DataFrame({"user": ["a", None], "item": ["x", "y"], "at": ["soon", "1"]}).to_parquet(path)
    with pytest.raises(DataError, match=r"mine\.parquet, row 2: user is missing"):
        load("file", data_file=str(path))
    with pytest.raises(DataError, match=r"mine\.parquet: there is no column 'what', only user, item, at"):
        load("file", data_file=str(path), item_column="what")
    pd.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "at": ["soon", "1"]}).to_parquet(path)
    with pytest.raises(DataError, match=r"mine\.parquet, row 1: time must be a number, got 'soon'"):
        load("file", data_file=str(path), time_column="at")


def test_refusals(tmp_path):
    with pytest.raises(ConfigError, match="needs data-file"):
        load("file")
    with pytest.raises(ConfigError, match="data-file is read with dataset 'file', not 'ml-100k'"):
        load("ml-100k", data_file="x.csv")
    with pytest.raises(ConfigError, match="must differ, not a, a"):
        load("file", data_file="x.csv", user_column="a", item_column="a")
    with pytest.raises(DataError, match="is not a file"):
        load("file", data_file=str(tmp_path / "none.csv"))
    with pytest.raises(DataError, match=r"notes\.xls: a data-file must end in"):
        load("file", data_file=str(write(tmp_path / "notes.xls", "x")))


def test_a_process_reads_a_file_once_and_again_when_it_was_changed(tmp_path):
    file = write_data(tmp_path / "data.csv", users=10)
    options = DataOptions(dataset="file", data_file=str(file))
    first = interactions_of(options)
    assert interactions_of(options) is first
    write_data(file, users=11)
    os.utime(file, ns=(0, 1))
    assert interactions_of(options).num_users == 11
