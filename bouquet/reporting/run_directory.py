"""The folder of a run: configuration, one line per round as it happens, and a summary that is true.

config.toml      everything needed to repeat the run, versions included; its last line is a digest of the others
metrics.jsonl    one line per round
events.jsonl     one line for everything that happened: rounds, nodes that came or left, refused replies
summary.json     status running | completed | failed | stopped; figures only when completed
data.json        of a file of one's own, how it was read and what is left out; for its owner only
users.safetensors  per-user metrics of the reported round, for paired tests
reported/        the model of the reported round, and what it would recommend
checkpoints/     what the server needs to resume
nodes/           private state of simulated nodes
.lock            held by the server of the run, .command by the command that started it, as long as they are at work

What a run is resumed from is checked against digests: config.toml here, metrics.jsonl against the checkpoint. Metrics
of single users are readable for the owner of the folder only; everything else as the umask says.
"""

from __future__ import annotations

import json
import os
import platform
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from bouquet.config import Scalar
from bouquet.errors import ConfigError, DataError, StateError
from bouquet.extras import is_there
from bouquet.files import digest_of, is_locked, locked, write_atomically
from bouquet.randomness import Words
from bouquet.reporting.documents import finite, read_document, write_document
from bouquet.reporting.reported import ReportedFolder
from bouquet.reporting.user_metrics import read_user_metrics, write_user_metrics

