"""Runs whose nodes mask their sums: the same figures as without, whoever is lost, and no user's own leaves a node."""

from __future__ import annotations

import numpy as np
import pytest

from bouquet.errors import ConfigError, RunFailed
from bouquet.masking.key_messages import KEYS, SHARES, SharesRequest
from bouquet.masking.rules import Rules
from bouquet.masking.sum_messages import AGREE, UNMASK
from bouquet.masking.vectors import refuse_length
from bouquet.methods import METHODS
from bouquet.records import values_of
from bouquet.testing.runs import Faulty, Recording, last_checkpoint, raises, run_here, small_settings
from bouquet.wire import TRAIN

PLAIN = {"server_optimizer": "sgd", "server_learning_rate": 1.0, "num_server_rounds": 1, "evaluate_every": 1}
NODES = 5


def settings(folder, **changes):
    return small_settings(folder, **{**PLAIN, "checkpoint_every": 1, **changes})


def shared_of(run):
    return last_checkpoint(run).shared


def steps(run, nodes=NODES, clip=8.0):
    """n q / 2 over W: how far off a mean can be after one round, and float32 where the model is kept."""
    return nodes * clip / 2**32 * 1.01 + 1e-7


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    return run_here(folder / "run", settings(folder), NODES), folder


def test_the_sum_is_that_of_a_plain_run_within_its_step(plain, tmp_path):
    expected, folder = plain
    found = run_here(tmp_path, {**settings(folder), "secure-sums": True}, NODES)
    for name, values in shared_of(expected).items():
        np.testing.assert_allclose(shared_of(found)[name], values, rtol=0, atol=steps(found))
        assert np.abs(values).max() > 1000 * steps(found)
    line = found.rounds()[-1]
    assert line["loss"] == pytest.approx(expected.rounds()[-1]["loss"], abs=1e-6)
    assert (line["users"], line["clipped"], line["failures"]) == (40, 0, [])


@pytest.mark.parametrize("method", ["fcf", "fed3cr", "fedrap", "pfedrec", "ials"])
def test_every_sum_of_trained_arrays_can_be_masked(method, tmp_path):
    """With Adam on the server a change that is nearly nothing would be a whole step, with either sign."""
    given = settings(tmp_path, strategy=method, num_server_rounds=2, checkpoint_every=2)
    expected = run_here(tmp_path / "plain", given, 4)
    found = run_here(tmp_path / "secure", {**given, "secure-sums": True}, 4)
    for name, values in shared_of(expected).items():
        np.testing.assert_allclose(shared_of(found)[name], values, rtol=0, atol=2e-6, err_msg=name)
    assert found.rounds()[-1]["clipped"] == 0


@pytest.mark.parametrize("method", ["sequential-rules", "ease", "slist", "gf-cf"])
def test_sums_of_cells_are_the_same_to_the_last_bit(method, tmp_path):
    """In the second round nobody has anything new: all numbers are zeros, under masks like all others."""
    given = small_settings(tmp_path, strategy=method, num_server_rounds=2, evaluate_every=2, checkpoint_every=2)
    expected = run_here(tmp_path / "plain", given, 4)
    found = run_here(tmp_path / "secure", {**given, "secure-sums": True}, 4)
    for part in ("shared", "extra"):
        for name, values in getattr(last_checkpoint(expected), part).items():
            np.testing.assert_array_equal(getattr(last_checkpoint(found), part)[name], values)
    assert found.read_summary()["test"] == expected.read_summary()["test"]


def test_cells_that_are_too_many_to_be_whole_are_refused_with_their_number():
    """4,100² transitions and as many counts, and three numbers about users."""
    specs = settings_of_cells(4100)
    with pytest.raises(ConfigError, match=r"every node sends all 16,814,103 numbers of sequential-rules, and at most"):
        refuse_length({}, specs, "sequential-rules")
    refuse_length({}, settings_of_cells(1682), "sequential-rules")


def settings_of_cells(items):
    return METHODS["sequential-rules"].options().cells(items)


def test_with_a_plug_in_too(tmp_path):
    given = small_settings(tmp_path, personalization="plgc", num_server_rounds=1, evaluate_every=1)
    assert run_here(tmp_path / "run", {**given, "secure-sums": True}, 3).read_summary()["status"] == "completed"


