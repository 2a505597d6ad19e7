"""What a node accepts: runs that ask for more are refused before the first round, and nothing is written elsewhere."""

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from bouquet.catalogue import Catalogue
from bouquet.cli.node import _prepared, _supernode
from bouquet.config import RunConfig
from bouquet.device import Device
from bouquet.engines.inside import use_task_identity
from bouquet.errors import ConfigError, RunFailed
from bouquet.methods import METHODS
from bouquet.methods.manifest import class_at
from bouquet.policy import KEYS, Policy, settings_of
from bouquet.randomness import user_keys
from bouquet.wire import EVALUATE, ROSTER, TRAIN, EvaluateRequest, RosterRequest, TrainRequest
from client_app.app import app
from client_app.node import handlers
from client_app.node.host import host_of
from client_app.state.folders import series_folder
from tests.deployment.fleet import Fleet, write_catalogue, write_history
from tests.runs.helpers import run_here, small_settings

ITEMS = [f"i{number}" for number in range(20)]
OWN_NOISE, NOISE = {"accept_dp_noise": 2.0}, {"secure_sums": True, "dp_noise_from": "nodes"}


@pytest.mark.parametrize(
    ("policy", "run", "said"),
    [
        ({"accept_clip": 1.0}, {}, "update-clip above 0 and at most 1 (the run: 0)"),
        ({"accept_clip": 1.0}, {"update_clip": 1.5}, "update-clip above 0 and at most 1 (the run: 1.5)"),
        ({"accept_clip": 1.0}, {"update_clip": 1.0}, ""),
        ({"accept_noise": 2.0}, {"update_clip": 1.0, "update_noise": 1.0}, "update-noise of at least 2 (the run: 1)"),
        ({"accept_noise": 2.0}, {"update_clip": 1.0, "update_noise": 2.0}, ""),
        ({"accept_decoys": 15}, {"decoy_rows": 14}, "decoy-rows of at least 15 (the run: 14)"),
        ({"accept_decoys": 15}, {"decoy_rows": 15}, ""),
        ({"accept_secret_draws": True}, {}, "secret-draws (the run: off)"),
        ({"accept_secret_draws": True}, {"secret_draws": True}, ""),
        ({"accept_updates": "sum"}, {}, "updates as a sum over its users (the run: every user's own)"),
        ({"accept_updates": "secure"}, {}, "updates under masks (the run: no secure-sums)"),
        (OWN_NOISE, {}, "noise of nodes with a dp-noise-multiplier of at least 2 (the run: none)"),
        # Of the server's noise a node sees nothing.
        (
            OWN_NOISE,
            {"dp_noise_multiplier": 9.0},
            "noise of nodes with a dp-noise-multiplier of at least 2 (the run: none)",
        ),
        (
            OWN_NOISE,
            NOISE | {"dp_noise_multiplier": 1.99},
            "noise of nodes with a dp-noise-multiplier of at least 2 (the run: 1.99)",
        ),
        (OWN_NOISE, NOISE | {"dp_noise_multiplier": 2.0}, ""),
        ({}, {}, ""),
    ],
)
def test_each_limit_refuses_what_is_beyond_it_and_nothing_else(policy, run, said):
    options = RunConfig(**run)
    if not said:
        Policy(**policy).refuse_run(options, "rows")
        return
    with pytest.raises(ConfigError) as refused:
        Policy(**policy).refuse_run(options, "rows")
    assert str(refused.value) == f"The policy of this node asks for {said}."


def test_all_that_is_wrong_stands_in_one_sentence_and_sums_are_sums():
    policy = Policy(accept_decoys=3, accept_updates="sum")
    with pytest.raises(ConfigError, match=r"decoy-rows of at least 3 \(the run: 0\), updates as a sum .*\.$"):
        policy.refuse_run(RunConfig(), "rows")
    for kind in ("sum", "cells"):
        Policy(accept_updates="sum").refuse_run(RunConfig(), kind)


