"""The counts of the papers, from the real files; skipped where these are absent."""

from __future__ import annotations

import gzip
import time

import numpy as np
import pytest

from bouquet.randomness import Purpose, SeededDraws
from data_partition import DATASETS, evaluation_candidates, leave_one_out, load, make_split, training_negatives
from data_partition.fetch import _verify

# Set, folder, minimum number of interactions, users, items, rows or pairs, and which of the two.
PUBLISHED = [
    ("ml-100k", "ml-100k", 0, 943, 1682, 100_000, "pairs"),
    ("ml-1m", "ml-1m", 10, 6040, 3706, 1_000_209, "pairs"),
    ("ml-latest-small", "ml-latest-small-2018", 0, 610, 9724, 100_836, "pairs"),
    ("filmtrust", "filmtrust", 0, 1508, 2071, 35_497, "rows"),
    ("lastfm-2k", "lastfm-2k", 10, 1874, 17_612, 92_780, "pairs"),
    ("douban-book", "douban-book", 5, 1696, 6777, 95_107, "pairs"),
    ("gowalla", "gowalla", 0, 29_858, 40_981, 1_027_370, "pairs"),
    ("amazon-video-games", "amazon-video-games", 0, 31_013, 23_715, 287_107, "pairs"),
    ("amazon-beauty-5core", "amazon-beauty-5core", 0, 22_363, 12_101, 198_502, "pairs"),
    ("wikipedia", "wikipedia", 0, 8227, 1000, 157_474, "rows"),
]


@pytest.mark.parametrize(("name", "folder", "least", "users", "items", "count", "what"), PUBLISHED)
def test_published_counts(real_data, name, folder, least, users, items, count, what):
    made = load(name, str(real_data(folder)), min_interactions=least)
    assert (made.num_users, made.num_items) == (users, items)
    assert count == (made.rows if what == "rows" else made.num_interactions)
    assert made.has_time == DATASETS[name].has_time
    with_titles = bool(DATASETS[name].extras)
    assert all(made.titles) == with_titles
    assert (leave_one_out(made).test.lengths <= 1).all()


@pytest.mark.parametrize("name", ["ml-100k", "lastfm-2k"])
def test_published_hashes(real_data, name):
    dataset = DATASETS[name]
    folder = real_data(name)
    assert dataset.download is not None
    _verify(dataset, dataset.download, [folder / file for file in dataset.download.sha256])


def test_repeats(real_data):
    filmtrust = load("filmtrust", str(real_data("filmtrust")))
    assert (filmtrust.duplicates, filmtrust.num_interactions) == (3, 35_494)
    folder = str(real_data("wikipedia"))
    assert load("wikipedia", folder).num_interactions == 18_257
    assert load("wikipedia", folder, repeats="keep").num_interactions == 157_474


def test_the_parent_folder_will_do(real_data):
    assert load("ml-latest-small", str(real_data("ml-latest-small-2018").parent)).num_users == 610


def test_movielens_100k_last_by_time(real_data):
    """Against the raw file, user by user: nothing held out is older than what is trained on."""
    folder = real_data("ml-100k")
    made = load("ml-100k", str(folder))
    when = {tuple(line[:2]): int(line[3]) for line in map(str.split, (folder / "u.data").read_text().splitlines())}
    split = leave_one_out(made)
    for row, user in enumerate(made.user_ids):
        train, validation, test = (
            [when[str(user), str(made.item_ids[item])] for item in part.row(row)]
            for part in (split.train, split.validation, split.test)
        )
        assert train == sorted(train)
        assert train[-1] <= validation[0] <= test[0]
    assert made.titles[0] == "Toy Story (1995)"
    assert "Misérables, Les (1995)" in made.titles


def test_gowalla_as_it_was_split(real_data):
    """Against the raw files, user by user."""
    folder = real_data("gowalla")
    made = load("gowalla", str(folder))
    split = make_split(made, "published", validation=0)
    assert [len(part.values) for part in (split.train, split.validation, split.test)] == [810_128, 0, 217_242]
    for name, part in (("train", split.train), ("test", split.test)):
        for line in gzip.decompress((folder / f"{name}.txt.gz").read_bytes()).decode().splitlines()[::100]:
            user, *items = line.split()
            row = made.user_ids.tolist().index(user)
            assert made.item_ids[part.row(row)].tolist() == items
    split = make_split(made, "published")
    assert [len(part.values) for part in (split.train, split.validation, split.test)] == [727_869, 82_259, 217_242]


def test_movielens_100k_negatives_are_fast_and_allowed(real_data):
    """400,000 draws take 16 ms on one core of the machine where this was measured."""
    made = load("ml-100k", str(real_data("ml-100k")))
    split = leave_one_out(made)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        drawn = training_negatives(split.train, split.train, made.num_items, 4, made.user_keys, SeededDraws(0), 1)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.25
    assert (drawn.lengths == 4 * split.train.lengths).all()
    train = set(zip(split.train.row_of_value.tolist(), split.train.values.tolist(), strict=True))
    assert not train & set(zip(drawn.row_of_value.tolist(), drawn.values.tolist(), strict=True))
    held_out = drawn.values == np.repeat(split.test.values, drawn.lengths)
    assert held_out.any(), "an honest device may draw what is held out"


def test_candidates_of_the_papers(real_data):
    made = load("ml-100k", str(real_data("ml-100k")))
    drawn = evaluation_candidates(made.histories, made.num_items, 99, made.user_keys, 0, Purpose.VALIDATION_CANDIDATES)
    assert (drawn.lengths == 99).all()
    for row in range(0, made.num_users, 50):
        assert not set(drawn.row(row).tolist()) & set(made.histories.row(row).tolist())
