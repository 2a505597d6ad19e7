"""The server's half of a private run: who is drawn, what noise is added, what is spent and what is refused."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bouquet.arrays import ArraySpec
from bouquet.config import RunConfig
from bouquet.errors import ConfigError
from bouquet.evaluation.metrics import CANDIDATE_SETS, METRICS, PARTS
from bouquet.packed import PackedArray
from bouquet.ragged import Ragged
from bouquet.randomness import Purpose, streams, user_keys
from bouquet.reporting.run_directory import RunDirectory
from bouquet.wire import WITHIN, TrainReply
from client_app.node.protection import limited, norms
from client_app.personalization.round import Changes
from strategies.federation.ledger import LEDGER
from strategies.federation.noise import fresh, noisy
from strategies.federation.private import PrivateSums

SPECS = {"item_embedding": ArraySpec((50, 4), by_item=True), "bias": ArraySpec((3,))}


def private(folder, simulated=True, users=100, rounds=10, kept=(), done=0, **changes):
    config = RunConfig(**{"dp_epsilon": 4.0, **changes})
    made = PrivateSums(config, RunDirectory(folder))
    folder.mkdir(exist_ok=True)
    last = made.begin(simulated, users, dict(kept), done, rounds)
    return made, last


def reply(count, value=0.0, within=()):
    users = np.arange(1, count + 1, dtype=np.uint64)
    sums = {name: PackedArray(None, np.full(spec.shape, value)) for name, spec in SPECS.items()}
    reports = {WITHIN: np.array(within, np.float32)} if len(within) else {}
    return TrainReply(users, np.zeros(count, np.float32), np.zeros(count, np.int64), sums=sums, reports=reports)


# -- limits on devices -------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.floats(-30, 30),
    st.sampled_from([1e-3, 0.5, 1.0, 77.0]),
)
@settings(max_examples=60, deadline=None)
def test_no_change_leaves_a_device_above_the_limit(seed, lengths, power, clip):
    """Whatever the values are, over all arrays together, in the float32 that travels."""
    random = np.random.default_rng(seed)
    rows = Ragged.from_lengths(lengths, np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]))
    shapes = {"a": (sum(lengths), 3), "b": (sum(lengths),)}
    by_item = {name: (random.standard_normal(shape) * 2.0**power).astype(np.float32) for name, shape in shapes.items()}
    dense = {"c": (random.standard_normal((len(lengths), 2, 2)) * 2.0**power).astype(np.float32)}
    nothing = np.zeros(len(lengths), np.float32)
    made = Changes(users=np.arange(len(lengths)), rows=rows, by_item=by_item, loss=nothing, dense=dense)
    before = norms(made)
    found, within = limited(made, clip)
    assert (norms(found) <= clip).all()
    np.testing.assert_array_equal(within, before <= clip)
    np.testing.assert_allclose(norms(found), np.minimum(before, clip), rtol=1e-5)


# -- noise -------------------------------------------------------------------------------------------------------------


def test_noise_has_its_scale_lies_on_a_grid_and_is_another_in_every_array_and_round():
    flat = np.zeros(20_000)
    drawn = [
        noisy(flat, 3.0, streams(7, np.zeros(1, np.uint64), round_, Purpose.PRIVATE_NOISE), number)
        for round_ in (1, 2)
        for number in (1, 2)
    ] + [noisy(flat, 3.0, fresh(), 1) for _ in range(2)]
    for values in drawn:
        assert values.std() == pytest.approx(3.0, rel=0.03)
        assert abs(values.mean()) < 4 * 3.0 / math.sqrt(len(flat))
        np.testing.assert_array_equal(values * 2**19, np.round(values * 2**19))
    correlations = np.corrcoef(drawn) - np.eye(len(drawn))
    assert np.abs(correlations).max() < 0.05


def test_a_sum_has_noise_on_every_number_and_is_divided_by_the_expected_users(tmp_path):
    made, _ = private(tmp_path, users=200, fraction_train=0.25, dp_noise_multiplier=2.0, dp_epsilon=0.0, dp_clip=0.5)
    found = made.summed(1, [reply(3, 0.01), reply(2, 0.02)], SPECS)
    assert found.weight == 50.0, "q n, not the 5 who came"
    table = found.sums["item_embedding"].values
    assert table.std() == pytest.approx(2.0 * 0.5, rel=0.2)
    assert table.mean() == pytest.approx(0.03, abs=4 / math.sqrt(200))
    empty = made.summed(2, [], SPECS)
    assert empty.sums["bias"].values.shape == (3,)
    assert (empty.sums["bias"].values != 0).all(), "a round of nobody looks like any other"
    again, _ = private(tmp_path / "again", users=200, fraction_train=0.25, dp_noise_multiplier=2.0, dp_epsilon=0.0)
    other = made.summed(1, [], SPECS), again.summed(1, [], SPECS)
    np.testing.assert_array_equal(other[0].sums["bias"].values, 0.5 * other[1].sums["bias"].values)


def test_noise_of_a_deployment_is_from_nowhere(tmp_path):
    made, _ = private(tmp_path, simulated=False, dp_epsilon=8.0)
    one, other = (made.summed(1, [], SPECS).sums["bias"].values for _ in range(2))
    assert (one != other).all()


@pytest.mark.parametrize("simulated", [True, False])
def test_every_user_is_drawn_on_its_own(tmp_path, simulated):
    """Counts of rounds spread as a binomial distribution's do: n = 400, q = .2, deviation 8."""
    made, _ = private(tmp_path, simulated, dp_noise_multiplier=1.0, dp_epsilon=0.0, fraction_train=0.2)

    class Roster:
        users = user_keys([str(number) for number in range(400)])

    drawn = [made.sample(Roster, round_) for round_ in range(1, 301)]
    counts = np.array([len(chosen) for chosen in drawn])
    assert counts.mean() == pytest.approx(80, abs=4 * 8 / math.sqrt(300))
    assert counts.std() == pytest.approx(8, rel=0.2)
    each = np.bincount(np.concatenate(drawn), minlength=400) / 300
    assert 0.05 < each.min() < each.max() < 0.4, "nobody is always there, nobody never"