@pytest.mark.parametrize(
    ("policy", "run"),
    [
        ({"accept_updates": "sum"}, {}),
        ({"accept_noise": 1.0}, {"update_clip": 1.0, "update_noise": 1.0}),
        (OWN_NOISE, NOISE | {"dp_noise_multiplier": 2.0}),
    ],
)
def test_no_vector_of_a_history_leaves_where_sums_or_noise_are_asked_for(policy, run):
    """It would be the user's own, and has neither clip nor noise."""
    options = RunConfig(**run)
    Policy(**policy).refuse_run(options, "sum", ("performance", "seconds"))
    Policy(accept_clip=run.get("update_clip", 0.0)).refuse_run(options, "sum", ("representation",))
    for told in ("representation", "training"):
        with pytest.raises(ConfigError, match=rf"no vectors of single users without noise \(the run: {told}\)\.$"):
            Policy(**policy).refuse_run(options, "sum", ("performance", told))


def test_settings_become_a_policy_again():
    given_ = {"accept_clip": 1.5, "accept_secret_draws": True, "keep_series": 2, "accept_noise": None}
    settings = settings_of(**given_)
    assert settings == {"accept-clip": "1.5", "accept-secret-draws": "true", "keep-series": "2"}
    assert settings.keys() <= set(KEYS)
    assert Policy.of({**settings, "shard": "/x"}) == Policy(accept_clip=1.5, accept_secret_draws=True, keep_series=2)
    for wrong, said in [
        ({"accept_clip": "much"}, "accept-clip is no float: 'much'"),
        ({"accept_updates": "rows"}, "accept-updates is 'any', 'sum' or 'secure', not 'rows'"),
        ({"accept_nodes": 2}, "accept-nodes is at least 3"),
        ({"accept_decoys": -1}, "accept-decoys is a number from 0 up, not -1"),
        ({"accept_noise": float("nan")}, "accept-noise is a number from 0 up, not nan"),
        ({"keep_series": 0}, "keep-series is at least 1"),
    ]:
        with pytest.raises(ConfigError, match=said):
            settings_of(**wrong)


def test_a_catalogue_has_a_largest_size_in_items_and_in_bytes():
    """Two items of one byte with titles of two and three: 7 bytes."""
    items, titles = ("a", "b"), ("ä", "xyz")
    Policy(accept_items=2, accept_catalogue_bytes=7).refuse_catalogue(items, titles)
    for policy in (Policy(accept_items=1), Policy(accept_catalogue_bytes=6)):
        with pytest.raises(Exception, match="the catalogue has 2 items and 7 bytes of names and titles; this node acc"):
            policy.refuse_catalogue(items, titles)


class Devices(Fleet):
    """Devices whose owners have given them a policy."""

    def __init__(self, *arguments, policy, **others):
        super().__init__(*arguments, **others)
        for number in range(len(others["devices"])):
            self._contexts[1000 + number].node_config.update(policy)


def run(tmp_path, policy, grid=Devices, **changes):
    people = ("ann", "bob", "cid")
    devices = [write_history(tmp_path / name, ITEMS[n : n + 12], name) for n, name in enumerate(people)]
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    few = {"catalogue_file": str(catalogue), "min_nodes": 3, "num_server_rounds": 1, "evaluate_every": 1}
    settings = small_settings(tmp_path, **{**few, **changes})
    return run_here(tmp_path / "run", settings, 3, grid, devices=devices, policy=policy)


@pytest.mark.parametrize(
    ("policy", "changes", "said"),
    [
        ({"accept-clip": "1.0"}, {}, r"asks for update-clip above 0 and at most 1 \(the run: 0\)\."),
        ({"accept-updates": "sum"}, {"strategy": "fedca", "fedca_k": 2}, r"\(the run: every user's own\)"),
        (
            {"accept-noise": "1.0"},
            {"strategy": "cf-fedsr", "update_clip": 1.0, "update_noise": 1.0, "fraction_train": 0.5},
            r"asks for no vectors of single users without noise \(the run: representation\)\.",
        ),
        (
            {"accept-items": "19"},
            {},
            r"the catalogue has 20 items and \d+ bytes of names and titles; this node accepts",
        ),
        ({"accept-catalogue-bytes": "99"}, {}, "this node accepts 1,000,000 and 99"),
        (
            {"accept-dp-noise": "2.0"},
            NOISE | {"strategy": "fcf", "dp_noise_multiplier": 1.5},
            r"asks for noise of nodes with a dp-noise-multiplier of at least 2 \(the run: 1\.5\)\.",
        ),
    ],
)
def test_the_operator_is_told_before_the_first_round_why_devices_refuse(tmp_path, policy, changes, said):
    with pytest.raises(RunFailed, match=r"3 of 3 nodes cannot take part\. The first says: .*" + said):
        run(tmp_path, policy, **changes)
    for name in ("ann", "bob", "cid"):
        assert Device(tmp_path / name).trained() == set()
        assert not (tmp_path / name / "private").exists()


