from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.errors import BouquetError
from bouquet.evaluation import CANDIDATE_SETS, METRICS, PARTS, evaluate_users, summarise
from bouquet.ragged import Ragged
from tests.evaluation.brute_force import metrics_of_one_user


class World:
    """A random split of k users over m items, and scores with many ties."""

    def __init__(self, seed: int, num_users: int, num_items: int, most_held_out: int, num_negatives: int) -> None:
        generator = np.random.default_rng(seed)
        self.num_users, self.num_items = num_users, num_items
        parts: dict[str, list[np.ndarray]] = {name: [] for name in ("train", *PARTS)}
        negatives: dict[str, list[np.ndarray]] = {name: [] for name in PARTS}
        for _ in range(num_users):
            items = generator.permutation(num_items)
            for name, most in (("train", num_items // 4), ("validation", most_held_out), ("test", most_held_out)):
                count = int(generator.integers(0, most + 1))
                parts[name].append(items[:count])
                items = items[count:]
            for name in PARTS:
                negatives[name].append(generator.permutation(items)[:num_negatives])
        self.parts = {name: _ragged(rows) for name, rows in parts.items()}
        self.candidates = {name: _ragged(rows) for name, rows in negatives.items()}
        self.scores = generator.integers(0, 5, size=(num_users, num_items)).astype(np.float64)

    def evaluate(
        self, scores: np.ndarray | None = None, users: np.ndarray | None = None, **settings: int
    ) -> np.ndarray:
        scores = self.scores if scores is None else scores
        users = np.arange(self.num_users) if users is None else users
        return evaluate_users(
            lambda rows: scores[users[rows]],
            num_items=self.num_items,
            **{name: rows.take(users) for name, rows in self.parts.items()},
            candidates={name: rows.take(users) for name, rows in self.candidates.items()},
            **settings,
        )

    def excluded(self, user: int, part: str) -> set[int]:
        known = ("train",) if part == "validation" else ("train", "validation")
        return {int(item) for name in known for item in self.parts[name].row(user)}


def _ragged(rows: list[np.ndarray]) -> Ragged:
    return Ragged.from_lengths([len(row) for row in rows], np.concatenate(rows))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), num_items=st.integers(8, 10), most_held_out=st.sampled_from([1, 2]))
def test_equals_the_definitions(seed, num_items, most_held_out):
    world = World(seed, 4, num_items, most_held_out, num_negatives=3)
    values = world.evaluate()
    for user in range(4):
        for place, part in enumerate(PARTS):
            held_out = world.parts[part].row(user).tolist()
            if not held_out:
                assert np.isnan(values[user, place]).all()
                continue
            everything = set(range(num_items)) - world.excluded(user, part)
            sampled = set(world.candidates[part].row(user).tolist()) | set(held_out)
            for chosen, candidates in (("full", everything), ("sampled-99", sampled)):
                expected = metrics_of_one_user(world.scores[user].tolist(), held_out, candidates)
                found = values[user, place, CANDIDATE_SETS.index(chosen)]
                assert found == pytest.approx([expected[name] for name in METRICS])


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), most_held_out=st.sampled_from([1, 12]), block_users=st.integers(1, 9))
def test_order_of_users_and_blocks_do_not_matter(seed, most_held_out, block_users):
    world = World(seed, 8, 60, most_held_out, num_negatives=20)
    whole = world.evaluate()
    order = np.random.default_rng(seed).permutation(8)
    again = world.evaluate(users=order, block_bytes=8 * 60 * block_users)
    np.testing.assert_array_equal(again, whole[order])


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), most_held_out=st.sampled_from([1, 12]), value=st.floats(-1e300, 1e300))
def test_excluded_items_can_never_matter(seed, most_held_out, value):
    world = World(seed, 8, 60, most_held_out, num_negatives=20)
    changed = world.scores.copy()
    train = world.parts["train"]
    changed[train.row_of_value, train.values] = value
    np.testing.assert_array_equal(world.evaluate(changed), world.evaluate())
    validation = world.parts["validation"]
    changed[validation.row_of_value, validation.values] = value
    np.testing.assert_array_equal(world.evaluate(changed)[:, PARTS.index("test")], world.evaluate()[:, 1])


@pytest.mark.parametrize("most_held_out", [1, 12])
def test_only_the_order_of_scores_matters(most_held_out):
    world = World(3, 30, 80, most_held_out, num_negatives=20)
    np.testing.assert_array_equal(world.evaluate(np.exp(world.scores) - 7), world.evaluate())
    np.testing.assert_array_equal(world.evaluate(world.scores.astype(np.float32)), world.evaluate())


@pytest.mark.parametrize("most_held_out", [1, 4])
def test_an_oracle_gets_everything(most_held_out):
    """The scorer that knows the held-out items of a part gets 1.0 in that part."""
    world = World(4, 50, 200, most_held_out, num_negatives=99)
    for place, part in enumerate(PARTS):
        knows = np.random.default_rng(0).random(world.scores.shape)
        knows[world.parts[part].row_of_value, world.parts[part].values] += 1
        values = world.evaluate(knows)[:, place]
        evaluated = world.parts[part].lengths > 0
        assert (values[evaluated] == 1).all()


def test_a_constant_scorer_gets_no_hit_for_free():
    """With 200 items and at most 50 excluded the middle is beyond rank 70; of 1 + 99 candidates it is rank 50.5."""
    world = World(5, 50, 200, 1, num_negatives=99)
    summary = summarise(world.evaluate(np.zeros_like(world.scores)))
    for part in PARTS:
        assert summary[part]["full"]["HR@20"] == 0
        assert summary[part]["sampled-99"]["HR@20"] == 0
        assert summary[part]["sampled-99"]["MRR"] == pytest.approx(1 / 50.5)


def test_a_random_scorer_is_at_chance():
    """Of 1 + 99 candidates rank <= 10 has probability 1/10; 4000 users give a standard error below .005."""
    world = World(6, 4000, 120, 1, num_negatives=99)
    world.candidates = {
        part: _ragged([np.resize(np.setdiff1d(np.arange(120), world.parts[part].row(u)), 99) for u in range(4000)])
        for part in PARTS
    }
    summary = summarise(world.evaluate(np.random.default_rng(0).random((4000, 120), dtype=np.float32)))
    assert summary["test"]["sampled-99"]["HR@10"] == pytest.approx(0.1, abs=0.02)


def test_the_user_of_a_bad_score_is_named_across_blocks():
    world = World(7, 6, 20, 1, num_negatives=5)
    world.scores[4, 3] = np.nan
    with pytest.raises(BouquetError, match="user row 4: the scorer returned nan"):
        world.evaluate(block_bytes=8 * 20 * 3)


def test_wrong_shapes_are_refused():
    world = World(8, 6, 20, 1, num_negatives=5)
    with pytest.raises(ValueError, match=r"the scorer returned \[6, 19\], not \[6, 20\]"):
        world.evaluate(world.scores[:, 1:])
    world.candidates["test"] = world.candidates["test"].take([0])
    world_users = {"num_items": 20, "candidates": world.candidates}
    with pytest.raises(ValueError, match="the numbers of users differ"):
        evaluate_users(lambda rows: world.scores[rows], **world.parts, **world_users)
    with pytest.raises(ValueError, match="no sampled candidates are given for validation"):
        evaluate_users(lambda rows: world.scores[rows], **world.parts, num_items=20, candidates={})
