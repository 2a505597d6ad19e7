"""What the server can read out of updates, and what clipping, decoys and noise do to it."""

from dataclasses import replace

import numpy as np
import pytest

from bouquet.arrays import initial_shared
from bouquet.config import PrivacyOptions, RunConfig
from bouquet.errors import ConfigError
from bouquet.experiments.probes.reading import chance as chance_of
from bouquet.experiments.probes.reading import (
    equal_rows,
    guess_by_signs,
    guess_by_sum,
    main_direction,
    precision,
    watch,
)
from bouquet.ragged import Ragged
from bouquet.randomness import SeededDraws, user_keys
from bouquet.testing import Recording
from bouquet.testing.runs import specs_of
from bouquet.wire import TRAIN, EvaluateRequest, TrainReply, TrainRequest
from client_app.node.handlers import evaluate, train
from client_app.node.histories import histories_of
from client_app.node.host import host_of
from client_app.node.protection import protect
from client_app.personalization.round import Changes
from data_partition import load
from tests.runs.helpers import method, run_here, small_settings

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
    seen, specs = {}, {"item_embedding": specs_of(log)["item_embedding"]}
    for message, reply in log:
        if message.metadata.message_type != TRAIN:
            continue
        users = message.content["users"]["user"].numpy()
        decoded = TrainReply.decode(reply.content, users, specs, "sum")
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


def test_noise_brings_the_server_to_chance(tmp_path):
    seen, truth = updates_of(tmp_path, negatives_per_positive=1, update_clip=0.5, update_noise=1.0)
    assert abs(recovered(seen, truth) - chance(truth)) < 0.1


# -- the better attack ------------------------------------------------------------------------------------------------


def seen(folder, rounds, **changes):
    return watch(small_settings(folder, **changes), folder / "state", rounds)


def test_the_main_direction_of_an_update_is_the_embedding_that_never_travels(tmp_path):
    """A row moves along the user's own vector: after eight rounds the cosine of half of the users is above .99."""
    watched = seen(tmp_path, 8)
    cosines = [
        abs(main_direction(sent[-1][1]) @ vector) / np.linalg.norm(vector)
        for sent, vector in zip(watched.sent, watched.vectors, strict=True)
    ]
    assert np.median(cosines) > 0.99


@pytest.mark.parametrize(("rounds", "negatives"), [(1, 4), (8, 1), (8, 4)])
def test_signs_tell_what_is_liked(tmp_path, rounds, negatives):
    """Four negatives per positive: one round gives everything."""
    watched = seen(tmp_path, rounds, negatives_per_positive=negatives)
    assert precision(watched, guess_by_signs(watched)) > 0.99


@pytest.mark.parametrize("decoys", [15, 30])
def test_an_update_does_not_tell_decoys_from_the_history(tmp_path, decoys):
    """The liked side is the history and the decoys, and which is which is a guess: the share of the history in it.

    The guess is not blind where the server knows what is popular: that finds .08 more.
    """
    watched = seen(tmp_path, 8, decoy_rows=decoys)
    blind = np.array([len(items) / (len(items) + min(decoys, 60 - len(items))) for items in watched.truth])
    sizes = np.array([len(items) for items in watched.truth])
    share = (blind * sizes).sum() / sizes.sum()
    assert precision(watched, guess_by_signs(watched)) == pytest.approx(share, abs=0.06)
    assert precision(watched, guess_by_sum(watched)) == pytest.approx(share, abs=0.06)
    assert precision(watched, guess_by_signs(watched, popular=True)) < share + 0.12


def test_no_row_of_a_decoy_equals_another_row(tmp_path):
    watched = seen(tmp_path, 3, decoy_rows=15)
    assert sum(equal_rows(sent[-1]) for sent in watched.sent) == 0


@pytest.mark.parametrize("noise", [0.01, 1.0])
def test_under_noise_the_better_attack_is_near_chance_too(tmp_path, noise):
    watched = seen(tmp_path, 8, update_clip=0.5, update_noise=noise)
    for found in (guess_by_signs(watched), guess_by_sum(watched)):
        assert abs(precision(watched, found) - chance_of(watched)) < 0.08