def test_a_sum_longer_than_its_users_can_make_it_is_refused(tmp_path):
    made, _ = private(tmp_path)
    size = sum(spec.size for spec in SPECS.values())
    assert made.refusal(reply(3, 3 / math.sqrt(size))) == ""
    assert "longer than 3 users within dp-clip" in made.refusal(reply(3, 3.01 / math.sqrt(size)))


# -- a limit that follows ----------------------------------------------------------------------------------------------


def test_the_limit_follows_the_quantile(tmp_path):
    """Norms 1 … 100: from 5 and from 500 the limit comes to their median."""
    sizes = np.arange(1.0, 101)
    for start in (5.0, 500.0):
        made, _ = private(
            tmp_path / str(start), rounds=60, dp_noise_multiplier=3.0, dp_epsilon=0.0, dp_clip=start,
            dp_clip_quantile=0.5,
        )  # fmt: skip
        for round_ in range(1, 61):
            assert made.reports()
            made.summed(round_, [reply(100, 0.0, sizes <= made.clip_to_send())], SPECS)
        assert made.ledger.clip == pytest.approx(50, rel=0.35)


def test_votes_are_paid_for_with_more_noise_on_changes(tmp_path):
    """z = 2 and n = 100: σ_b = 5, so 1/z_Δ² = 1/4 - 1/100 and z_Δ = 2.0412."""
    made, _ = private(tmp_path, dp_noise_multiplier=2.0, dp_epsilon=0.0, dp_clip_quantile=0.5)
    assert made._follow_quantile([], fresh()) == pytest.approx((1 / 4 - 1 / 100) ** -0.5)


# -- the ledger --------------------------------------------------------------------------------------------------------


