"""Scores of other programs on a split: read, refused in one sentence, and evaluated as by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from bouquet.errors import ConfigError, DataError
from bouquet.evaluation import CANDIDATE_SETS, METRICS, PARTS, evaluate_users
from bouquet.experiments.baselines import evaluate_centralized
from bouquet.experiments.exported import read_ground, write_ground
from bouquet.experiments.foreign import evaluate
from bouquet.experiments.ground import ground_of
from bouquet.experiments.settings import resolve
from bouquet.randomness import SeededDraws
from client_app.node.histories import histories_of, interactions_of
from data_partition import training_negatives
from models.centralized import EASE, EASEParameters
from tests.runs.helpers import write_data, write_histories


@pytest.fixture(scope="module")
def synthetic():
    """The ground of 200 people of the built-in set."""
    return ground_of(resolve(None, ["max-users=200"]))


@pytest.fixture(scope="module")
def model(synthetic):
    """[n, m] scores that know something: items by what their owners have in common with a user."""
    histories = synthetic.histories
    matrix = np.zeros((len(histories.users), histories.num_items))
    matrix[histories.train.row_of_value, histories.train.values] = 1
    return matrix @ (matrix.T @ matrix)


def of_file(path, *changes):
    return ground_of(resolve(None, ['dataset="file" time-column="time"', f'data-file="{path}"', *changes]))


@pytest.fixture
def small(tmp_path):
    """Items i0 to i29. u0 has trained on i0 and i1, validates with i2 and is tested with i3; i4 to i7 are u1's; u2, who
    has two items, is not evaluated; u3 has the other items, of which i28 and i29 are hidden."""
    histories = [[0, 1, 2, 3], [4, 5, 6, 7], [0, 4], [*range(8, 30)]]
    return of_file(write_histories(tmp_path / "data.csv", histories))


def frame(ground, table, part=None):
    """A table of all scores, in another order than the split's."""
    users, items = np.indices(table.shape)
    made = pd.DataFrame(
        {
            "user": pd.Categorical.from_codes(users.ravel(), ground.user_ids.tolist()),
            "item": pd.Categorical.from_codes(items.ravel(), ground.item_ids.tolist()),
            "score": table.ravel(),
        }
    )
    made = made if part is None else made.assign(part=part)
    return made.sample(frac=1, random_state=0, ignore_index=True)


def value(evaluation, user, metric, part="test", kind="full"):
    row = evaluation.ground.user_ids.tolist().index(user)
    return evaluation.values[row, PARTS.index(part), CANDIDATE_SETS.index(kind), METRICS.index(metric)]


# -- the split that other programs are given ---------------------------------------------------------------------------


@pytest.mark.parametrize("changes", ['split-seed=3 hold-out="random" max-users=20', 'split="ratio" min-interactions=8'])
def test_what_is_exported_is_what_a_run_has(tmp_path, changes):
    given = ['dataset="file" time-column=""', f'data-file="{write_data(tmp_path / "data.csv")}"', changes]
    settings = resolve(None, given)
    ground = ground_of(settings)
    write_ground(ground, tmp_path / "split")
    options = ground.config.model_copy(update={"data_file": settings["data-file"]})
    interactions = interactions_of(options)
    histories = histories_of(interactions, options)
    for name in ("train", "validation", "test"):
        rows = getattr(histories, name)
        table = pd.read_parquet(tmp_path / "split" / f"{name}.parquet")
        assert table["user"].tolist() == interactions.user_ids[rows.row_of_value].tolist()
        assert table["item"].tolist() == interactions.item_ids[rows.values].tolist()
    table = pd.read_parquet(tmp_path / "split" / "candidates.parquet")
    for part, rows in histories.candidates.items():
        here = table[table["part"] == part]
        assert here["user"].tolist() == interactions.user_ids[rows.row_of_value].tolist()
        assert here["item"].tolist() == interactions.item_ids[rows.values].tolist()
    read = read_ground(tmp_path / "split")
    assert (read.histories.catalogue, read.histories.in_time) == (histories.catalogue, False)
    assert np.array_equal(read.histories.users, histories.users)
    for part in PARTS:
        assert np.array_equal(read.histories.candidates[part].values, histories.candidates[part].values)
    assert read.settings == ground.settings
    assert read.settings["data-file"] == "data.csv"


