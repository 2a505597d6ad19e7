"""Users of one node in groups, each with shared arrays, and so a model, of its own size.

On the wire an array of group g is called `g/name`, and a personal array `group` says which group each user was given.
A node trains the users of a group together, as if there were no others, and adds up what they changed by group. Private
arrays are kept at the largest size and used as far as the group's model reaches: a user that moves up to a larger size
goes on with what it has learned, and what lies behind is fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.config import Settings, lookup
from bouquet.errors import WireError
from bouquet.methods import METHODS
from bouquet.packed import PackedArray
from bouquet.ragged import Ragged
from bouquet.randomness import Words
from bouquet.wire import EvaluateReply, EvaluateRequest, TrainReply, TrainRequest
from client_app.personalization import device_methods
from client_app.personalization.base import Personalization
from client_app.state.private import PrivateState, Values
from client_app.state.row_overrides import OwnRows
from models import BACKBONES, Backbone, NestedBackbone

Request = TypeVar("Request", TrainRequest, EvaluateRequest)


@dataclass(frozen=True)
class Model:
    """What the users of one group train.

    Attributes:
        backbone: the model.
        methods: what stands between the arrays that travel and the backbone.
    """

    backbone: Backbone
    methods: tuple[Personalization, ...]

    @property
    def shared(self) -> Specs:
        """The arrays that may travel."""
        specs = dict(self.backbone.shared)
        for method in self.methods:
            specs |= method.shared
        return specs


def models_of(settings: Settings, num_items: int) -> tuple[Model, ...]:
    """The model of a run, or of each of its groups, smallest first.

    Raises:
        ConfigError: a setting cannot be used.
    """
    config = settings.run
    kind = lookup(BACKBONES, "backbone", config.backbone)
    mine = settings.of(kind.options_class)
    method = lookup(METHODS, "strategy", config.strategy)
    if method.sizes is None:
        backbone = kind(num_items, config, mine)
        return (Model(backbone, device_methods(settings, backbone)),)
    chosen = method.sizes(settings.of(method.options))
    sizes = [kind(num_items, config.model_copy(update={"embedding_size": width}), mine) for width in chosen.widths]
    backbones = [
        NestedBackbone(sizes[: place + 1]) if chosen.nested and place > 0 else size for place, size in enumerate(sizes)
    ]
    return tuple(Model(backbone, device_methods(settings, backbone)) for backbone in backbones)


class Prefixes:
    """The private state of one group: the first part of arrays that are kept at the largest size.

    Args:
        state: of all groups.
        specs: the group's private arrays.
    """

    def __init__(self, state: PrivateState, specs: Specs) -> None:
        self._state = state
        self._part = {name: tuple(slice(0, size) for size in spec.shape) for name, spec in specs.items()}

    def read(
        self, positions: NDArray[np.int64], versions: NDArray[np.int64], but: Collection[str] = (),
        only: Ragged | None = None,
    ) -> Values:  # fmt: skip
        """As `PrivateState.read`; nothing is kept by rows."""
        whole = self._state.read(positions, versions, but)
        return {name: np.ascontiguousarray(whole[name][:, *part]) for name, part in self._part.items()}

    def write(
        self, positions: NDArray[np.int64], round_: int, versions: NDArray[np.int64], kept: NDArray[np.int64],
        values: Values, started: Arrays | None = None, own_rows: OwnRows | None = None, touched: Ragged | None = None,
    ) -> None:  # fmt: skip
        """As `PrivateState.write`; what lies behind the group's size stays as it was."""
        whole = self._state.read(positions, versions)
        for name, part in self._part.items():
            whole[name][:, *part] = values[name]
        self._state.write(positions, round_, versions, kept, whole, started, own_rows)


def split(request: Request, specs: Sequence[Specs]) -> list[tuple[int, NDArray[np.int64], Request]]:
    """One request for each group that has users in it.

    Args:
        specs: the shared arrays of each group.
    Returns:
        for each of these groups its number, its users' places in the request, and a request as an ungrouped node
        gets it.
    Raises:
        WireError: users have no group, or the arrays of theirs did not come.
    """
    groups = request.personal.get("group")
    if not isinstance(groups, np.ndarray) or groups.dtype != np.int64 or groups.shape != request.users.shape:
        raise WireError("the personal array 'group' should be int64, with the group of each user")
    if len(groups) and not 0 <= groups.min() <= groups.max() < len(specs):
        raise WireError(f"a user was given group {groups.max()} (or one below 0), and this run has {len(specs)} groups")
    parts = []
    for group in np.unique(groups).tolist():
        places = np.flatnonzero(groups == group)
        came = {name for name in request.shared if name.startswith(f"{group}/")}
        if request.shared and came != {f"{group}/{name}" for name in specs[group]}:
            key = int(request.users[places[0]])
            raise WireError(f"user {key:016x} was given group {group}, and the arrays of that group did not come")
        part = _for_users(request, places)
        personal = {name: values for name, values in part.personal.items() if name != "group"}
        shared = {name.partition("/")[2]: request.shared[name] for name in sorted(came)}
        parts.append((group, places, replace(part, shared=shared, personal=personal)))
    return parts


