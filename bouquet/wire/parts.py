"""What several messages have: versions, places among users, who is left out, and that a reply is of this round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast, get_args

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from bouquet.cells import Cells
from bouquet.errors import WireError
from bouquet.randomness import Words
from bouquet.records import (
    LONGEST_REASON,
    read_array,
    read_config,
    read_left_out,
    read_raw,
    read_record,
    read_scalar,
    words_to_array,
)
from bouquet.wire.declared import REPORTS, Update


def cell_arrays(cells: Mapping[str, Cells]) -> dict[str, NDArray[Any]]:
    """Cells as they travel."""
    return {f"{name}/{part}": value for name, found in cells.items() for part, value in vars(found).items()}


def refuse_other_round(content: RecordDict, series: str, round_: int) -> None:
    """A reply is to what was asked now, and not one that was good some rounds ago.

    Raises:
        WireError: it is of another round or series, or does not say.
    """
    config = read_config(content)
    if read_scalar(config, "series", str) != series:
        raise WireError("the reply is to a request of another run")
    if (found := read_scalar(config, "round", int)) != round_:
        raise WireError(f"the reply is to round {found} and not to round {round_}")


def left_out_arrays(users: Mapping[int, str]) -> dict[str, NDArray[Any]]:
    """The two arrays that say who is left out and why; none where nobody is."""
    if not users:
        return {}
    reasons = tuple(" ".join(reason.split())[:LONGEST_REASON] for reason in users.values())
    return {"left_out": np.array(list(users), dtype=np.uint64), "reasons": words_to_array(reasons)}


def read_who_is_left_out(content: RecordDict, users: Words, asked: Words) -> dict[int, str]:
    """The inverse; refuses a reply that is not about the users that were asked for, each in it or left out."""
    left_out = read_left_out(content)
    expected = asked[~np.isin(asked, np.array(list(left_out), dtype=np.uint64))]
    if not np.array_equal(users, expected) or len(users) + len(left_out) != len(asked):
        raise WireError("the reply is about other users than those asked for")
    return left_out


def read_update(config: ConfigRecord) -> Update:
    update = read_scalar(config, "update", str)
    if update not in get_args(Update):
        raise WireError(f"unknown kind of update '{update}'")
    return cast(Update, update)


def read_versions(content: RecordDict, name: str, users: Words) -> NDArray[np.int64]:
    versions = read_array(content, "users", name, np.int64, users.shape)
    if (versions < 0).any():
        raise WireError(f"the array '{name}' has a round below 0")
    return versions


def some(name: str, places: NDArray[np.int64] | None) -> dict[str, NDArray[np.int64]]:
    """The array that says which of the users are meant; none where all are."""
    return {} if places is None else {name: places}


def read_places(content: RecordDict, name: str, users: Words) -> NDArray[np.int64] | None:
    if name not in read_record(content, "users"):
        return None
    places = read_raw(content, "users", name)
    good = places.dtype == np.int64 and places.ndim == 1
    if not good or (np.diff(places, prepend=-1) <= 0).any() or (places >= len(users)).any():
        raise WireError(f"'{name}' should be ascending places among {len(users)} users")
    return places


def read_wanted(config: ConfigRecord) -> tuple[str, ...]:
    wanted = tuple(filter(None, read_scalar(config, "reports", str).split(",")))
    if not set(wanted) <= REPORTS:
        raise WireError(f"the server asks for reports {wanted}, and this node knows {', '.join(sorted(REPORTS))}")
    return wanted


def read_seconds(config: ConfigRecord) -> float:
    seconds = float(read_scalar(config, "seconds", float))
    if not 0 <= seconds < math.inf:
        raise WireError(f"the node's {seconds} seconds are impossible")
    return seconds
