"""What lying users send in place of their changes, in a simulation; `bouquet.attacks` says who they are.

With Δ_u the honest change of a lying user, s = `attack-strength`, t the target, V the item table as it came:

    noise       Gaussian numbers on the rows of Δ_u, as long as s Δ_u
    sign-flip   -s Δ_u
    push        Δ_u, with Δ_u[t] = s · max_i ‖Δ_u[i]‖ along Σ Δ_u[i] over the user's own items: what moves an item
                towards those who like what this user likes   (explicit boosting; Zhang et al., WSDM 2022, PipAttack)
    replace     all of the push with s = 1, s times   (model replacement; Bagdasaryan et al., AISTATS 2020)
    align       Δ_u, with Δ_u[t] = s (V̄ - V[t]), V̄ the mean of the ten items that have moved farthest from where all
                began towards the user's own items: the popular ones   (PIECK-IPE; Zhang et al., ICDE 2024)

PIECK takes the sizes of movements over some rounds for popularity. With several negatives per positive the rows of
items that nobody likes move as far, the other way; so here it is the movement along what the liar's own items have
moved beyond the mean of all. Their movement alone would not do: of who has many items that few others like, most have
gone where the unliked go. Where a table began follows from the run's seed, so the whole way is known. Liars do not
clip, and put no noise on what they send. What they keep for themselves is honest.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import initial_shared
from bouquet.attacks import liars, target_of
from bouquet.randomness import Purpose, normals
from client_app.node.host import Host
from client_app.personalization.round import Changes
from client_app.training import LocalTask

# Items whose mean the target is made equal to.
POPULAR = 10

Rows = dict[str, NDArray[np.floating]]


def lying_among(host: Host, task: LocalTask, changes: Changes) -> NDArray[np.bool_]:
    """[c] which of the users of these changes lie; nobody where there is no attack."""
    if host.config.attack == "none":
        return np.zeros(len(changes.users), dtype=bool)
    return liars(host.config, task.users[changes.users])


def lies(host: Host, task: LocalTask, changes: Changes) -> Changes:
    """What lying users send.

    Args:
        changes: of lying users, as training left them.
    """
    config, target = host.config, target_of(host.config, task.num_items)
    moved = _moved(host, task) if config.attack == "align" else {}
    rows: list[NDArray[np.integer]] = []
    by_item: dict[str, list[NDArray[np.floating]]] = {name: [] for name in changes.by_item}
    dense = {name: values.copy() for name, values in changes.dense.items()}
    for c, user in enumerate(changes.users.tolist()):
        place = slice(int(changes.rows.indptr[c]), int(changes.rows.indptr[c + 1]))
        items: NDArray[np.integer] = changes.rows.row(c)
        own: Rows = {name: values[place] for name, values in changes.by_item.items()}
        if config.attack in ("push", "replace", "align") and own:
            items, own = _with_row(items, own, target)
            at = int(np.searchsorted(items, target))
            liked = np.isin(items, task.positives.row(user)) & (items != target)
            for name, values in own.items():
                if config.attack == "align":
                    if name in moved:
                        table = task.shared[name]
                        popular = _popular(moved[name], task.positives.row(user))
                        values[at] = config.attack_strength * (table[popular].mean(axis=0) - table[target])
                else:
                    values[at] = (config.attack_strength if config.attack == "push" else 1.0) * _push(values, liked)
        if config.attack in ("replace", "sign-flip"):
            scale = config.attack_strength * (1 if config.attack == "replace" else -1)
            own = {name: scale * values for name, values in own.items()}
            for values in dense.values():
                values[c] *= scale
        if config.attack == "noise":
            parts = [*own.values(), *(values[c] for values in dense.values())]
            length = config.attack_strength * np.sqrt(sum(float((part.astype(float) ** 2).sum()) for part in parts))
            stream = host.draws.streams(task.users[user : user + 1], task.round, Purpose.LIARS)
            drawn = normals(stream, sum(part.size for part in parts))[0]
            drawn *= length / max(float(np.linalg.norm(drawn)), 1e-30)
            numbers = np.split(drawn, np.cumsum([part.size for part in parts])[:-1])
            made = [number.reshape(part.shape) for number, part in zip(numbers, parts, strict=True)]
            own = dict(zip(own, made[: len(own)], strict=True))
            for values, number in zip(dense.values(), made[len(own) :], strict=True):
                values[c] = number
        rows.append(items)
        for name, values in own.items():
            by_item[name].append(values.astype(np.float32))
    return changes.rebuilt(rows, by_item, dense)


def _with_row(items: NDArray[np.integer], own: Rows, target: int) -> tuple[NDArray[np.integer], Rows]:
    """The same rows as copies, and one of the target, of zeros if there is none."""
    at = int(np.searchsorted(items, target))
    if at < len(items) and items[at] == target:
        return items, {name: values.copy() for name, values in own.items()}
    return np.insert(items, at, target), {name: np.insert(values, at, 0, axis=0) for name, values in own.items()}


def _push(values: NDArray[np.floating], liked: NDArray[np.bool_]) -> NDArray[np.floating]:
    """As long as the longest row, along what the user's own items did."""
    flat = values.reshape(len(values), -1).astype(np.float64)
    along = flat[liked].sum(axis=0)
    length = float(np.linalg.norm(along))
    if length == 0:
        return np.zeros(values.shape[1:])
    return (np.linalg.norm(flat, axis=1).max() * along / length).reshape(values.shape[1:])


def _moved(host: Host, task: LocalTask) -> Rows:
    """By common table, [m, …] how far its rows are from where they began."""
    tables = {name: host.model_specs[name] for name in task.shared if host.model_specs[name].by_item}
    return {
        name: task.shared[name] - initial_shared({name: spec}, host.config.seed)[name] for name, spec in tables.items()
    }


def _popular(moved: NDArray[np.floating], own: NDArray[np.integer]) -> NDArray[np.int64]:
    """The items that have moved farthest along what these have moved beyond the mean of all."""
    flat = moved.reshape(len(moved), -1).astype(np.float64)
    along = flat[own].mean(axis=0) - flat.mean(axis=0)
    return np.argsort(-(flat @ along), kind="stable")[:POPULAR]
