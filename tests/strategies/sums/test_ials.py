"""The server's sweep: by hand, against a solution of every item's system, and with replies missing."""

import numpy as np
import pytest

from bouquet.config import parsed
from bouquet.methods.ials import IalsOptions
from bouquet.packed import PackedArray
from bouquet.ragged import Ragged
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import TrainReply
from client_app.sums.ials import Ials as Device
from server_app.app import strategy_of
from strategies.federation.roster import Roster
from strategies.sums.ials import ItemSystems


def server_of(tmp_path, histories, items, **changes):
    """A strategy with its roster, and the device's half."""
    settings = parsed({"strategy": "ials", **{key.replace("_", "-"): value for key, value in changes.items()}})
    strategy = strategy_of(settings, RunDirectory(tmp_path / "run"))
    n = len(histories)
    strategy.roster = Roster(
        np.arange(n, dtype=np.uint64), histories.lengths, np.ones(n, np.uint64), 1, int(histories.lengths.sum()), 0,
        items, "", {},
    )  # fmt: skip
    strategy.versions = np.zeros(n, np.int64)
    return strategy, Device(items, strategy.options)


def answered(device, sent, histories, users):
    given = device.given(sent, histories.take(users))
    return TrainReply(users.astype(np.uint64), given.loss, given.upload_bytes, given.sums)


