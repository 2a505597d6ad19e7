"""Invariants 1 and 4 for users with next to nothing: no run fails on them, and none depends on where they live.

Users with a single training item, which changes nothing for a sequence model; without an item held out; with all items
of the catalogue, so that nothing can be drawn against them; several who are the same; one alone.
"""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bouquet.methods import METHODS
from bouquet.testing import Faulty
from bouquet.testing.runs import raises
from tests.runs.helpers import last_checkpoint, run_here, small_settings, write_histories
from tests.runs.populations import MIXED, ORDINARY, POPULATIONS, combinations, histories

COMBINATIONS = combinations()
# Plug-ins stand before two other base methods as they stand before these.
SOME = [chosen for chosen in COMBINATIONS if chosen[2] == "none" or chosen[0] in ("fcf", "fedrap")]

# What makes ways through the code that the defaults do not take; each is for the strategies that it names, or for all.
VARIANTS = [
    ("", {}),
    ("", {"fraction_train": 0.01}),
    ("", {"split": "ratio"}),
    ("", {"train_negatives": "paper"}),
    ("", {"early_stop_tolerance": 0.5, "local_epochs": 3}),
    ("", {"weight_decay": 0.1, "learning_rate_decay": 0.5}),
    ("", {"backend": "torch", "batch_size": 1}),
    ("", {"backend": "loop", "batch_size": 1}),
    ("fcf fedavg cf-fedsr fed3cr", {"update_clip": 0.1, "update_noise": 0.1}),
    ("fcf fedavg cf-fedsr fedrap", {"decoy_rows": 5}),
    ("cf-fedsr", {"cf_fedsr_clustering": "mean-shift"}),
    ("cf-fedsr", {"cf_fedsr_clusters": 50}),
    ("cf-fedsr", {"cf_fedsr_fair": False}),
    ("cf-fedsr", {"cf_fedsr_tuning_epochs": 2, "cf_fedsr_gamma": 0.5}),
    *(("fedca", {"fedca_complementarity": kind}) for kind in ("left", "centred", "raw")),
    ("fedca", {"fedca_proximal": 0.1}),
    ("fedca", {"fedca_ldp_delta": 0.1, "fedca_ldp_delta_features": 0.1}),
    ("fedca", {"fedca_complementarity_pairing": "greedy", "fedca_complementarity_measure": "sin"}),
    ("fedca", {"mix_all_users": True, "fraction_train": 0.5}),
    *(("fed3cr", {"fed3cr_enhancement": kind}) for kind in ("consensus", "unified", "none")),
    ("fed3cr", {"fed3cr_beta_a": 0.0, "fed3cr_beta_o": 0.0}),
    ("hetefedrec", {"hetefedrec_kd_steps": 0}),
    ("hetefedrec", {"hetefedrec_aggregation": "sum"}),
    *(("hetefedrec", {"hetefedrec_method": kind}) for kind in ("standalone", "clustered", "direct")),
    ("hetefedrec", {"hetefedrec_method": "all-large-exclusive"}),
]


def few_settings(folder, strategy, backbone, plug_in, **changes):
    """Small steps, so that rounding stays rounding, and everybody may take part."""
    small = {"num_server_rounds": 2, "evaluate_every": 1, "checkpoint_every": 1, "optimizer": "sgd"}
    small |= {"learning_rate": 0.05, "user_learning_rate": 0.2, "max_length": 4}
    if strategy == "cf-fedsr":
        small["cf_fedsr_lambda_1"] = 0
    if strategy == "ials":
        # Rounding is divided by what holds vectors down, where no user has a part: .004 for nine users by default.
        small["ials_regularization"] = 0.01
    if plug_in == "ace" and backbone != "mf":
        # Some weights of a network behind a network have gradients of rounding size, of which Adam makes whole steps.
        small |= {"server_optimizer": "sgd", "server_learning_rate": 1.0}
    chosen = {"strategy": strategy, "backbone": backbone, "personalization": plug_in}
    return small_settings(folder, **{**small, **chosen, **changes})