# -- decoys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fcf", "cf-fedsr", "fedrap", "hetefedrec", "fed3cr"])
def test_with_decoys_leaves_what_a_user_who_has_them_would_send(tmp_path, name):
    """To the last bit, in every round: there is nothing in an update that could tell a decoy from an item."""
    settings = small_settings(tmp_path, **method(name))
    plain = host_of({**settings, "state-dir": str(tmp_path / "plain")}, {})
    hidden = host_of({**settings, "decoy-rows": 5, "state-dir": str(tmp_path / "hidden")}, {})
    having = replace(plain, place=replace(plain.place, histories=hidden.shown.histories))
    assert (having.histories.train.lengths == plain.histories.train.lengths + 5).all()
    users = len(plain.identities)
    shared = initial_shared(plain.shared_specs, 0)
    personal = {"group": np.arange(users) % 3} if name == "hetefedrec" else {}
    for round_ in (1, 2, 3):
        before = np.full(users, round_ - 1)
        request = TrainRequest(
            "s", round_, plain.identities, before, before, shared, personal, "sum", np.full(users, 1.0)
        )
        sent, expected = train(hidden, request), train(having, request)
        assert np.array_equal(sent.loss, expected.loss)
        assert sent.sums.keys() == expected.sums.keys()
        for array, packed in expected.sums.items():
            assert np.array_equal(sent.sums[array].values, packed.values), array
            assert np.array_equal(sent.sums[array].rows, packed.rows), array


def test_interests_that_are_told_are_those_of_a_user_who_has_the_decoys(tmp_path):
    """A table whose rows are names of items tells from a mean of rows which items it is made of."""
    settings = small_settings(tmp_path, strategy="cf-fedsr", embedding_size=60, cf_fedsr_long_term=60, decoy_rows=5)
    host = host_of(settings, {})
    users = np.arange(len(host.identities))
    names = {"item_embedding": np.eye(60, dtype=np.float32)}
    request = EvaluateRequest("s", 1, host.identities, 0 * users, names, {}, ("representation",))
    told = evaluate(host, request).reports["representation"][:, 60:]
    for user in users:
        assert np.flatnonzero(told[user]).tolist() == sorted(host.shown.histories.train.row(user).tolist())
        assert np.count_nonzero(told[user]) == len(host.histories.train.row(user)) + 5


def test_what_a_person_keeps_is_trained_without_decoys(tmp_path):
    """Private vectors after a round from the same shared table: those of a run without decoys."""
    settings = small_settings(tmp_path)
    vectors = []
    for decoys in (0, 5):
        host = host_of({**settings, "decoy-rows": decoys, "state-dir": str(tmp_path / str(decoys))}, {})
        users, shared = len(host.identities), initial_shared(host.shared_specs, 0)
        none = np.zeros(users, np.int64)
        train(host, TrainRequest("s", 1, host.identities, none, none, shared, weights=np.ones(users)))
        vectors.append(host.state("s", shared).read(np.arange(users), none + 1)["user_embedding"])
    np.testing.assert_array_equal(vectors[0], vectors[1])


def test_decoys_stand_anywhere_in_the_order_and_the_history_keeps_its_own(tmp_path):
    host = host_of(small_settings(tmp_path, decoy_rows=6), {})
    for user in range(len(host.identities)):
        items, shown = host.histories.train.row(user), host.shown.histories.train.row(user)
        assert shown[np.isin(shown, items)].tolist() == items.tolist()
        assert len(np.unique(shown)) == len(shown) == len(items) + 6


# -- keys of users -----------------------------------------------------------------------------------------------------


def with_key(folder, text="07"):
    (folder / "state.key").write_text(text * 32)
    return {"state-key": str(folder / "state.key")}


def test_a_node_with_a_key_names_its_users_as_nobody_can_guess(tmp_path):
    """The server knows every raw id of the catalogue's makers, and inverts 40 of 40 keys without a salt and 0 with."""
    settings = small_settings(tmp_path)
    candidates = user_keys([str(user) for user in range(1000)])
    assert np.isin(host_of(settings, {}).identities, candidates).sum() == 40
    salted = host_of(settings, with_key(tmp_path))
    assert np.isin(salted.identities, candidates).sum() == 0
    assert np.array_equal(salted.place.roster(salted.shared_specs).users, salted.identities)
    again = host_of({**settings, "seed": 5}, with_key(tmp_path))
    assert np.array_equal(again.identities, salted.identities), "a node that comes back is known"


