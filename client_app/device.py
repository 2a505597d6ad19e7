"""What a device of one person answers: it takes the published catalogue, trains on its own file, keeps what it would
recommend, and says so when it shall be forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bouquet.catalogue import Catalogue
from bouquet.config import RunConfig, Scalar, own
from bouquet.device import Device
from bouquet.errors import WireError
from bouquet.randomness import user_keys
from bouquet.reporting.events import event
from bouquet.sealing import read_seal
from bouquet.wire import RosterReply, RosterRequest
from client_app import rounds
from client_app.edge import histories_of_device
from client_app.groups import models_of
from client_app.host import Host, host_with

# More than anyone scrolls through.
KEPT_RECOMMENDATIONS = 1000


def device_of(node_config: Mapping[str, Scalar]) -> Device:
    """The device that this process runs on."""
    return Device(Path(str(node_config["state-dir"])), read_seal(str(node_config.get("state-key", ""))))


def device_roster(
    request: RosterRequest, run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]
) -> RosterReply:
    """Who lives here, once the catalogue is known; nobody, where the person asked to be forgotten."""
    device = device_of(node_config)
    settings = device.settings()
    if request.catalogue:
        request.catalogue.save(device.folder / "catalogue.json")
        event("catalogue taken", edition=request.edition, items=len(request.catalogue.items))
    catalogue = device.catalogue()
    if catalogue is None or (request.edition and request.edition != catalogue.edition):
        none = np.zeros(0, np.uint64)
        return RosterReply(none, none.astype(np.int64), 0, 0, 0, "", 0, {})
    if user := settings.get("forgotten"):
        forgotten = user_keys([user])
        device.save_settings({**settings, "told": request.series})
        event("forgotten", told=request.series)
        reply = rounds.roster(_host(device, catalogue, run_config, node_config))
        empty = replace(reply, users=reply.users[:0], sizes=reply.sizes[:0], interactions=0)
        return replace(empty, forgotten=forgotten)
    return rounds.roster(_host(device, catalogue, run_config, node_config))


def device_host(run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar], round_: int) -> Host:
    """The host for a training or evaluation message.

    Raises:
        WireError: the person asked to be forgotten.
        StateError: the device has no catalogue, or a file is damaged.
        DataError: the history cannot be read.
    """
    device = device_of(node_config)
    settings = device.settings()
    if settings.get("forgotten"):
        key = int(user_keys([settings["forgotten"]])[0])
        raise WireError(f"user {key:016x} does not live on this node")
    catalogue = device.catalogue()
    if catalogue is None:
        raise WireError("this device has no catalogue yet")
    host = _host(device, catalogue, run_config, node_config)
    return replace(host, on_scores=partial(_keep, device, catalogue, round_))


def before_training(host: Host, node_config: Mapping[str, Scalar]) -> None:
    """Write down what is about to be trained on, so that it is never held out."""
    device = device_of(node_config)
    catalogue = device.catalogue()
    assert catalogue
    device.mark_trained([catalogue.items[row] for row in host.histories.train.values])


def _host(
    device: Device, catalogue: Catalogue, run_config: Mapping[str, Scalar], node_config: Mapping[str, Scalar]
) -> Host:
    columns = {key: node_config[key] for key in ("item-column", "time-column") if key in node_config}
    config = own({**run_config, **columns}, RunConfig)
    histories = histories_of_device(device, config, Path(str(node_config["history"])), catalogue)
    models = models_of(config, run_config, histories.num_items)
    return host_with(models, config, histories, device.folder / "private", durable=True, seal=device.seal)


def _keep(device: Device, catalogue: Catalogue, round_: int, scores: np.ndarray) -> None:
    order = np.argsort(-scores[0], kind="stable")[:KEPT_RECOMMENDATIONS]
    device.save_recommendations(catalogue, order.tolist(), scores[0][order].tolist(), round_)
