"""Private runs from beginning to end: what is said, spent over resumes and refused, and what an attack finds."""

import json
from pathlib import Path

import numpy as np
import pytest

from bouquet.accounting import Releases, epsilon_of, gaussian_noise, noise_multiplier
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.probes.reading import TABLE, Watched, chance, guess_by_signs, guess_by_sum, precision, watch
from bouquet.experiments.settings import validate
from bouquet.methods import METHODS
from bouquet.testing import Faulty, Recording
from bouquet.testing.runs import figures_of, raises
from bouquet.wire import TRAIN
from client_app.sums.private import PrivateCounter
from client_app.sums.sequential_rules import SequentialRules
from strategies.federation.ledger import LEDGER
from tests.runs.helpers import last_checkpoint, run_here, small_settings

ROUNDS = 4


def private(folder, name="run", nodes=3, grid=None, **changes):
    settings = small_settings(
        folder, **{"strategy": "fcf", "dp_epsilon": 8.0, "num_server_rounds": ROUNDS, **changes}
    )  # fmt: skip
    arguments = (grid[0],) if grid else ()
    return run_here(folder / name, settings, nodes, *arguments, **(grid[1] if grid else {}))


def test_a_run_spends_its_budget_and_says_so_in_every_round(tmp_path):
    run = private(tmp_path, dp_clip=0.5)
    noise = noise_multiplier(8.0, 1 / 40, ROUNDS)
    spent = [line["privacy"]["epsilon"] for line in run.rounds()]
    assert spent == pytest.approx([epsilon_of([Releases(noise, 1.0, t)], 1 / 40) for t in range(1, ROUNDS + 1)])
    summary = run.read_summary()
    told = summary["privacy"]
    assert told["epsilon"] == pytest.approx(8.0, abs=1e-6)
    assert told["epsilon"] <= 8.0
    assert (told["delta"], told["budget"], told["clip"], told["spent_rounds"]) == (1 / 40, 8.0, 0.5, ROUNDS)
    assert told["neighbours"] == "add or remove one user"
    assert "outside the budget" in told["metrics"]
    assert "protects nobody" in told["noise_from"]
    assert summary["best_round"] == ROUNDS, "to choose a round by its metrics would have to be paid for"


@pytest.mark.parametrize("strategy", ["fcf", "sequential-rules", "ease"])
def test_a_private_run_is_the_same_however_its_users_are_spread(tmp_path, strategy):
    """And nothing but noisy sums and what follows from them is kept or sent."""
    rounds = 1 if METHODS[strategy].kind == "sums" else 2
    log = []
    given = {"strategy": strategy, "num_server_rounds": rounds}
    one = private(tmp_path, "one", 1, **given)
    many = private(tmp_path, "many", 40, (Recording, {"log": log}), **given)
    for name, values in last_checkpoint(one).shared.items():
        np.testing.assert_allclose(last_checkpoint(many).shared[name], values, atol=1e-4)
    kept = last_checkpoint(many).extra
    assert not any(np.size(values) for name, values in kept.items() if name.startswith("pairs/") and "data" in name)
    told = {name for m, reply in log if m.metadata.message_type == TRAIN for name in reply.content["update"]}
    if rounds == 1:
        assert {name.split("/")[0] for name in told} == {"pairs"}, "no counts of items beside it"


@pytest.mark.parametrize("strategy", ["sequential-rules", "ease"])
def test_a_private_sum_is_the_same_however_often_users_come_back(tmp_path, strategy):
    """The limit of a user rests on distinct items: three of each event or seven, of which the last two are hidden."""
    given = {"strategy": strategy, "num_server_rounds": 1, "repeats": "keep"}
    lines = Path(small_settings(tmp_path)["data-file"]).read_text().splitlines()
    models = []
    for copies in (3, 7):
        file = tmp_path / f"{copies}.csv"
        file.write_text("\n".join([lines[0], *(line for line in lines[1:] for _ in range(copies))]) + "\n")
        run = private(tmp_path, f"run-{copies}", **given, data_file=str(file))
        assert run.read_summary()["privacy"]["epsilon"] == pytest.approx(8.0, abs=1e-6)
        models.append(last_checkpoint(run).shared)
    assert any(np.abs(values).max() > 0 for values in models[0].values())
    for name, values in models[0].items():
        assert np.array_equal(values, models[1][name]), name


