"""Users who lie in a simulation: who they are, what they send, what is measured of it, and what defences leave."""

import numpy as np
import pytest

from bouquet.arrays import initial_shared
from bouquet.attacks import exposure, liars, target_of
from bouquet.config import RunConfig
from bouquet.errors import ConfigError, RunFailed
from bouquet.experiments.settings import resolve
from bouquet.methods import METHODS
from bouquet.ragged import Ragged
from bouquet.randomness import user_keys
from bouquet.testing import Faulty, Recording
from bouquet.wire import TRAIN
from client_app.node.attacks import _popular
from client_app.node.exposure import Exposed
from client_app.node.host import host_of
from tests.runs.helpers import last_checkpoint, run_here, small_settings

GRADIENTS = ("noise", "sign-flip", "push", "replace", "align")
TRAINED = sorted(name for name, method in METHODS.items() if method.kind == "gradients" and name != "local")


def attacked(folder, nodes=3, **changes):
    """A small run in which about a fifth of 40 users lie, and its folder."""
    given = {"attack_fraction": 0.2, "num_server_rounds": 4, "evaluate_every": 4, **changes}
    folder.mkdir(exist_ok=True)
    return run_here(folder / "run", small_settings(folder, **given), nodes)


# -- who and what ----------------------------------------------------------------------------------------------------


def test_the_share_of_liars_is_what_was_asked_for_and_nobody_else_changes_with_it():
    """Of 10,000 users .05 lie, ± 4 standard errors; whoever lies at .05 lies at .2."""
    users = user_keys([str(user) for user in range(10_000)])
    few, many = (liars(RunConfig(attack_fraction=share), users) for share in (0.05, 0.2))
    assert few.mean() == pytest.approx(0.05, abs=4 * np.sqrt(0.05 * 0.95 / 10_000))
    assert many[few].all()
    assert not liars(RunConfig(), users).any()


def test_the_target_is_drawn_or_given():
    assert 0 <= target_of(RunConfig(), 60) < 60
    assert target_of(RunConfig(attack_target=7), 60) == 7
    with pytest.raises(ConfigError, match="attack-target is 60, and items are numbered from 0 to 59"):
        target_of(RunConfig(attack_target=60), 60)


def test_exposure_by_hand():
    """A liar, one who has met the target, one who did not answer, and two honest ones, one of whom is shown it."""
    told = np.array([[1, 1], [-1, -1], [np.nan, np.nan], [0, 1], [0, 0]])
    found = exposure(told, np.array([True, False, False, False, False]))
    assert found == {"ER@5": 0.0, "ER@10": 0.5, "users": 2}