def test_what_is_spent_is_on_the_disk_before_a_sum_is_used(tmp_path):
    made, last = private(tmp_path)
    assert last == 10
    assert made.epsilon == 0.0
    for round_ in (1, 2, 3):
        made.summed(round_, [reply(2)], SPECS)
        written = json.loads((tmp_path / LEDGER).read_text())
        assert written["rounds"] == round_
        assert written["epsilon"] == pytest.approx(made.epsilon)
    assert 0 < made.epsilon < 4.0


def test_rounds_that_were_lost_are_spent(tmp_path):
    """7 of 10 were made and the checkpoint is of round 4: 3 are left, so that the run ends with round 7."""
    made, _ = private(tmp_path)
    checkpoint = {}
    for round_ in range(1, 8):
        made.summed(round_, [], SPECS)
        if round_ == 4:
            checkpoint = made.arrays()
    again, last = private(tmp_path, kept=checkpoint, done=4)
    assert (again.ledger.rounds, last) == (7, 7)
    assert again.ledger.noise == made.ledger.noise
    for round_ in (5, 6, 7):
        again.summed(round_, [], SPECS)
    assert again.epsilon == pytest.approx(4.0, abs=1e-6)
    with pytest.raises(ConfigError, match=r"no further round: after 10 rounds ε is 4, one more would be 4\.\d"):
        private(tmp_path, kept=checkpoint, done=4)
    (tmp_path / LEDGER).unlink()
    from_checkpoint, _ = private(tmp_path, kept=again.arrays(), done=10, rounds=10)
    assert from_checkpoint.ledger == again.ledger


def test_noise_and_budget_together_end_a_run_early(tmp_path):
    made, last = private(tmp_path, rounds=100, dp_noise_multiplier=5.0, dp_epsilon=2.0)
    assert 1 < last < 100
    assert made.ledger.epsilon(last, 0) <= 2.0 < made.ledger.epsilon(last + 1, 0)
    with pytest.raises(ConfigError, match="The budget allows no further round"):
        private(tmp_path / "tight", dp_noise_multiplier=0.5, dp_epsilon=0.1)


def test_delta_is_one_over_the_users_unless_it_is_given(tmp_path):
    assert private(tmp_path / "a", users=250)[0].ledger.delta == 1 / 250
    assert private(tmp_path / "b", users=250, dp_delta=1e-5)[0].ledger.delta == 1e-5


def test_metrics_of_a_deployment_are_noisy_means_out_of_the_budget(tmp_path):
    """Half of the users have nothing held out at test, and the means are over the others."""
    made, last = private(tmp_path, simulated=False, users=200_000, dp_metrics_noise=20.0)
    assert last == 10
    values = np.full((200_000, len(PARTS), len(CANDIDATE_SETS), len(METRICS)), 0.3)
    values[::2, PARTS.index("test")] = np.nan
    for round_ in range(1, 11):
        made.summed(round_, [], SPECS)
    assert made.epsilon < 4.0
    means = made.means(values, 10)
    assert made.epsilon == pytest.approx(4.0, abs=1e-3)
    found = [value for part in means.values() for kind in part.values() for value in kind.values()]
    assert found == pytest.approx([0.3] * len(found), abs=0.01)
    assert len(set(found)) > 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dp_epsilon": 1.0, "update_clip": 1.0}, "devices are held to dp-clip and the server adds the noise"),
        ({"dp_epsilon": 1.0, "decoy_rows": 3}, "devices are held to dp-clip and the server adds the noise"),
        ({"dp_epsilon": 1.0, "update_bound": 5.0}, "update-bound holds users to the median of their round"),
        ({"dp_epsilon": 1.0, "patience": 2}, "patience looks at metrics that no budget is spent on"),
        ({"dp_delta": 0.1}, "dp-delta belongs to a private run: set dp-epsilon"),
        ({"dp_clip_quantile": 0.5}, "dp-clip-quantile belongs to a private run: set dp-epsilon"),
    ],
)
def test_what_would_not_be_private_is_refused(changes, sentence):
    with pytest.raises(ConfigError, match=sentence):
        RunConfig(**changes)