_STATUS = ("running", "completed", "failed", "stopped")
_DIGEST = re.compile(rb"# digest: ([0-9a-f]{32})\n\Z")
# What a killed command has started ends a moment after it.
_ENDING_SECONDS = 10.0

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
    def model(self) -> Path:
        """The model that was published last, of a method whose devices only count."""
        return self.path / "model.safetensors"

    @property
    def reported(self) -> ReportedFolder:
        """The model of the round that is reported, and what it would recommend."""
        return ReportedFolder(self.path / "reported")

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rows_by_user(self) -> Path:
        """What a method keeps of single users in files of its own, which belong to the newest checkpoint."""
        return self.checkpoints / "by-user"

    @property
    def nodes(self) -> Path:
        return self.path / "nodes"

    def work(self) -> AbstractContextManager[None]:
        """Be the only server that works in this folder; made if it is not there.

        Raises:
            ConfigError: another one does, and does not end within seconds.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        return locked(self._lock, self._occupied(), _ENDING_SECONDS)

    @contextmanager
    def command(self) -> Iterator[None]:
        """Be the only command that starts a run in this folder, while no server works in it.

        Raises:
            ConfigError: another one does, or a server works.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with locked(self._command, self._occupied()):
            with self.work():
                pass
            yield

    def is_at_work(self) -> bool:
        """Whether a server works in this folder."""
        return is_locked(self._lock)

    def remove_locks(self) -> None:
        """For a folder in which nobody will work any more."""
        for path in (self._lock, self._command):
            path.unlink(missing_ok=True)

    @property
    def _lock(self) -> Path:
        return self.path / ".lock"

    @property
    def _command(self) -> Path:
        return self.path / ".command"

    def _occupied(self) -> ConfigError:
        return ConfigError(f"Another run is at work in {self.path}. Wait until it has ended, or end it.")

    def create(
        self, config: Mapping[str, Scalar], engine: Mapping[str, Scalar], versions: Mapping[str, str] | None = None
    ) -> None:
        """Write the configuration and mark the run as running.

        Args:
            versions: of the packages, where the run was carried out elsewhere; None: those that are installed.

        Raises:
            OSError: the folder cannot be written.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if versions is None:
            versions = {name: version(name) for name in _PACKAGES if is_there(name)}
            versions["python"] = platform.python_version()
        # Where results went is no part of what would be repeated; private state in the folder is found there again.
        kept = {key: value for key, value in config.items() if key not in ("out", "resume")}
        if kept.get("state-dir") == str(self.nodes):
            del kept["state-dir"]
        document = {"run": kept, "engine": dict(engine), "versions": dict(versions)}
        text = tomli_w.dumps(document)
        write_atomically(self.config, f"{text}# digest: {digest_of(text.encode())}\n")
        self.write_summary({"status": "running"})

    def check_config(self) -> None:
        """Refuse to go on from settings that are not those that were written.

        Raises:
            StateError: the file is damaged, or somebody has changed it.
        """
        try:
            content = self.config.read_bytes()
        except OSError as error:
            raise StateError(f"{self.config} cannot be read ({error}).") from None
        found = _DIGEST.search(content)
        if not found or digest_of(content[: found.start()]).encode() != found[1]:
            raise StateError(
                f"{self.config} is damaged or was changed: its last line does not fit. A run goes on with the settings "
                "that it had; start one with others in a new folder."
            )

    def lines_until(self, server_round: int) -> str:
        """The digest of the lines of all rounds up to this one, as they stand in the file. Every round has one."""
        lines = self.metrics.read_bytes().split(b"\n")[:server_round] if self.metrics.exists() else []
        return digest_of(b"\n".join(lines))

    def begin(self, after_round: int) -> None:
        """Open the list of rounds; when a run is resumed, rounds after its checkpoint are taken back."""
        lines = self.metrics.read_bytes().split(b"\n")[:after_round] if self.metrics.exists() else []
        write_atomically(self.metrics, b"".join(line + b"\n" for line in lines))

    def append_round(self, server_round: int, record: Mapping[str, Any], *, durable: bool = False) -> None:
        """Add the line of one round.

        Args:
            durable: force this line, and all before it, to the disk.
        """
        line = json.dumps(finite({"round": server_round, **record})) + "\n"
        with self.metrics.open("a") as file:
            file.write(line)
            if durable:
                file.flush()
                os.fsync(file.fileno())

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

    def read_events(self) -> list[dict[str, Any]]:
        """What happened so far; a line that was cut off is left out."""
        if not self.events.exists():
            return []
        return [json.loads(line) for line in self.events.read_text().split("\n")[:-1] if line.endswith("}")]

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace the summary."""
        self.write_json(self.summary.name, summary)

    def write_stopped(self) -> None:
        """Say that the operator stopped the run, after the server in this folder has had its last word.

        A server whose run is ended under it fails in a moment of its own; what it says of that is not the reason. A
        run that completed all the same is left as completed.
        """
        try:
            with self.work():
                pass
        except ConfigError:
            pass  # it did not end in time: `write_failed` finds what is written here
        finally:
            if self.read_summary()["status"] != "completed":
                self.write_summary({"status": "stopped", "rounds": len(self.rounds())})

    def write_failed(self, reason: str) -> None:
        """Say why the run failed, unless it was stopped."""
        if self.read_summary()["status"] != "stopped":
            self.write_summary({"status": "failed", "error": reason})

    def read_summary(self) -> dict[str, Any]:
        """The summary.

        Raises:
            DataError: there is none, or it is damaged.
        """
        summary = self.read_json(self.summary.name)
        if not summary and not self.summary.exists():
            raise DataError(f"{self.path} is not the folder of a run: it has no summary.json.")
        if summary.get("status") not in _STATUS:
            raise DataError(f"{self.summary} is damaged: it has no status.")
        return summary

    def write_json(self, name: str, content: Mapping[str, Any], *, private: bool = False) -> None:
        """Write another document of the run, for example `comparison.json`."""
        write_document(self.path / name, content, private=private)

    def read_json(self, name: str) -> dict[str, Any]:
        """What `write_json` wrote; empty if it never did.

        Raises:
            DataError: it is damaged, or it has no digest.
        """
        return read_document(self.path / name)

    def read_config(self) -> dict[str, Any]:
        """The settings of the run.

        Raises:
            DataError: there is no such file, or it is damaged.
        """
        return self._read_config("run")

    def engine(self) -> dict[str, Any]:
        """How the run was carried out: engine and number of nodes. As `read_config`."""
        return self._read_config("engine")

    def versions(self) -> dict[str, Any]:
        """The packages that it ran with. As `read_config`."""
        return self._read_config("versions")

    def _read_config(self, table: str) -> dict[str, Any]:
        try:
            return dict(tomllib.loads(self.config.read_text()).get(table, {}))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise DataError(f"{self.config} cannot be read ({error}).") from None

    def write_users(self, users: Words, values: NDArray[np.floating], sizes: NDArray[np.integer] | None = None) -> None:
        """Per-user metrics of the reported round: keys [n] and [n, parts, candidate sets, metrics].

        Args:
            sizes: [n] training interactions of each user, which say how active it is.
        """
        write_user_metrics(self.users, users, values, sizes)

    def read_users(self) -> tuple[Words, NDArray[np.float32]]:
        """What `write_users` wrote.

        Raises:
            DataError: the file is missing or damaged.
        """
        arrays = read_user_metrics(self.users)
        return arrays["users"], arrays["metrics"]

    def read_sizes(self) -> NDArray[np.int64] | None:
        """[n] training interactions of the users of `read_users`; None where an older version wrote the file.

        Raises:
            DataError: as `read_users`.
        """
        return read_user_metrics(self.users).get("sizes")
