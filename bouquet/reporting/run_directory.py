"""The folder of a run: configuration, one line per round as it happens, and a summary that is true.

config.toml      everything needed to repeat the run, versions included
metrics.jsonl    one line per round
events.jsonl     one line for everything that happened: rounds, nodes that came or left, refused replies
summary.json     status running | completed | failed | stopped; figures only when completed
users.safetensors  per-user metrics of the reported round, for paired tests
checkpoints/     what the server needs to resume
nodes/           private state of simulated nodes
"""

from __future__ import annotations

import json
import math
import platform
import tomllib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from bouquet.config import Scalar
from bouquet.errors import DataError
from bouquet.files import write_atomically
from bouquet.randomness import Words

_PACKAGES = ("bouquet", "flwr", "torch", "numpy", "scipy", "pandas")


class RunDirectory:
    """Reads and writes the folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.path / "events.jsonl"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def users(self) -> Path:
        return self.path / "users.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    def create(self, config: Mapping[str, Scalar], engine: Mapping[str, Scalar]) -> None:
        """Write the configuration and mark the run as running.

        Raises:
            OSError: the folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        versions = {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()}
        # Where results went is no part of what would be repeated; private state in the folder is found there again.
        kept = {key: value for key, value in config.items() if key not in ("out", "resume")}
        if kept.get("state-dir") == str(self.nodes):
            del kept["state-dir"]
        document = {"run": kept, "engine": dict(engine), "versions": versions}
        write_atomically(self.config, tomli_w.dumps(document))
        self.write_summary({"status": "running"})

    def begin(self, after_round: int) -> None:
        """Open the list of rounds; when a run is resumed, rounds after its checkpoint are taken back."""
        kept = [line for line in self.rounds() if line["round"] <= after_round]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        write_atomically(self.metrics, text)

    def append_round(self, server_round: int, record: Mapping[str, Any]) -> None:
        """Add the line of one round."""
        line = json.dumps(_finite({"round": server_round, **record})) + "\n"
        with self.metrics.open("a") as file:
            file.write(line)

    def rounds(self) -> list[dict[str, Any]]:
        """All rounds so far; a last line that was cut off by a crash is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def rounds_after(self, place: int) -> tuple[list[dict[str, Any]], int]:
        """The rounds that were written after a place in the file, and the place to ask from next time."""
        size = self.metrics.stat().st_size if self.metrics.exists() else 0
        if size <= place:
            return [], size
        with self.metrics.open("rb") as file:
            file.seek(place)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        return [json.loads(line) for line in whole.splitlines()], place + len(whole)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the summary."""
        self.write_json(self.summary.name, summary)

    def read_summary(self) -> dict[str, Any]:
        """The summary.

        Raises:
            DataError: there is none, or it is damaged.
        """
        try:
            summary = json.loads(self.summary.read_text())
        except FileNotFoundError:
            raise DataError(f"{self.path} is not the folder of a run: it has no summary.json.") from None
        except ValueError as error:
            raise DataError(f"{self.summary} is damaged ({error}).") from None
        return dict(summary)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Write another document of the run, for example `comparison.json`."""
        write_atomically(self.path / name, json.dumps(_finite(content), indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        """What `write_json` wrote; empty if it never did."""
        path = self.path / name
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def read_config(self) -> dict[str, Any]:
        """The settings of the run."""
        return dict(tomllib.loads(self.config.read_text()).get("run", {}))

    def engine(self) -> dict[str, Any]:
        """How the run was carried out: engine and number of nodes."""
        return dict(tomllib.loads(self.config.read_text()).get("engine", {}))

    def write_users(self, users: Words, values: NDArray[np.floating]) -> None:
        """Per-user metrics of the reported round: keys [n] and [n, parts, candidate sets, metrics]."""
        write_atomically(self.users, save({"users": users, "metrics": np.ascontiguousarray(values, np.float32)}))

    def read_users(self) -> tuple[Words, NDArray[np.float32]]:
        """What `write_users` wrote.

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            arrays = load_file(self.users)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self.users} cannot be read ({error}).") from None
        return arrays["users"], arrays["metrics"]


def _finite(value: Any) -> Any:
    """The same value with NaN and infinity as null, which JSON has no other word for."""
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