def split_by_origin(
    request: EvaluateRequest, positions: NDArray[np.int64], state: PrivateState
) -> list[tuple[int, NDArray[np.int64], EvaluateRequest]]:
    """One request for the users of each of the common tables that own versions are from, with these tables in it.

    Args:
        positions: of the request's users among the hosted ones.
    """
    origins = state.origins(positions, request.versions)
    parts = []
    for number, origin in enumerate(np.unique(origins)):
        places = np.flatnonzero(origins == origin)
        part = _for_users(request, places)
        if origin:
            part = replace(part, shared={**request.shared, **state.origin(origin)})
        parts.append((number, places, part))
    return parts


def _for_users(request: Request, places: NDArray[np.int64]) -> Request:
    """The request for some of its users."""
    by_user: dict[str, Any] = {"users": request.users[places], "versions": request.versions[places]}
    if isinstance(request, TrainRequest):
        by_user |= {"kept": request.kept[places], "weights": request.weights[places]}
        by_user["telling"] = None if request.telling is None else np.flatnonzero(np.isin(places, request.telling))
    rows: NDArray[np.int64] = places
    if request.addressed is not None:
        by_user["addressed"] = np.flatnonzero(np.isin(places, request.addressed))
        rows = np.searchsorted(request.addressed, places[by_user["addressed"]])
    return replace(request, **by_user, personal={name: values[rows] for name, values in request.personal.items()})


def join_training(request: TrainRequest, parts: Sequence[tuple[int, NDArray[np.int64], TrainReply]]) -> TrainReply:
    """One reply from those of the groups: sums by group, and each user's share of its group's time."""
    sums: dict[str, PackedArray] = {}
    for group, places, reply in parts:
        for name, packed in reply.sums.items():
            values = packed.values
            # A group of one among others: its sum is not weighted, and the node's is.
            if len(places) == 1 and len(parts) > 1:
                values = request.weights[places[0]] * values.astype(np.float64)
            sums[f"{group}/{name}"] = PackedArray(packed.rows, values)
    users, joined = _order(request, parts)
    return TrainReply(
        users=users,
        loss=joined(lambda reply: reply.loss),
        upload_bytes=joined(lambda reply: reply.upload_bytes),
        sums=sums,
        reports={
            "seconds": joined(lambda reply: np.full(len(reply.users), reply.seconds / max(len(reply.users), 1), "f4"))
        },
        left_out={user: reason for _, _, reply in parts for user, reason in reply.left_out.items()},
        seconds=sum(reply.seconds for _, _, reply in parts),
    )


def join_evaluation(
    request: EvaluateRequest, parts: Sequence[tuple[int, NDArray[np.int64], EvaluateReply]]
) -> EvaluateReply:
    """One reply from those of the groups."""
    users, joined = _order(request, parts)
    return EvaluateReply(
        users=users,
        metrics=joined(lambda reply: reply.metrics),
        seconds=sum(reply.seconds for _, _, reply in parts),
        reports={name: joined(_told(name)) for name in parts[0][2].reports},
        left_out={user: reason for _, _, reply in parts for user, reason in reply.left_out.items()},
    )


Reply = TypeVar("Reply", TrainReply, EvaluateReply)


def _order(
    request: TrainRequest | EvaluateRequest, parts: Sequence[tuple[int, NDArray[np.int64], Reply]]
) -> tuple[Words, Callable[[Callable[[Reply], NDArray[np.generic]]], NDArray[Any]]]:
    """The users that are in a part's reply, in the order of the request, and a function that puts values so."""
    came = np.concatenate([reply.users for _, _, reply in parts])
    place = {int(user): number for number, user in enumerate(request.users)}
    order = np.argsort([place[int(user)] for user in came], kind="stable")
    return came[order], lambda values: np.concatenate([values(reply) for _, _, reply in parts])[order]


def _told(name: str) -> Callable[[EvaluateReply], NDArray[np.float32]]:
    return lambda reply: reply.reports[name]
