"""What the server can read out of updates, and what clipping, decoys and noise do to it."""

import numpy as np
import pytest

from bouquet.config import PrivacyOptions, RunConfig
from bouquet.errors import ConfigError
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from bouquet.wire import TRAIN, TrainReply
from client_app.host import histories_of
from client_app.personalization.base import Changes
from client_app.protection import decoy_items, protect
from data_partition import load
from tests.runs.helpers import run_here, small_settings
from tests.runs.test_layouts import Recording, _spec

ROUNDS = 8


def updates_of(tmp_path, **changes):
    """What the server gets of 40 one-user nodes in 8 rounds, and the histories that it should not learn.

    Returns:
        user -> list of (rows, values), and user -> set of training items.
    """
    log = []
    tmp_path.mkdir(exist_ok=True)
    settings = small_settings(tmp_path, num_server_rounds=ROUNDS, evaluate_every=ROUNDS, **changes)
    run_here(tmp_path / "run", settings, 40, Recording, log=log)
    seen = {}
    for message, reply in log:
        if message.metadata.message_type != TRAIN:
            continue
        decoded = TrainReply.decode(reply.content, {"item_embedding": _spec(message)}, "sum")
        packed = decoded.sums["item_embedding"]
        rows = np.arange(len(packed.values)) if packed.rows is None else packed.rows
        seen.setdefault(int(decoded.users[0]), []).append((rows, packed.values))
    options = RunConfig.model_validate({k: v for k, v in settings.items() if k in RunConfig().to_flat()})
    interactions = load("file", data_file=settings["data-file"], time_column="time")
    histories = histories_of(interactions, options)
    truth = {int(user): set(histories.train.row(index)) for index, user in enumerate(histories.users)}
    return seen, truth


def guess(updates, count):
    """The attack: items that were touched in most rounds, and among equals those that moved most, are the history."""
    times, moved = {}, {}
    for rows, values in updates:
        for row, size in zip(rows.tolist(), np.linalg.norm(values, axis=1), strict=True):
            times[row] = times.get(row, 0) + (size > 0)
            moved[row] = moved.get(row, 0.0) + float(size)
    order = sorted(times, key=lambda row: (-times[row], -moved[row]))
    return set(order[:count])


def recovered(seen, truth):
    """The share of the users' training items among as many guesses; the server knows how many there are."""
    right = sum(len(guess(seen[user], len(items)) & items) for user, items in truth.items())
    return right / sum(len(items) for items in truth.values())


def chance(truth, num_items=60):
    return sum(len(items) ** 2 / num_items for items in truth.values()) / sum(len(items) for items in truth.values())


def test_plain_updates_give_the_history_away(tmp_path):
    """8 rounds of sparse updates of one-user nodes: nearly every training item of nearly everybody."""
    assert recovered(*updates_of(tmp_path, negatives_per_positive=1)) > 0.9


def test_dense_updates_do_as_well(tmp_path):
    """Zero rows tell what was not touched."""
    seen, truth = updates_of(tmp_path, negatives_per_positive=1)
    whole = {}
    for user, updates in seen.items():
        for rows, values in updates:
            table = np.zeros((60, values.shape[1]))
            table[rows] = values
            whole.setdefault(user, []).append((np.arange(60), table))
    assert recovered(whole, truth) == recovered(seen, truth)


def test_decoys_leave_the_server_guessing_between_them_and_the_history(tmp_path):
    """As many decoys as items: at best about every second guess is right."""
    plain = recovered(*updates_of(tmp_path / "plain", negatives_per_positive=1))
    hidden = recovered(*updates_of(tmp_path / "decoys", negatives_per_positive=1, decoy_rows=15))
    assert hidden < 0.75 * plain


def test_noise_brings_the_server_to_chance(tmp_path):
    seen, truth = updates_of(tmp_path, negatives_per_positive=1, update_clip=0.5, update_noise=1.0)
    assert abs(recovered(seen, truth) - chance(truth)) < 0.1


