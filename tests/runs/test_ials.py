"""iALS in whole runs: as one process would do it, resumed within a sweep, with liars, on devices, on real data."""

import numpy as np
import pytest
from flwr.app import Array

from bouquet.arrays import initial_shared
from bouquet.cli.node import recommend_command, recommend_from_model
from bouquet.config import parsed
from bouquet.device import Device
from bouquet.errors import ConfigError
from bouquet.methods.ials import IalsOptions
from bouquet.published import load_published
from bouquet.ragged import Ragged
from bouquet.randomness import user_key
from bouquet.testing import Faulty, assert_equal_runs
from client_app.node.histories import histories_of, interactions_of
from client_app.sums.ials import Ials
from tests.deployment.fleet import Fleet, write_catalogue
from tests.runs.helpers import last_checkpoint, run_here, small_settings
from tests.runs.sums import ITEMS, append, best_of, devices_in, run, trained_of
from tests.strategies.sums.test_ials import reference


def settings_of(tmp_path, **changes):
    return small_settings(tmp_path, strategy="ials", **{"ials_rank": 4, "num_server_rounds": 6, **changes})


@pytest.mark.parametrize("nodes", [1, 7, 40])
def test_federated_ials_equals_the_one_of_a_single_process(tmp_path, nodes):
    """Two sweeps, of as many steps as it takes to solve each item's system."""
    settings = settings_of(tmp_path, ials_steps=5, num_server_rounds=12, ials_regularization=0.05)
    directory = run_here(tmp_path / "run", settings, nodes)
    config, options = parsed(settings).run, parsed(settings).of(IalsOptions)
    histories = histories_of(interactions_of(config), config)
    start = initial_shared(options.published(histories.num_items), config.seed)["factors"]
    expected = reference(start, histories.train, options, 2)
    np.testing.assert_allclose(last_checkpoint(directory).shared["factors"], expected, atol=1e-5)


def test_what_is_rounded_on_the_way_changes_no_list_with_the_defaults(tmp_path):
    """Where none of 16 users' vectors has a part, rounding is divided by λ_i alone, .006 for an item of one of them.

    Scores, which are about 1 for what a user has, differ by 1e-4 between one node and 40, and metrics do not.
    """
    settings = small_settings(tmp_path, strategy="ials", num_server_rounds=8, fraction_train=0.4)
    options = parsed(settings).of(IalsOptions)
    histories = histories_of(interactions_of(parsed(settings).run), parsed(settings).run)
    scores, metrics = [], []
    for nodes in (1, 40):
        directory = run_here(tmp_path / str(nodes), settings, nodes)
        scores.append(Ials(histories.num_items, options).scores(last_checkpoint(directory).shared, histories.train))
        metrics.append(directory.read_summary()["test"]["full"]["NDCG@10"])
    np.testing.assert_allclose(scores[1], scores[0], atol=5e-4)
    assert metrics[1] == pytest.approx(metrics[0], abs=1e-5)


@pytest.mark.parametrize("fraction", [1.0, 0.4])
def test_a_run_that_is_resumed_within_a_sweep_equals_one_that_was_not_stopped(tmp_path, fraction):
    settings = settings_of(tmp_path, ials_steps=2, fraction_train=fraction, evaluate_every=1, checkpoint_every=5)
    whole = run_here(tmp_path / "whole", settings | {"num-server-rounds": 9}, 3)
    parts = run_here(tmp_path / "parts", settings | {"num-server-rounds": 5}, 3)
    assert last_checkpoint(parts).extra["step"][0] == 2
    resumed = settings | {"num-server-rounds": 9, "resume": str(tmp_path / "parts")}
    assert_equal_runs(run_here(tmp_path / "parts", resumed, 3), whole)


@pytest.mark.parametrize(("value", "reason"), [(np.nan, "not finite"), (1e7, "larger than 1 users can give")])
def test_a_reply_that_nobody_can_give_is_left_out(tmp_path, value, reason):
    """In every round, of one user of 40."""

    def fault(message, answer):
        reply = answer()
        product = reply.content["update"]["product/values"].numpy()
        reply.content["update"]["product/values"] = Array(np.full_like(product, value))
        return reply

    directory = run_here(tmp_path / "run", settings_of(tmp_path), 40, Faulty, fault=fault, bad={7})
    lines = directory.rounds()
    # Who did not answer the first message of a sweep is not asked for a step of it.
    assert [(line["asked"], line["users"]) for line in lines] == [(40, 39), (39, 39)] * 3
    assert all(reason in line["failures"][0]["reason"] for line in lines[::2])


def test_who_is_forgotten_is_in_no_later_sum(tmp_path):
    """Its device goes in round 3: nothing is kept there, and the sums of the next sweep are of the two others."""
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})
    bob = Device(devices[1])
    directory = run(
        tmp_path, devices, "ials", plan={3: lambda fleet: bob.forget()}, num_server_rounds=6, min_reply_fraction=0.3
    )
    assert [line["users"] for line in directory.rounds()][-2:] == [2, 2]
    assert user_key("bob") not in last_checkpoint(directory).users
    assert not list(bob.folder.rglob("given*"))


