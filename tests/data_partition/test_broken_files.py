"""What is wrong with a file is said with its name, its line and what was expected."""

from __future__ import annotations

import gzip
import re

import pytest

from bouquet.errors import DataError
from data_partition import load
from tests.data_partition.tables import write

HEADER = "userId,movieId,rating,timestamp\n"

# Data set, file, content, message.
BROKEN = [
    (
        "filmtrust",
        "ratings.dat",
        "1 1 2\n1 2\n",
        "ratings.dat, line 2: expected user, item, rating separated by blanks, got '1 2'",
    ),
    (
        "filmtrust",
        "ratings.dat",
        "1 2\n",
        "ratings.dat, line 1: expected user, item, rating separated by blanks, got '1 2'",
    ),
    (
        "filmtrust",
        "ratings.dat",
        "1 2 3\n1 2 3 4\n",
        "ratings.dat, line 2: expected user, item, rating separated by blanks, got '1 2 3 4'",
    ),
    (
        "filmtrust",
        "ratings.dat",
        "1 2 3\n1 2 3 4 5\n",
        "line 2: expected user, item, rating separated by blanks, got '1 2 3 4 5'",
    ),
    (
        "filmtrust",
        "ratings.dat",
        "1 2 3 4 5\n1 2 3\n",
        "line 1: expected user, item, rating separated by blanks, got '1 2 3 4 5'",
    ),
    ("filmtrust", "ratings.dat", "1 2 3\n\n1 x 3\n", "ratings.dat, line 3: item must be a whole number, got 'x'"),
    ("filmtrust", "ratings.dat", "", "ratings.dat is empty."),
    ("ml-100k", "u.data", "1\t2\t3\t4\n1\t\t3\t4\n", "u.data, line 2: item is missing"),
    ("ml-100k", "u.data", "1\t2\t3\t4\n1.5\t2\t3\t4\n", "u.data, line 2: user must be a whole number, got '1.5'"),
    ("ml-100k", "u.data", "1\t2\t3\tsoon\n", "u.data, line 1: time must be a number, got 'soon'"),
    ("ml-100k", "u.data", "1\t2\t3\t4\n1\t2\t3\t\n", "u.data, line 2: time is missing"),
    ("ml-100k", "u.data", "1\t2\t3\t4\n1\t2\t3\tnan\n", "u.data, line 2: time must be a number, got 'nan'"),
    ("ml-100k", "u.data", "1\t2\tinf\t4\n", "u.data, line 1: rating must be a number, got 'inf'"),
    (
        "ml-100k",
        "u.data",
        "99999999999999999999\t2\t3\t4\n",
        "line 1: user must be a whole number, got '99999999999999999999'",
    ),
    (
        "ml-100k",
        "u.data",
        "1 2 3 4\n",
        "u.data, line 1: expected user, item, rating, time separated by tabs, got '1 2 3 4'",
    ),
    ("ml-100k", "u.data", b"1\t2\t3\t4\n\xff\t2\t3\t4\n", "u.data, line 2: the text is not UTF-8."),
    (
        "ml-1m",
        "ratings.dat",
        "1::2::3::4\n1::2:3::4\n",
        "ratings.dat, line 2: expected user, item, rating, time separated by '::', got '1::2:3::4'",
    ),
    (
        "ml-latest-small",
        "ratings.csv",
        HEADER + "1,2,3\n",
        "ratings.csv, line 2: expected userId, movieId, rating, timestamp separated by commas, got '1,2,3'",
    ),
    ("ml-latest-small", "ratings.csv", HEADER, "ratings.csv has no rows."),
    ("ml-latest-small", "ratings.csv", "", "ratings.csv is empty."),
    (
        "ml-latest-small",
        "ratings.csv",
        "user,movieId,rating,timestamp\n1,2,3,4\n",
        "ratings.csv, line 1: there is no column 'userId', only user, movieId, rating, timestamp.",
    ),
    (
        "wikipedia",
        "wikipedia.csv",
        "u,i,ts,label\n1,2,3.0,0,.1\n4,5\n",
        "wikipedia.csv, line 3: expected user, item, time, label and more separated by commas, got '4,5'",
    ),
    ("amazon-beauty", "ratings_Beauty.csv", "A1,B1,5,9\n,B1,5,9\n", "ratings_Beauty.csv, line 2: user is missing"),
    (
        "amazon-beauty",
        "ratings_Beauty.csv",
        'A1,"B\n1",5,9\nA1,B1,x,9\n',
        "ratings_Beauty.csv, line 3: rating must be a number, got 'x'",
    ),
    (
        "qb-article",
        "QB-article.csv",
        "user_id,item_id,click,age\n1,2,1,\n1,2,1\n",
        "QB-article.csv, line 3: expected user_id, item_id, click, age separated by commas",
    ),
    ("qb-article", "QB-article.csv", "user_id,item_id,click\n1,2,0\n", "qb-article has no rows."),
]