@pytest.mark.parametrize("kind", [KEYS, SHARES, TRAIN, AGREE, UNMASK])
def test_a_node_may_be_lost_at_any_stage(kind, plain, tmp_path):
    """Before its numbers came its users are missing, and the mean is that over the others; after it they are in it."""
    whole, folder = plain
    found = run_here(tmp_path / "secure", {**settings(folder), "secure-sums": True}, NODES, Lost, kind=kind)
    line = found.rounds()[-1]
    if kind in (AGREE, UNMASK):
        expected, missing = whole, 0
    else:
        expected = run_here(tmp_path / "plain", settings(folder), NODES, Lost, kind=TRAIN)
        missing = line["asked"] - line["users"]
        assert missing == 8
    assert line["users"] == 40 - missing
    assert line["failures"][0]["reason"].endswith("the battery is empty")
    for name, values in shared_of(expected).items():
        np.testing.assert_allclose(shared_of(found)[name], values, rtol=0, atol=steps(found))


class Lost(Faulty):
    """Node 1 fails when it is asked for one kind of message."""

    def __init__(self, *arguments, kind):
        super().__init__(*arguments, fault=raises, bad={1}, kind=kind)


class ManyLost(Faulty):
    """Two of five do, which are too many."""

    def __init__(self, *arguments, kind):
        super().__init__(*arguments, fault=raises, bad={1, 3}, kind=kind)


@pytest.mark.parametrize("kind", [SHARES, TRAIN, AGREE, UNMASK])
def test_below_the_threshold_the_run_fails_and_says_why(kind, plain, tmp_path):
    _, folder = plain
    with pytest.raises(RunFailed, match=r"Round 1: only 3 of 5 nodes .*, and 4 are needed.*the battery is empty"):
        run_here(tmp_path, {**settings(folder), "secure-sums": True}, NODES, ManyLost, kind=kind)


def test_a_run_goes_on_where_it_was(plain, tmp_path):
    """Nothing of masks is in a checkpoint, and a resumed run makes new ones."""
    _, folder = plain
    given = settings(folder, num_server_rounds=4, evaluate_every=2, checkpoint_every=2, secure_sums=True)
    whole = run_here(tmp_path / "whole", given, NODES)
    run_here(tmp_path / "half", {**given, "num-server-rounds": 2}, NODES)
    resumed = run_here(tmp_path / "half", {**given, "resume": str(tmp_path / "half")}, NODES)
    for name, values in shared_of(whole).items():
        np.testing.assert_array_equal(shared_of(resumed)[name], values)
    assert set(last_checkpoint(resumed).extra) == set(last_checkpoint(whole).extra)
    assert not any("secure" in name or "mask" in name for name in last_checkpoint(whole).extra)