def test_a_split_that_was_changed_is_refused(tmp_path, small):
    write_ground(small, tmp_path / "split")
    with pytest.raises(ConfigError, match="already holds a split"):
        write_ground(small, tmp_path / "split")
    table = pd.read_parquet(tmp_path / "split" / "test.parquet")
    table.assign(item="i9").to_parquet(tmp_path / "split" / "test.parquet")
    with pytest.raises(DataError, match="damaged or was changed.*digest of test.parquet"):
        read_ground(tmp_path / "split")
    (tmp_path / "split" / "test.parquet").unlink()
    with pytest.raises(DataError, match="holds no split: it has no test.parquet"):
        read_ground(tmp_path / "split")


def test_a_blind_split_does_not_say_what_is_hidden(tmp_path, small):
    write_ground(small, tmp_path / "split", blind=True)
    files = ["items.parquet", "split.json", "train.parquet", "users.parquet", "validation.parquet"]
    assert sorted(path.name for path in (tmp_path / "split").iterdir()) == files
    for name in ("train", "validation"):
        assert not pd.read_parquet(tmp_path / "split" / f"{name}.parquet")["item"].isin(["i3", "i7", "i29"]).any()
    with pytest.raises(DataError, match="is blind, it has no test items: give --split one that is not"):
        read_ground(tmp_path / "split")


# -- figures -----------------------------------------------------------------------------------------------------------


def test_all_scores_are_evaluated_as_a_scorer_of_ours(tmp_path, synthetic, model):
    """To the last bit, from an array, a table and a file, and as one part each."""
    ours = evaluate_users(lambda rows: model[rows], **synthetic.for_evaluation())
    frame(synthetic, model).to_parquet(tmp_path / "scores.parquet")
    for scores in (model, tmp_path / "scores.parquet", {"validation": model, "test": model}):
        found = evaluate(scores, synthetic)
        assert np.array_equal(found.values, ours, equal_nan=True)
        assert (found.summary["leaky"], found.summary["remarks"]) == (False, [])
    assert found.per_user.groupby("part").size().to_dict() == dict.fromkeys(PARTS, 200)
    (row,) = found.metrics.query("part == 'test' and candidates == 'full' and metric == 'NDCG@10'").itertuples()
    assert row.mean == pytest.approx(found.per_user.query("part == 'test'")["NDCG@10, full"].mean())


def test_the_row_of_pooled_ease_on_ml_100k(tmp_path, real_data):
    """.165 and .082 in docs/results/champions.md: its scores, written and read as those of any program."""
    ground = ground_of(resolve(None, [f'dataset="ml-100k" data-dir="{real_data("ml-100k")}"']))
    # λ as validation chooses it; one value alone saves the search.
    parameters = EASEParameters(regularization=100.0, grid=(100.0,))
    ours, _ = evaluate_centralized(EASE(parameters), ground.histories, ground.config)
    train = ground.histories.train
    shape = (len(ground.user_ids), len(ground.item_ids))
    matrix = csr_matrix((np.ones(len(train.values)), train.values, train.indptr), shape=shape)
    model = EASE(parameters).fit(matrix)
    for part, known in ground.known.items():
        frame(ground, model.scores_after(known), part).to_parquet(tmp_path / f"{part}.parquet", index=False)
    found = evaluate({part: tmp_path / f"{part}.parquet" for part in PARTS}, ground)
    assert np.array_equal(found.values, ours, equal_nan=True)
    full = found.summary["test"]["full"]
    assert (f"{full['HR@10']:.3f}", f"{full['NDCG@10']:.3f}") == ("0.165", "0.082")


