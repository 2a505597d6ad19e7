"""What the server must remember to go on exactly where it was.

One file per checkpoint, written atomically; the last two are kept, so that a crash while writing leaves one. It carries
a digest of itself and of the rounds' lines up to it, and nobody else on the machine can read it: what it holds by user
is for the server alone. Private state is not in it: nodes keep theirs, and keep the version of the last checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bouquet.arrays import Arrays, Specs
from bouquet.checked import checked_tensors, read_checked
from bouquet.errors import ConfigError, StateError
from bouquet.evaluation import summarise
from bouquet.files import private_folder, write_atomically
from bouquet.randomness import Words
from bouquet.reporting.run_directory import RunDirectory
from strategies.federation.best_round import BestRound

_FORMAT = "3"


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
        versions: [n] the round of each user's last update; 0: none.
        best: best evaluated round so far.
        owners: [n] the node that each user belongs to; 0: nobody's, where nodes have no keys.
        lines: digest of the lines of all rounds up to this one.
    """

    series: str
    round: int
    shared: Arrays
    extra: dict[str, NDArray[Any]]
    users: Words
    sizes: NDArray[np.int64]
    versions: NDArray[np.int64]
    best: BestRound
    owners: NDArray[np.uint64]
    lines: str

    @property
    def owner_of(self) -> dict[int, int]:
        """The node of every user that belongs to one: key -> node."""
        known = self.owners > 0
        return dict(zip(self.users[known].tolist(), self.owners[known].tolist(), strict=True))


def save_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int = 2) -> None:
    """Write a checkpoint and drop the oldest ones.

    Args:
        keep: how many files stay.
    Raises:
        OSError: the disk is full; earlier checkpoints stay.
    """
    private_folder(folder)
    arrays: dict[str, NDArray[Any]] = {f"shared/{name}": values for name, values in checkpoint.shared.items()}
    arrays |= {f"extra/{name}": values for name, values in checkpoint.extra.items()}
    arrays |= {"sizes": checkpoint.sizes, "owners": checkpoint.owners}
    arrays |= {"users": checkpoint.users, "versions": checkpoint.versions, "best": checkpoint.best.values}
    metadata = {
        "format": _FORMAT,
        "series": checkpoint.series,
        "round": str(checkpoint.round),
        "best": json.dumps({"round": checkpoint.best.round, "score": checkpoint.best.score}),
        "lines": checkpoint.lines,
    }
    path = folder / f"round-{checkpoint.round:06d}.safetensors"
    write_atomically(path, checked_tensors(arrays, metadata), private=True)
    for old in sorted(folder.glob("round-*.safetensors"))[:-keep]:
        old.unlink()


def last_round(folder: Path) -> int:
    """The round of the newest checkpoint, without reading it; 0: there is none."""
    paths = sorted(folder.glob("round-*.safetensors"))
    return int(paths[-1].stem.removeprefix("round-")) if paths else 0


def load_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a run, or None if it has none.

    Raises:
        StateError: the file is damaged.
    """
    paths = sorted(folder.glob("round-*.safetensors"))
    if not paths:
        return None
    arrays, metadata = read_checked(paths[-1])
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
        sizes=arrays["sizes"],
        versions=arrays["versions"],
        best=BestRound(best["round"], best["score"], summarise(values) if best["round"] else {}, values),
        owners=arrays["owners"],
        lines=metadata["lines"],
    )


def refuse_other_lines(checkpoint: Checkpoint, directory: RunDirectory) -> None:
    """A run goes on after the lines that it wrote.

    Raises:
        StateError: a line up to the checkpoint is damaged or missing.
    """
    if directory.lines_until(checkpoint.round) != checkpoint.lines:
        raise StateError(
            f"{directory.metrics} is damaged or was changed: its first {checkpoint.round} lines are not those of the "
            "checkpoint's run."
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
