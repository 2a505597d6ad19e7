"""What the server must remember to go on exactly where it was.

One file per checkpoint, written atomically; the last two are kept, so that a crash while writing leaves one.
Private state is not in it: nodes keep theirs, and keep the version of the last checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bouquet.arrays import Arrays, Specs
from bouquet.errors import ConfigError, StateError
from bouquet.evaluation import summarise
from bouquet.files import write_atomically
from bouquet.randomness import Words
from strategies.selection import BestRound

_FORMAT = "1"


@dataclass(frozen=True)
class Checkpoint:
    """The server after a round.

    Attributes:
        series: names the private state on the nodes.
        round: the round that was finished.
        shared: shared arrays.
        extra: what else the method keeps.
        users: [n] roster keys, in the order of every per-user array.
        sizes: [n] training interactions.
        trained: [n] who has trained.
        best: best evaluated round so far.
    """

    series: str
    round: int
    shared: Arrays
    extra: dict[str, NDArray[Any]]
    users: Words
    sizes: NDArray[np.int64]
    trained: NDArray[np.bool_]
    best: BestRound


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> None:
    """Write a checkpoint and drop the oldest ones.

    Args:
        keep: how many files stay.
    Raises:
        OSError: the disk is full; earlier checkpoints stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[Any]] = {f"shared/{name}": values for name, values in checkpoint.shared.items()}
    arrays |= {f"extra/{name}": values for name, values in checkpoint.extra.items()}
    arrays |= {"sizes": checkpoint.sizes}
    arrays |= {"users": checkpoint.users, "trained": checkpoint.trained, "best": checkpoint.best.values}
    metadata = {
        "format": _FORMAT,
        "series": checkpoint.series,
        "round": str(checkpoint.round),
        "best": json.dumps({"round": checkpoint.best.round, "score": checkpoint.best.score}),
    }
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    write_atomically(folder / f"round-{checkpoint.round:06d}.safetensors", save(arrays, metadata))
    for old in sorted(folder.glob("round-*.safetensors"))[:-keep]:
        old.unlink()


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run, or None if it has none.

    Raises:
        StateError: the file is damaged.
    """
    paths = sorted(folder.glob("round-*.safetensors"))
    if not paths:
        return None
    try:
        with safe_open(paths[-1], framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StateError(f"{paths[-1]} is damaged and cannot be read ({error}).") from None
    if metadata.get("format") != _FORMAT:
        raise StateError(f"{paths[-1]} has format '{metadata.get('format')}'; this version reads '{_FORMAT}'.")
    best = json.loads(metadata["best"])
    values = arrays["best"]
    return Checkpoint(
        series=metadata["series"],
        round=int(metadata["round"]),
        shared={name.removeprefix("shared/"): a for name, a in arrays.items() if name.startswith("shared/")},
        extra={name.removeprefix("extra/"): a for name, a in arrays.items() if name.startswith("extra/")},
        users=arrays["users"],
        # Checkpoints of earlier versions had no sizes; nodes tell them again.
        sizes=arrays.get("sizes", np.ones(len(arrays["users"]), np.int64)),
        trained=arrays["trained"],
        best=BestRound(best["round"], best["score"], summarise(values) if best["round"] else {}, values),
    )


def refuse_other_model(checkpoint: Checkpoint, specs: Specs) -> None:
    """A checkpoint goes on with the model that made it.

    Raises:
        ConfigError: an array has another shape, for example because the catalogue has changed.
    """
    for name, spec in specs.items():
        if name not in checkpoint.shared or checkpoint.shared[name].shape != spec.shape:
            before = list(checkpoint.shared[name].shape) if name in checkpoint.shared else "not there"
            raise ConfigError(
                f"The checkpoint cannot go on: '{name}' was {before} and is now {list(spec.shape)}. "
                "With another catalogue or model, start a new run."
            )