def assert_the_same_run(folder, population, strategy, backbone, plug_in, layouts=None, **changes):
    """On one node, on some, and with one user each: equal metrics of every user and equal tables, all finite.

    Histories of one item make gradients of rounding size, which a sequence model's layers carry on into each other.
    """
    tolerance = 2e-5 if backbone in ("mf", "ncf", "lightgcn") else 5e-4
    write_histories(folder / "data.csv", population)
    chosen = few_settings(folder, strategy, backbone, plug_in, **changes)
    first = None
    for nodes in layouts or sorted({1, -(-len(population) // 2), len(population)}):
        directory = run_here(folder / str(nodes), chosen, nodes)
        reasons = [line for line in directory.events.read_text().splitlines() if "refus" in line or "fail" in line]
        assert directory.read_summary()["failures"] == 0, reasons
        users, metrics = directory.read_users()
        order = np.argsort(users)
        found = users[order], metrics[order], last_checkpoint(directory).shared
        for path in directory.nodes.rglob("*.npy"):
            assert np.isfinite(np.load(path)).all(), (nodes, path.name)
        first = first or found
        np.testing.assert_array_equal(found[0], first[0])
        np.testing.assert_allclose(found[1], first[1], atol=1e-5, err_msg=f"metrics on {nodes} nodes")
        assert found[2].keys() == first[2].keys()
        for name, values in found[2].items():
            assert np.isfinite(values).all(), (nodes, name)
            np.testing.assert_allclose(values, first[2][name], atol=tolerance, err_msg=f"{name} on {nodes} nodes")


@pytest.mark.parametrize("combination", SOME, ids="-".join)
def test_a_mixed_population_gives_the_same_run_on_one_node_and_with_one_user_each(tmp_path, combination):
    assert_the_same_run(tmp_path, MIXED, *combination, layouts=(1, len(MIXED)))


def test_an_ordinary_device_may_change_nothing(tmp_path):
    """All defaults: at round 21 everybody may take part, also the user with three items, of which one is trained."""
    write_histories(tmp_path / "data.csv", ORDINARY)
    chosen = small_settings(tmp_path, strategy="cf-fedsr", backbone="gru4rec", num_server_rounds=22, evaluate_every=22)
    summary = run_here(tmp_path / "run", chosen, len(ORDINARY)).read_summary()
    assert (summary["status"], summary["failures"]) == ("completed", 0)


@pytest.mark.parametrize("population", [[[0, 1, 2]], POPULATIONS["no negatives"], MIXED], ids=["one", "all", "mixed"])
def test_what_a_user_validates_with_is_no_decoy(tmp_path, population):
    """CF-FedSR measures on the validation item in training: of three items in all, it was one of five decoys."""
    assert_the_same_run(tmp_path, population, "cf-fedsr", "gru4rec", "none", decoy_rows=5)


@pytest.mark.parametrize("backbone", ["gru4rec", "mf"])
def test_what_a_disguise_needs_takes_no_part_in_training(tmp_path, backbone):
    """The aggregate that FedCA's noise is laid over is no array of the loss, whatever computes the loss."""
    changes = {"fedca_ldp_delta": 0.1, "fedca_ldp_delta_features": 0.1, "backend": "torch"}
    assert_the_same_run(tmp_path, MIXED, "fedca", backbone, "none", layouts=(1, len(MIXED)), **changes)


@given(data=st.data())
@settings(max_examples=12, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
def test_any_few_users_give_the_same_run_however_they_are_spread(tmp_path_factory, data):
    any_run(tmp_path_factory, data)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
def test_many_more_few_users(tmp_path_factory, data):
    any_run(tmp_path_factory, data)


def any_run(folders, data):
    """A run of any method, in any of its variants, on any few users."""
    population = data.draw(histories(), label="histories")
    combination = data.draw(st.sampled_from(COMBINATIONS), label="combination")
    fitting = [changes for names, changes in VARIANTS if not names or combination[0] in names.split()]
    changes = data.draw(st.sampled_from(fitting), label="variant")
    assert_the_same_run(folders.mktemp("few"), population, *combination, **changes)


# Every population with a quarter of the combinations in turn, and the mixed one with all that have none above.
IN_TURN = list(
    dict.fromkeys(
        [
            *((name, chosen) for place, name in enumerate(POPULATIONS) for chosen in COMBINATIONS[place % 4 :: 4]),
            *(("mixed", chosen) for chosen in COMBINATIONS if chosen not in SOME),
        ]
    )
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("population", "combination"), IN_TURN, ids=lambda part: "-".join(part.split() if isinstance(part, str) else part)
)
def test_every_population_in_turn_and_every_method(tmp_path, population, combination):
    """PLGC's redundancy divides by what the few items of a batch differ in, and the layers of a network carry on what
    comes of it: with `perfedrec` 6e-8 after two rounds are 3e-3 after three, and 1e-7 after four without the term, for
    sequence models on one processor and for `ncf` on another.
    """
    _, backbone, plug_in = combination
    rounds = 2 if plug_in == "plgc" and backbone in ("gru4rec", "sasrec", "ncf") else 4
    assert_the_same_run(tmp_path, POPULATIONS[population], *combination, num_server_rounds=rounds)


def fitting_backbones(strategy):
    """The backbones that a strategy takes, without a plug-in."""
    return [backbone for name, backbone, plug_in in COMBINATIONS if (name, plug_in) == (strategy, "none")]


@pytest.mark.parametrize("strategy", sorted(METHODS))
def test_small_nodes_that_fail_do_not_take_the_others_with_them(tmp_path, strategy):
    """Of nine nodes of a user each four raise in every round: a tiny one, one with all items, one of two alike."""
    write_histories(tmp_path / "data.csv", MIXED)
    for backbone in fitting_backbones(strategy)[:1]:
        chosen = few_settings(tmp_path, strategy, backbone, "none", min_reply_fraction=0.1)
        directory = run_here(tmp_path / backbone, chosen, len(MIXED), Faulty, fault=raises, bad={0, 2, 4, 8})
        summary = directory.read_summary()
        lines = directory.rounds()
        assert (summary["status"], [line["users"] for line in lines]) == ("completed", [5, 5])
        # All nine are asked in both rounds, but for the second of a sweep those only that answered its first.
        assert summary["failures"] == sum(line["asked"] for line in lines) - 10
        assert lines[0]["asked"] == 9
        for values in last_checkpoint(directory).shared.values():
            assert np.isfinite(values).all()
        text = json.dumps(directory.rounds())
        assert "NaN" not in text
