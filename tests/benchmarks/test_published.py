"""Timing a program that says its rounds: a real process, of which only the marks that it prints are known."""

import hashlib
import json
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks import published
from benchmarks.follow import FollowError, follow

# What published codes look like from outside: a file of ratings, a line at the start of each round, then work.
STAND_IN = """
import logging, pathlib, sys, time
logging.basicConfig(format="%(asctime)s %(message)s")
rounds, work = int(sys.argv[1]), float(sys.argv[2])
ratings = [line.split(",") for line in pathlib.Path("data/100k/ratings.dat").read_text().splitlines()]
assert all(len(fields) == 4 for fields in ratings) and len(ratings) > 100, ratings[:2]
pathlib.Path("log").mkdir()
for number in range(rounds):
    logging.warning("-- Round %d starts ! --", number)
    end = time.process_time() + work
    while time.process_time() < end:
        sum(range(1000))
    logging.warning("HR = %f after round %d", 0.1, number)
    pathlib.Path("trained.model").write_text("anything")
"""


@pytest.fixture
def ratings(tmp_path):
    """40 users with 15 of 60 items each, as u.data has them."""
    random = np.random.default_rng(0)
    lines = [
        f"{user}\t{item}\t{random.integers(1, 6)}\t{880000000 + second}"
        for user in range(1, 41)
        for second, item in enumerate(random.choice(60, 15, replace=False) + 1)
    ]
    path = tmp_path / "u.data"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "checked out"
    (made / "data" / "100k").mkdir(parents=True)
    (made / "data" / "100k" / "ratings.dat").write_text("the user's own file\n")
    (made / "train.py").write_text(STAND_IN)
    return made


def content(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(folder, ratings, *more):
    published.main(["--implementation", "pfedrec", "--folder", str(folder), "--data", str(ratings), "--json", *more])


def test_both_codes_are_timed_and_the_folder_stays_as_it_was(folder, ratings, capsys):
    """Each round of the stand-in uses .25 s of the processor, so it takes at least that long."""
    before = content(folder)
    run(folder, ratings, "--arguments", "{rounds} 0.25", "--rounds", "2", "--settings", '{"local-epochs": 30}')
    found = json.loads(capsys.readouterr().out)
    assert content(folder) == before
    assert found["users"] == 40
    assert len(found["published_seconds"]) == 2
    assert min(found["published_seconds"]) > 0.24
    assert 0.2 < found["published_cpu_seconds_per_round"] < max(found["published_seconds"]) + 0.05
    assert len(found["our_seconds"]) == 8
    assert min(found["our_seconds"]) > 0
    expected = statistics.median(found["published_seconds"]) / statistics.median(found["our_seconds"])
    assert found["ratio"] == pytest.approx(expected, rel=0.05, abs=0.1)
    assert found["cpu_ratio"] > 0
    assert found["published_command"] == ["train.py", "3", "0.25"]
    assert found["our_settings"]["local-epochs"] == 30
    assert found["our_settings"]["batch-size"] == 256


def test_the_result_for_a_reader(folder, ratings, capsys):
    given = ["--implementation", "pfedrec", "--folder", str(folder), "--data", str(ratings), "--rounds", "1"]
    published.main([*given, "--arguments", "{rounds} 0.01"])
    text = capsys.readouterr().out
    assert "Zhangcx19/IJCAI-23-PFedRec, 40 users" in text
    assert "train.py 2 0.01" in text
    assert "local-epochs=1" in text


@pytest.mark.slow
def test_ours_alone(ratings, capsys):
    """Every implementation has settings that a run accepts."""
    for implementation in published.IMPLEMENTATIONS:
        published.main(["--implementation", implementation, "--data", str(ratings), "--rounds", "1", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert len(found["our_seconds"]) == 8
        assert 0 < found["our_cpu_seconds_per_round"] < 60
        assert "ratio" not in found


def test_our_own_run_failing_is_said(ratings):
    with pytest.raises(SystemExit, match=r"Our run failed: it ended with status 2(.|\n)*no setting 'embeding-size'"):
        published.main(
            ["--implementation", "fedca", "--data", str(ratings), "--settings", '{"embeding-size": 8}', "--json"]
        )


@pytest.mark.parametrize(
    ("change", "arguments", "complaint"),
    [
        (lambda folder: (folder / "train.py").unlink(), "{rounds} 0", "has no file train.py"),
        (lambda folder: None, "{rounds}", "IndexError: list index out of range"),
        (lambda folder: (folder / "train.py").write_text("print('hello')"), "", "no line of it matched the marker"),
        (lambda folder: (folder / "train.py").write_text("import absent"), "", "No module named 'absent'"),
        (lambda folder: None, "1 0", "ended with status 0"),
    ],
    ids=["no entry", "it fails", "no marker", "wrong interpreter", "too few rounds"],
)
def test_what_goes_wrong_is_said(folder, ratings, change, arguments, complaint):
    change(folder)
    with pytest.raises(SystemExit) as caught:
        run(folder, ratings, "--arguments", arguments, "--rounds", "1", "--settings", '{"local-epochs": 1}')
    assert complaint in str(caught.value.code)
    assert "Zhangcx19/IJCAI-23-PFedRec" in str(caught.value.code)


def test_a_data_file_of_another_kind_is_refused(folder, tmp_path):
    path = tmp_path / "u.csv"
    path.write_text("user,item\na,b\n")
    with pytest.raises(SystemExit, match=r"u\.csv cannot be read as user, item, rating and time"):
        run(folder, path)


def test_nothing_is_written_through_a_link_that_leads_out(folder, ratings, tmp_path):
    outside = tmp_path / "outside"
    (folder / "data" / "100k").rename(outside)
    (folder / "data" / "100k").symlink_to(outside)
    with pytest.raises(SystemExit, match="leads out"):
        run(folder, ratings)
    assert (outside / "ratings.dat").read_text() == "the user's own file\n"


def test_marks_in_a_file(tmp_path):
    """Old lines of the file do not count, half a line is waited for, repeats are one mark."""
    (tmp_path / "old.log").write_text("epoch 9\n")
    code = (
        "f = open('old.log', 'a', buffering=1); f.write('epoch 1\\nepo'); f.write('ch 2\\nepoch 2\\nepoch 3\\n')\n"
        "import time\nwhile True: time.sleep(1)"
    )
    marks = follow([sys.executable, "-c", code], tmp_path, r"epoch (\d+)", 3, log="*.log", timeout=60)
    assert [mark.number for mark in marks] == [1, 2, 3]
    assert all(a.seconds <= b.seconds for a, b in pairwise(marks))


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_process_that_takes_too_long_is_ended(tmp_path):
    """And so is what it started."""
    code = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "while True: print('round without a number'); time.sleep(0.01)"
    )
    begin = time.monotonic()
    with pytest.raises(FollowError, match=r"ran longer than 1 s and no line of it matched") as caught:
        follow([sys.executable, "-c", code], tmp_path, r"round (\d+)", 1, timeout=1)
    assert time.monotonic() - begin < 30
    assert "round without a number" in str(caught.value)
    child = int((tmp_path / "child").read_text())
    while is_running(child):
        assert time.monotonic() - begin < 30


def test_a_command_that_does_not_exist(tmp_path):
    with pytest.raises(FollowError, match="no-such-python cannot be started"):
        follow(["no-such-python"], tmp_path, "x", 1)
