"""What a model reads of a user when validation and test items are ranked, and that nothing is learned from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bouquet.ragged import Ragged
from client_app.node import tensor_scoring
from client_app.node.host import Host, host_of
from client_app.node.scoring import reads_histories, scorer
from client_app.node.tasks import rank
from client_app.node.tensor_scoring import tensor_scorer
from client_app.personalization.round import Given
from models import MatrixFactorization
from tests.client_app.test_cf_fedsr import hosted
from tests.runs.helpers import last_checkpoint, method, run_here, small_settings

READERS = ["gru4rec", "lightgcn", "sasrec"]


def read_at(host: Host, positions: np.ndarray, part: str) -> Ragged:
    """The histories that a part is ranked after, user by user."""
    known = host.histories.train, host.histories.validation
    parts = known if part == "test" and host.config.test_history == "known" else known[:1]
    rows = [np.concatenate([source.row(position) for source in parts]) for position in positions]
    return Ragged.from_lengths([len(row) for row in rows], np.concatenate(rows))


def with_history(host: Host, test_history: str, **changes) -> Host:
    return replace(host, config=host.config.model_copy(update={"test_history": test_history}), **changes)


@pytest.mark.parametrize("test_history", ["known", "training"])
@pytest.mark.parametrize("split", ["leave-one-out", "ratio"])
@pytest.mark.parametrize("backbone", READERS)
def test_what_is_read_before_an_item_is_ranked(tmp_path, backbone, split, test_history):
    """The best rank of each user's held-out items, one by one, from scores after what the setting says."""
    host, given, positions = hosted(tmp_path, backbone, split=split)
    host = with_history(host, test_history)
    histories = host.histories
    if split == "ratio":
        assert histories.validation.take(positions).lengths.max() > 1
    found = rank(host, given, positions, 1)[0]
    for place, part in enumerate(("validation", "test")):
        scores = scorer(host.backbone, host.methods, given, read_at(host, positions, part), 1)(np.arange(6))
        for user, position in enumerate(positions):
            known = set(histories.train.row(position))
            known |= set(histories.validation.row(position)) if part == "test" else set()
            candidates = [item for item in range(histories.num_items) if item not in known]
            own = max(scores[user, histories_row] for histories_row in getattr(histories, part).row(position))
            best = 1 + sum(scores[user, item] > own for item in candidates)
            assert found[user, place, 0, -1] == pytest.approx(1 / best)


@pytest.mark.parametrize("plug_in", ["fcf+ace", "fed3cr"])
def test_a_matrix_made_from_a_users_items_is_made_from_all_that_is_known(tmp_path, plug_in):
    """A device-side method may read as well as a backbone: at test its prototypes count the validation item."""
    settings = small_settings(tmp_path, **method(plug_in), init_scale=0.5)
    host = host_of(settings, {"partition-id": 0, "num-partitions": 1})
    assert reads_histories(host.backbone, host.methods)
    positions = np.array([3, 0, 7])
    random = np.random.default_rng(0)
    arrays = {**host.model_specs, **host.private_specs(host.model_specs)}
    drawn = {name: random.normal(0, 0.5, spec.shape).astype(np.float32) for name, spec in arrays.items()}
    own = {name: np.stack([drawn[name]] * 3) for name in host.private_specs(host.model_specs)}
    given = Given({name: drawn[name] for name in host.model_specs}, own)
    for one in host.methods:
        given = one.deploy(given, {}, np.ones(3, bool))
    scores = {
        part: scorer(host.backbone, host.methods, given, read_at(host, positions, part), 1)(np.arange(3))
        for part in ("validation", "test")
    }
    assert np.abs(scores["test"] - scores["validation"]).max() > 1e-3
    known, training = (rank(with_history(host, name), given, positions, 1)[0] for name in ("known", "training"))
    np.testing.assert_array_equal(known[:, 0], training[:, 0])
    for user, position in enumerate(positions):
        (item,) = host.histories.test.row(position)
        had = [*host.histories.train.row(position), *host.histories.validation.row(position)]
        others = np.delete(np.arange(host.histories.num_items), had)
        for found, part in ((known, "test"), (training, "validation")):
            own_score = scores[part][user, item]
            best = 1 + (scores[part][user, others] > own_score).sum()
            assert found[user, 1, 0, -1] == pytest.approx(1 / best, abs=0.02)


@pytest.mark.parametrize("test_history", ["known", "training"])
@pytest.mark.parametrize("backbone", ["lightgcn", "mf", "sasrec"])
def test_a_device_goes_on_after_all_that_is_known(tmp_path, backbone, test_history):
    """What it keeps as recommendations does not depend on how the test item is ranked."""
    host, given, positions = hosted(tmp_path, backbone)
    kept = []
    rank(with_history(host, test_history, on_scores=lambda users, scores: kept.append(scores)), given, positions, 1)
    now = read_at(with_history(host, "known"), positions, "test")
    expected = scorer(host.backbone, host.methods, given, now, 1)(np.arange(6))
    assert len(kept) == 1
    np.testing.assert_allclose(kept[0], expected, atol=1e-6)


