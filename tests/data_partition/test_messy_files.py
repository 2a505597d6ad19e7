"""Files as people have them: found out, refused with the line, or left out and counted."""

from __future__ import annotations

import codecs
import gzip
import re

import numpy as np
import pandas as pd
import pytest

from bouquet.errors import DataError
from data_partition import load, make_split, remarks
from data_partition.readers.times import times_of
from tests.data_partition.tables import raw_histories

# anna: apple, pear, "fig, dried"; bob: pear, apple; carl: pear.
ROWS = [
    ("anna", "pear", "2024-03-02", "Crème, brûlée"),
    ("anna", "apple", "2024-03-01", "Apfel"),
    ("bob", "pear", "2024-03-01", "Crème, brûlée"),
    ("bob", "apple", "2024-03-05", "Apfel"),
    ("anna", "fig", "2024-03-03", 'The "good" one'),
    ("carl", "pear", "2024-03-09", "Crème, brûlée"),
]
HISTORIES = {"anna": ["apple", "pear", "fig"], "bob": ["pear", "apple"], "carl": ["pear"]}
TITLES = ("Apfel", 'The "good" one', "Crème, brûlée")
HEADER = ("user", "item", "time", "title")


def text(rows=ROWS, separator=",", end="\n", header=HEADER):
    """As a spreadsheet writes it: quoted where a text has a separator or a quotation mark."""

    def field(value):
        return f'"{value.replace(chr(34), chr(34) * 2)}"' if separator in value or '"' in value else value

    lines = [*([header] if header else []), *rows]
    return "".join(separator.join(map(field, line)) + end for line in lines)


def read(tmp_path, content, name="mine.csv", **settings):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return load("file", data_file=str(path), **{"time_column": "time", "title_column": "title", **settings})


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"], ids=["comma", "semicolon", "tab", "bar"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["unix", "windows", "old-mac"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16"])
def test_separator_line_ends_and_encoding_are_found(tmp_path, separator, end, encoding):
    found = read(tmp_path, text(separator=separator, end=end).encode(encoding))
    assert raw_histories(found) == HISTORIES
    assert found.titles == TITLES
    assert found.reading.rows == len(ROWS)
    said = " ".join(remarks(found))
    assert ("separated by" in said) == (separator != ",")
    assert ("was read as cp1252" in said) == (encoding in ("latin-1", "cp1252"))


@pytest.mark.parametrize("name", ["mine.csv", "mine.tsv", "mine.txt", "mine.dat", "mine.csv.gz"])
def test_the_ending_promises_nothing(tmp_path, name):
    content = text(separator=";").encode()
    assert raw_histories(read(tmp_path, gzip.compress(content) if name.endswith("gz") else content, name)) == HISTORIES


@pytest.mark.parametrize(
    ("encoding", "title"),
    [
        ("cp1251", "Ирония судьбы, или С лёгким паром"),
        ("shift_jis", "千と千尋の神隠し"),
        ("gb18030", "卧虎藏龙，让子弹飞，霸王别姬与活着"),
        ("utf-16-be", "Crème"),
    ],
)
def test_titles_of_other_alphabets(tmp_path, encoding, title):
    rows = [(user, item, time, title) for user, item, time, _ in ROWS]
    mark = codecs.BOM_UTF16_BE if encoding == "utf-16-be" else b""
    assert set(read(tmp_path, mark + text(rows).encode(encoding)).titles) == {title}


def test_blank_lines_and_a_spreadsheets_first_line(tmp_path):
    lines = text(separator=";").splitlines()
    content = "\n\nsep=;\n" + lines[0] + "\n\n" + "\n;;;\n".join(lines[1:]) + "\n \n\n;;;\n"
    found = read(tmp_path, content.replace("\n\nsep", "sep"))
    assert raw_histories(found) == HISTORIES
    assert (found.reading.rows, found.reading.skipped) == (len(ROWS), 0)


def test_blanks_around_ids(tmp_path):
    found = read(tmp_path, "user , item, time\nanna , apple,1\n anna,pear ,2\n", title_column="")
    assert raw_histories(found) == {"anna": ["apple", "pear"]}


