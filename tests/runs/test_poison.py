"""One user who lies within the declared shapes: what it can do to everybody with and without the bound."""

import numpy as np
import pytest
from flwr.app import Array
from safetensors.numpy import load_file

from bouquet.config import defaults
from bouquet.experiments.settings import option_classes
from bouquet.testing import Faulty
from bouquet.wire import TRAIN
from client_app.node.host import host_of
from tests.runs.helpers import last_checkpoint, method, run_here, small_settings

METHODS = ["fedavg", "fcf", "pfedrec", "cf-fedsr", "fedca"]
LIE = 1e4


class Attack:
    """A user who has an item that few others have sends that item's row blown up, along its own honest change.

    Args:
        settings: of the run.
        user, target: places in the histories of all users, and in the catalogue.
        times: how large the row is, in multiples of the user's largest honest row.
    """

    def __init__(self, settings, times):
        host = host_of({**settings, "state-dir": settings["out"]}, {"partition-id": 0, "num-partitions": 1})
        self.histories, self.times = host.histories, times
        train = self.histories.train
        counts = np.bincount(train.values, minlength=self.histories.num_items)
        counts[counts == 0] = counts.max() + 1
        fewest = train.values[train.lengths[train.row_of_value] > np.median(train.lengths)]
        self.target = int(fewest[np.argmin(counts[fewest])])
        self.user = int(next(u for u in range(len(self.histories.users)) if self.target in self._items(u)))

    def _items(self, user):
        return self.histories.train.values[slice(*self.histories.train.indptr[user : user + 2])]

    def __call__(self, message, answer):
        reply = answer()
        users = reply.content["users"]["user"].numpy()
        if self.times == 0 or self.histories.users[self.user] not in users:
            return reply
        update = reply.content["update"]
        values = np.array(update["item_embedding/values"].numpy())
        rows = update["item_embedding/rows"].numpy() if "item_embedding/rows" in update else np.arange(len(values))
        mine = np.arange(len(rows))
        if "item_embedding/indptr" in update:
            at = int(np.flatnonzero(users == self.histories.users[self.user])[0])
            mine = np.arange(*update["item_embedding/indptr"].numpy()[at : at + 2])
        flat = values.reshape(-1, values.shape[-1])
        norms = np.linalg.norm(flat, axis=1)
        if self.target not in rows[mine]:  # it can blow up what it sends in this round only
            return reply
        (place,) = mine[rows[mine] == self.target]
        # Along its own change, if it has made any.
        along = flat[place] / norms[place] if norms[place] > 0 else np.full(flat.shape[1], flat.shape[1] ** -0.5)
        flat[place] = self.times * norms[mine].max() * along
        update["item_embedding/values"] = Array(values)
        return reply

    def share(self, directory):
        """The share of the other users who would have the target among their ten best unseen items."""
        checkpoint = last_checkpoint(directory)
        reached = []
        place = {int(user): at for at, user in enumerate(self.histories.users)}
        for folder in sorted((directory.path / "nodes").glob("*/node-*/")):
            index = load_file(folder / "index.safetensors")
            embeddings = np.load(folder / "user_embedding.npy", mmap_mode="r")
            newest = index["rounds"].argmax(axis=0)
            for at, key in enumerate(index["users"].tolist()):
                known = self._items(place[key])
                if place[key] == self.user or self.target in known:
                    continue
                if "item_embedding" in checkpoint.shared:
                    table = checkpoint.shared["item_embedding"]
                else:
                    row = int(np.flatnonzero(checkpoint.users == key)[0])
                    table = checkpoint.extra["aggregate/item_embedding"][row]
                scores = table @ embeddings[newest[at], at]
                mine = scores[self.target]
                scores[known] = -np.inf
                reached.append((scores > mine).sum() < 10)
        return float(np.mean(reached))


class OfOthers(Faulty):
    """Nodes that are somebody's own, as those of a deployment."""

    simulated = False


def attacked(folder, settings, times, nodes, grid=Faulty):
    settings = settings | {"out": str(folder)}
    attack = Attack(settings, times)
    directory = run_here(folder, settings, nodes, grid, fault=attack, bad=set(range(nodes)), kind=TRAIN)
    return attack.share(directory), directory


@pytest.mark.parametrize("strategy", METHODS)
def test_one_of_forty_devices_cannot_move_the_others(tmp_path, strategy):
    """A row 10,000 times too large is the model of all where nothing is bound; with B = 25 it is refused."""
    settings = small_settings(
        tmp_path, **method(strategy), num_server_rounds=8, evaluate_every=8, checkpoint_every=8, update_bound=25.0
    )
    honest, before = attacked(tmp_path / "honest", settings, 0, 40)
    unbound, _ = attacked(tmp_path / "unbound", settings | {"update-bound": 0.0}, LIE, 40)
    held, directory = attacked(tmp_path / "held", settings, LIE, 40)
    assert [line["bounded"]["users"] for line in before.rounds()] == [0] * 8, "honest users are not touched"
    assert before.read_summary()["failures"] == 0
    reasons = [failure["reason"] for line in directory.rounds() for failure in line["failures"]]
    assert len(reasons) >= 6
    assert all("far larger" in reason for reason in reasons), reasons
    assert held <= honest + 0.1
    if strategy != "fedca":  # there everybody has a table of its own
        assert unbound > 0.9


def test_by_default_nodes_of_others_are_bound_and_simulated_ones_are_not(tmp_path):
    settings = small_settings(tmp_path, num_server_rounds=2)
    _, simulation = attacked(tmp_path / "simulation", settings, LIE, 40)
    _, deployment = attacked(tmp_path / "deployment", settings, LIE, 40, OfOthers)
    assert simulation.read_summary()["failures"] == 0
    for line in deployment.rounds():
        (failure,) = line["failures"]
        assert "far larger" in failure["reason"]


def test_what_is_above_the_bound_is_scaled_down_and_counted(tmp_path):
    """Ten times the user's largest honest row with B = 1: not refused, and seen in the round's line."""
    settings = small_settings(tmp_path, num_server_rounds=2, update_bound=1.0)
    _, directory = attacked(tmp_path / "held", settings, 10, 40)
    for line in directory.rounds():
        assert line["bounded"]["users"] == line["bounded"]["nodes"] >= 1
        assert line["failures"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "times"), [(0.0, LIE), (25.0, 90)], ids=["unbound", "held"])
def test_one_of_943_users_of_movielens(tmp_path, real_data, bound, times):
    """The user's row, held to 25 times the median user's: few see the item that without a bound all do."""
    settings = defaults(option_classes()) | {"dataset": "ml-100k", "data-dir": str(real_data("ml-100k"))}
    settings |= {"strategy": "fcf", "num-server-rounds": 10, "evaluate-every": 10, "checkpoint-every": 10}
    reached, _ = attacked(tmp_path, settings | {"update-bound": bound}, times, 943)
    if bound:
        assert reached < 0.05
    else:
        assert reached > 0.8  # after 40 rounds .99