def test_what_is_known_at_test_can_be_read_at_test(small):
    """Scores by part: at validation u0's i2 is the best of its items, at test i3 is; in one file both cannot be."""
    first, second = (np.tile(-np.arange(30.0), (4, 1)) for _ in range(2))
    second[0, small.item_ids.tolist().index("i3")] = 1
    table = pd.concat([frame(small, first, "validation"), frame(small, second, "test")])
    found = evaluate(table, small)
    # i2 and i3 stand behind i0 and i1, which are known, and i10 to i19, as ids are sorted as text.
    assert value(found, "u0", "MRR", "validation") == 1 / 11
    assert value(found, "u0", "MRR") == 1


def test_ties_count_half(small):
    found = evaluate(np.zeros((4, 30)), small)
    assert value(found, "u0", "MRR") == 1 / (1 + 26 / 2)  # 27 items that u0 is not known to have had


def lists(length, hidden_at):
    """Top lists of u0, u1 and u3, in which what u0 is tested with has a place."""
    rows = []
    for user, known, hidden in (("u0", 3, "i3"), ("u1", 3, "i7"), ("u3", 21, "i29")):
        others = [f"i{n}" for n in (range(8, 29) if known == 3 else range(8)) if f"i{n}" != hidden][: length - 1]
        others.insert(hidden_at - 1, hidden)
        rows += [(user, item, rank) for rank, item in enumerate(others, start=1)]
    return pd.DataFrame(rows, columns=["user", "item", "rank"])


def test_a_list_of_seven_gives_figures_up_to_five(small):
    found = evaluate(lists(7, 2).assign(part="test"), small)
    assert value(found, "u0", "HR@5") == 1
    assert value(found, "u0", "NDCG@5") == pytest.approx(1 / np.log2(3))
    for metric in ("HR@10", "NDCG@20", "MRR"):
        assert np.isnan(value(found, "u0", metric))
        assert np.isnan(found.summary["test"]["full"][metric])
    assert np.isnan(value(found, "u0", "HR@5", "validation"))
    assert found.summary["reach"]["test"]["full"] == 7
    assert any("user 'u0' has scores for only 7 of the items" in line and "go up to @5" in line
               for line in found.summary["remarks"])  # fmt: skip
    assert "validation: the file has no scores for this part." in found.summary["remarks"]


def test_items_that_are_known_count_for_nothing_in_a_list(small):
    """u0's list of seven begins with three that she is known to have had."""
    table = lists(7, 2).assign(part="test")
    table.loc[table["user"] == "u0", "item"] = ["i0", "i1", "i2", "i8", "i9", "i3", "i10"]
    with pytest.raises(DataError, match="'u0' has scores for only 4 of the items that .* smallest cutoff is 5"):
        evaluate(table, small)


@pytest.mark.parametrize("order", ["score", "rank"])
def test_what_a_list_leaves_out_ranks_last(synthetic, model, order):
    """Lists of 30 give the figures of all scores, as far as they reach: at test one of 30 may be known."""
    train = synthetic.histories.train
    open_ = model + np.random.default_rng(0).random(model.shape) * 1e-3
    ours = evaluate_users(lambda rows: open_[rows], **synthetic.for_evaluation())
    open_[train.row_of_value, train.values] = -np.inf
    best = np.argsort(-open_, axis=1)[:, :30]
    table = pd.DataFrame({"user": np.repeat(synthetic.user_ids, 30), "item": synthetic.item_ids[best.ravel()]})
    places = {"score": np.take_along_axis(open_, best, 1).ravel(), "rank": np.tile(np.arange(1, 31), len(best))}
    found = evaluate(table.assign(**{order: places[order]}), synthetic)
    cut = [place for place, metric in enumerate(METRICS) if "@" in metric]
    assert np.array_equal(found.values[:, :, 0][..., cut], ours[:, :, 0][..., cut], equal_nan=True)
    assert np.isnan(found.values[:, :, 0, METRICS.index("MRR")]).all()
    assert found.summary["reach"]["test"]["full"] == 29
    assert np.isnan(found.summary["test"]["sampled-99"]["HR@10"])


