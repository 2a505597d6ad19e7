"""`bouquet data` through the real program, with an empty cache and no data but what the test writes."""

from __future__ import annotations

import pytest

from data_partition import DATASETS
from tests.cli.conftest import finish, start


@pytest.fixture
def program(tmp_path):
    return lambda *arguments: finish(start(*map(str, arguments), cwd=tmp_path, home=tmp_path))


@pytest.fixture
def filmtrust(tmp_path):
    """A folder of data sets with four of FilmTrust's rows, one of them twice."""
    folder = tmp_path / "sets" / "filmtrust"
    folder.mkdir(parents=True)
    (folder / "ratings.dat").write_text("1 1 2\n1 2 4\n2 1 3\n2 1 3\n")
    return folder.parent


def test_list_says_what_is_here(program, filmtrust):
    ended = program("data", "list", "--data-dir", filmtrust)
    assert ended.status == 0
    lines = {line.split()[0]: line for line in ended.out.splitlines() if line}
    assert set(DATASETS) <= set(lines)
    assert lines["filmtrust"].split()[2:4] == ["no", "yes"]  # no time, and here
    assert lines["filmtrust"].split()[-3:] == ["1,508", "2,071", "35,497"]
    assert lines["douban-book"].split()[2:4] == ["no", "no"]
    assert "bouquet fetches it" in lines["ml-100k"]
    assert "built in" in lines["synthetic"]


def test_stats_counts_and_compares_with_papers(program, filmtrust):
    ended = program("data", "stats", "filmtrust", "--data-dir", filmtrust)
    assert ended.status == 0
    figures = {tuple(line.split()[:-1]): line.split()[-1] for line in ended.out.splitlines() if line}
    assert (figures["users",], figures["items",], figures["interactions",]) == ("2", "2", "3")
    assert figures["repeated", "rows,", "left", "out"] == "1"
    assert "Published by FedCA: 1,508 users, 2,071 items, 35,497 interactions. Differs in users, items" in ended.out


def test_stats_leaves_out_small_users(bouquet, filmtrust):
    ended = bouquet("data", "stats", "filmtrust", "--data-dir", filmtrust, "--min-interactions", "2")
    assert ended.status == 0
    line = next(line for line in ended.out.splitlines() if line.startswith("users below 2 items"))
    assert line.split()[-1] == "1"


def test_stats_agree_with_papers(bouquet, real_data):
    ended = bouquet("data", "stats", "lastfm-2k", "--data-dir", real_data("lastfm-2k"))
    assert "Count under the same rule with --min-interactions 10." in ended.out
    ended = bouquet("data", "stats", "lastfm-2k", "--data-dir", real_data("lastfm-2k"), "--min-interactions", "10")
    assert "92,780 interactions, users below 10 left out. Agrees." in ended.out


def test_stats_of_a_messy_file_of_ones_own(bouquet, tmp_path):
    """Five rows, of which one has no time and one was cut; bob has the pear twice."""
    file = tmp_path / "orders.csv"
    file.write_bytes("who;what;when\nanna;pear;1\nbob;pear;2\nbob;pear;9\nanna;crème;\nanna;ap".encode("latin-1"))
    columns = 'user-column="who" item-column="what" time-column="when"'
    ended = bouquet("data", "stats", file, "-c", columns)
    assert ended.status == 1
    assert ended.err == (
        "orders.csv, line 5: time is missing. 2 of 5 rows are broken; skip-broken-rows = true leaves such rows out.\n"
    )
    ended = bouquet("data", "stats", file, "-c", f"{columns} skip-broken-rows=true")
    assert ended.status == 0
    assert ended.err.splitlines() == [
        "orders.csv was read as cp1252, separated by semicolons.",
        "2 of 5 rows cannot be read and are left out: line 5: time is missing; line 6: expected who, what, when "
        "separated by semicolons, got 'anna;ap'.",
        "1 row repeats an earlier pair of user and item; the oldest row of a pair counts.",
    ]
    figures = {" ".join(line.split()[:-1]): line.split()[-1] for line in ended.out.splitlines() if line}
    assert (figures["users"], figures["items"], figures["interactions"]) == ("2", "1", "2")
    assert (figures["rows in the files"], figures["rows that cannot be read, left out"]) == ("5", "2")
    assert bouquet("data", "stats", "filmtrust", "-c", columns).err.startswith("-c says how a file of your own is read")


def test_fetch_says_where_the_files_are(program, filmtrust):
    ended = program("data", "fetch", "filmtrust", "--data-dir", filmtrust)
    assert ended.status == 0
    assert str(filmtrust / "filmtrust") in ended.out


def test_fetch_says_which_file_to_put_where(program):
    ended = program("data", "fetch", "filmtrust")
    assert ended.status == 1
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1
    assert "Put ratings.dat into that folder" in ended.err


def test_the_built_in_set_needs_no_fetching(bouquet):
    assert bouquet("data", "fetch", "synthetic").out == "Synthetic is built in; there is nothing to fetch.\n"


@pytest.mark.parametrize("command", ["stats", "fetch"])
def test_an_unknown_set(bouquet, command):
    ended = bouquet("data", command, "ml-10k")
    assert ended.status == 2
    assert ended.err.startswith("There is no dataset 'ml-10k'. Did you mean 'ml-100k'?")


def test_shards_are_made_and_a_node_takes_nothing_but_a_shard(program, tmp_path):
    ended = program("data", "shard", "synthetic", "--nodes", "4", "--out", tmp_path / "shards")
    assert ended.status == 0, ended.err
    assert [line.split(": ")[1] for line in ended.out.splitlines()[:4]] == ["150 of 600 users"] * 4
    assert sorted(path.name for path in (tmp_path / "shards").iterdir()) == ["1", "2", "3", "4"]

    assert program("deploy", "keys", "--out", tmp_path / "keys", "--nodes", "1").status == 0
    node = ("serve", "node", "--superlink", "localhost:1", "--keys", tmp_path / "keys" / "nodes" / "node-1", "--shard")
    both = program(*node, tmp_path / "shards" / "1", "--partition", "1/4")
    assert both.status == 2
    assert "leave out --partition" in both.err
    none = program(*node, tmp_path / "keys")
    assert none.status == 1
    assert "is no shard of a data set" in none.err
