"""What a device of one person answers: it takes the published catalogue, trains on its own file, keeps what it would
recommend, and says so when it shall be forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bouquet.attacks import refuse_in_deployment
from bouquet.catalogue import Catalogue
from bouquet.config import Scalar, parsed
from bouquet.device import Device
from bouquet.errors import WireError
from bouquet.methods import METHODS
from bouquet.policy import Policy
from bouquet.published import PublishedModel
from bouquet.randomness import Words, user_keys
from bouquet.reporting.events import event
from bouquet.sealing import read_seal
from bouquet.wire import EvaluateRequest, RosterReply, RosterRequest, TrainRequest
from client_app.edge.growing_history import histories_of_device
from client_app.node.place import Place
from client_app.side import Node, node_at

# More than anyone scrolls through.
KEPT_RECOMMENDATIONS = 1000


def _known_as(device: Device, user: str) -> Words:
    """[1] the key under which the person is known outside, as `Place.identities`."""
    keys = user_keys([user])
    return device.seal.pseudonyms(keys) if device.seal else keys


def device_of(node_config: Mapping[str, Scalar]) -> Device:
    """The device that this process runs on."""
    return Device(Path(str(node_config["state-dir"])), read_seal(str(node_config.get("state-key", ""))))


def device_roster(
    request: RosterRequest, run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]
) -> RosterReply:
    """Who lives here, once the catalogue is known; nobody, where the person asked to be forgotten."""
    refuse_in_deployment(parsed(run_config).run)
    device = device_of(node_config)
    settings, policy = device.settings(), Policy.of(node_config)
    if not settings.get("forgotten"):
        policy.refuse_run(parsed(run_config).run, request.update, request.tells)
    if request.catalogue:
        policy.refuse_catalogue(request.catalogue.items, request.catalogue.titles)
        request.catalogue.save(device.folder / "catalogue.json")
        event("catalogue taken", edition=request.edition, items=len(request.catalogue.items))
    catalogue = device.catalogue()
    if catalogue is None or (request.edition and request.edition != catalogue.edition):
        none = np.zeros(0, np.uint64)
        return RosterReply(none, none.astype(np.int64), 0, 0, 0, "", 0, {})
    if user := settings.get("forgotten"):
        forgotten = _known_as(device, user)
        node, given = _node(device, catalogue, run_config, node_config), device.given_of(request.series)
        reply = node.roster()
        empty = replace(reply, users=reply.users[:0], sizes=reply.sizes[:0], interactions=0)
        # Until the server says that nothing is left there, it is asked again: this reply can be lost.
        if np.isin(forgotten, request.gone).any():
            given.unlink(missing_ok=True)
            device.save_settings({**settings, "told": request.series})
            event("forgotten", told=request.series)
        # What it gave under masks it does not tell now: that is its history.
        told = given.exists() and not node.config.secure_sums
        return replace(empty, forgotten=forgotten, withdrawn=node.withdrawn(given) if told else {})
    node = _node(device, catalogue, run_config, node_config)
    node.refuse_unable()
    return node.roster()


def device_node(run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar], round_: int) -> Node:
    """The node for a training or evaluation message.

    Raises:
        WireError: the person asked to be forgotten, or its history has nothing that the catalogue knows.
        StateError: the device has no catalogue, or a file is damaged.
        DataError: the history cannot be read.
    """
    device = device_of(node_config)
    settings = device.settings()
    if settings.get("forgotten"):
        key = int(_known_as(device, settings["forgotten"])[0])
        raise WireError(f"user {key:016x} does not live on this node")
    catalogue = device.catalogue()
    if catalogue is None:
        raise WireError("this device has no catalogue yet")
    node = _node(device, catalogue, run_config, node_config)
    if not len(node.histories.users):
        key = int(_known_as(device, settings["user"])[0])
        raise WireError(f"user {key:016x} has no item of the catalogue in its history any more")
    return node.watched_by(partial(_keep, device, catalogue, round_))


def before_training(node: Node, node_config: Mapping[str, Scalar]) -> None:
    """Write down what is about to be trained on, so that it is never held out."""
    device = device_of(node_config)
    catalogue = device.catalogue()
    assert catalogue
    device.mark_trained([catalogue.items[row] for row in node.histories.train.values])


def after_training(node: Node, request: TrainRequest, node_config: Mapping[str, Scalar]) -> None:
    """Remember the round, for whoever asks how the device is doing."""
    items = len(node.histories.train.values)
    # The round itself is done, and a full disk must not cost its reply.
    with suppress(OSError):
        device_of(node_config).save_last_round(node.config.strategy, request.round, items)


def after_evaluation(
    node: Node, request: EvaluateRequest, run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]
) -> None:
    """Keep a published model that a history is all that is needed for: the next item is recommended from at once."""
    method = METHODS[node.config.strategy]
    if method.kind == "sums":
        settings = parsed(run_config).of(method.options).to_flat()
        model = PublishedModel(method.name, settings, node.histories.catalogue, request.shared, request.round)
        model.save(device_of(node_config).model)


def _node(
    device: Device, catalogue: Catalogue, run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]
) -> Node:
    columns = {key: node_config[key] for key in ("item-column", "time-column") if key in node_config}
    settings = parsed({**run_config, **columns})
    histories = histories_of_device(device, settings.run, Path(str(node_config["history"])), catalogue)
    kept = Policy.of(node_config).keep_series
    return node_at(settings, Place(histories, device.folder / "private", True, device.seal, kept))


def _keep(device: Device, catalogue: Catalogue, round_: int, positions: np.ndarray, scores: np.ndarray) -> None:
    order = np.argsort(-scores[0], kind="stable")[:KEPT_RECOMMENDATIONS]
    device.save_recommendations(catalogue, order.tolist(), scores[0][order].tolist(), round_)