def test_a_run_that_asks_for_no_more_is_taken(tmp_path):
    policy = {"accept-clip": "1.0", "accept-decoys": "2", "accept-updates": "sum", "accept-items": "20"}
    assert run(tmp_path, policy, update_clip=0.5, decoy_rows=2).read_summary()["users"] == 3


def test_a_run_with_noise_enough_of_the_devices_own_is_taken(tmp_path):
    policy = {"accept-dp-noise": "2.0", "accept-updates": "secure"}
    found = run(tmp_path, policy, **NOISE, strategy="fcf", dp_noise_multiplier=2.0).read_summary()
    assert (found["users"], found["privacy"]["noise_from"]) == (3, "nodes, each its share under masks")


def test_a_server_that_says_one_thing_and_asks_another_is_refused_when_it_asks(tmp_path):
    """Node 1001 takes sums only; the roster was told "sum" and the training message says "rows"."""

    class Lying(Devices):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                if message.metadata.message_type == "train":
                    message.content["config"]["update"] = "rows"
            return super().push_messages(messages)

    people = ("ann", "bob", "cid")
    devices = [write_history(tmp_path / name, ITEMS[n : n + 12], name) for n, name in enumerate(people)]
    catalogue = write_catalogue(tmp_path / "catalogue.csv", ITEMS)
    settings = small_settings(tmp_path, catalogue_file=str(catalogue), min_nodes=3, num_server_rounds=1)
    with pytest.raises(RunFailed, match="updates as a sum over its users"):
        run_here(tmp_path / "run", settings, 3, Lying, devices=devices, policy={"accept-updates": "sum"})


@pytest.mark.parametrize(
    ("strategy", "changes"),
    [
        ("cf-fedsr", {"fraction_train": 0.5}),
        ("fedca", {"fedca_k": 2}),
        ("fedfast", {"fraction_train": 0.5}),
        ("fcf", {"dp_noise_multiplier": 1.0, "dp_clip_quantile": 0.5}),
        ("hetefedrec", {}),
    ],
)
def test_nodes_are_told_before_the_first_round_all_that_messages_ask_users_to_tell(tmp_path, strategy, changes):
    told, asked = set(), set()

    class Listening(Devices):
        def push_messages(self, messages):
            messages = list(messages)
            for message in messages:
                found = told if message.metadata.message_type == ROSTER else asked
                found.update(filter(None, message.content["config"]["reports"].split(",")))
            return super().push_messages(messages)

    run(tmp_path, {}, strategy=strategy, grid=Listening, **changes)
    assert told == asked != set()


def test_a_method_that_has_users_tell_something_says_so_beforehand():
    for name, method in METHODS.items():
        made = vars(class_at(method.strategy))
        assert ("tells" in made) == bool({"reports", "evaluation_reports"} & made.keys()), name


@pytest.mark.parametrize("policy", [{"accept-updates": "sum"}, {"accept-noise": "1.0"}])
@pytest.mark.parametrize("kind", [TRAIN, EVALUATE])
def test_a_server_cannot_ask_for_a_history_as_a_report(tmp_path, kind, policy):
    """Ann's interests under a table that names every item: the mean of its rows would be her whole history.

    The server never asked who lives there, so whatever was refused then is of no help.
    """
    use_task_identity()
    ann = write_history(tmp_path / "ann", ITEMS[:12], "ann")
    Catalogue(tuple(ITEMS), tuple(ITEMS)).save(ann / "catalogue.json")
    here = {"history": str(ann / "history.csv"), "state-dir": str(ann)}
    settings = {"strategy": "cf-fedsr", "update-clip": 1.0, "update-noise": 1.0, "embedding-size": len(ITEMS)}
    users, none = user_keys(["ann"]), np.zeros(1, np.int64)
    names = {"item_embedding": np.eye(len(ITEMS), dtype=np.float32)}

    def ask(policy):
        asked = {"shared": names, "personal": {}, "reports": ("representation",)}
        if kind == TRAIN:
            request = TrainRequest("s", 1, users, none, none, weights=np.ones(1), **asked)
        else:
            request = EvaluateRequest("s", 1, users, none, **asked)
        message = Message(request.encode(), dst_node_id=1, message_type=kind, group_id="1")
        message.metadata.__dict__["_message_id"] = "1"
        return app(message, Context(1, 1, {**here, **policy}, RecordDict(), settings)).content

    assert "representation" in ask({})["reports"]
    with pytest.raises(ConfigError, match="no vectors of single users without noise"):
        ask(policy)