def test_a_user_is_exposed_where_the_target_is_among_the_best_that_it_does_not_know(tmp_path):
    """Scores 60, 59, …: item 10 is the eleventh, and among the ten best of who knows one of the first ten."""
    histories = host_of(small_settings(tmp_path), {}).histories
    rows = np.arange(len(histories.users))
    exposed = Exposed(histories, 10, exclude_known=True)
    exposed.take(rows, np.tile(60.0 - np.arange(histories.num_items, dtype=np.float32), (len(rows), 1)))
    for row in rows:
        known = {*histories.train.row(row).tolist(), *histories.validation.row(row).tolist()}
        above = 10 - len(known & set(range(10)))
        whole = known | set(histories.test.row(row).tolist())
        expected = [-1, -1] if 10 in whole else [above < 5, above < 10]
        assert exposed._told[row].tolist() == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("attack=push", "attack 'push' needs liars: set attack-fraction, for example to 0.05"),
        ("attack=noise attack-fraction=0.1 strategy=sequential-rules", "attack 'noise' is one: take push, or a method"),
        ("attack=push attack-fraction=0.1 strategy=ease", "attack 'push' is one: take a method that trains a model"),
    ],
)
def test_what_makes_no_attack_is_refused_in_one_sentence(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        resolve(None, [settings])


class Foreign(Faulty):
    """Nodes that are somebody's own, as those of a deployment."""

    simulated = False


def test_no_deployment_has_liars(tmp_path):
    settings = small_settings(tmp_path, attack_fraction=0.1)
    with pytest.raises(ConfigError, match="in a simulation only, and this is a deployment: leave it out"):
        run_here(tmp_path / "run", settings, 2, Foreign, fault=None, bad=set())


def test_a_node_that_has_a_place_of_its_own_refuses_too(tmp_path):
    """Whatever the server says of itself."""
    settings = small_settings(tmp_path, attack_fraction=0.1)
    with pytest.raises(ConfigError, match="this is a deployment"):
        host_of(settings, {"state-dir": str(tmp_path)})


# -- what is sent ----------------------------------------------------------------------------------------------------


def updates_of(folder, attack, **changes):
    """user -> item -> change, in the only round of 40 one-user nodes."""
    log = []
    settings = small_settings(folder, num_server_rounds=1, evaluate_every=1, checkpoint_every=1, attack=attack)
    settings |= {"attack-fraction": 0.2, "attack-target": 3} | changes
    run_here(folder / attack, settings, 40, Recording, log=log)
    found = {}
    for request, reply in log:
        if request.metadata.message_type == TRAIN:
            update = reply.content["update"]
            values = update["item_embedding/values"].numpy()
            rows = update["item_embedding/rows"].numpy() if "item_embedding/rows" in update else np.arange(len(values))
            found[int(reply.content["users"]["user"].numpy()[0])] = dict(zip(rows.tolist(), values, strict=True))
    return found


@pytest.fixture(scope="module")
def sent(tmp_path_factory):
    """The updates of every attack, and of the same users without one."""
    folder = tmp_path_factory.mktemp("attacks")
    return {attack: updates_of(folder, attack) for attack in ("none", *GRADIENTS)} | {"folder": folder}


@pytest.mark.parametrize("attack", GRADIENTS)
def test_only_liars_send_something_else(sent, attack):
    lying = liars(RunConfig(attack_fraction=0.2), np.array(list(sent["none"]), np.uint64))
    assert 2 <= lying.sum() <= 20
    for (user, honest), lies in zip(sent["none"].items(), lying, strict=True):
        found = sent[attack][user]
        equal = found.keys() == honest.keys() and all((found[row] == honest[row]).all() for row in honest)
        assert equal != lies


def lying_users(sent):
    users = np.array(list(sent["none"]), np.uint64)
    return users[liars(RunConfig(attack_fraction=0.2), users)].tolist()


def test_what_liars_send_by_its_equations(sent):
    """s = 10, t = 3: -10 Δ; 10 ‖Δ‖; Δ with one long row; ten times that with s = 1; and the row of the others' mean."""
    host = host_of(small_settings(sent["folder"]) | {"state-dir": str(sent["folder"])}, {})
    for user in lying_users(sent):
        honest, place = sent["none"][user], int(np.flatnonzero(host.histories.users == user)[0])
        liked = [row for row in host.histories.train.row(place).tolist() if row != 3]
        for row, values in honest.items():
            np.testing.assert_allclose(sent["sign-flip"][user][row], -10 * values, rtol=1e-6)
            if row != 3:
                np.testing.assert_array_equal(sent["push"][user][row], values)
                np.testing.assert_allclose(sent["replace"][user][row], 10 * values, rtol=1e-6)
        sizes = [np.linalg.norm(np.array(list(rows.values()))) for rows in (sent["noise"][user], honest)]
        assert sizes[0] == pytest.approx(10 * sizes[1], rel=1e-5)
        longest = max(np.linalg.norm(values) for row, values in honest.items() if row != 3)
        longest = max(longest, np.linalg.norm(honest.get(3, np.zeros(4))))
        along = np.sum([honest[row] for row in liked], axis=0, dtype=float)
        expected = 10 * longest * along / np.linalg.norm(along)
        for attack in ("push", "replace"):
            np.testing.assert_allclose(sent[attack][user][3], expected, rtol=1e-4)
    # Nothing has moved yet in the first round, so that the first ten items are taken for the popular ones.
    table = initial_shared(host.shared_specs, 0)["item_embedding"]
    for user in lying_users(sent):
        np.testing.assert_allclose(sent["align"][user][3], 10 * (table[:10].mean(axis=0) - table[3]), rtol=1e-4)


def test_popular_is_what_moved_as_the_own_items_did():
    """Own item 0 moved by (1, 0), items 1 to 11 by (2 … 12, 0), item 12 by (-80, 0), which is far and unliked.

    The mean is ((1 + 77 - 80) / 13, 0) = (-2 / 13, 0): the own item is above it, and so the largest are meant.
    """
    moved = np.array([[1.0, 0.0], *([float(size), 0.0] for size in range(2, 13)), [-80.0, 0.0]])
    assert _popular(moved, np.array([0])).tolist() == list(range(11, 1, -1))


def test_popular_is_no_unliked_item_for_who_has_mostly_such():
    """Ten items moved by (1, 0) and twenty by (-1, 0); a liar has three of the first and five of the others.

    Its own moved by (-1/4, 0) in the mean, all by (-1/3, 0): beyond the mean of all, that is towards the popular ones.
    """
    moved = np.array([[1.0, 0.0]] * 10 + [[-1.0, 0.0]] * 20)
    assert sorted(_popular(moved, np.array([0, 1, 2, 10, 11, 12, 13, 14])).tolist()) == list(range(10))


# -- what comes of it ------------------------------------------------------------------------------------------------


def test_liars_are_not_counted_and_exposure_is_told(tmp_path):
    directory = attacked(tmp_path, attack="push", attack_target=3)
    users, values = directory.read_users()
    lying = liars(RunConfig(attack_fraction=0.2), users)
    assert np.isnan(values[lying]).all()
    assert not np.isnan(values[~lying]).all(axis=(1, 2, 3)).any()
    summary = directory.read_summary()
    assert summary["attack"]["liars"] == lying.sum()
    assert (summary["attack"]["kind"], summary["attack"]["target"]) == ("push", 3)
    assert summary["attack"]["last"] == directory.rounds()[-1]["exposure"]
    assert directory.rounds()[-1]["exposure"]["ER@10"] > 0.9
    assert "exposure" not in directory.rounds()[0]


def test_without_a_fraction_nothing_of_it_is_there(tmp_path):
    directory = attacked(tmp_path, attack_fraction=0.0)
    assert "attack" not in directory.read_summary()
    assert all("exposure" not in line for line in directory.rounds())


@pytest.mark.parametrize("attack", GRADIENTS)
def test_an_attack_is_the_same_however_users_are_spread(tmp_path, attack):
    runs = [attacked(tmp_path / str(nodes), nodes, attack=attack, attack_strength=2.0) for nodes in (1, 7, 40)]
    for other in runs[1:]:
        assert other.rounds()[-1]["exposure"] == runs[0].rounds()[-1]["exposure"]
        for name, values in last_checkpoint(runs[0]).shared.items():
            np.testing.assert_allclose(last_checkpoint(other).shared[name], values, atol=2e-4)


@pytest.mark.parametrize("strategy", TRAINED)
def test_every_method_that_trains_a_model_can_be_attacked(tmp_path, strategy):
    directory = attacked(tmp_path, strategy=strategy, attack="push", num_server_rounds=1, evaluate_every=1)
    assert directory.rounds()[-1]["exposure"]["users"] > 0


def test_the_trimmed_mean_leaves_nothing_of_a_push(tmp_path):
    """As many liars as f allows for: the target is shown to everybody without it, and to nobody with it."""
    shared = {"attack": "push", "attack_target": 3}
    plain = attacked(tmp_path / "plain", **shared).rounds()[-1]["exposure"]["ER@10"]
    robust = {"robust_aggregation": "trimmed-mean", "robust_fraction": 0.3}
    honest = attacked(tmp_path / "honest", attack_target=3, **robust).rounds()[-1]["exposure"]["ER@10"]
    held = attacked(tmp_path / "held", **shared, **robust).rounds()[-1]["exposure"]["ER@10"]
    assert plain > 0.9
    assert held <= honest + 0.1


def test_an_item_that_is_made_like_popular_ones_is_shown(tmp_path):
    """An item that nobody is shown without liars: of 27 honest users 25 are with them. More than half is asked for."""
    given = {"attack_target": 30, "num_server_rounds": 16, "evaluate_every": 16}
    seen = {}
    for attack in ("none", "align"):
        summary = attacked(tmp_path / attack, 1, attack=attack, **given).read_summary()
        seen[attack] = summary["attack"]["last"]["ER@10"]
    assert seen["none"] == 0
    assert seen["align"] > 0.5


# -- sums ------------------------------------------------------------------------------------------------------------


def test_what_a_liar_says_of_transitions_is_within_its_history(tmp_path):
    """Three items and a window of 10 with a = .7: the mass of a line is 1 + 2^-.7 = 1.6156, as 1 and .6156."""
    from bouquet.methods.sequential_rules import SequentialRulesOptions
    from client_app.sums.sequential_rules import SequentialRules

    device = SequentialRules(6, SequentialRulesOptions())
    cells = device.with_lies(
        device.contribution(Ragged.from_lengths([0], [])), Ragged.from_lengths([3], [0, 1, 2]), 5, 1.0
    )
    table = np.zeros((6, 6))
    found = cells["transitions"]
    table[np.repeat(found.rows, found.lengths), found.columns] = found.values
    np.testing.assert_allclose(table[[2, 1, 0], 5], [1, 2**-0.7, 0], atol=1e-4)
    np.testing.assert_allclose(table[5, [2, 1, 0]], [1, 2**-0.7, 0], atol=1e-4)
    assert not len(cells["counts"].values)


def test_more_of_one_item_than_a_history_can_say_is_refused(tmp_path):
    """Where users have nodes of their own, the liars of strength 2 are left out, and those of strength 1 are not."""
    counted = {}
    for strength in (1.0, 2.0):
        settings = small_settings(tmp_path, strategy="sequential-rules", num_server_rounds=1, evaluate_every=1)
        settings |= {"attack": "push", "attack-fraction": 0.2, "attack-strength": strength}
        line = run_here(tmp_path / str(strength), settings, 40).rounds()[0]
        counted[strength] = line["users"]
        for failure in line["failures"]:
            assert "'transitions' says more of one item than 1 users with its histories can" in failure["reason"]
    lying = int(liars(RunConfig(attack_fraction=0.2), user_keys([str(user) for user in range(40)])).sum())
    assert counted == {1.0: 40, 2.0: 40 - lying}


def test_a_failed_attack_says_why(tmp_path):
    """A target that is not in the catalogue is refused by the nodes, which know how many items there are."""
    with pytest.raises(RunFailed, match="attack-target is 60, and items are numbered from 0 to 59"):
        attacked(tmp_path, attack="push", attack_target=60)
