"""How far a run has moved what users keep: the relative distance of private arrays from where they began.

    moved(P) = mean over users of ‖P_u - P⁰_u‖ / ‖P⁰_u‖        Frobenius norms

P_u is what the user's last training left, which may be a later round than the reported one. P⁰_u is the initial value
of a private array; of a common table that each user fine-tunes and keeps (PFedRec) it is the common table that this
fine-tuning began with. A method with a private half that has hardly moved was not tested: it is its shared half.

Read from the private state of a simulation after its last round, at most `MOST_BYTES` of it: users evenly spaced over
every node. Nothing of it is sent, and a mean over fewer than `LEAST` users is not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.config import Scalar
from bouquet.errors import StateError
from client_app.node.host import Host, host_of
from client_app.state.index import names_in
from client_app.state.private import PrivateState

MOST_BYTES = 2**28
# Means over fewer users would say too much about them.
LEAST = 5

Ratios = dict[str, list[NDArray[np.float64]]]


def movement(settings: Mapping[str, Scalar], nodes: int) -> dict[str, Any]:
    """What a finished simulation moved, for `summary.json`.

    Returns:
        `users`, how many were looked at, `tables`, by name the private item tables, and `others`; empty where users
        have no item tables of their own, or their state is out of reach.
    """
    ratios: Ratios = {}
    tables: set[str] = set()
    users = 0
    for partition in range(nodes):
        host = host_of(settings, {"partition-id": partition, "num-partitions": nodes})
        state = _state_of(host)
        if state is None:
            return {}
        tables |= {name for name, spec in state.specs.items() if spec.by_item} | set(host.tuned)
        if not tables:
            return {}
        try:
            users += _look(host, state, MOST_BYTES // nodes, ratios)
        except StateError:  # the run is complete without this figure; who goes on from the state is told what is wrong
            return {}
    means = {name: np.concatenate(found) for name, found in sorted(ratios.items())}
    if users < LEAST:
        return {}
    moved = {name: float(values.mean()) for name, values in means.items() if len(values)}
    return {
        "users": users,
        "tables": {name: value for name, value in moved.items() if name in tables},
        "others": {name: value for name, value in moved.items() if name not in tables},
    }


def _state_of(host: Host) -> PrivateState | None:
    """The private state of the only run series in reach; None where there is none, or another number."""
    root: Path = host.folders.root
    series = [path.name for path in root.iterdir() if (path / host.folders.node).is_dir()] if root.is_dir() else []
    if len(series) != 1:
        return None
    try:
        there = names_in(host.folders.of_node(series[0]))
        return host.state(series[0], {name: spec for name, spec in host.model_specs.items() if name not in there})
    except StateError:
        return None


def _look(host: Host, state: PrivateState, most_bytes: int, ratios: Ratios) -> int:
    """Add some users of a node; gives how many."""
    newest = state.newest()
    trained = np.flatnonzero(newest > 0)
    # Now and before; a user's own version of a common table takes as much as the table.
    per_user = 8 * sum(spec.size for spec in (*state.specs.values(), *host.tuned.values()))
    count = min(len(trained), max(1, most_bytes // max(per_user, 1)))
    chosen = trained[np.linspace(0, len(trained) - 1, count).astype(np.int64)] if len(trained) else trained
    for position in np.array_split(chosen, max(1, len(chosen) // 16)):
        now = state.read(position, newest[position])
        before = state.read(position, np.zeros(len(position), np.int64))
        for name in now:
            ratios.setdefault(name, []).append(_ratios(now[name] - before[name], before[name]))
        if host.tuned:
            _look_at_tuned(state, position, newest[position], ratios)
    return len(chosen)


def _look_at_tuned(
    state: PrivateState, positions: NDArray[np.int64], versions: NDArray[np.int64], ratios: Ratios
) -> None:
    origins, own = state.origins(positions, versions), state.own_rows(positions, versions)
    bounds = own.rows.indptr
    for name, values in own.values.items():
        found = []
        for place, origin in enumerate(origins):
            if not origin:
                continue
            table, mine = state.origin(origin)[name], slice(bounds[place], bounds[place + 1])
            # Rows that training did not touch are those of the common table.
            found.append(_ratios((values[mine] - table[own.rows.values[mine]])[None], table[None]))
        ratios.setdefault(name, []).extend(found)


def _ratios(change: NDArray[np.float32], before: NDArray[np.float32]) -> NDArray[np.float64]:
    """[k] norms of changes [k, …] over those of where they began; users who began with zeros are left out."""
    top, bottom = (
        np.sqrt(np.square(values.astype(np.float64)).reshape(len(values), -1).sum(axis=1))
        for values in (change, before)
    )
    return np.asarray(top[bottom > 0] / bottom[bottom > 0])
