"""How users are divided among threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client_app.training.threads import spread


def parts(lengths, count):
    """(begin, end) of every call, in the users' order, and how many threads were at work."""
    found, at_work = [], set()

    def work(begin, end):
        found.append((begin, end))
        at_work.add(threading.get_ident())

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OMP_NUM_THREADS", str(count))
        spread(work, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
    return sorted(found), len(at_work)


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 17))
def test_every_user_is_in_one_part_and_no_part_is_much_too_long(lengths, count):
    """A part's users have their middles within a share of all rows, so half a user may stand out at each end."""
    found, _ = parts(lengths, count)
    assert [user for begin, end in found for user in range(begin, end)] == list(range(len(lengths)))
    used = max(1, min(count, len(lengths)))
    assert len(found) == used
    longest = max((sum(lengths[begin:end]) for begin, end in found), default=0)
    assert longest <= sum(lengths) / used + max(lengths, default=0)


@pytest.mark.parametrize("lengths", [[5, 5], [9, 1], [1, 9]])
def test_two_users_are_two_threads_work(lengths):
    """Middles of [9, 1] are 4.5 and 9.5, half of the rows 5: one user before it and one behind."""
    assert parts(lengths, 2)[0] == [(0, 1), (1, 2)]


def test_one_thread_starts_no_other():
    assert parts([3, 4, 5], 1) == ([(0, 3)], 1)
    assert parts([3], 16) == ([(0, 1)], 1)
