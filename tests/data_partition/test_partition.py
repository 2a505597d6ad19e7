"""Users over nodes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bouquet.errors import ConfigError
from data_partition import assign, users_of

SIZES = st.lists(st.integers(0, 100), max_size=40)


def test_contiguous_by_hand():
    """7 users on 3 nodes: 3, 2, 2; on 9 nodes the last two have none."""
    assert assign(np.ones(7), 3).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert assign(np.ones(7), 9).tolist() == list(range(7))
    assert users_of(assign(np.ones(7), 3), 1).tolist() == [3, 4]
    assert users_of(assign(np.ones(7), 9), 8).tolist() == []


def test_by_size_by_hand():
    """9 -> node 0; 6 -> 1; 5 -> 1 (11); 4 -> 0 (13); 1 -> 1 (12)."""
    assert assign([1, 9, 5, 6, 4], 2, "by-size").tolist() == [1, 0, 1, 1, 0]


@pytest.mark.parametrize("scheme", ["contiguous", "by-size"])
@given(sizes=SIZES, nodes=st.integers(1, 12))
def test_every_user_is_on_one_node(scheme, sizes, nodes):
    assignment = assign(sizes, nodes, scheme)
    users = [user for node in range(nodes) for user in users_of(assignment, node).tolist()]
    assert sorted(users) == list(range(len(sizes)))


@given(sizes=SIZES, nodes=st.integers(1, 12))
def test_loads_are_balanced(sizes, nodes):
    counts = np.bincount(assign(sizes, nodes), minlength=nodes)
    assert counts.max() - counts.min() <= 1
    loads = np.bincount(assign(sizes, nodes, "by-size"), weights=sizes, minlength=nodes)
    assert loads.max() - loads.min() <= max(sizes, default=0)


def test_one_per_node():
    assert assign([5, 5, 5], 3, "one-per-node").tolist() == [0, 1, 2]
    with pytest.raises(ConfigError, match="as many nodes as users: 3 users, 4 nodes"):
        assign([5, 5, 5], 4, "one-per-node")


def test_refusals():
    with pytest.raises(ConfigError, match="There is no partition 'by-sise'. Did you mean 'by-size'"):
        assign([1], 1, "by-sise")
    with pytest.raises(ConfigError, match="at least one node, not 0"):
        assign([1], 0)