def swept(strategy, device, shared, histories, rounds, lost=()):
    """Factors after so many rounds; in those of `lost` the last third of the users does not answer."""
    for round_ in range(1, rounds + 1):
        sent = strategy.needed(shared)
        users = strategy.select_users(round_)
        users = users[: -max(1, len(users) // 3)] if round_ in lost else users
        reply = answered(device, sent, histories, users)
        assert strategy.refusal(reply, users) == ""
        shared = strategy.aggregate(round_, shared, [reply], [users])
        strategy.versions[users] = round_
    return shared


def population(n=30, m=20, seed=0):
    source = np.random.default_rng(seed)
    rows = [source.choice(m - 1, source.integers(1, 9), replace=False) for _ in range(n)]
    return Ragged.from_lengths([len(row) for row in rows], np.concatenate(rows))


def reference(factors, histories, options, sweeps):
    """iALS as it is in a textbook: dense, in one process, every system solved exactly."""
    a0, lam, nu = options.ials_unobserved, options.ials_regularization, options.ials_frequency
    marks = np.zeros((len(histories), len(factors)))
    marks[histories.row_of_value, histories.values] = 1

    def solved(marks, other):
        found = np.zeros((len(marks), other.shape[1]))
        for at, row in enumerate(marks):
            own = other[row > 0]
            held = lam * (len(own) + a0 * len(other)) ** nu
            system = own.T @ own + a0 * other.T @ other + held * np.eye(other.shape[1])
            found[at] = np.linalg.solve(system, own.sum(axis=0))
        return found

    for _ in range(sweeps):
        factors = solved(marks.T, solved(marks, factors.astype(np.float32).astype(float)))
    return factors


def test_a_sweep_by_hand(tmp_path):
    """d = 1, α0 = λ = 1, ν = 0; the vectors are 1, of a user who has item 0, and 2, of one who has both. G = 5.

    Item 0: (1 + 4 + 5 + 1) v = 1 + 2, so v = 3/11. Item 1: (4 + 5 + 1) v = 2, so v = 1/5. One step of conjugate
    gradients is exact where d = 1, from anywhere; here from v = (1, 2), whose residuals are 3 - 11 and 2 - 20.
    """
    histories = Ragged.from_lengths([1, 2], [0, 0, 1])
    strategy, _ = server_of(
        tmp_path, histories, 2, ials_rank=1, ials_unobserved=1.0, ials_regularization=1.0, ials_frequency=0.0
    )
    users = np.arange(2)

    def reply(**sums):
        arrays = {name: PackedArray(None, np.array(values, float)) for name, values in sums.items()}
        return TrainReply(users.astype(np.uint64), np.zeros(2, np.float32), np.zeros(2, np.int64), arrays)

    shared = {"factors": np.array([[1.0], [2.0]], np.float32)}
    sent = strategy.needed(shared)
    assert list(sent) == ["factors"]
    first = reply(target=[[3], [2]], product=[[5 * 1], [4 * 2]], count=[2, 1], gram=[[5]])
    shared = strategy.aggregate(1, shared, [first], [users])
    np.testing.assert_allclose(strategy.extra_arrays()["residual"], [[-8], [-18]])
    sent = strategy.needed(shared)
    p = sent["direction"].astype(float)
    # M = (1 + |U_i| / 2) 5 + 1 is 11 for item 0, which all have, and 8.5 for item 1.
    np.testing.assert_allclose(p, [[-8 / 11], [-18 / 8.5]], rtol=1e-6)
    shared = strategy.aggregate(2, shared, [reply(product=[[5 * p[0, 0]], [4 * p[1, 0]]])], [users])
    np.testing.assert_allclose(shared["factors"], [[3 / 11], [1 / 5]], rtol=1e-6)
    assert list(strategy.needed(shared)) == ["factors"]


@pytest.mark.parametrize("frequency", [0.0, 1.0])
def test_with_steps_enough_it_is_the_textbook(tmp_path, frequency):
    """Three sweeps of d = 5 steps each; item 19, which nobody has, is 0."""
    histories = population()
    strategy, device = server_of(
        tmp_path, histories, 20, ials_rank=5, ials_steps=5, ials_frequency=frequency, ials_regularization=0.05
    )
    start = strategy.initial(strategy.traveling({}))
    found = swept(strategy, device, start, histories, 18)["factors"]
    expected = reference(start["factors"], histories, strategy.options, 3)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(expected).max() > 0.1
    assert (found[19] == 0).all()


def loss_of(factors, device, histories):
    """What all users and items have left of the loss, items held down included."""
    options, factors = device.options, factors.astype(float)
    vectors = device.vectors(factors, histories)
    scores, own = vectors @ factors.T, histories.row_of_value
    count = np.bincount(histories.values, minlength=len(factors))
    a0, lam = options.ials_unobserved, options.ials_regularization
    held_users, held_items = histories.lengths + a0 * len(factors), count + a0 * len(histories)
    held = (held_users * (vectors**2).sum(1)).sum() + (held_items * (factors**2).sum(1)).sum()
    return ((1 - scores[own, histories.values]) ** 2).sum() + a0 * (scores**2).sum() + lam * held


def test_sweeps_lower_the_loss_and_users_who_are_lost_in_a_step_do_not_break_them(tmp_path):
    """A third of the users misses a step of every sweep, first or later, and the loss is within a hundredth."""
    histories = population(60, 20)
    losses = {}
    for name, lost in {"all": (), "lost": (2, 6, 7, 11)}.items():
        strategy, device = server_of(tmp_path, histories, 20, ials_rank=4, ials_steps=3)
        shared = strategy.initial(strategy.traveling({}))
        losses[name] = [loss_of(shared["factors"], device, histories)]
        for _ in range(3):
            # Rounds are counted from the beginning of each sweep.
            strategy.versions[:] = 0
            shared = swept(strategy, device, shared, histories, 4, {round_ % 4 for round_ in lost})
            losses[name].append(loss_of(shared["factors"], device, histories))
        assert np.isfinite(shared["factors"]).all()
    assert losses["all"] == sorted(losses["all"], reverse=True)
    assert losses["lost"][-1] < 1.01 * losses["all"][-1]


def test_a_sweep_keeps_the_users_that_it_began_with(tmp_path):
    """Of a third of the users some do not answer the first message: they are not asked again before the next sweep."""
    histories = population(30, 20)
    strategy, device = server_of(tmp_path, histories, 20, ials_rank=2, ials_steps=2, fraction_train=0.34)
    shared = strategy.initial(strategy.traveling({}))
    chosen = strategy.select_users(1)
    shared = strategy.aggregate(1, shared, [answered(device, strategy.needed(shared), histories, chosen[2:])], [chosen])
    strategy.versions[chosen[2:]] = 1
    for round_ in (2, 3):
        assert strategy.select_users(round_).tolist() == chosen[2:].tolist()
        reply = answered(device, strategy.needed(shared), histories, chosen[2:])
        shared = strategy.aggregate(round_, shared, [reply], [chosen[2:]])
        strategy.versions[chosen[2:]] = round_
    assert strategy.select_users(4).tolist() != chosen.tolist()
    assert len(strategy.select_users(4)) == len(chosen)


@pytest.mark.parametrize("name", ["target", "product", "count", "gram"])
def test_more_than_users_can_give_is_refused(tmp_path, name):
    """λ_u |u|² <= |I_u|, whatever a user has: sums of ten thousand users are not those of thirty."""
    histories = population()
    strategy, device = server_of(tmp_path, histories, 20, ials_rank=3, ials_regularization=1.0)
    users = np.arange(30)
    reply = answered(device, strategy.needed(strategy.initial(strategy.traveling({}))), histories, users)
    assert strategy.refusal(reply, users) == ""
    packed = reply.sums[name]
    reply.sums[name] = PackedArray(packed.rows, 1e6 * packed.values)
    assert f"'{name}' is larger than 30 users can give" in strategy.refusal(reply, users)


def test_a_step_against_a_false_reply_is_no_longer_than_without_it(tmp_path):
    """Who sends a product along -p cannot make a step that nothing holds back."""
    histories = population()
    strategy, device = server_of(tmp_path, histories, 20, ials_rank=3)
    shared, users = strategy.initial(strategy.traveling({})), np.arange(30)
    reply = answered(device, strategy.needed(shared), histories, users)
    shared = strategy.aggregate(1, shared, [reply], [users])
    reply = answered(device, strategy.needed(shared), histories, users)
    packed = reply.sums["product"]
    reply.sums["product"] = PackedArray(packed.rows, -1e3 * packed.values)
    found = strategy.aggregate(2, shared, [reply], [users])["factors"]
    kept = strategy.extra_arrays()
    assert set(kept) == {"items", "catalogue", "step"}
    assert np.abs(found).max() < 100


def test_the_preconditioner_is_the_inverse_where_users_of_an_item_are_like_all():
    """Everybody has item 0 and nobody item 1: M is A, and A^-1 A x = x."""
    source = np.random.default_rng(3)
    vectors, rows = source.normal(size=(9, 4)), source.normal(size=(2, 4))
    gram = vectors.T @ vectors
    systems = ItemSystems(gram, np.array([9.0, 0.0]), 9, IalsOptions(ials_unobserved=0.5))
    whole = systems.known(rows) + np.array([[1.0], [0.0]]) * (rows @ gram)
    np.testing.assert_allclose(systems.preconditioned(whole), rows)