@pytest.mark.parametrize("backbone", ["gru4rec", "sasrec"])
def test_networks_of_users_own_are_read_in_blocks_of_any_size(tmp_path, backbone, monkeypatch):
    """Every user has a network of its own, and histories are of many lengths: all at once, three, or one at a time."""
    host, given, positions = hosted(tmp_path, backbone, exchange="embedding")
    assert given.own.keys() == host.backbone.network().keys()
    read = read_at(host, positions, "test")
    assert len(set(read.lengths.tolist())) > 1
    of_user = 4 * sum(spec.size for spec in host.backbone.network().values())
    asked, found = [], []
    read_block = tensor_scoring._read

    def counted(backbone, shared, histories, mine):
        asked.append(len(histories))
        return read_block(backbone, shared, histories, mine)

    monkeypatch.setattr(tensor_scoring, "_read", counted)
    for read_bytes in (6 * of_user, 3 * of_user, 1):
        monkeypatch.setattr(tensor_scoring, "READ_BYTES", read_bytes)
        found.append(scorer(host.backbone, host.methods, given, read, 1)(np.arange(6)))
    assert asked == [6, 3, 3, 1, 1, 1, 1, 1, 1]
    assert np.abs(found[0] - found[0][0]).max() > 0.1
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5)


def test_compiled_reading_is_that_of_the_model(tmp_path, monkeypatch):
    """Networks of users' own read histories of all lengths as the backbone does."""
    host, given, positions = hosted(tmp_path, "gru4rec", exchange="embedding")
    read = read_at(host, positions, "test")
    found = scorer(host.backbone, host.methods, given, read, 1)(np.arange(6))
    monkeypatch.setattr(tensor_scoring, "gru_kernels", lambda: None)
    expected = scorer(host.backbone, host.methods, given, read, 1)(np.arange(6))
    assert np.abs(expected - expected[0]).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not np.array_equal(found, expected)  # the last digits tell that something else computed them


class Counting(MatrixFactorization):
    """Matrix factorisation that counts the users that it has scored."""

    scored = 0

    def scores(self, private, shared):
        self.scored += len(private["user_embedding"])
        return super().scores(private, shared)


def test_a_model_that_reads_nothing_scores_once(tmp_path):
    host, given, positions = hosted(tmp_path, "mf")
    counting = Counting(host.histories.num_items, host.config)
    rank(replace(host, backbone=counting), given, positions, 1)
    assert counting.scored == len(positions)


@pytest.mark.parametrize("backbone", ["gru4rec", "lightgcn", "mf"])
def test_nothing_is_learned_from_the_validation_item(tmp_path, backbone):
    """Two runs that differ in the setting alone: the same arrays, the same validation, and at test what differs."""
    runs = []
    for test_history in ("known", "training"):
        settings = small_settings(
            tmp_path, strategy="fcf", backbone=backbone, test_history=test_history, num_server_rounds=4, init_scale=0.3
        )
        runs.append(run_here(tmp_path / test_history, settings, 1))
    first, second = (last_checkpoint(run) for run in runs)
    assert first.shared.keys() == second.shared.keys()
    for name, values in first.shared.items():
        np.testing.assert_array_equal(values, second.shared[name], err_msg=name)
    known, training = (run.read_users()[1] for run in runs)
    np.testing.assert_array_equal(known[:, 0], training[:, 0])
    assert np.array_equal(known[:, 1], training[:, 1]) == (backbone == "mf")
    assert [run.read_summary()["test_history"] for run in runs] == ["known", "training"]


@pytest.mark.parametrize(
    "method", [{"strategy": "fedrap"}, {"strategy": "fed3cr", "fed3cr_enhancement": "none"}], ids=str
)
def test_scores_of_a_sum_are_the_same_by_compiled_loops_and_by_tensors(tmp_path, method):
    """⟨p_u, C_i + D_ui⟩ of users that follow one another, of others, and of one alone; then to the last digit."""
    host = host_of(small_settings(tmp_path, init_scale=0.5, **method), {"partition-id": 0, "num-partitions": 1})
    random, count = np.random.default_rng(0), 6
    common = {name: random.normal(size=spec.shape).astype(np.float32) for name, spec in host.model_specs.items()}
    private = host.private_specs(host.model_specs)
    own = {name: random.normal(size=(count, *spec.shape)).astype(np.float32) for name, spec in private.items()}
    given, read = Given(common, own), host.histories.train.take(np.arange(count))
    compiled = scorer(host.backbone, host.methods, given, read, 1)
    tensors = tensor_scorer(host.backbone, host.methods, given, read, 1, None)
    everyone = compiled(np.arange(count))
    for rows in (np.arange(count), np.array([4, 0, 5]), np.array([3])):
        np.testing.assert_allclose(compiled(rows), tensors(rows), rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(compiled(rows), everyone[rows])
