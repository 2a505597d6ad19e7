"""Probes of privacy: sums by hand, what they leave to the server, and membership in models that tell and do not."""

import numpy as np
import pytest

from bouquet.errors import ConfigError
from bouquet.experiments.ground import ground_of
from bouquet.experiments.probes.membership import fitted, membership
from bouquet.experiments.probes.reading import Watched, guess_by_popularity, precision, watch
from bouquet.experiments.probes.summed import recovery, summed
from bouquet.published import PublishedModel
from bouquet.ragged import Ragged
from tests.runs.helpers import bouquet, run_here, small_settings, write_data, write_histories


def test_a_sum_by_hand():
    """Rows {0, 2} and {2, 3} of two users in one group: 0, 2 and 3, with row 2 added up; a round stays a round."""
    one = (np.array([0, 2]), np.array([[1.0], [2.0]]))
    other = (np.array([2, 3]), np.array([[5.0], [7.0]]))
    watched = Watched(None, [[one, other], [other, one]], [{0}, {2}], np.zeros((2, 1)))
    for rounds in summed(watched, 2).sent:
        for rows, values in rounds:
            assert rows.tolist() == [0, 2, 3]
            assert values.tolist() == [[1], [7], [7]]
    for found, sent in zip(summed(watched, 1).sent, watched.sent, strict=True):
        assert all(a is b for a, b in zip(found, sent, strict=True))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    return watch(small_settings(folder), folder / "state", 3)


def test_the_more_users_in_a_sum_the_less_is_found(watched):
    """One user: all. All 40: what popularity says anyway."""
    found = recovery(watched, [1, 5, 40])
    assert found.by_size[1] > 0.95
    assert found.by_size[1] > found.by_size[5] > found.by_size[40]
    assert found.by_size[40] < found.popular + 0.1
    assert found.blind < found.popular == precision(watched, guess_by_popularity(watched))


def test_a_vector_is_found_from_a_history():
    """Items along two axes: who has the first three of one axis gets the fourth above those of the other."""
    table = np.repeat(np.eye(2), 4, axis=0)
    scores = fitted(table, Ragged.from_lengths([3], [0, 1, 2])) @ table.T
    assert scores[0, 3] > scores[0, 4:].max()


def test_a_model_that_has_learned_histories_by_heart_tells_members(tmp_path):
    """Ten users with eight items each that nobody else has, and rules of what stands together in training.

    Half of a history leads to all of the other half and to nothing that was held out: 1. Rules of nothing say .5.
    """
    data = write_histories(tmp_path / "data.csv", [range(8 * user, 8 * user + 8) for user in range(10)])
    ground = ground_of(small_settings(tmp_path, strategy="sequential-rules", data_file=str(data)))
    together = np.zeros((80, 80), np.float32)
    for row in range(10):
        items = ground.histories.train.row(row)
        together[np.ix_(items, items)] += 1
    for weights, expected in ((together, 1.0), (together * 0, 0.5)):
        model = PublishedModel("sequential-rules", {"published-neighbors": 0}, "", {"weights": weights}, 1)
        found = membership(model, ground)
        assert (found.auc, found.users) == (expected, 10)


def test_the_command_reads_a_run_and_says_so(tmp_path):
    run = run_here(tmp_path / "run", small_settings(tmp_path, num_server_rounds=2, backend="numpy"), 2)
    done = bouquet("probe", "model", str(run.path))
    assert done.returncode == 0, done.stderr
    found = run.read_json("membership.json")
    assert found["users"] == 40
    assert 0 < found["auc"] < 1
    assert f"{found['auc']:.3f}" in done.stdout


def test_the_command_for_updates(tmp_path):
    data = write_data(tmp_path / "data.csv")
    given = f"dataset=file data-file={data} time-column=time embedding-size=4"
    done = bouquet("probe", "updates", "-c", given, "--rounds", "1", "--users-per-sum", "1,40")
    assert done.returncode == 0, done.stderr
    assert "users in a sum" in done.stdout
    done = bouquet("probe", "updates", "-c", "strategy=ease")
    assert (done.returncode, done.stderr) == (
        2,
        "ease sends no changes of a plain item table: take a method that trains one, with backbone 'mf'.\n",
    )


def test_what_publishes_nothing_is_refused(tmp_path):
    ground = ground_of(small_settings(tmp_path))
    model = PublishedModel("local", {}, ground.histories.catalogue, {}, 1)
    with pytest.raises(ConfigError, match="local publishes no item table"):
        membership(model, ground)