def test_a_device_remembers_its_policy_and_gives_it_to_its_supernode(tmp_path):
    """Said once, it stays; said again with another value, it changes; what a run or another start leaves out, stays."""
    history = tmp_path / "history.csv"
    history.write_text("item\na\nb\nc\n")
    state, keys = tmp_path / "state", tmp_path / "keys"
    first = settings_of(accept_clip=1.0, accept_updates="sum", accept_dp_noise=2.0)
    Device(state).save_settings(_prepared(state, history, None, "", first | {"item_column": "item", "time_column": ""}))
    again = settings_of(accept_clip=0.5, keep_series=2)
    settings = _prepared(state, None, None, "", again | {"item_column": "item", "time_column": ""})
    command, _ = _supernode("hub:9092", state, keys, settings)
    given_ = command[command.index("--node-config") + 1]
    for word in ('accept-clip="0.5"', 'accept-updates="sum"', 'accept-dp-noise="2.0"', 'keep-series="2"'):
        assert word in given_.split()
    assert "accept-noise" not in given_


# -- run series --------------------------------------------------------------------------------------------------------


def host_in(tmp_path, **node):
    settings = small_settings(tmp_path)
    return host_of(settings, {"state-dir": str(tmp_path / "state"), **node})


def train(host, series, round_=1):
    users = host.histories.users[:2]
    none = np.zeros(2, np.int64)
    shared = {name: np.zeros(spec.shape, np.float32) for name, spec in host.model_specs.items()}
    handlers.train(host, TrainRequest(series, round_, users, none, none, shared, weights=np.ones(2)))


@pytest.mark.parametrize("absolute", [True, False])
def test_a_series_that_is_a_path_stays_in_the_state_folder(tmp_path, absolute):
    host = host_in(tmp_path)
    train(host, str(tmp_path / "outside") if absolute else "../outside")
    assert not (tmp_path / "outside").exists()
    (folder,) = (tmp_path / "state").iterdir()
    assert len(folder.name) == 32
    assert list(folder.glob("node-0-of-1/index.safetensors"))


@given(st.text(max_size=40))
def test_every_name_of_a_series_is_one_folder_of_its_own(name):
    root = Path("/state")
    folder = series_folder(root, name)
    assert folder.parent == root
    assert folder.name not in ("", ".", "..")
    assert series_folder(root, name + "x") != folder
    assert series_folder(root, "0123456789abcdef" * 2).name == "0123456789abcdef" * 2


def test_the_state_of_the_series_that_trained_last_is_kept_and_no_other(tmp_path):
    """Three are kept: after series 0 to 4 with 1 again before 4, these are 1, 3 and 4."""
    host = host_in(tmp_path, **{"keep-series": "3"})
    state = tmp_path / "state"
    (state / "not a series").mkdir(parents=True)
    names = [f"{number:032x}" for number in range(5)]
    begin = time.time() - 100
    for step, number in enumerate([0, 1, 2, 3, 1, 4]):
        train(host, names[number], round_=step + 1)
        os.utime(state / names[number], (begin + step, begin + step))
    assert {path.name for path in state.iterdir()} == {"not a series", names[1], names[3], names[4]}


def test_by_default_two_hundred_series_leave_five_and_a_simulation_keeps_all(tmp_path):
    host = host_in(tmp_path)
    for number in range(8):
        train(host, f"{number:032x}")
    assert len(list((tmp_path / "state").iterdir())) == 5
    simulated = replace(host, place=replace(host.place, keep_series=0, root=tmp_path / "simulated"))
    for number in range(8):
        train(simulated, f"{number:032x}")
    assert len(list((tmp_path / "simulated").iterdir())) == 8


def test_a_roster_request_says_which_updates_are_wanted():
    request = RosterRequest("s", update="rows", tells=("features", "seconds"))
    assert RosterRequest.decode(request.encode()) == request
    catalogue = Catalogue(("a",), ("b",))
    request = RosterRequest("s", catalogue.edition, catalogue)
    assert RosterRequest.decode(request.encode()) == request