def test_rounds_of_nobody_are_rounds(tmp_path):
    run = private(tmp_path, fraction_train=0.02, num_server_rounds=12, evaluate_every=12, dp_noise_multiplier=1.0)
    counts = [line["users"] for line in run.rounds()]
    assert 0 in counts
    assert len(counts) == 12
    assert run.read_summary()["status"] == "completed"


def test_weights_of_users_do_not_multiply_what_they_can_change(tmp_path):
    """Sizes differ, and private they make no difference: both are the plain mean."""
    runs = [private(tmp_path, name, num_server_rounds=2, strategy=name) for name in ("fcf", "fedavg")]
    one, other = (last_checkpoint(run).shared[TABLE] for run in runs)
    np.testing.assert_array_equal(one, other)


# -- budgets over resumes ----------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_from_what_was_spent(tmp_path):
    """A round that failed before its sum was made costs nothing: the run ends as if it had not been there."""
    given = {"num_server_rounds": ROUNDS, "checkpoint_every": 2, "evaluate_every": 2}
    expected = private(tmp_path, "expected", **given)

    def later(message, answer):
        return raises(message, answer) if message.content["config"]["round"] > 3 else answer()

    with pytest.raises(RunFailed):
        private(tmp_path, "run", 3, (Faulty, {"fault": later, "bad": {0, 1, 2}}), **given)
    assert json.loads((tmp_path / "run" / LEDGER).read_text())["rounds"] == 3
    # Round 3 was made, and is not in the checkpoint: it is spent, and made again.
    run = private(tmp_path, "run", resume=str(tmp_path / "run"), **given)
    assert run.read_summary()["rounds"] == ROUNDS - 1
    assert run.read_summary()["privacy"]["spent_rounds"] == ROUNDS
    assert run.read_summary()["privacy"]["epsilon"] <= 8.0
    first = next(figures_of(line["validation"]) for line in run.rounds() if "validation" in line)
    assert first == figures_of(expected.rounds()[1]["validation"])


def test_a_run_that_stopped_at_its_checkpoint_loses_nothing(tmp_path):
    given = {"num_server_rounds": ROUNDS, "checkpoint_every": 2, "evaluate_every": 2}
    expected = private(tmp_path, "expected", **given)

    def later(message, answer):
        return raises(message, answer) if message.content["config"]["round"] > 2 else answer()

    with pytest.raises(RunFailed):
        private(tmp_path, "run", 3, (Faulty, {"fault": later, "bad": {0, 1, 2}}), **given)
    found = private(tmp_path, "run", resume=str(tmp_path / "run"), **given)
    assert found.read_summary()["privacy"] == expected.read_summary()["privacy"]
    np.testing.assert_array_equal(last_checkpoint(found).shared[TABLE], last_checkpoint(expected).shared[TABLE])