# -- by hand ---------------------------------------------------------------------------------------------------------

USER = user_keys(["ann"])


def one_user(values=((3.0, 0.0), (0.0, 4.0))):
    """Items 1 and 5 of ten were touched; item 1 is the training item. ‖Δ‖ = 5."""
    return Changes(
        users=np.array([0]),
        rows=Ragged.from_lengths([2], np.array([1, 5], np.int32)),
        by_item={"item_embedding": np.array(values, np.float32)},
        loss=np.zeros(1, np.float32),
    )


def protected(**options):
    positives = Ragged.from_lengths([1], np.array([1]))
    return protect(one_user(), PrivacyOptions(**options), USER, positives, 10, seed=7, round_=1)


def test_an_update_is_scaled_down_to_the_clip_and_never_up():
    """C = 1: (3, 4) / 5 = (0.6, 0.8). C = 6 is above the norm 5 and changes nothing."""
    np.testing.assert_allclose(protected(update_clip=1.0).by_item["item_embedding"], [[0.6, 0], [0, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(protected(update_clip=6.0).by_item["item_embedding"], [[3, 0], [0, 4]])


def test_decoys_are_other_items_that_carry_the_change_of_a_training_item():
    result = protected(decoy_rows=3)
    decoys = decoy_items(np.array([1]), 3, 10, USER[0], 7)
    assert len(decoys) == 3
    assert 1 not in decoys
    assert set(result.rows.row(0)) == {1, 5} | set(decoys)
    for row, values in zip(result.rows.row(0), result.by_item["item_embedding"], strict=True):
        if row == 1 or row in decoys:
            np.testing.assert_array_equal(values, [3, 0])


def test_noise_is_on_every_row_and_has_its_scale():
    """z = 2 and C = 5: σ = 10 on 10 · 2 values; over 500 rounds the mean is Δ and the deviation is 10."""
    positives = Ragged.from_lengths([1], np.array([1]))
    options = PrivacyOptions(update_clip=5.0, update_noise=2.0)
    tables = np.array(
        [
            protect(one_user(), options, USER, positives, 10, seed=7, round_=round_).by_item["item_embedding"]
            for round_ in range(1, 501)
        ]
    )
    assert tables.shape == (500, 10, 2)
    expected = np.zeros((10, 2))
    expected[1, 0], expected[5, 1] = 3, 4
    np.testing.assert_allclose(tables.mean(axis=0), expected, atol=4 * 10 / np.sqrt(500))
    assert tables.std() == pytest.approx(10, rel=0.03)
    flat = (tables - tables.mean(axis=0)).reshape(500, 20)
    correlation = np.corrcoef(flat.T) - np.eye(20)
    assert np.abs(correlation).max() < 0.2, "values of one update must not share their noise"


def test_noise_without_a_clip_has_no_scale():
    with pytest.raises(ConfigError, match="update-noise is a multiple of update-clip"):
        protected(update_noise=1.0)


def test_a_secret_is_needed_for_secret_draws(tmp_path):
    with pytest.raises(Exception, match="secret-draws needs a secret on every node"):
        run_here(tmp_path / "run", small_settings(tmp_path, secret_draws=True), 2)


def test_a_protected_run_is_the_same_however_it_is_spread(tmp_path):
    """Every user's update is clipped, hidden and noised on its own, on any node."""
    from tests.runs.helpers import last_checkpoint

    given = {"update_clip": 0.5, "update_noise": 0.1, "decoy_rows": 4, "num_server_rounds": 3}
    tables = [
        last_checkpoint(run_here(tmp_path / str(nodes), small_settings(tmp_path, **given), nodes)).shared
        for nodes in (1, 40)
    ]
    np.testing.assert_allclose(tables[0]["item_embedding"], tables[1]["item_embedding"], atol=2e-5)
