"""HeteFedRec over rounds: prefixes, columns, baselines, what travels to whom, and devices that grow or lie."""

import json
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ArrayRecord

from bouquet.arrays import ArraySpec
from bouquet.errors import RunFailed
from bouquet.records import Report
from bouquet.testing import Recording
from bouquet.wire import TRAIN, TrainReply, TrainRequest
from strategies.hetefedrec import assign_groups
from tests.deployment.fleet import Fleet, write_catalogue, write_history
from tests.runs.helpers import last_checkpoint, run_here, small_settings

METHODS = ("hetefedrec", "all-small", "all-large", "all-large-exclusive", "standalone", "clustered", "direct")
PLAIN = {"server_optimizer": "sgd", "server_learning_rate": 1.0}
WIDTHS = (2, 3, 4)


def settings_of(folder, **changes):
    return small_settings(folder, strategy="hetefedrec", **changes)


def item_tables(directory):
    shared = last_checkpoint(directory).shared
    return [shared[f"{group}/item_embedding"] for group in range(3)]


def is_prefix(small, large):
    return np.array_equal(small, large[:, : small.shape[1]])


# -- eq. 10 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", [{}, PLAIN])
@pytest.mark.parametrize("method", ["hetefedrec", "direct"])
def test_without_distillation_small_tables_stay_the_first_columns_of_large_ones(tmp_path, method, server):
    """Bit for bit, after six rounds, with a server that is plain and with one that has moments."""
    changes = {"hetefedrec_method": method, "hetefedrec_kd_steps": 0, **server}
    small, middle, large = item_tables(run_here(tmp_path / "run", settings_of(tmp_path, **changes), 3))
    assert [table.shape[1] for table in (small, middle, large)] == [2, 3, 4]
    assert is_prefix(small, middle)
    assert is_prefix(middle, large)


def test_with_distillation_they_do_not(tmp_path):
    directory = run_here(tmp_path / "run", settings_of(tmp_path, hetefedrec_kd_learning_rate=0.01), 3)
    small, middle, large = item_tables(directory)
    assert not is_prefix(small, middle)
    assert not is_prefix(middle, large)
    for line in directory.rounds():
        assert line["hetefedrec"]["kd_after"] < line["hetefedrec"]["kd_before"]


# -- aggregation -------------------------------------------------------------------------------------------------------


def first_round(tmp_path, **changes):
    """Every user's own reply in round 1 and the tables after it; nobody's update is added to another's on a node."""
    log = []
    changes = {"num_server_rounds": 1, "hetefedrec_kd_steps": 0, "checkpoint_every": 1, **PLAIN, **changes}
    directory = run_here(tmp_path / "run", settings_of(tmp_path, **changes), 40, Recording, log=log)
    users = []
    for message, reply in log:
        if message.metadata.message_type == TRAIN:
            (group,) = message.content["personal"]["group"].numpy().tolist()
            sent = {name: array.numpy() for name, array in message.content["shared"].items()}
            specs = {name: ArraySpec(v.shape, by_item="item_embedding" in name) for name, v in sent.items()}
            request = TrainRequest.decode(message.content, specs)
            found = TrainReply.decode(reply.content, request.users, specs, "sum", {"seconds": Report()})
            users.append((group, sent, replace(found, factor=request.weights[0], weight=request.weights[0])))
    return directory, users


def change_of(reply, name, shape):
    packed, total = reply.sums[name], np.zeros(shape)
    total[slice(None) if packed.rows is None else packed.rows] = packed.values
    return total


@pytest.mark.parametrize("method", ["hetefedrec", "direct", "clustered", "all-large-exclusive"])
def test_a_column_is_the_mean_over_its_holders(tmp_path, method):
    """Eq. 7 to 9 from single replies, written out column by column; the baselines by their own words."""
    directory, users = first_round(tmp_path, hetefedrec_method=method)
    for group, table in enumerate(item_tables(directory)):
        width = table.shape[1]
        start = next(sent for g, sent, _ in users if g == group)[f"{group}/item_embedding"]
        for column in range(width):
            total, weight = np.zeros(len(table)), 0.0
            for other, sent, reply in users:
                own = sent[f"{other}/item_embedding"].shape
                counted = {"clustered": other == group, "all-large-exclusive": other == 2}.get(method, own[1] > column)
                if counted:
                    total += reply.weight * change_of(reply, f"{other}/item_embedding", own)[:, column]
                    weight += reply.weight
            np.testing.assert_allclose(table[:, column], start[:, column] + total / weight, atol=1e-6)