def test_items_join_the_catalogue_within_a_sweep(tmp_path):
    """Ten items come at the end, which two people have had before: the next sweep is a new one, of all 40 items."""
    devices = devices_in(tmp_path / "three", {"ann": 12, "bob": 9, "cid": 15})
    append(devices[0], ["i39", "i31", "i2x", "i0", "i1"])
    append(devices[1], ["i30", "i3", "i35", "i5", "i6"])
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS[:30])
    given = {"catalogue_file": str(catalogue), "evaluate_every": 1, "min_nodes": 3}
    settings = settings_of(tmp_path, ials_steps=5, num_server_rounds=9, ials_regularization=0.05, **given)
    first = run_here(tmp_path / "run", settings, 3, Fleet, devices=devices)
    old = last_checkpoint(first)
    assert (len(old.shared["factors"]), old.extra["step"][0]) == (30, 3)
    write_catalogue(catalogue, ITEMS)
    resumed = settings | {"num-server-rounds": 15, "resume": str(first.path), "out": ""}
    second = run_here(tmp_path / "run", resumed, 3, Fleet, devices=devices)
    trained = [[ITEMS.index(item) for item in trained_of(folder)] for folder in devices]
    assert {item for items in trained for item in items} & set(range(30, 40))
    options = parsed(settings).of(IalsOptions)
    start = initial_shared(options.published(40), parsed(settings).run.seed)["factors"]
    start[:30] = old.shared["factors"]
    histories = Ragged.from_lengths([len(items) for items in trained], np.concatenate(trained))
    np.testing.assert_allclose(
        last_checkpoint(second).shared["factors"], reference(start, histories, options, 1), atol=1e-5
    )
    # An item that comes between the others moves all rows behind it.
    write_catalogue(catalogue, ["new", *ITEMS])
    with pytest.raises(ConfigError, match="The checkpoint cannot go on"):
        run_here(tmp_path / "run", resumed | {"num-server-rounds": 16}, 3, Fleet, devices=devices)


def test_recommendations_follow_a_history_at_once(tmp_path, capsys):
    """Of two groups of people with ten items each, whoever has items of one is shown the others of that."""
    devices = devices_in(tmp_path / "many", {f"user{number}": 3 for number in range(20)})
    for number, folder in enumerate(devices):
        group = [f"i{(number + place) % 10 + 10 * (number % 2)}" for place in range(7)]
        rows = "".join(f"{item},{place}\n" for place, item in enumerate(group))
        (folder / "history.csv").write_text("item,time\n" + rows)
    directory = run(tmp_path, devices, "ials", ials_rank=2, num_server_rounds=6)
    capsys.readouterr()
    recommend_command(devices[0], 3, "json")
    assert {int(item[1:]) // 10 for item in best_of(capsys)} == {0}
    # Somebody who took part in nothing.
    (tmp_path / "new.csv").write_text("item\ni12\ni15\n")
    recommend_from_model(directory.model, tmp_path / "catalogue.csv", tmp_path / "new.csv", 5, "json")
    assert {int(item[1:]) // 10 for item in best_of(capsys)} == {1}
    assert set(load_published(directory.model).arrays) == {"factors"}


@pytest.mark.parametrize(("regularization", "told"), [(0.001, False), (10.0, True)])
def test_vectors_that_shrink_to_nothing_are_told(tmp_path, regularization, told):
    """A sweep multiplies factors by less than σ² / (λ_u λ_i), σ the largest singular value of who has what.

    Here 40 users have 516 of 60 items in training, so σ² < 516; with λ = 10 λ_u > 10 · .3 · 60 = 180 and
    λ_i > 10 · .3 · 40 = 120: a sweep leaves less than a fortieth.
    """
    settings = settings_of(tmp_path, ials_regularization=regularization, num_server_rounds=8)
    remarks = run_here(tmp_path / "run", settings, 3).read_summary().get("remarks", [])
    assert [remark.startswith("The vectors of ials have shrunk to nothing") for remark in remarks] == [True] * told


def test_on_movielens_100k(tmp_path, real_data):
    """Full ranking, leave-one-out by time, honest, with settings of this set; EASE reaches .073 on the same ground."""
    settings = {"strategy": "ials", "dataset": "ml-100k", "data-dir": str(real_data("ml-100k"))}
    settings |= {"ials-unobserved": 1.0, "ials-regularization": 0.003}
    directory = run_here(tmp_path / "run", settings | {"num-server-rounds": 8, "evaluate-every": 8}, 1)
    assert directory.read_summary()["test"]["full"]["NDCG@10"] >= 0.070


@pytest.mark.parametrize(("dataset", "least"), [("ml-100k", 0.065), ("wikipedia", 0.100)])
def test_the_defaults_serve_sets_of_both_kinds(tmp_path, real_data, dataset, least):
    """The same of all defaults. Settings of MovieLens-100K alone have .054 on Wikipedia, whose histories are short."""
    settings = {"strategy": "ials", "dataset": dataset, "data-dir": str(real_data(dataset))}
    directory = run_here(tmp_path / "run", settings | {"num-server-rounds": 8, "evaluate-every": 8}, 1)
    assert directory.read_summary()["test"]["full"]["NDCG@10"] >= least