def test_a_spent_budget_is_not_raised_by_more_rounds(tmp_path):
    run = private(tmp_path)
    with pytest.raises(ConfigError, match=r"no further round: after 4 rounds ε is 8, one more would be 9\.\d+"):
        private(tmp_path, resume=str(run.path), num_server_rounds=ROUNDS + 1)
    free = {"dp_epsilon": 0.0, "dp_noise_multiplier": 2.0}
    run = private(tmp_path, "free", **free)
    before = run.read_summary()["privacy"]["epsilon"]
    run = private(tmp_path, "free", resume=str(run.path), num_server_rounds=ROUNDS + 2, **free)
    assert run.read_summary()["privacy"]["epsilon"] > before, "without a budget it is counted and said"
    assert run.read_summary()["privacy"]["spent_rounds"] == ROUNDS + 2


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"strategy": "fedca"}, "fedca needs more of users than sums over them"),
        ({"strategy": "local"}, "local needs more of users than sums over them"),
        ({"strategy": "slist"}, "slist has no limit by user on its sums yet"),
        ({"strategy": "ials"}, "ials has no limit by user on its sums yet"),
        ({"strategy": "ease", "num-server-rounds": 1, "dp-clip-quantile": 0.5}, "leave dp-clip-quantile out"),
    ],
)
def test_what_cannot_be_private_is_refused_beforehand(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        validate({"dp-epsilon": 4.0, **given})


def test_a_private_sum_is_told_once(tmp_path):
    with pytest.raises(ConfigError, match="A private sum is told once: with ease take num-server-rounds = 1"):
        private(tmp_path, strategy="ease", num_server_rounds=2)


# -- what an attack finds ----------------------------------------------------------------------------------------------


def test_histories_are_not_read_out_of_noisy_sums(tmp_path):
    """The attacker knows what all others sent and takes it off: what is left is one user's change and all of the noise.

    ε = 8 over 8 rounds at δ = 1/40, the attacks that find most of the histories without noise.
    """
    watched = watch(small_settings(tmp_path, strategy="fcf"), tmp_path / "state", 8)
    clear = max(precision(watched, guess_by_signs(watched)), precision(watched, guess_by_sum(watched)))
    assert clear > 0.8
    noise, draws, clip = noise_multiplier(8.0, 1 / 40, 8), np.random.default_rng(3), 0.5
    sent = []
    for rounds in watched.sent:
        seen = []
        for rows, values in rounds:
            whole = noise * clip * draws.standard_normal((watched.host.histories.num_items, values.shape[1]))
            whole[rows] += values * min(1.0, clip / np.linalg.norm(values))
            seen.append((np.arange(len(whole)), whole))
        sent.append(seen)
    noisy = Watched(watched.host, sent, watched.truth, watched.vectors)
    for guesses in (guess_by_signs(noisy), guess_by_signs(noisy, popular=True), guess_by_sum(noisy)):
        assert precision(noisy, guesses) == pytest.approx(chance(noisy), abs=0.1)


def test_pairs_are_not_read_out_of_a_noisy_matrix(tmp_path):
    """The same against one round of pairs: the items with the largest rows, with noise and without."""
    watched = watch(small_settings(tmp_path, strategy="fcf"), tmp_path / "state", 1)
    histories = watched.host.histories
    size, draws = histories.num_items, np.random.default_rng(3)
    counter = PrivateCounter(SequentialRules(size, METHODS["sequential-rules"].options()), 1.0)
    shares = {}
    for noise in (0.0, gaussian_noise(8.0, 1 / 40)):
        right = 0
        for user, items in enumerate(watched.truth):
            cells = counter.contribution(histories.train.take(np.array([user])))["pairs"]
            upper = np.triu(draws.standard_normal((size, size))) * noise / np.sqrt(2)
            upper[np.repeat(cells.rows, cells.lengths), cells.columns] += cells.values
            strength = upper.sum(axis=0) + upper.sum(axis=1)
            right += len(items & set(np.argsort(-strength)[: len(items)].tolist()))
        shares[noise] = right / sum(map(len, watched.truth))
    clear, hidden = shares.values()
    assert clear == 1.0
    assert hidden == pytest.approx(chance(watched), abs=0.1)


# -- models of private sums --------------------------------------------------------------------------------------------


def test_factors_are_the_ridge_regression_of_what_is_left_of_the_matrix(tmp_path):
    """EASE's weights of G = V Λ Vᵀ by the inverse of G + λI, beside what is published and what a device makes of it."""
    from bouquet.ragged import Ragged
    from client_app.sums.ease import Ease as Device
    from strategies.sums.ease import PrivateEase

    draws, options = np.random.default_rng(0), METHODS["ease"].options(ease_regularization=7.0)
    vectors, _ = np.linalg.qr(draws.standard_normal((30, 4)))
    values = np.array([50.0, 20.0, 3.0, 0.0])
    inverse = np.linalg.inv((vectors * values) @ vectors.T + 7.0 * np.eye(30))
    expected = -inverse / np.diag(inverse)
    np.fill_diagonal(expected, 0.0)

    class Half:
        pass

    half = Half()
    half.options = options
    found = PrivateEase.factors_of(half, values, vectors, 1.0)
    weights = found["factors"] @ found["factors"].T * found["scales"]
    np.fill_diagonal(weights, 0.0)
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    histories = Ragged.from_lengths([2, 0, 3], np.array([4, 9, 1, 2, 3], np.int32))
    scores = Device(30, options).scores(found, histories)
    unseen = np.ones((3, 30), bool)
    unseen[0, [4, 9]] = unseen[2, [1, 2, 3]] = False
    by_hand = np.array([expected[[4, 9]].sum(axis=0), np.zeros(30), expected[[1, 2, 3]].sum(axis=0)])
    np.testing.assert_allclose(scores[unseen], by_hand[unseen], atol=1e-5)


def test_liars_and_a_private_count_are_refused_in_a_sentence(tmp_path):
    settings = small_settings(tmp_path, strategy="sequential-rules", dp_epsilon=8.0, attack_fraction=0.2, attack="push")
    with pytest.raises(ConfigError, match="known what liars say in its own sums, and not in a private one"):
        run_here(tmp_path / "run", settings, 3)