def test_the_networks_of_a_size_learn_from_all_who_carry_it(tmp_path):
    """Eq. 15: Θ_0 from all users, Θ_1 from the two larger groups, Θ_2 from the largest; equal wherever they stand."""
    directory, users = first_round(tmp_path, backbone="ncf")
    shared = last_checkpoint(directory).shared
    for size, copies in enumerate([["0/", "1/0.", "2/0."], ["1/", "2/1."], ["2/"]]):
        arrays = [shared[f"{copy}weight_1"] for copy in copies]
        for array in arrays[1:]:
            np.testing.assert_array_equal(array, arrays[0])
        total, weight = np.zeros(arrays[0].shape), 0.0
        for group, _, reply in users:
            if group >= size:
                name = f"{group}/weight_1" if group == size else f"{group}/{size}.weight_1"
                total += reply.weight * reply.sums[name].values
                weight += reply.weight
        start = next(sent for group, sent, _ in users if group == size)[f"{size}/weight_1"]
        np.testing.assert_allclose(arrays[0], start + total / weight, atol=1e-6)


def test_the_printed_rule_adds_up(tmp_path):
    """Eq. 8 as it stands: no division."""
    directory, users = first_round(
        tmp_path, hetefedrec_aggregation="sum", hetefedrec_weighting="uniform", server_learning_rate=0.01
    )
    start = next(sent for group, sent, _ in users if group == 2)["2/item_embedding"]
    total = np.zeros(start.shape)
    for group, sent, reply in users:
        change = change_of(reply, f"{group}/item_embedding", sent[f"{group}/item_embedding"].shape)
        total[:, : change.shape[1]] += reply.weight * change
    found = item_tables(directory)[2] - start
    np.testing.assert_allclose(found, 0.01 * total, atol=1e-6)


@pytest.mark.parametrize("backbone", ["mf", "ncf", "lightgcn"])
def test_one_group_alone_is_fedavg(tmp_path, backbone):
    """The same tables and networks, the same private vectors, the same figures."""
    alone = settings_of(tmp_path, backbone=backbone, hetefedrec_sizes="4", hetefedrec_ratio="1")
    plain = small_settings(tmp_path, backbone=backbone, strategy="fedavg")
    found, expected = run_here(tmp_path / "alone", alone, 3), run_here(tmp_path / "plain", plain, 3)
    for name, values in last_checkpoint(expected).shared.items():
        np.testing.assert_allclose(last_checkpoint(found).shared[f"0/{name}"], values, rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.read_users()[1], expected.read_users()[1], atol=1e-6)


# -- baselines and ablations -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backbone", ["ncf", "lightgcn"])
def test_every_method_reports_its_groups(tmp_path, method, backbone):
    settings = settings_of(tmp_path, hetefedrec_method=method, backbone=backbone, split="ratio", num_server_rounds=2)
    summary = run_here(tmp_path / "run", settings, 3).read_summary()
    groups = summary["groups"]
    expected = {"all-small": (2, 2, 2), "all-large": (4, 4, 4), "all-large-exclusive": (4, 4, 4)}.get(method, WIDTHS)
    assert tuple(group["size"] for group in groups) == expected
    assert [group["users"] for group in groups] == [20, 12, 8]
    for name in ("Recall@20", "NDCG@20"):
        mean = sum(group["users"] * group["test"][name] for group in groups) / 40
        assert mean == pytest.approx(summary["test"]["full"][name], abs=1e-6)
    if method == "standalone":
        assert [group["up_per_user"] for group in groups] == [0, 0, 0]
        assert summary["singular_variance"] is None
    else:
        assert summary["singular_variance"] > 0


@pytest.mark.parametrize("sizes", ["3", "2,4", "2,3,4,6,8"])
def test_any_number_of_sizes(tmp_path, sizes):
    count = len(sizes.split(","))
    settings = settings_of(tmp_path, hetefedrec_sizes=sizes, hetefedrec_ratio=":".join("1" * count), backbone="ncf")
    summary = run_here(tmp_path / "run", settings, 3).read_summary()
    assert [group["size"] for group in summary["groups"]] == [int(size) for size in sizes.split(",")]


# -- what travels ------------------------------------------------------------------------------------------------------