@pytest.mark.parametrize(("dataset", "file", "content", "message"), BROKEN)
def test_broken_line(tmp_path, dataset, file, content, message):
    write(tmp_path / file, content)
    with pytest.raises(DataError, match=re.escape(message)):
        load(dataset, str(tmp_path))


def test_a_broken_line_far_down_in_a_packed_file(tmp_path):
    write(tmp_path / "u.data.gz", "1\t2\t3\t4\n" * 70_000 + "1\t2\n" + "1\t2\t3\t4\n" * 10)
    with pytest.raises(DataError, match=re.escape("u.data.gz, line 70001: expected user, item")):
        load("ml-100k", str(tmp_path))


def test_long_lines_are_cut_in_the_message(tmp_path):
    write(tmp_path / "u.data", "x" * 10_000)
    with pytest.raises(DataError) as error:
        load("ml-100k", str(tmp_path))
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("separator", ["\t", "::"], ids=["tabs", "colons"])
def test_damaged_archives(tmp_path, separator):
    dataset, file = ("ml-100k", "u.data.gz") if separator == "\t" else ("ml-1m", "ratings.dat.gz")
    lines = "".join(separator.join([str(n), str(n * 7919 % 1000), "3", str(n)]) + "\n" for n in range(20_000))
    whole = gzip.compress(lines.encode())
    for content in (whole[: len(whole) // 2], whole[:5], b"not packed at all", whole[:-8] + b"\0" * 8, b""):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(DataError, match=file.replace(".", r"\.")):
            load(dataset, str(tmp_path))
    (tmp_path / file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="damaged or incomplete"):
        load(dataset, str(tmp_path))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("u.item", "3|Title|x\n\n4\n", "u.item, line 3: expected id and title separated by '|'"),
        ("u.item.gz", b"not packed", "u.item.gz is damaged"),
    ],
)
def test_broken_titles(tmp_path, file, content, message):
    (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    write(tmp_path / "u.data", "1\t3\t3\t4\n")
    with pytest.raises(DataError, match=re.escape(message)):
        load("ml-100k", str(tmp_path))


@pytest.mark.parametrize("content", ["[1, 2", "[1, 2]", '{"a": "b"}'])
def test_broken_item_map(tmp_path, content):
    for name in ("train.txt", "valid.txt", "test.txt"):
        write(tmp_path / name, "1\t2\t3\n")
    write(tmp_path / "imap.json", content)
    with pytest.raises(DataError, match=re.escape("imap.json is not a table of item to number")):
        load("amazon-beauty-5core", str(tmp_path))


def test_an_empty_field_too_many_is_no_reason_to_refuse(tmp_path):
    write(tmp_path / "ratings.csv", HEADER + "1,2,3,4,\n1,3,3,4,\n1,x,3,4\n")
    with pytest.raises(DataError, match=re.escape("ratings.csv, line 4: item must be a whole number, got 'x'")):
        load("ml-latest-small", str(tmp_path))
    write(tmp_path / "ratings.csv", HEADER + "1,2,3,4,\n1,3,3,4\n")
    assert load("ml-latest-small", str(tmp_path)).num_interactions == 2


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("0 1 2\n\n1 x 3\n", "0 3\n", "train.txt, line 3: item must be a whole number, got 'x'"),
        ("0 1\n", "0 2 3.5\n", "test.txt, line 1: item must be a whole number, got '3.5'"),
        ("0 1\n-1 2\n", "0 3\n", "train.txt, line 2: user must be a whole number of digits alone, got '-1'"),
        ("", "0 3\n", "train.txt is empty."),
        ("0 1\n", "0 2\n7 3\n", "test.txt: user 7 has nothing to learn from in train.txt."),
    ],
)
def test_broken_line_of_a_published_split(tmp_path, train, test, message):
    write(tmp_path / "train.txt", train)
    write(tmp_path / "test.txt", test)
    with pytest.raises(DataError, match=re.escape(message)):
        load("gowalla", str(tmp_path))
