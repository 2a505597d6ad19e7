"""`bouquet data stats --out`: how many users have how many interactions."""

import csv

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bouquet.reporting.lengths import histogram
from tests.runs.helpers import write_histories


def test_bins_by_hand():
    """Up to 11 in four bins: lengths 0 to 11 are twelve values, three to a bin."""
    assert histogram(np.array([1, 2, 2, 3, 11]), 4) == [(0, 2, 3), (3, 5, 1), (6, 8, 0), (9, 11, 1)]


@given(arrays(np.int64, st.integers(1, 30), elements=st.integers(0, 5000)), st.integers(1, 60))
def test_every_user_is_in_one_bin(lengths, bins):
    found = histogram(lengths, bins)
    assert len(found) <= bins
    assert sum(users for _, _, users in found) == len(lengths)
    for first, last, users in found:
        assert users == ((lengths >= first) & (lengths <= last)).sum()


def test_the_command_writes_lines_and_a_picture(tmp_path, bouquet):
    data = write_histories(tmp_path / "data.csv", [[0, 1, 2], [0, 1], [3, 4, 5, 6]])
    ended = bouquet("data", "stats", data, "--out", tmp_path / "out")
    assert ended.status == 0, ended.err
    with (tmp_path / "out" / "interactions.csv").open() as file:
        lines = [(int(line["from"]), int(line["users"])) for line in csv.DictReader(file)]
    assert [line for line in lines if line[1]] == [(2, 1), (3, 1), (4, 1)]
    assert (tmp_path / "out" / "interactions.png").read_bytes().startswith(b"\x89PNG")
    # Lengths 3, 2, 4: mean 3, deviation sqrt(2 / 3).
    assert "0.8" in next(line for line in ended.out.splitlines() if "standard deviation" in line)