def test_a_device_is_sent_what_it_has_and_no_more(tmp_path):
    """Table III: V of the device's own width, and the networks of all sizes up to it, by the bytes of the message."""
    directory, users = first_round(tmp_path, backbone="ncf")
    items = 60
    lines = directory.rounds()[0]["groups"]
    for group, sent, reply in users:
        assert {name.partition("/")[0] for name in sent} == {str(group)}
        assert sent[f"{group}/item_embedding"].shape == (items, WIDTHS[group])
        assert sum(name.endswith("weight_1") for name in sent) == group + 1
        assert lines[group]["down_per_user"] == sum(values.nbytes for values in sent.values())
        packed = [(p.values.nbytes, 0 if p.rows is None else p.rows.nbytes) for p in reply.sums.values()]
        assert reply.upload_bytes[0] == sum(values + rows for values, rows in packed)
    assert [line["users"] for line in lines] == [20, 12, 8]
    assert lines[0]["down_per_user"] < lines[1]["down_per_user"] < lines[2]["down_per_user"]


class Claiming(Recording):
    """Some nodes answer for a larger group than they were given, or for the smallest."""

    def __init__(self, *arguments, liars, log):
        super().__init__(*arguments, log=log)
        self.liars = set(self.get_node_ids()[:liars])

    def _answer(self, message):
        reply = super()._answer(message)
        if message.metadata.message_type == TRAIN and message.metadata.dst_node_id in self.liars:
            group = next(iter(reply.content["update"])).partition("/")[0]
            larger = "0" if group == "2" else "2"
            update = {name.replace(f"{group}/", f"{larger}/", 1): v for name, v in reply.content["update"].items()}
            reply.content["update"] = ArrayRecord(update)
        return reply


def test_a_device_that_claims_another_width_is_refused(tmp_path):
    settings = settings_of(tmp_path, num_server_rounds=2)
    directory = run_here(tmp_path / "run", settings, 40, Claiming, liars=1, log=[])
    (failure,) = directory.rounds()[0]["failures"]
    assert "that is not shared" in failure["reason"]
    assert directory.rounds()[0]["users"] == 39
    assert directory.read_summary()["status"] == "completed"


def test_when_most_devices_claim_another_width_the_run_fails(tmp_path):
    with pytest.raises(RunFailed, match="valid"):
        run_here(tmp_path / "run", settings_of(tmp_path, num_server_rounds=1), 40, Claiming, liars=30, log=[])


# -- growing -----------------------------------------------------------------------------------------------------------


def test_a_device_that_collects_more_moves_up_and_keeps_what_it_has_learned(tmp_path):
    """Five people; the one with the least comes to have the most between two runs of a series.

    It is then sent the largest table, its first columns are what the first run left, and nobody moves down. Rates are
    tiny, so that all versions of its vector are alike where they were trained.
    """
    items = [f"i{number}" for number in range(60)]
    lengths = {"ann": 6, "bob": 10, "cid": 12, "dan": 14, "eve": 20}
    devices = [write_history(tmp_path / name, items[:length], name) for name, length in lengths.items()]
    settings = settings_of(
        tmp_path,
        catalogue_file=str(write_catalogue(tmp_path / "catalogue.csv", items)),
        min_nodes=5,
        num_server_rounds=2,
        learning_rate=1e-6,
        user_learning_rate=1e-6,
        round_timeout=30.0,
    )
    directory = run_here(tmp_path / "run", settings, 5, Fleet, devices=devices)
    with (devices[0] / "history.csv").open("a") as file:
        file.writelines(f"{item},{100 + n}\n" for n, item in enumerate(items[6:50]))
    resumed = settings | {"num-server-rounds": 4, "resume": str(directory.path)}
    run_here(tmp_path / "run", resumed, 5, Fleet, devices=devices)
    users = [[group["users"] for group in line["groups"]] for line in directory.rounds()]
    assert users == [[3, 1, 1]] * 2 + [[2, 1, 2]] * 2
    (state,) = (devices[0] / "private").glob("*/node-*/user_embedding.npy")
    versions = np.load(state).reshape(-1, 4)
    known = versions[np.abs(versions).max(axis=1) > 0]
    assert len(known) >= 2
    assert np.ptp(known[:, :2], axis=0).max() < 1e-4


def test_groups_are_part_of_the_checkpoint(tmp_path):
    directory = run_here(tmp_path / "run", settings_of(tmp_path, num_server_rounds=2), 3)
    checkpoint = last_checkpoint(directory)
    np.testing.assert_array_equal(checkpoint.extra["groups"], assign_groups(checkpoint.sizes))
    summary = json.loads(directory.summary.read_text())
    assert sum(group["users"] for group in summary["groups"]) == 40