def test_a_salt_changes_names_and_nothing_else(tmp_path):
    """Negatives, initial vectors and candidates are keyed by what does not travel: the same updates and metrics."""
    settings = small_settings(tmp_path)
    answers = []
    for number, node in enumerate(({}, with_key(tmp_path))):
        host = host_of({**settings, "state-dir": str(tmp_path / f"state {number}")}, node)
        users, shared = len(host.identities), initial_shared(host.shared_specs, 0)
        none = np.zeros(users, np.int64)
        sent = train(host, TrainRequest("s", 1, host.identities, none, none, shared, update="rows"))
        found = evaluate(host, EvaluateRequest("s", 1, host.identities, none + 1, shared))
        assert np.array_equal(sent.users, host.identities)
        answers.append((sent.rows["item_embedding"].values, found.metrics))
    for plain, salted in zip(*answers, strict=True):
        np.testing.assert_array_equal(plain, salted)


def test_secret_draws_change_with_the_key_and_not_with_the_seed_or_a_restart(tmp_path):
    """Decoys of a user are the same in every run: those of two runs would otherwise have the history in common."""
    settings = small_settings(tmp_path, secret_draws=True, decoy_rows=8)
    (tmp_path / "b").mkdir()
    runs = [(settings, ""), ({**settings, "seed": 9}, ""), (settings, "b")]
    shown = [
        host_of(run, with_key(tmp_path / folder, "07" if not folder else "08")).shown.histories.train.values
        for run, folder in runs
    ]
    assert np.array_equal(shown[0], shown[1])
    assert not np.array_equal(shown[0], shown[2])


@pytest.mark.parametrize(
    "changes",
    [
        {"batch_size": 8, "backend": "numba"},
        {"batch_size": 8, "backend": "torch", "update_clip": 0.5, "update_noise": 0.1, "decoy_rows": 3},
        {"batch_size": 8, "backend": "loop", "backbone": "ncf"},
        {"strategy": "fedca", "fedca_ldp_delta": 0.1, "fedca_ldp_delta_features": 0.1},
        {"backbone": "gru4rec"},
    ],
    ids=["numba", "noise", "ncf", "fedca", "dropout"],
)
def test_everything_that_is_drawn_can_be_drawn_from_the_secret(tmp_path, changes):
    """The same after a restart, and other than from the seed."""
    (tmp_path / "data").mkdir()
    sent = []
    for number, secret in enumerate((True, True, False)):
        settings = small_settings(tmp_path / "data", **changes, secret_draws=secret)
        host = host_of({**settings, "state-dir": str(tmp_path / str(number))}, with_key(tmp_path))
        users, shared = len(host.identities), initial_shared(host.shared_specs, 0)
        personal, reports = {}, ()
        if host.config.strategy == "fedca":
            personal = {name: np.repeat(values[None], users, axis=0) for name, values in shared.items()}
            shared, reports = {}, ("features",)
        none = np.zeros(users, np.int64)
        request = TrainRequest("s", 1, host.identities, none, none, shared, personal, "rows", none * 1.0, reports)
        reply = train(host, request)
        sent.append({name: packed.values for name, packed in reply.rows.items()} | dict(reply.reports))
    for name, values in sent[0].items():
        assert np.array_equal(values, sent[1][name]), name
    assert any(
        values.shape != sent[2][name].shape or (values != sent[2][name]).any() for name, values in sent[0].items()
    )


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
    return protect(one_user(), PrivacyOptions(**options), USER, 10, SeededDraws(7), round_=1)


def test_an_update_is_scaled_down_to_the_clip_and_never_up():
    """C = 1: (3, 4) / 5 = (0.6, 0.8). C = 6 is above the norm 5 and changes nothing."""
    np.testing.assert_allclose(protected(update_clip=1.0).by_item["item_embedding"], [[0.6, 0], [0, 0.8]], rtol=1e-6)
    np.testing.assert_array_equal(protected(update_clip=6.0).by_item["item_embedding"], [[3, 0], [0, 4]])


def test_noise_is_on_every_row_and_has_its_scale():
    """z = 2 and C = 5: σ = 10 on 10 · 2 values; over 500 rounds the mean is Δ and the deviation is 10."""
    options = PrivacyOptions(update_clip=5.0, update_noise=2.0)
    tables = np.array(
        [
            protect(one_user(), options, USER, 10, SeededDraws(7), round_).by_item["item_embedding"]
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
