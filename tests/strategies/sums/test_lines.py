"""How much one user can say of one item: the most that a history can hold of it, and nothing above that."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.cells import Cells
from bouquet.config import RunConfig
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import RosterReply, TrainReply
from strategies.federation.roster import combine
from strategies.sums.base import longest_line

ITEMS = 12
SQUARE = {"ease": ["together"], "gf-cf": ["together"], "slist": ["next", "before"], "sequential-rules": ["transitions"]}
rows = st.lists(st.lists(st.integers(0, ITEMS - 1), unique=True, max_size=ITEMS), min_size=1, max_size=4)


def ragged(histories):
    items = [item for history in histories for item in history]
    return Ragged.from_lengths([len(history) for history in histories], np.array(items, np.int32))


def server(name, histories, **options):
    """A server that knows these users, none of whom has given yet."""
    method = METHODS[name]
    made = class_at(method.strategy)(RunConfig(strategy=name), method.options(**options), RunDirectory(""))
    keys, lengths = np.arange(1, len(histories) + 1, dtype=np.uint64), ragged(histories).lengths
    specs = method.options(**options).published(ITEMS)
    made.roster = combine({1: RosterReply(keys, lengths, int(lengths.sum()), 0, ITEMS, "c", 1, specs)})
    made.versions = np.zeros(len(keys), np.int64)
    made.prepare()
    return made


def given_by(name, histories, **options):
    method = METHODS[name]
    return class_at(method.device)(ITEMS, method.options(**options)).contribution(ragged(histories))


def refusal(made, histories, cells):
    count = len(histories)
    keys, nothing = np.arange(1, count + 1, dtype=np.uint64), np.zeros(count, np.int64)
    reply = TrainReply(keys, nothing.astype(np.float32), nothing, cells=cells, sizes=ragged(histories).lengths)
    return made.refusal(reply, np.arange(count))


@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        # x xᵀ of three items: each stands with itself and two others.
        ("ease", {}, {"together": 3}),
        # The same, of 1/3 each.
        ("gf-cf", {}, {"together": 1}),
        # x_0 = e_0 and x_1 = e_1 + e_0 / 2: P = [[1 + 1/4, 1/2], [1/2, 1]]; Q[0] = (0, 1, 1/2), Q[1] = (0, 0, 1).
        ("slist", {"slist_decay": 1.0, "slist_window": 0}, {"before": 1.75, "next": 1.5}),
        # A window of one: x_t = e_t.
        ("slist", {"slist_decay": 1.0, "slist_window": 1}, {"before": 1.0, "next": 1.0}),
    ],
)
def test_of_three_items_by_hand(name, options, lines):
    made = server(name, [[4, 7, 2]], **options)
    cells = given_by(name, [[4, 7, 2]], **options)
    for matrix, line in lines.items():
        assert made.largest(np.array([3.0]))[matrix].line[0] == pytest.approx(line, abs=1e-4)
        assert longest_line(cells[matrix], made.summed(ITEMS)[matrix]) == pytest.approx(line, abs=1e-4)


@pytest.mark.parametrize("name", SQUARE)
@given(histories=rows)
@settings(deadline=None, max_examples=40)
def test_honest_users_are_believed_and_a_user_can_say_no_more_than_the_longest_line_of_its_history(name, histories):
    """Whoever lives together on a node; and alone a user's longest line is its limit, to the rounding of cells."""
    made = server(name, histories)
    cells = given_by(name, histories)
    assert refusal(made, histories, cells) == ""
    one = given_by(name, histories[:1])
    for matrix in SQUARE[name]:
        (limit,) = made.largest(np.array([float(len(histories[0]))]))[matrix].line
        assert longest_line(one[matrix], made.summed(ITEMS)[matrix]) == pytest.approx(limit, abs=2**-10)


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("target", [0, 5, ITEMS - 1])
def test_all_that_a_history_holds_cannot_be_said_of_one_item(name, target):
    """As many cells as large as honest ones, but all of the target: up to its line it is believed, beyond it not."""
    history = [list(range(0, ITEMS, 2))]
    made, honest = server(name, history), given_by(name, history)
    for matrix in SQUARE[name]:
        spec = made.summed(ITEMS)[matrix]
        limits = made.largest(np.array([float(len(history[0]))]))[matrix]
        others = np.array([item for item in range(ITEMS) if spec.symmetric or item != target])
        keys = np.sort(np.minimum(others, target) * ITEMS + np.maximum(others, target))
        if not spec.symmetric:
            keys = np.sort(target * ITEMS + others)
        for share, said in ((0.999, ""), (1.01, f"'{matrix}' says more of one item than 1 users")):
            line = share * limits.line[0]
            assert line < limits.all_cells[0], "its limits on all cells do not see this"
            whole = int(line / limits.cell[0])
            values = np.append(np.full(whole, limits.cell[0]), line - whole * limits.cell[0])
            assert len(values) <= len(keys)
            lie = Cells.of_keys(keys[: len(values)], values, spec)
            found = refusal(made, history, {**honest, matrix: lie})
            assert found.startswith(said) if said else found == ""