# -- one sentence each -------------------------------------------------------------------------------------------------


def changed(**columns):
    def change(table):
        for column, new in columns.items():
            table[column] = table[column].astype(object)
            table.loc[3, column] = new
        return table

    return change


def twice(table):
    return pd.concat([table, table.iloc[[4]].assign(score=9.0)], ignore_index=True)


WRONG = {
    "unknown user": (changed(user="u9"), r"scores, row 4: there is no user 'u9' in the split; 1 of the 5 users"),
    "unknown item": (changed(item="x"), r"scores, row 4: there is no item 'x' in the split; 1 of the 31 items"),
    "padding": (changed(item=-1), r"there is no item '-1' in the split"),
    "no user": (changed(user=None), r"scores, row 4: no value in column 'user'"),
    "NaN": (changed(score=float("nan")), r"scores, row 4: the score of user 'u\d' and item 'i\d+' is nan, and scores"),
    "infinite": (changed(score=-np.inf), r"is -inf, and scores are finite numbers: leave out the rows"),
    "text": (changed(score="high"), r"is high, and scores are finite numbers"),
    "twice": (twice, r"user 'u\d' and item 'i\d+' have two rows, 5 and 121; one is enough"),
    "a user is missing": (
        lambda table: table[table["user"] != "u1"].reset_index(),
        r"1 of the 3 users with something hidden for validation have no score, the first is 'u1'. All users",
    ),
    "column": (lambda table: table.rename(columns={"score": "p"}), r"no column 'score' \(or 'rank'\), only user, item"),
    "empty": (lambda table: table.iloc[:0], r"scores has no rows"),
    "fractions": (lambda table: table.assign(user=1.5), r"column 'user' holds numbers with a fraction"),
    "part": (lambda table: table.assign(part="train"), r"row 1: part is 'train' and not validation or test"),
    "hidden items only": (
        lambda table: table[table["item"].isin(["i3", "i7", "i29"])].reset_index(),
        r"has scores for only \d of the items that it is not known to have had, and the smallest cutoff is 5",
    ),
    "array": (lambda table: np.zeros((3, 3)), r"an array of scores is \[4, 30\] numbers"),
    "array of NaN": (lambda table: np.full((4, 30), np.nan), r"the score of user 'u0' and item 'i0' is nan"),
    "parts": (lambda table: {"train": table}, r"scores by part are of validation and test, not of 'train'"),
    "list": (lambda table: [1, 2], r"not of the type list"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_one_sentence(small, case):
    change, sentence = WRONG[case]
    with pytest.raises(DataError, match=sentence):
        evaluate(change(frame(small, np.random.default_rng(0).random((4, 30)))), small)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("none.csv", None, "There is no file"),
        ("scores.txt", "user", "scores are read from .parquet, .csv, .tsv and .tab files"),
        ("scores.parquet", "user", "scores.parquet cannot be read: "),
        ("scores.csv", "", "scores.csv cannot be read: "),
        ("scores.csv", "user,item,score\nu0,i3,\n", "scores.csv, row 1: the score of user 'u0' and item 'i3' is , and"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, small, name, content, sentence):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=sentence):
        evaluate(tmp_path / name, small)


def test_ids_may_be_numbers_in_a_table(tmp_path):
    pd.DataFrame({"user": np.repeat([1, 2], 8), "item": [*range(8), *range(4, 12)], "time": range(16)}).to_csv(
        tmp_path / "data.csv", index=False
    )
    ground = of_file(tmp_path / "data.csv")
    table = frame(ground, np.random.default_rng(0).random((2, 12)))
    whole = table.astype({"user": int, "item": int})
    text, numbers = (evaluate(scores, ground).values for scores in (table, whole))
    assert np.array_equal(text, numbers, equal_nan=True)
    table.to_csv(tmp_path / "scores.csv", index=False)
    assert np.array_equal(evaluate(tmp_path / "scores.csv", ground).values, text, equal_nan=True)


# -- canaries ----------------------------------------------------------------------------------------------------------


def test_scores_of_the_candidates_alone_are_marked(synthetic, model):
    """What a program writes that ranks 100 items: among all items it would have found most of what is hidden."""
    histories = synthetic.histories
    candidates, test = histories.candidates["test"], histories.test
    rows, items = (np.r_[a, b] for a, b in
                   ((candidates.row_of_value, test.row_of_value), (candidates.values, test.values)))  # fmt: skip
    table = {"user": synthetic.user_ids[rows], "item": synthetic.item_ids[items], "score": model[rows, items]}
    found = evaluate(pd.DataFrame(table).assign(part="test"), synthetic)
    full = evaluate(model, synthetic)
    assert found.summary["test"]["full"]["HR@10"] > 2 * full.summary["test"]["full"]["HR@10"]
    assert found.summary["leaky"]
    (sentence,) = found.summary["leaky_because"]
    assert "random candidates of test rank above other items" in sentence
    assert found.summary["test"]["sampled-99"] == full.summary["test"]["sampled-99"]


def test_a_program_that_was_trained_against_the_candidates_is_marked(synthetic, model):
    histories = synthetic.histories
    candidates = histories.candidates["validation"]
    pushed = model.copy()
    pushed[candidates.row_of_value, candidates.values] *= 0.8
    found = evaluate(pushed, synthetic)
    assert found.summary["leaky"]
    assert ["validation" in sentence and "below" in sentence for sentence in found.summary["leaky_because"]] == [True]


def test_hidden_items_that_nobody_has_in_training_tell_a_leak(tmp_path):
    """60 people, each with a hidden item that is nobody else's: a program that has seen what is hidden knows whose."""
    histories = [[*range(5), 100 + user, 200 + user] for user in range(60)]
    ground = of_file(write_histories(tmp_path / "data.csv", histories))
    scores = np.random.default_rng(0).random((60, len(ground.item_ids)))
    blind = evaluate(scores, ground)
    assert (blind.summary["leaky"], blind.summary["remarks"]) == (False, [])
    test = ground.histories.test
    scores[test.row_of_value, test.values] += 0.5
    (remark,) = evaluate(scores, ground).summary["remarks"]
    assert remark.startswith("Caution. Of items that nobody has in training, those that are hidden for test rank above")


def test_the_probe_has_no_mark_in_its_scores_but_what_it_says_of_itself(synthetic):
    """Negatives that avoid what is hidden leave no trace in the candidates: who made the scores must say so."""
    histories = synthetic.histories
    counts = np.zeros((len(histories.users), histories.num_items))
    for round_ in range(1, 21):
        drawn = training_negatives(
            histories.train, histories.whole, histories.num_items, 4, histories.users, SeededDraws(0), round_
        )
        np.add.at(counts, (drawn.row_of_value, drawn.values), 1)
    found = evaluate(-counts, synthetic)
    assert found.summary["test"]["full"]["HR@10"] > 0.5
    assert (found.summary["leaky"], found.summary["remarks"]) == (False, [])
    assert evaluate(-counts, synthetic, train_negatives="paper").summary["leaky"]
    with pytest.raises(ConfigError, match="Did you mean 'honest'"):
        evaluate(-counts, synthetic, train_negatives="honst")


def test_a_leaky_hold_out_stays_leaky(tmp_path, small):
    settings = {**small.settings, "hold-out": "last-row", "time-column": ""}
    ground = dataclasses.replace(small, settings=settings)
    assert evaluate(np.zeros((4, 30)), ground).summary["leaky"]
