"""What users start training from, and what they recommend with, a block of users at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays
from bouquet.errors import WireError
from bouquet.ragged import Ragged
from bouquet.wire import EvaluateRequest, TrainRequest
from client_app.node.groups import Prefixes
from client_app.node.host import Host
from client_app.personalization.round import Given
from client_app.state.private import PrivateState

# Private arrays of this many bytes are held in memory at once.
BLOCK_BYTES = 16 * 2**20


def given_to(
    host: Host, request: TrainRequest | EvaluateRequest, state: PrivateState | Prefixes, block: slice,
    positions: NDArray[np.int64], purpose: Literal["start", "deploy"], only: Ragged | None = None,
) -> Given:  # fmt: skip
    """What some users start training from, or recommend with; `only` as of `PrivateState.read`."""
    unread = unread_at_start(host) if purpose == "start" else frozenset[str]()
    versions = request.versions[block]
    rows, addressed = block, None
    if request.addressed is not None:
        rows = slice(*np.searchsorted(request.addressed, (block.start, block.stop)).tolist())
        addressed = request.addressed[rows] - block.start
    given = Given(request.shared, state.read(positions, versions, unread, only), addressed=addressed)
    personal = {name: values[rows] for name, values in request.personal.items()}
    if personal and not host.methods:
        raise WireError(f"the device has no use for arrays of single users such as '{next(iter(personal))}'")
    for method in host.methods:
        given = getattr(method, purpose)(given, personal, versions == 0)
    return given


def deployed(
    host: Host, request: TrainRequest | EvaluateRequest, state: PrivateState | Prefixes, block: slice,
    positions: NDArray[np.int64],
) -> Given:  # fmt: skip
    """What some users recommend with, all that they have of their own as whole arrays."""
    given = given_to(host, request, state, block, positions, "deploy")
    if not (host.tuned and isinstance(state, PrivateState)):
        return given
    origins = state.origins(positions, request.versions[block])
    own_rows = state.own_rows(positions, request.versions[block])
    for name in host.tuned:
        tables = np.repeat(given.shared[name][None], len(positions), axis=0)
        for origin in np.unique(origins[origins > 0]):
            tables[origins == origin] = state.origin(origin)[name]
        own_rows.put(name, tables)
        given = given.with_own(name, tables)
    return given


def unread_at_start(host: Host) -> frozenset[str]:
    """The users' own versions that nobody starts training from; a plug-in may want what the base method does not."""
    wanted = frozenset[str]().union(*(method.kept - method.replaced for method in host.methods))
    return frozenset[str]().union(*(method.replaced for method in host.methods)) - wanted


def used_by_rows(host: Host) -> bool:
    """Whether users' own versions of common tables are used as the rows in which they differ."""
    return bool(host.tuned) and not any(method.in_loss for method in host.methods)


def blocks_of(host: Host, shared: Arrays, count: int) -> Iterator[slice]:
    """Slices of the asked users whose private arrays fit the memory that we allow ourselves."""
    own = [spec.size for spec in host.private_specs(shared).values()]
    for spec in host.tuned.values():
        samples = (1 + host.config.negatives_per_positive) * len(host.histories.train.values)
        rows = min(spec.shape[0], samples // max(len(host.histories.users), 1) + 1)
        own.append(rows * spec.size // spec.shape[0] if used_by_rows(host) else spec.size)
    if any(method.tuning is not None for method in host.methods):  # then every user has its own network for a while
        own += [spec.size for name, spec in host.model_specs.items() if name in shared and not spec.by_item]
    per_user = 4 * sum(own)
    size = max(1, BLOCK_BYTES // max(per_user, 1))
    for start in range(0, max(count, 1), size):
        yield slice(start, min(start + size, count))