# What stands in the file, and what is said of it.
BROKEN = [
    ("anna,kiwi,2024-03-04", "expected user, item, time, title separated by commas, got 'anna,kiwi,2024-03-04'"),
    ("anna,kiwi,2024-03-04,Kiwi,more", "got 'anna,kiwi,2024-03-04,Kiwi,more'"),
    (",kiwi,2024-03-04,Kiwi", "user is missing"),
    ("NaN,kiwi,2024-03-04,Kiwi", "user is missing"),
    ("anna,null,2024-03-04,Kiwi", "item is missing"),
    ("anna,kiwi,,Kiwi", "time is missing"),
    ("anna,kiwi,NaT,Kiwi", "time is missing"),
    ("anna,kiwi,yesterday,Kiwi", "time must be a date like 2026-11-21 or 2026-11-21T10:00:00, got 'yesterday'"),
    ("anna,kiwi,2024-02-31,Kiwi", "got '2024-02-31'"),
    ('anna,kiwi,2024-03-04,"Kiwi', "a quotation mark is not closed"),
    ("anna,kiwi,2024-03-04,Ki\0wi", "it holds zero bytes"),
    (b"anna,ki\xffwi,2024-03-04,Kiwi", "its bytes are no text in the encoding of the file"),
]


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize(("line", "reason"), BROKEN, ids=[reason[:30] for _, reason in BROKEN])
def test_a_broken_row_is_refused_with_its_line_or_left_out(tmp_path, line, reason, place):
    lines = text().encode().splitlines()
    at = {"first": 1, "middle": 4, "last": len(lines)}[place]
    lines.insert(at, line if isinstance(line, bytes) else line.encode())
    # A program that was killed left no line end.
    content = b"\n".join(lines) + (b"" if place == "last" else b"\n")
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        read(tmp_path, content)
    assert f"mine.csv, line {at + 1}: " in str(error.value)
    assert "1 of 7 rows is broken; skip-broken-rows = true leaves such rows out." in str(error.value)
    found = read(tmp_path, content, skip_broken_rows=True)
    assert raw_histories(found) == HISTORIES
    assert found.titles == TITLES
    assert (found.reading.rows, found.reading.skipped) == (7, 1)
    assert found.reading.examples[0].startswith(f"line {at + 1}: ")
    assert reason in found.reading.examples[0]


def test_many_broken_rows_are_counted_and_three_are_shown(tmp_path):
    content = text() + "".join(line + "\n" for line, _ in BROKEN if isinstance(line, str))
    found = read(tmp_path, content, skip_broken_rows=True)
    assert raw_histories(found) == HISTORIES
    assert found.reading.skipped == len(BROKEN) - 1
    assert [example.split(":")[0] for example in found.reading.examples] == ["line 8", "line 9", "line 10"]
    assert remarks(found)[0].startswith("11 of 17 rows cannot be read and are left out, among them line 8: expected ")


def test_an_open_quotation_mark_costs_its_line_and_no_other(tmp_path):
    """A CSV reader would take all lines between two stray marks for one title."""
    rows = [f"u{n},i{n % 7},{n},x" for n in range(1, 101)]
    rows[9] = 'u10,i3,10,"x'
    rows[59] = 'u60,i4,60,x"'
    found = read(tmp_path, "user,item,time,title\n" + "\n".join(rows) + "\n", skip_broken_rows=True)
    assert (found.reading.rows, found.reading.skipped) == (100, 1)
    assert found.num_users == 99


def test_a_quoted_title_may_hold_line_breaks(tmp_path):
    found = read(tmp_path, 'user,item,time,title\na,x,1,"one\ntwo"\na,y,2,"three, ""3"""\nb,x,1,z\n')
    assert raw_histories(found) == {"a": ["x", "y"], "b": ["x"]}
    assert found.titles == ("one\ntwo", 'three, "3"')


def test_none_of_the_rows_can_be_read(tmp_path):
    with pytest.raises(DataError, match=r"mine\.csv, line 2: item is missing\. None of the 2 rows can be read\."):
        read(tmp_path, "user,item,time,title\na,,1,x\nb,,2,x\n", skip_broken_rows=True)


@pytest.mark.parametrize(
    ("header", "settings", "sentence"),
    [
        ("User;Item;Time;Title", {}, "there is no column 'user', only User, Item, Time, Title. Did you mean 'User'? "
         "Name yours with user-column."),
        ("user,item,tmie,title", {}, "Did you mean 'tmie'? Name yours with time-column."),
        ("userId,movieId,timestamp,title", {"user_column": "userId"}, "there is no column 'item', only userId, "
         "movieId, timestamp, title. Name yours with item-column."),
        ("user,item,user,title", {"time_column": ""}, "mine.csv: 2 columns are called 'user'; rename all but one."),
    ],
)  # fmt: skip
def test_columns_that_are_not_there(tmp_path, header, settings, sentence):
    with pytest.raises(DataError, match=re.escape(sentence)):
        read(tmp_path, header + "\n" + text(header=None), **settings)


def test_without_a_header_columns_are_called_by_their_places(tmp_path):
    content = text(separator="\t", header=None)
    with pytest.raises(DataError, match=r"mine\.csv, line 1: there is no header, for 'anna\tpear\t2024-03-02\tCrème"):
        read(tmp_path, content)
    places = {"user_column": "1", "item_column": "2", "time_column": "3", "title_column": "4"}
    found = read(tmp_path, content, **places)
    assert raw_histories(found) == HISTORIES
    assert found.reading.form == "separated by tabs, without a header"