def test_what_leaves_a_node_is_masked_and_of_no_single_user(plain, tmp_path):
    """A reply's numbers are spread over all of their range; losses and sizes of updates say nothing."""
    _, folder = plain
    log = []
    run_here(tmp_path, {**settings(folder), "secure-sums": True}, NODES, Recording, log=log)
    replies = [reply.content for message, reply in log if message.metadata.message_type == TRAIN]
    assert len(replies) == NODES
    for content in replies:
        assert set(content.array_records) == {"users", "update", "secure"}
        assert not content["update"]
        assert set(content["users"]) == {"user", "loss", "upload_bytes"}
        assert np.isnan(content["users"]["loss"].numpy()).all()
        assert not content["users"]["upload_bytes"].numpy().any()
        numbers = values_of(content["secure"]["values"], "values")
        assert numbers.dtype == np.uint32
        assert abs(np.unpackbits(numbers.view(np.uint8)).mean() - 0.5) < 0.05


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"strategy": "fedca"}, "fedca looks at single users' updates, so they cannot be masked: leave secure-sums"),
        ({"strategy": "cf-fedsr", "backbone": "gru4rec"}, "cf-fedsr looks at single users' updates"),
        ({"update_bound": 5.0}, "update-bound compares the updates of a round, and secure-sums hides them"),
    ],
)
def test_what_cannot_be_masked_is_refused_with_a_sentence(changes, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        run_here(tmp_path, small_settings(tmp_path, secure_sums=True, **changes), 3)


def test_two_nodes_make_no_secure_sum(plain, tmp_path):
    _, folder = plain
    with pytest.raises(RunFailed, match="a secure sum takes 3 nodes, and 2 sent keys"):
        run_here(tmp_path, {**settings(folder), "secure-sums": True}, 2)


def test_a_small_clip_is_counted(plain, tmp_path):
    _, folder = plain
    found = run_here(tmp_path, {**settings(folder), "secure-sums": True, "secure-sums-clip": 1e-4}, NODES)
    assert found.rounds()[-1]["clipped"] > 0


@pytest.mark.parametrize(
    ("strategy", "nodes"), [("fcf", NODES), ("pfedrec", 4), ("sequential-rules", NODES), ("ease", NODES)]
)
def test_a_private_sum_is_the_same_under_masks(strategy, nodes, tmp_path):
    """In a simulation the noise is drawn from the seed: what differs is the grid of the masks, and of cells nothing."""
    given = settings(tmp_path, strategy=strategy, dp_epsilon=8.0)
    expected = run_here(tmp_path / "plain", given, nodes)
    found = run_here(tmp_path / "secure", {**given, "secure-sums": True}, nodes)
    for name, values in shared_of(expected).items():
        np.testing.assert_allclose(shared_of(found)[name], values, rtol=0, atol=2e-6, err_msg=name)
    assert found.read_summary()["privacy"] == expected.read_summary()["privacy"]


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ({"dp_epsilon": 8.0, "dp_clip_quantile": 0.5}, "dp-clip-quantile asks each user"),
        ({"robust_aggregation": "median"}, "robust-aggregation looks at single users"),
        ({"attack_fraction": 0.1}, "attack-fraction looks at single users"),
    ],
)
def test_nothing_looks_under_masks(beside, why, tmp_path):
    with pytest.raises(ConfigError, match=why):
        run_here(tmp_path, settings(tmp_path, secure_sums=True, **beside), NODES)


def test_nodes_add_the_noise_and_nobody_sees_a_sum_without_it(tmp_path):
    """All users train, C = 1 and z = 5: each number of the mean over 40 users has noise of 5 √(5 / 4) / 40.

    Five nodes, of which four must be left. The changes of a user have a norm of 1 over all numbers together.
    """
    given = settings(tmp_path, strategy="fcf", secure_sums=True, secure_sums_clip=64.0)
    noisy = {**given, "dp-noise-multiplier": 5.0, "dp-noise-from": "nodes"}
    runs = [run_here(tmp_path / name, noisy, NODES) for name in ("one", "other")]
    tables = [shared_of(run)["item_embedding"] for run in runs]
    expected = 5 * np.sqrt(5 / 4) / 40
    assert tables[0].std() == pytest.approx(expected, rel=0.1)
    assert abs(np.corrcoef(tables[0].ravel(), tables[1].ravel())[0, 1]) < 0.2  # drawn from no seed
    summary = runs[0].read_summary()
    assert summary["privacy"]["noise_from"] == "nodes, each its share under masks"
    assert 0 < summary["privacy"]["epsilon"] < 1
    assert runs[0].rounds()[-1]["clipped"] == 0


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ({"dp_noise_multiplier": 1.0, "secure_sums": False}, "too little for its own sum without masks"),
        ({}, "dp-noise-from belongs to a private run"),
        ({"dp_epsilon": 4.0}, r"with 40 users, 1 rounds and dp-epsilon = 4 set dp-noise-multiplier = \d"),
        ({"dp_noise_multiplier": 1.0, "strategy": "sequential-rules"}, "only the server adds that noise today"),
    ],
)
def test_noise_of_nodes_says_what_it_needs(beside, why, tmp_path):
    given = {"strategy": "fcf", "secure_sums": True, "dp_noise_from": "nodes", **beside}
    with pytest.raises(ConfigError, match=why):
        run_here(tmp_path, settings(tmp_path, **given), NODES)


def test_a_node_that_was_told_of_other_noise_takes_no_part(tmp_path):
    """The noise is among the rules that all keys of a round are bound to."""
    assert rules_differ(0.0, 1.0)
    assert not rules_differ(1.0, 1.0)


def rules_differ(one, other):
    keys = SharesRequest("s", 1, ())
    return keys.transcript(Rules(noise=one)) != keys.transcript(Rules(noise=other))