def test_times_of_all_forms_in_one_column(tmp_path):
    """2024-03-01 is 1709251200 s. Day by day in another form: ISO, s, ms, ISO with a zone, microseconds, ns."""
    day = 86_400
    first = 1_709_251_200
    times = ["2024-03-01", str(first + day), str((first + 2 * day) * 1000), "2024-03-04T02:00:00+02:00"]
    times += [str((first + 4 * day) * 10**6), str((first + 5 * day) * 10**9), "2024-03-07 00:00:00.5"]
    expected = first + day * np.arange(7) + [0, 0, 0, 0, 0, 0, 0.5]
    np.testing.assert_allclose(times_of(pd.Series(times)).values, expected, atol=1e-3)
    shuffled = [6, 2, 4, 0, 5, 1, 3]
    content = "user,item,time\n" + "".join(f"a,i{n},{times[n]}\n" for n in shuffled)
    found = read(tmp_path, content, title_column="")
    assert raw_histories(found) == {"a": [f"i{n}" for n in range(7)]}
    assert remarks(found) == ["mine.csv was read with times of several forms or units."]
    pd.DataFrame({"user": "a", "item": [f"i{n}" for n in shuffled], "time": [times[n] for n in shuffled]}).to_parquet(
        tmp_path / "mine.parquet"
    )
    found = load("file", data_file=str(tmp_path / "mine.parquet"), time_column="time")
    assert raw_histories(found) == {"a": [f"i{n}" for n in range(7)]}


@pytest.mark.parametrize(
    ("times", "bad", "mixed"),
    [
        ([1, 2.5, -3], [], False),
        ([20240301, 20240302], [], False),
        # A counter of milliseconds from the beginning of a simulation is one unit, though its end looks like a date.
        ([0, 5, 1e6, 5e8, 1e9, 1e12], [], False),
        ([1_709_251_200, 1_709_251_200_000], [], True),
        ([1_709_251_200, 1_709_251_200_000, 0], [2], True),
        (["1", "2", "2024-03-01"], [2], False),
        (["2024-03-01", "2024-03-02", "7"], [2], True),
        (["inf", "1", "nan", ""], [0, 2, 3], False),
        (["2024-03-01", None, "01.03.2024"], [1, 2], False),
    ],
)
def test_units_of_times(times, bad, mixed):
    found = times_of(pd.Series(times))
    assert np.flatnonzero(found.bad).tolist() == bad
    assert found.mixed == mixed
    if not mixed and not bad:
        np.testing.assert_array_equal(found.values, times)


def test_duplicates_are_counted_aloud(tmp_path):
    found = read(tmp_path, text([*ROWS, *ROWS[:2]]))
    assert remarks(found) == ["2 rows repeat an earlier pair of user and item; the oldest row of a pair counts."]
    kept = read(tmp_path, text([*ROWS, ROWS[0]]), repeats="keep")
    assert remarks(kept) == ["1 row repeats an earlier pair of user and item; they stay as events."]
    assert remarks(read(tmp_path, text())) == []


def test_the_first_title_that_there_is_counts(tmp_path):
    found = read(tmp_path, "user,item,time,title\na,x,1,\na,y,1,Y\nb,x,2,X\nb,y,3,other\nc,z,1,nan\n")
    assert found.titles == ("X", "Y", "")


def test_users_of_one_to_three_items(tmp_path):
    """Who has fewer than three trains and is not tested."""
    split = make_split(read(tmp_path, text()), "leave-one-out", "auto", 0, 0.1)
    assert split.train.lengths.tolist() == [1, 2, 1]
    assert split.test.lengths.tolist() == [1, 0, 0]


def test_numbers_that_became_fractions_for_want_of_one_are_whole_again(tmp_path):
    table = pd.DataFrame({"user": [7.0, 8.0, np.nan], "item": [1, 2, 3], "time": [1, 2, 3]})
    table.to_parquet(tmp_path / "mine.parquet")
    with pytest.raises(DataError, match="row 3: user is missing"):
        load("file", data_file=str(tmp_path / "mine.parquet"))
    found = load("file", data_file=str(tmp_path / "mine.parquet"), skip_broken_rows=True)
    assert raw_histories(found) == {"7": ["1"], "8": ["2"]}


def test_line_by_line_gives_what_pandas_gives(tmp_path):
    """An odd line at the end changes how the file is read, and nothing of the others."""
    random = np.random.default_rng(0)
    rows = [
        (f"u{random.integers(50)}", f"i{random.integers(30)}", str(random.integers(10**9)), random.choice(TITLES))
        for _ in range(2000)
    ]
    fast, slow = (read(tmp_path, text(rows) + last, skip_broken_rows=True) for last in ("", "u0,i0\n"))
    assert (fast.reading.skipped, slow.reading.skipped) == (0, 1)
    assert raw_histories(fast) == raw_histories(slow)
    assert fast.titles == slow.titles
